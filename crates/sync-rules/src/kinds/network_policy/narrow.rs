//! What a change of a policy takes away: rules only allow traffic, so that one which is gone in the tenant must not stay on the host while the
//! rest of the change waits.

use super::DIRECTIONS;
use crate::model::json;
use serde_json::{Value, json};

/// The policy `desired` without the rules that the host's, `live`, does not have, if `live` has rules that `desired` has not, or has them for other
/// pods.
pub(super) fn narrowed(desired: &Value, live: &Value) -> Option<Value> {
    let selects_others = desired["spec"]["podSelector"] != live["spec"]["podSelector"];
    let mut narrowed = desired.clone();
    let mut loses = false;
    for (direction, _) in DIRECTIONS {
        let (wanted, present) = (rules(desired, direction), rules(live, direction));
        loses |= present.iter().any(|rule| selects_others || !wanted.contains(rule));
        let kept = json::items(desired, &["spec", direction]).iter().zip(&wanted);
        let kept: Vec<Value> = kept
            .filter(|(_, rule)| !selects_others && present.contains(rule))
            .map(|(rule, _)| rule.clone())
            .collect();
        if let Some(spec) = narrowed["spec"].as_object_mut() {
            spec.remove(direction);
            if !kept.is_empty() {
                spec.insert(direction.into(), kept.into());
            }
        }
    }
    loses.then_some(narrowed)
}

/// The rules of a direction as an API server writes them: with the protocol of each port.
fn rules(policy: &Value, direction: &str) -> Vec<Value> {
    let mut rules = json!({"rules": json::items(policy, &["spec", direction])});
    json::each_mut(&mut rules, "rules[].ports[]", &mut |port| {
        if port.get("protocol").is_none() {
            port["protocol"] = "TCP".into();
        }
    });
    match rules["rules"].take() {
        Value::Array(rules) => rules,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(app: &str, ingress: &[&Value], egress: &[&Value]) -> Value {
        let mut spec = json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]});
        for (direction, rules) in [("ingress", ingress), ("egress", egress)] {
            if !rules.is_empty() {
                spec[direction] = json!(rules);
            }
        }
        json!({"metadata": {}, "spec": spec})
    }

    #[test]
    fn rules_that_are_lost_do_not_wait_for_those_that_are_new() {
        let rule =
            |peer: &str| json!({"ports": [{"port": 1}], "from": [{"podSelector": {"matchLabels": {"app": peer}}}]});
        let [a, b, c] = ["a", "b", "c"].map(rule);
        let mut live_a = a.clone();
        live_a["ports"][0]["protocol"] = "TCP".into();
        let live = policy("db", &[&live_a, &b], &[&c]);
        assert_eq!(
            narrowed(&policy("db", &[&a, &c], &[&c]), &live),
            Some(policy("db", &[&a], &[&c])),
            "one of three is in both"
        );
        assert_eq!(
            narrowed(&policy("db", &[], &[&c]), &live),
            Some(policy("db", &[], &[&c]))
        );
        for grown in [policy("db", &[&a, &b, &c], &[&c]), policy("db", &[&b, &a], &[&c, &a])] {
            assert_eq!(narrowed(&grown, &live), None, "nothing is lost");
        }
    }

    #[test]
    fn pods_that_are_no_longer_selected_lose_all_rules() {
        let rule = json!({"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]});
        let live = policy("db", &[], &[&rule]);
        assert_eq!(
            narrowed(&policy("web", &[], &[&rule]), &live),
            Some(policy("web", &[], &[]))
        );
        assert_eq!(
            narrowed(&policy("web", &[], &[&rule]), &policy("db", &[], &[])),
            None,
            "it had none"
        );
    }
}
