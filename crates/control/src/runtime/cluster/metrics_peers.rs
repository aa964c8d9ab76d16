//! Peers of NetworkPolicies in the platform's settings, checked as an API server checks them. One that it refuses would keep every tenant from its
//! NetworkPolicies, and so from all that comes after these.

use berth_api::{
    qualified_name::{is_label_value, is_qualified_name},
    ranges,
};
use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

/// Checks a peer.
///
/// # Errors
/// What is wrong with it, for the author of the settings.
pub(super) fn validate(peer: &NetworkPolicyPeer) -> Result<(), String> {
    let NetworkPolicyPeer {
        ip_block,
        namespace_selector,
        pod_selector,
    } = peer;
    let has_selector = namespace_selector.is_some() || pod_selector.is_some();
    match ip_block {
        Some(_) if has_selector => Err("ipBlock cannot be together with a selector".into()),
        Some(block) => validate_block(block),
        None if !has_selector => Err("it has no namespaceSelector, podSelector or ipBlock".into()),
        None => {
            let mut selectors = [namespace_selector, pod_selector].into_iter().flatten();
            selectors.try_for_each(validate_selector)
        }
    }
}

fn validate_block(block: &IPBlock) -> Result<(), String> {
    let cidr = ranges::parse(&block.cidr)?;
    for text in block.except.iter().flatten() {
        let except = ranges::parse(text)?;
        if except == cidr || !cidr.contains(&except) {
            return Err(format!("{text} is not a part of {}", block.cidr));
        }
    }
    Ok(())
}

fn validate_selector(selector: &LabelSelector) -> Result<(), String> {
    for (key, value) in selector.match_labels.iter().flatten() {
        validate_label(key, std::slice::from_ref(value))?;
    }
    for requirement in selector.match_expressions.iter().flatten() {
        let values = requirement.values.as_deref().unwrap_or_default();
        let is_complete = match requirement.operator.as_str() {
            "In" | "NotIn" => !values.is_empty(),
            "Exists" | "DoesNotExist" => values.is_empty(),
            _ => false,
        };
        if !is_complete {
            let key = &requirement.key;
            return Err(format!(
                "the requirement of {key} needs an operator: In or NotIn with values, or Exists or DoesNotExist without"
            ));
        }
        validate_label(&requirement.key, values)?;
    }
    Ok(())
}

fn validate_label(key: &str, values: &[String]) -> Result<(), String> {
    if !is_qualified_name(key) {
        return Err(format!("{key:?} cannot be the key of a label"));
    }
    match values.iter().find(|value| !is_label_value(value)) {
        Some(value) => Err(format!("{value:?} cannot be the value of a label")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn validate_json(peer: Value) -> Result<(), String> {
        validate(&serde_json::from_value(peer).unwrap())
    }

    #[test]
    fn peers_that_an_api_server_takes_are_valid() {
        for peer in [
            json!({"ipBlock": {"cidr": "192.0.2.7/32"}}),
            json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}),
            json!({"ipBlock": {"cidr": "fd00::/8", "except": []}}),
            json!({"namespaceSelector": {}}),
            json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus", "a": ""}}}),
            json!({"namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "In", "values": ["a", "b"]},
                {"key": "example.com/frozen", "operator": "DoesNotExist", "values": []},
            ]}, "podSelector": {}}),
        ] {
            assert_eq!(validate_json(peer.clone()), Ok(()), "{peer}");
        }
    }

    #[test]
    fn peers_that_an_api_server_refuses_are_invalid_and_the_message_names_the_value() {
        let requirement = |requirement: Value| json!({"podSelector": {"matchExpressions": [requirement]}});
        for (peer, named) in [
            (json!({}), "namespaceSelector"),
            (json!({"ipBlock": {"cidr": ""}}), "is not a range"),
            (json!({"ipBlock": {"cidr": "192.0.2.7"}}), "192.0.2.7"),
            (json!({"ipBlock": {"cidr": "192.0.2.0/33"}}), "192.0.2.0/33"),
            (json!({"ipBlock": {"cidr": "monitoring"}}), "monitoring"),
            (json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}), "x is not"),
            (
                json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["192.0.2.0/24"]}}),
                "192.0.2.0/24",
            ),
            (
                json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}),
                "10.0.0.0/8",
            ),
            (
                json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
                "ipBlock cannot",
            ),
            (json!({"podSelector": {"matchLabels": {"a b": "c"}}}), "a b"),
            (json!({"namespaceSelector": {"matchLabels": {"a": "b c"}}}), "b c"),
            (requirement(json!({"key": "a", "operator": "In"})), "a needs"),
            (
                requirement(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                "a needs",
            ),
            (
                requirement(json!({"key": "a", "operator": "Is", "values": ["b"]})),
                "a needs",
            ),
            (
                requirement(json!({"key": "a", "operator": "NotIn", "values": ["-"]})),
                "\"-\"",
            ),
        ] {
            let refusal = validate_json(peer.clone()).unwrap_err();
            assert!(refusal.contains(named), "{peer}: {refusal}");
        }
    }
}
