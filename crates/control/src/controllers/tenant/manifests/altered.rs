//! Whether an object came out of the tenant's API server as Berth applied it. Webhooks and mutating policies of the team see Berth's
//! requests. Pure.

use super::objects::ObjectKey;
use berth_api::labels;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Groups whose objects say who may do what. API servers add defaults to them and change nothing that is set.
const POLICY_GROUPS: [&str; 3] = [
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
];

/// Kinds of which every field counts. Fields that the team has set, before the object was the platform's or by a webhook, can take away
/// what the object enforces: a rule that allows all, or a condition under which a policy does not apply.
const EXACT_KINDS: [(&str, &str); 8] = [
    ("networking.k8s.io", "NetworkPolicy"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
    ("", "ResourceQuota"),
];

/// Why an object is not as it was applied.
pub(crate) fn find_alteration(key: &ObjectKey, wanted: &Value, applied: &DynamicObject) -> Option<String> {
    find_loss(key, wanted, applied).or_else(|| find_addition(key, wanted, applied).map(|field| advise(&field)))
}

/// A field that the manifest does not set and that no API server sets by itself, where every field counts, and the webhook of a definition.
pub(crate) fn find_addition(key: &ObjectKey, wanted: &Value, applied: &DynamicObject) -> Option<String> {
    if key.is_definition() {
        // A webhook that the team has set before would see every object of the kind, and could change or refuse it.
        let converts = |definition: &Value| definition["spec"]["conversion"]["strategy"] == "Webhook";
        return (!converts(wanted) && converts(&applied.data)).then(|| "spec.conversion".into());
    }
    if key.group.is_empty() && key.kind == "Namespace" {
        // No API server lets a client change them, so the namespace must be deleted: with one of the team's, it would never end.
        let finalizers = applied.data["spec"]["finalizers"].as_array().into_iter().flatten();
        let mut others = finalizers.filter(|finalizer| *finalizer != "kubernetes");
        return others.next().map(|_| "spec.finalizers".into());
    }
    if !EXACT_KINDS.contains(&(key.group.as_str(), key.kind.as_str())) {
        return None;
    }
    let metadata = &applied.metadata;
    if metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()) {
        return Some("metadata.finalizers".into());
    }
    if metadata.owner_references.as_ref().is_some_and(|all| !all.is_empty()) {
        return Some("metadata.ownerReferences".into());
    }
    if key.kind == "NetworkPolicy" && !has_expected_types(&wanted["spec"], &applied.data["spec"]) {
        return Some("spec.policyTypes".into());
    }
    let fields = applied.data.as_object()?;
    // A controller fills in the rules of a role that aggregates others.
    let is_aggregated = !wanted["aggregationRule"].is_null();
    let added = fields
        .iter()
        .filter(|(field, _)| !["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()))
        .filter(|(field, _)| !(is_aggregated && *field == "rules"))
        .find(|(field, value)| has_more(&key.group, field.as_str(), &wanted[field.as_str()], value));
    added.map(|(field, _)| field.clone())
}

/// Whether the types of a NetworkPolicy that sets none are those that an API server adds.
fn has_expected_types(wanted: &Value, found: &Value) -> bool {
    let is_empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    if !is_empty(&wanted["policyTypes"]) || found["policyTypes"].is_null() {
        return true;
    }
    let expected = if is_empty(&wanted["egress"]) {
        json!(["Ingress"])
    } else {
        json!(["Ingress", "Egress"])
    };
    found["policyTypes"] == expected
}

/// Whether something is there that is not wanted. `name` is that of the field.
fn has_more(group: &str, name: &str, wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => found.iter().any(|(field, value)| {
            let wanted = wanted.get(field).unwrap_or(&Value::Null);
            has_more(group, field, wanted, value)
        }),
        (Value::Array(wanted), Value::Array(found)) => wanted
            .iter()
            .zip(found)
            .any(|(wanted, found)| has_more(group, name, wanted, found)),
        (Value::Null, found) => !is_default(group, name, found),
        _ => false,
    }
}

/// Whether a value is what API servers set if a field is left out, or means the same as leaving it out.
fn is_default(group: &str, name: &str, found: &Value) -> bool {
    let is_nothing = match found {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let defaults = match group {
        "networking.k8s.io" => vec![("podSelector", json!({})), ("protocol", json!("TCP"))],
        "rbac.authorization.k8s.io" => vec![("apiGroup", json!(group))],
        "admissionregistration.k8s.io" => vec![
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
            ("parameterNotFoundAction", json!("Deny")),
            ("scope", json!("*")),
        ],
        _ => Vec::new(),
    };
    is_nothing
        // Its content is compared before.
        || (group == "networking.k8s.io" && name == "policyTypes")
        || (name == "spec" && has_defaults_only(group, found))
        || defaults.iter().any(|(field, value)| *field == name && value == found)
}

fn has_defaults_only(group: &str, found: &Value) -> bool {
    let fields = found.as_object();
    fields.is_some_and(|fields| fields.iter().all(|(field, value)| is_default(group, field, value)))
}

/// What is not there as it was applied.
fn find_loss(key: &ObjectKey, wanted: &Value, applied: &DynamicObject) -> Option<String> {
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
            &json!({"podSelector": {}, "egress": [{"ports": [{"port": 53, "protocol": "TCP"}]}], "policyTypes": ["Ingress", "Egress"]}),
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
    fn what_takes_away_from_a_policy_is_found_and_defaults_are_not() {
        let wanted = policy(&json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        for added in [
            json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}),
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]}),
        ] {
            let why = alteration("networking.k8s.io", &wanted, policy(&added));
            assert!(why.is_some_and(|why| why.starts_with("spec is not")), "{added}");
        }
        // A selector of namespaces widens a peer.
        let peer = |peer: Value| policy(&json!({"podSelector": {}, "ingress": [{"from": [peer]}]}));
        let wanted = peer(json!({"podSelector": {"matchLabels": {"a": "b"}}}));
        let wider = peer(json!({"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}}));
        assert!(alteration("networking.k8s.io", &wanted, wider).is_some());
        // Types that are not those of its rules.
        let wanted = policy(&json!({"podSelector": {}, "egress": [{}]}));
        for (types, is_expected) in [(json!(["Ingress", "Egress"]), true), (json!(["Ingress"]), false)] {
            let found = policy(&json!({"podSelector": {}, "egress": [{}], "policyTypes": types}));
            assert_eq!(alteration("networking.k8s.io", &wanted, found).is_none(), is_expected);
        }
    }

    fn addition(group: &str, kind: &str, wanted: &Value, applied: &Value) -> Option<String> {
        let applied: DynamicObject = serde_json::from_value(applied.clone()).unwrap();
        let key = ObjectKey {
            kind: kind.into(),
            ..key(group)
        };
        find_addition(&key, wanted, &applied)
    }

    #[test]
    fn conditions_and_selectors_of_admission_policies_count() {
        let group = "admissionregistration.k8s.io";
        let object = |spec: &Value| {
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": "a"}, "spec": spec})
        };
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
        let wanted =
            object(&json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}));
        let mut served = wanted.clone();
        served["spec"]["failurePolicy"] = "Fail".into();
        served["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = "*".into();
        served["spec"]["matchConstraints"]["matchPolicy"] = "Equivalent".into();
        served["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
        served["spec"]["matchConstraints"]["objectSelector"] = json!({});
        served["status"] = json!({"observedGeneration": 1});
        let kind = "ValidatingAdmissionPolicy";
        assert_eq!(addition(group, kind, &wanted, &served), None);
        for (field, value) in [
            ("failurePolicy", json!("Ignore")),
            ("matchConditions", json!([{"name": "a", "expression": "false"}])),
        ] {
            let mut weaker = served.clone();
            weaker["spec"][field] = value;
            assert_eq!(
                addition(group, kind, &wanted, &weaker).as_deref(),
                Some("spec"),
                "{field}"
            );
        }
        let binding = object(&json!({"policyName": "a", "validationActions": ["Deny"]}));
        let mut narrow = binding.clone();
        narrow["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
        let kind = "ValidatingAdmissionPolicyBinding";
        assert_eq!(addition(group, kind, &binding, &binding), None);
        assert_eq!(addition(group, kind, &binding, &narrow).as_deref(), Some("spec"));
    }

    #[test]
    fn a_webhook_that_converts_counts_if_the_definition_has_none() {
        let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
        let definition =
            |conversion: Value| json!({"metadata": {"name": "a.b"}, "spec": {"group": "b", "conversion": conversion}});
        let wanted = json!({"metadata": {"name": "a.b"}, "spec": {"group": "b"}});
        let webhook = definition(json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}}));
        assert_eq!(
            addition(group, kind, &wanted, &webhook).as_deref(),
            Some("spec.conversion")
        );
        assert_eq!(addition(group, kind, &webhook, &webhook), None);
        assert_eq!(
            addition(group, kind, &wanted, &definition(json!({"strategy": "None"}))),
            None
        );
    }

    #[test]
    fn a_finalizer_in_the_spec_of_a_namespace_counts() {
        let wanted = json!({"metadata": {"name": "a"}});
        let served = |finalizers: &[&str]| json!({"metadata": {"name": "a"}, "spec": {"finalizers": finalizers}});
        assert_eq!(addition("", "Namespace", &wanted, &served(&["kubernetes"])), None);
        let held = served(&["kubernetes", "team.example/held"]);
        assert_eq!(
            addition("", "Namespace", &wanted, &held).as_deref(),
            Some("spec.finalizers")
        );
    }

    #[test]
    fn finalizers_and_scopes_count_and_rules_of_aggregating_roles_do_not() {
        let quota = json!({"metadata": {"name": "a"}, "spec": {"hard": {"pods": 1}}});
        let mut scoped = quota.clone();
        scoped["spec"]["hard"]["pods"] = "1".into();
        assert_eq!(addition("", "ResourceQuota", &quota, &scoped), None);
        scoped["spec"]["scopes"] = json!(["Terminating"]);
        assert_eq!(addition("", "ResourceQuota", &quota, &scoped).as_deref(), Some("spec"));
        assert_eq!(addition("", "ConfigMap", &quota, &scoped), None);
        let rbac = "rbac.authorization.k8s.io";
        let role = json!({"metadata": {"name": "a"}, "aggregationRule": {"clusterRoleSelectors": []}});
        let mut filled = role.clone();
        filled["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        assert_eq!(addition(rbac, "ClusterRole", &role, &filled), None);
        filled["metadata"]["finalizers"] = json!(["a.b/c"]);
        assert_eq!(
            addition(rbac, "ClusterRole", &role, &filled).as_deref(),
            Some("metadata.finalizers")
        );
        let bound = json!({"metadata": {"name": "a"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "team"}]});
        let mut served = bound.clone();
        served["roleRef"]["apiGroup"] = rbac.into();
        served["subjects"][0]["apiGroup"] = rbac.into();
        assert_eq!(addition(rbac, "ClusterRoleBinding", &bound, &served), None);
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
