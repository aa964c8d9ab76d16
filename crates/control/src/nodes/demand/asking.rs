//! What an autoscaler can be asked for: demand that a pod without the tenant's claims, volumes and names can stand for.

use super::{affinity::NodeRules, translate::HOST_NAME, workload::DRA};
use berth_planner::PodSet;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use std::collections::BTreeMap;

/// Alternatives that the affinities of a demand may come to together, and expressions of each affinity. Pods of a gang may each
/// have affinities of their own, and a pod that stands for all of them must hold to all: with every pod the alternatives
/// multiply. Tenants write them.
const MOST_TERMS: usize = 64;
const MOST_EXPRESSIONS: usize = 256;

/// Whether nodes can be asked for: not for claims of devices, nor for nodes by their names, nor where affinities come to more
/// than can be written down.
pub(super) fn can_be_asked_for(
    pods: &[PodSet],
    selector: &BTreeMap<String, String>,
    affinities: &BTreeMap<String, (NodeRules, String)>,
) -> bool {
    let has_claims = pods
        .iter()
        .flat_map(|pods| pods.requests.keys())
        .any(|resource| resource.starts_with(DRA));
    if has_claims || selector.contains_key(HOST_NAME) {
        return false;
    }
    let mut alternatives: usize = 1;
    for (rules, _) in selector.keys().filter_map(|key| affinities.get(key)) {
        alternatives = alternatives.saturating_mul(rules.terms.len());
        let expressions: usize = rules.terms.iter().map(|term| expressions(term).len()).sum();
        let some_new_node = rules.terms.iter().any(|term| !names_nodes(term));
        if alternatives > MOST_TERMS || expressions > MOST_EXPRESSIONS || !some_new_node {
            return false;
        }
    }
    true
}

fn expressions(term: &NodeSelectorTerm) -> &[NodeSelectorRequirement] {
    term.match_expressions.as_deref().unwrap_or_default()
}

/// Whether only nodes that are there can be meant.
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
                selector: BTreeMap::new(),
                terms: serde_json::from_value(terms.clone()).unwrap(),
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
        can_be_asked_for(&[pods], &selector, &known)
    }

    #[test]
    fn gpus_are_asked_for_and_claims_are_not() {
        assert!(asks("nvidia.com/gpu", &[]));
        assert!(asks(
            "nvidia.com/gpu",
            &[json!([term("zone", "In"), term("rack", "Exists")])]
        ));
        assert!(!asks(&format!("{DRA}gpu.nvidia.com"), &[]));
    }

    #[test]
    fn nodes_by_their_names_are_not_asked_for() {
        let selector = [(HOST_NAME.to_owned(), "n1".to_owned())].into();
        assert!(!can_be_asked_for(&[], &selector, &BTreeMap::new()));
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
    fn affinities_that_multiply_are_not_asked_for() {
        let two = json!([term("a", "Exists"), term("b", "Exists")]);
        assert!(asks("nvidia.com/gpu", &vec![two.clone(); 6]));
        assert!(!asks("nvidia.com/gpu", &vec![two; 30]));
        let long: Vec<Value> = (0..=MOST_EXPRESSIONS)
            .map(|_| term("a", "Exists")["matchExpressions"][0].clone())
            .collect();
        assert!(!asks("nvidia.com/gpu", &[json!([{"matchExpressions": long}])]));
    }
}
