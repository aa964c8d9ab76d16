//! Which nodes a pod's node selector and required node affinity allow.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};
use std::collections::BTreeMap;

/// The only field that node affinity may select.
const NAME_FIELD: &str = "metadata.name";

/// The requirements of a pod on its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRules {
    /// Labels that the node must carry.
    pub selector: BTreeMap<String, String>,
    /// One of these must hold, if there are any.
    pub terms: Vec<NodeSelectorTerm>,
}

impl NodeRules {
    /// The requirements of `pod`, without the label `ignored`.
    pub fn of_pod(pod: &Pod, ignored: &str) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let mut selector = spec.node_selector.clone().unwrap_or_default();
        selector.remove(ignored);
        let terms = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref())
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
            .map(|required| required.node_selector_terms.clone())
            .unwrap_or_default();
        Self { selector, terms }
    }

    /// Whether the pod can run only on nodes that it names. These exist already: another node does not help.
    pub fn selects_nodes_by_name(&self) -> bool {
        let names = |term: &NodeSelectorTerm| {
            let fields = term.match_fields.iter().flatten();
            fields
                .into_iter()
                .any(|field| field.key == NAME_FIELD && field.operator == "In")
        };
        !self.terms.is_empty() && self.terms.iter().all(names)
    }

    /// Whether the selector or the terms mention a label.
    pub fn mentions(&self, label: &str) -> bool {
        self.selector.contains_key(label) || self.terms_mention(label)
    }

    pub fn terms_mention(&self, label: &str) -> bool {
        let mut requirements = self
            .terms
            .iter()
            .flat_map(|term| term.match_expressions.iter().flatten());
        requirements.any(|requirement| requirement.key == label)
    }

    /// Whether a node may serve the pod. `label` returns the node's labels.
    pub fn allow<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector.iter().all(|(key, value)| label(key) == Some(value)) && self.terms_allow(name, label)
    }

    /// Whether one of the terms holds, or there are none.
    pub fn terms_allow<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.is_empty()
            || self.terms.iter().any(|term| {
                let expressions = term.match_expressions.as_deref().unwrap_or_default();
                let fields = term.match_fields.as_deref().unwrap_or_default();
                // An empty term matches no node, as in Kubernetes.
                !(expressions.is_empty() && fields.is_empty())
                    && expressions.iter().all(|one| requirement_holds(one, label(&one.key)))
                    && fields
                        .iter()
                        .all(|one| one.key == NAME_FIELD && requirement_holds(one, Some(name)))
            })
    }

    pub fn describe_terms(&self) -> String {
        let term = |term: &NodeSelectorTerm| {
            let expressions = term.match_expressions.iter().flatten();
            let all: Vec<String> = expressions
                .chain(term.match_fields.iter().flatten())
                .map(describe_requirement)
                .collect();
            all.join(" and ")
        };
        self.terms.iter().map(term).collect::<Vec<_>>().join(", or ")
    }
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let limit = || number(values.first().map(String::as_str));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.iter().any(|one| one == value)),
        "NotIn" => value.is_none_or(|value| values.iter().all(|one| one != value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(limit()).is_some_and(|(value, limit)| value > limit),
        "Lt" => number(value).zip(limit()).is_some_and(|(value, limit)| value < limit),
        // An operator of a later version of Kubernetes: no node matches.
        _ => false,
    }
}

fn describe_requirement(requirement: &NodeSelectorRequirement) -> String {
    let values = requirement.values.as_deref().unwrap_or_default().join(", ");
    let key = &requirement.key;
    match requirement.operator.as_str() {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} not in ({values})"),
        "Exists" => format!("has {key}"),
        "DoesNotExist" => format!("has no {key}"),
        "Gt" => format!("{key} > {values}"),
        "Lt" => format!("{key} < {values}"),
        other => format!("{key} {other} ({values})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(spec: &Value) -> NodeRules {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "a"}]);
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        NodeRules::of_pod(&pod, "berth.dev/tenant")
    }

    fn required(terms: &Value) -> NodeRules {
        rules(&json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}}))
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    fn allows(rules: &NodeRules, labels: &[(&str, &str)]) -> bool {
        rules.allow("n1", |key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn selector_is_read_without_the_tenants_own_label() {
        let rules = rules(&json!({"nodeSelector": {"berth.dev/tenant": "t", "gpu": "H100"}}));
        assert!(allows(&rules, &[("gpu", "H100")]));
        assert!(!allows(&rules, &[("gpu", "L40S")]) && !allows(&rules, &[]));
    }

    #[test]
    fn every_operator_is_evaluated() {
        for (operator, values, value, expected) in [
            ("In", &["a", "b"][..], Some("b"), true),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], Some("a"), false),
            ("NotIn", &["a"], None, true),
            ("Exists", &[], Some("a"), true),
            ("DoesNotExist", &[], Some("a"), false),
            ("Gt", &["70000"], Some("81559"), true),
            ("Lt", &["70000"], Some("81559"), false),
            ("Gt", &["70000"], Some("many"), false),
            ("Near", &["a"], Some("a"), false),
        ] {
            let rules = required(&json!([expression("key", operator, values)]));
            let labels: Vec<_> = value.map(|value| ("key", value)).into_iter().collect();
            assert_eq!(allows(&rules, &labels), expected, "{operator} {values:?} {value:?}");
        }
    }

    #[test]
    fn one_term_is_enough_and_an_empty_one_matches_no_node() {
        let either = required(&json!([expression("a", "Exists", &[]), expression("b", "Exists", &[])]));
        assert!(allows(&either, &[("b", "")]) && !allows(&either, &[("c", "")]));
        assert_eq!(either.describe_terms(), "has a, or has b");
        assert!(!allows(&required(&json!([{}])), &[]));
    }

    #[test]
    fn pods_of_daemon_sets_name_their_node() {
        let field = |operator: &str| {
            let field = json!({"key": "metadata.name", "operator": operator, "values": ["n1"]});
            required(&json!([{"matchFields": [field]}]))
        };
        assert!(field("In").selects_nodes_by_name() && allows(&field("In"), &[]));
        assert!(!field("NotIn").selects_nodes_by_name() && !allows(&field("NotIn"), &[]));
        assert!(!required(&json!([expression("a", "Exists", &[])])).selects_nodes_by_name());
    }
}
