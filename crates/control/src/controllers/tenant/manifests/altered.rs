//! Whether an object came out of the tenant's API server as Berth applied it. Webhooks and mutating policies of the team see Berth's
//! requests. Pure.

use super::objects::ObjectKey;
use berth_api::labels;
use kube::api::DynamicObject;
use serde_json::Value;

/// Groups whose objects say who may do what. API servers add defaults to them and change nothing that is set.
const POLICY_GROUPS: [&str; 3] = [
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
];

/// Why an object is not as it was applied.
pub(crate) fn find_alteration(key: &ObjectKey, wanted: &Value, applied: &DynamicObject) -> Option<String> {
    let has_label = |label: &str, value: &Value| {
        let found = applied.metadata.labels.as_ref().and_then(|labels| labels.get(label));
        found.map(String::as_str) == value.as_str()
    };
    let wanted_labels = wanted["metadata"]["labels"].as_object();
    let lost = wanted_labels
        .into_iter()
        .flatten()
        .find(|(label, value)| !has_label(label, value));
    if let Some((label, _)) = lost {
        return Some(advise(&format!("metadata.labels[{label}]")));
    }
    if !POLICY_GROUPS.contains(&key.group.as_str()) {
        return None;
    }
    let fields = wanted.as_object()?;
    // A controller fills in the rules of a role that aggregates others.
    let is_aggregated = fields.contains_key("aggregationRule");
    let altered = fields
        .iter()
        .filter(|(field, _)| !["apiVersion", "kind", "metadata"].contains(&field.as_str()))
        .filter(|(field, _)| !(is_aggregated && *field == "rules"))
        .find(|(field, value)| !is_part_of(value, &applied.data[field.as_str()]));
    altered.map(|(field, _)| advise(field))
}

fn advise(field: &str) -> String {
    format!(
        "{field} is not as it was applied; a mutating webhook or policy in the tenant changes it, or the manifest does not write it as \
         the API server does (labels of {} decide whether the object is protected)",
        labels::MANAGED_BY
    )
}

/// Whether everything that is wanted is there. API servers add defaults, and leave out what is empty.
fn is_part_of(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Null) => wanted.values().all(|value| is_part_of(value, &Value::Null)),
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .all(|(field, value)| is_part_of(value, found.get(field).unwrap_or(&Value::Null))),
        (Value::Array(wanted), Value::Null) => wanted.is_empty(),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len()
                && wanted
                    .iter()
                    .zip(found)
                    .all(|(wanted, found)| is_part_of(wanted, found))
        }
        (Value::Null, _) | (Value::Bool(false), Value::Null) => true,
        (Value::String(text), Value::Null) => text.is_empty(),
        (Value::Number(number), Value::Null) => number.as_f64() == Some(0.0),
        (wanted, found) => wanted == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(group: &str) -> ObjectKey {
        ObjectKey {
            group: group.into(),
            kind: "NetworkPolicy".into(),
            namespace: Some("default".into()),
            name: "deny".into(),
        }
    }

    fn alteration(group: &str, wanted: &Value, applied: Value) -> Option<String> {
        let applied: DynamicObject = serde_json::from_value(applied).unwrap();
        find_alteration(&key(group), wanted, &applied)
    }

    fn policy(spec: &Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "deny", "labels": {"berth.dev/managed-by": "platform"}}, "spec": spec})
    }

    #[test]
    fn defaults_and_empty_values_are_no_alteration() {
        let wanted = policy(&json!({"podSelector": {}, "ingress": [], "egress": [{"ports": [{"port": 53}]}]}));
        let found = policy(
            &json!({"podSelector": {}, "egress": [{"ports": [{"port": 53, "protocol": "TCP"}]}], "policyTypes": ["Ingress"]}),
        );
        assert_eq!(alteration("networking.k8s.io", &wanted, found), None);
    }

    #[test]
    fn a_rule_that_is_gone_or_added_is_one() {
        let wanted = policy(&json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"from": []}]}));
        for spec in [
            json!({"podSelector": {"matchLabels": {"a": "b"}}}),
            json!({"podSelector": {}, "ingress": [{"from": []}]}),
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"from": []}, {}]}),
        ] {
            let why = alteration("networking.k8s.io", &wanted, policy(&spec));
            assert!(why.is_some_and(|why| why.starts_with("spec is not")), "{spec}");
        }
        // Other kinds are written differently by API servers, such as quantities.
        assert_eq!(alteration("apps", &wanted, policy(&json!({}))), None);
    }

    #[test]
    fn a_lost_label_is_one_for_every_kind() {
        let wanted = policy(&json!({}));
        let mut found = wanted.clone();
        found["metadata"]["labels"] = json!({});
        let why = alteration("apps", &wanted, found);
        assert!(why.is_some_and(|why| why.starts_with("metadata.labels[berth.dev/managed-by]")));
    }
}
