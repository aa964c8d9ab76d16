//! Demand for which an autoscaler can add nodes: a placeholder without the tenant's claims, volumes and names can represent it.

use super::{node_rules::NodeRules, translate::HOST_NAME, workload::DRA_PREFIX};
use berth_planner::PodSet;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use std::collections::BTreeMap;

/// Limits of the combined affinities of a demand, which tenants write: alternatives together, and expressions of each. Each pod
/// of a gang may have affinities of its own, and a placeholder must satisfy all of them, so the alternatives multiply.
const MAX_TERMS: usize = 64;
const MAX_EXPRESSIONS: usize = 256;

/// Whether an autoscaler can help: not with claims of devices, nodes by name, or affinities beyond the limits.
pub(super) fn can_scale_up_for(
    pods: &[PodSet],
    selector: &BTreeMap<String, String>,
    affinities: &BTreeMap<String, (NodeRules, String)>,
) -> bool {
    let has_claims = pods
        .iter()
        .flat_map(|pods| pods.requests.keys())
        .any(|resource| resource.starts_with(DRA_PREFIX));
    if has_claims || selector.contains_key(HOST_NAME) {
        return false;
    }
    let mut alternatives: usize = 1;
    for (rules, _) in selector.keys().filter_map(|key| affinities.get(key)) {
        alternatives = alternatives.saturating_mul(rules.terms.len());
        let expressions: usize = rules.terms.iter().map(|term| expressions(term).len()).sum();
        let some_new_node = rules.terms.iter().any(|term| !names_nodes(term));
        if alternatives > MAX_TERMS || expressions > MAX_EXPRESSIONS || !some_new_node {
            return false;
        }
    }
    true
}

fn expressions(term: &NodeSelectorTerm) -> &[NodeSelectorRequirement] {
    term.match_expressions.as_deref().unwrap_or_default()
}

/// Whether the term names existing nodes.
fn names_nodes(term: &NodeSelectorTerm) -> bool {
    let by_field = term.match_fields.iter().flatten().any(|field| field.operator == "In");
    let by_label = expressions(term)
        .iter()
        .any(|one| one.key == HOST_NAME && one.operator == "In");
    by_field || by_label
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn affinities(all: &[Value]) -> (BTreeMap<String, String>, BTreeMap<String, (NodeRules, String)>) {
        let named = all.iter().enumerate().map(|(number, terms)| {
            let rules = NodeRules {
                terms: serde_json::from_value(terms.clone()).unwrap(),
                ..NodeRules::default()
            };
            (format!("affinity {number}"), (rules, String::new()))
        });
        let known: BTreeMap<_, _> = named.collect();
        (known.keys().map(|key| (key.clone(), "true".into())).collect(), known)
    }

    fn term(key: &str, operator: &str) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": ["a"]}]})
    }

    fn asks(each: &str, all: &[Value]) -> bool {
        let (selector, known) = affinities(all);
        let pods = PodSet {
            count: 1,
            requests: [(each.to_owned(), 1)].into(),
        };
        can_scale_up_for(&[pods], &selector, &known)
    }

    #[test]
    fn autoscalers_help_with_gpus_and_not_with_claims() {
        assert!(asks("nvidia.com/gpu", &[]));
        assert!(asks(
            "nvidia.com/gpu",
            &[json!([term("zone", "In"), term("rack", "Exists")])]
        ));
        assert!(!asks(&format!("{DRA_PREFIX}gpu.nvidia.com"), &[]));
    }

    #[test]
    fn autoscalers_do_not_help_with_nodes_by_name() {
        let selector = [(HOST_NAME.to_owned(), "n1".to_owned())].into();
        assert!(!can_scale_up_for(&[], &selector, &BTreeMap::new()));
        assert!(!asks("nvidia.com/gpu", &[json!([term(HOST_NAME, "In")])]));
        assert!(asks(
            "nvidia.com/gpu",
            &[json!([term(HOST_NAME, "In"), term("zone", "In")])]
        ));
        assert!(asks("nvidia.com/gpu", &[json!([term(HOST_NAME, "NotIn")])]));
        let by_field = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
        assert!(!asks("nvidia.com/gpu", &[by_field]));
    }

    #[test]
    fn autoscalers_do_not_help_with_too_many_alternatives() {
        let two = json!([term("a", "Exists"), term("b", "Exists")]);
        assert!(asks("nvidia.com/gpu", &vec![two.clone(); 6]));
        assert!(!asks("nvidia.com/gpu", &vec![two; 30]));
        let long: Vec<Value> = (0..=MAX_EXPRESSIONS)
            .map(|_| term("a", "Exists")["matchExpressions"][0].clone())
            .collect();
        assert!(!asks("nvidia.com/gpu", &[json!([{"matchExpressions": long}])]));
    }
}
