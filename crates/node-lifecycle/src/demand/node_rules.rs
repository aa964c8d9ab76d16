//! Which nodes a pod's node selector and required node affinity allow.

use berth_api::labels;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};
use std::collections::BTreeMap;

/// The only field that node affinity may select.
const NAME_FIELD: &str = "metadata.name";

/// Most bytes of memory of the rules of a pod. Control keeps those of all pods of all tenants: with a node affinity of 5,000 values, the 15,000
/// pods that a tenant may have would take 4 GB. This is room for about a hundred values.
const MOST_BYTES: usize = 8 * 1024;
/// What a text takes besides its bytes.
const BYTES_OF_TEXT: usize = 40;

/// The requirements of a pod on its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRules {
    /// Labels that the node must carry.
    pub selector: BTreeMap<String, String>,
    /// One of these must hold, if there are any.
    pub terms: Vec<NodeSelectorTerm>,
    /// What is known of rules that are too large to be kept. No node is found for them.
    pub too_large: Option<LargeRules>,
}

/// What is kept of rules that are too large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LargeRules {
    /// Whether they allow only nodes that they name.
    select_nodes_by_name: bool,
    /// Those labels of Berth that they mention.
    mention: Vec<&'static str>,
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
        let rules = Self {
            selector,
            terms,
            too_large: None,
        };
        if rules.count_bytes() > MOST_BYTES {
            rules.reduce()
        } else {
            rules
        }
    }

    /// Keeps only whether a pod needs a node with these rules.
    fn reduce(&self) -> Self {
        let mut mention = vec![labels::POOL, labels::NODE_GROUP];
        mention.retain(|label| self.mentions(label));
        Self {
            too_large: Some(LargeRules {
                select_nodes_by_name: self.selects_nodes_by_name(),
                mention,
            }),
            ..Self::default()
        }
    }

    /// About the memory that they take.
    fn count_bytes(&self) -> usize {
        let of_text = |text: &String| text.len() + BYTES_OF_TEXT;
        let selector = self.selector.iter();
        let of_selector: usize = selector.map(|(key, value)| of_text(key) + of_text(value)).sum();
        let of_requirement = |one: &NodeSelectorRequirement| {
            let values: usize = one.values.iter().flatten().map(of_text).sum();
            of_text(&one.key) + of_text(&one.operator) + values
        };
        let of_term = |term: &NodeSelectorTerm| {
            let requirements = term.match_expressions.iter().chain(&term.match_fields).flatten();
            size_of::<NodeSelectorTerm>() + requirements.map(of_requirement).sum::<usize>()
        };
        of_selector + self.terms.iter().map(of_term).sum::<usize>()
    }

    /// How many labels and values it has.
    pub fn count_values(&self) -> usize {
        let expressions = self.terms.iter().flat_map(|term| {
            let all = term.match_expressions.iter().chain(&term.match_fields);
            all.flatten()
        });
        let of_terms: usize = expressions.map(|one| 1 + one.values.as_ref().map_or(0, Vec::len)).sum();
        self.selector.len() + of_terms
    }

    /// Whether the pod can run only on nodes that it names. These exist already: another node does not help.
    pub fn selects_nodes_by_name(&self) -> bool {
        if let Some(large) = &self.too_large {
            return large.select_nodes_by_name;
        }
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
        if let Some(large) = &self.too_large {
            return large.mention.contains(&label);
        }
        self.selector.contains_key(label) || self.terms_mention(label)
    }

    /// Whether the terms mention a label.
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
        if self.too_large.is_some() {
            return false;
        }
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

    /// The terms as text, for messages and to compare them.
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

/// Rules with the same description are the same rules, also of several tenants: values that could be mistaken for other words are quoted.
fn describe_requirement(requirement: &NodeSelectorRequirement) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let describe = |value: &String| {
        let can_be_mistaken = value.is_empty() || !value.chars().all(is_plain);
        if can_be_mistaken {
            format!("{value:?}")
        } else {
            value.clone()
        }
    };
    let values: Vec<String> = requirement.values.iter().flatten().map(describe).collect();
    let values = values.join(", ");
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
    fn rules_with_the_same_description_are_the_same() {
        let describe = |values: &[&str]| required(&json!([expression("gpu", "In", values)])).describe_terms();
        assert_eq!(describe(&["H100", "H200"]), "gpu in (H100, H200)");
        assert_ne!(describe(&["H100", "H200"]), describe(&["H100, H200"]));
        assert_ne!(describe(&[""]), describe(&[]));
        assert_ne!(describe(&["a\"", "b"]), describe(&["a", "\"b"]));
    }

    #[test]
    fn of_rules_that_are_too_large_only_the_need_is_kept() {
        let values: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
        let large = required(&json!([{"matchExpressions": [
            {"key": "berth.dev/pool", "operator": "In", "values": ["h100"]},
            {"key": "rack", "operator": "NotIn", "values": values},
        ]}]));
        assert!(large.selector.is_empty() && large.terms.is_empty());
        assert!(large.mentions(labels::POOL) && !large.mentions(labels::NODE_GROUP));
        assert!(!large.selects_nodes_by_name());
        assert!(
            !allows(&large, &[("berth.dev/pool", "h100")]),
            "no node is found for it"
        );
        let rules = required(&json!([expression("rack", "In", &["r1"; 90])]));
        assert_eq!(rules.too_large, None);
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
