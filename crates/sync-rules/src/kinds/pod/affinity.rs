//! Affinity and topology spread, where the host's scheduler decides.
//!
//! | field | rule |
//! |---|---|
//! | nodeAffinity | copied, but for labels of nodes that only the platform sees |
//! | podAffinity, podAntiAffinity, topologySpreadConstraints: labelSelector | that of the same pods on the host, narrowed to the tenant and the namespaces meant |
//! | namespaceSelector | a selector of the labels that host pods carry for those of their namespace |
//! | namespaces together with a namespaceSelector by labels | denied: no selector can express "one of both" |
//! | matchLabelKeys, mismatchLabelKeys | the tenant's API server has put them into the selector |
//! | topologyKey | copied; an Event says that a label of the tenant's own is none on the host |

use super::{
    own_labels,
    scheduling::{RESERVED, is_hidden},
    tables::{LABEL_SELECTOR, NODE_AFFINITY},
};
use crate::{
    model::{Cache, json, resource::Name},
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        namespace_labels,
        pod_selector::scoped,
    },
};
use serde_json::{Map, Value};

/// The rules of `Affinity`.
pub const AFFINITY: Fields = &[
    ("nodeAffinity", Rule::Within(NODE_AFFINITY)),
    ("podAffinity", Rule::Rewrite),
    ("podAntiAffinity", Rule::Rewrite),
];

/// The rules of `PodAffinity` and `PodAntiAffinity`.
pub const PODS: Fields = &[
    ("preferredDuringSchedulingIgnoredDuringExecution", Rule::Rewrite),
    ("requiredDuringSchedulingIgnoredDuringExecution", Rule::Rewrite),
];

/// The rules of `WeightedPodAffinityTerm`.
pub const WEIGHTED: Fields = &[("podAffinityTerm", Rule::Rewrite), ("weight", Rule::Copy)];

/// The rules of `PodAffinityTerm`.
pub const TERM: Fields = &[
    ("labelSelector", Rule::Rewrite),
    (
        "matchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    (
        "mismatchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    ("namespaceSelector", Rule::Rewrite),
    ("namespaces", Rule::Rewrite),
    ("topologyKey", Rule::Copy),
];

/// The rules of `TopologySpreadConstraint`.
pub const SPREAD: Fields = &[
    ("labelSelector", Rule::Rewrite),
    (
        "matchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    ("maxSkew", Rule::Copy),
    ("minDomains", Rule::Copy),
    ("nodeAffinityPolicy", Rule::Copy),
    ("nodeTaintsPolicy", Rule::Copy),
    ("topologyKey", Rule::Copy),
    ("whenUnsatisfiable", Rule::Copy),
];

/// Adds affinity and topology spread constraints to the host pod's spec.
pub fn translate(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    if let Some(affinity) = source.get("affinity").filter(|affinity| !json::is_unset(affinity)) {
        spec.insert("affinity".into(), self::affinity(cache, name, affinity, issues));
    }
    let constraints: Vec<Value> = json::items(source, &["topologySpreadConstraints"])
        .iter()
        .enumerate()
        .map(|(index, constraint)| {
            let path = format!("spec.topologySpreadConstraints[{index}]");
            let mut copied = fields::copy(constraint, &path, SPREAD, issues);
            note_own_topology(cache, constraint, &path, issues);
            if let Some(selector) = constraint.get("labelSelector").filter(|selector| !selector.is_null()) {
                let selector = fields::within(selector, &format!("{path}.labelSelector"), LABEL_SELECTOR, issues);
                let scoped = scoped(cache, &selector, Some(&[&*name.namespace]));
                copied.insert("labelSelector".into(), scoped);
            }
            copied.into()
        })
        .collect();
    if !constraints.is_empty() {
        spec.insert("topologySpreadConstraints".into(), constraints.into());
    }
}

fn affinity(cache: &Cache, name: &Name, affinity: &Value, issues: &mut FieldIssues) -> Value {
    let mut translated = fields::copy(affinity, "spec.affinity", AFFINITY, issues);
    for path in [
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].key",
        "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[].key",
    ] {
        json::each(affinity, path, &mut |key| {
            if key.as_str().is_some_and(is_hidden) {
                issues.deny(format!("spec.affinity.{path}"), RESERVED);
            }
        });
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(value) = affinity.get(kind).filter(|value| !value.is_null()) else {
            continue;
        };
        let path = format!("spec.affinity.{kind}");
        let mut copied = fields::copy(value, &path, PODS, issues);
        for (when, _) in PODS {
            let terms: Vec<Value> = json::items(value, &[when])
                .iter()
                .enumerate()
                .map(|(index, term)| {
                    let path = format!("{path}.{when}[{index}]");
                    let Some(inner) = term.get("podAffinityTerm") else {
                        return pod_term(cache, name, term, &path, issues);
                    };
                    let mut weighted = fields::copy(term, &path, WEIGHTED, issues);
                    let path = format!("{path}.podAffinityTerm");
                    weighted.insert("podAffinityTerm".into(), pod_term(cache, name, inner, &path, issues));
                    weighted.into()
                })
                .collect();
            if !terms.is_empty() {
                copied.insert((*when).into(), terms.into());
            }
        }
        translated.insert(kind.into(), copied.into());
    }
    translated.into()
}

fn pod_term(cache: &Cache, name: &Name, term: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(term, path, TERM, issues);
    note_own_topology(cache, term, path, issues);
    let listed: Vec<&str> = json::items(term, &["namespaces"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let by_labels = term.get("namespaceSelector").filter(|selector| !selector.is_null());
    // A term without a selector matches no pod, on the host as well.
    let Some(selector) = term.get("labelSelector").filter(|selector| !selector.is_null()) else {
        return copied.into();
    };
    let selector = fields::within(selector, &format!("{path}.labelSelector"), LABEL_SELECTOR, issues);
    let mut of_namespaces = None;
    let namespaces = match by_labels {
        None if listed.is_empty() => Some(vec![&*name.namespace]),
        None => Some(listed),
        // An empty selector means every namespace of the tenant, whatever is listed besides.
        Some(namespaces) if selects_all(namespaces) => None,
        Some(_) if !listed.is_empty() => {
            issues.deny(
                format!("{path}.namespaces"),
                "cannot be combined with a namespaceSelector: use one of them, or two terms",
            );
            None
        }
        Some(namespaces) => {
            let path = format!("{path}.namespaceSelector");
            let namespaces = fields::within(namespaces, &path, LABEL_SELECTOR, issues);
            of_namespaces = Some(namespace_labels::selector(&namespaces));
            None
        }
    };
    let mut selector = scoped(cache, &selector, namespaces.as_deref());
    if let Some(of_namespaces) = of_namespaces {
        join(&mut selector, &of_namespaces);
    }
    copied.insert("labelSelector".into(), selector);
    copied.into()
}

/// Says that a topology is none for the host's scheduler, if the tenant gave the label to its Nodes.
fn note_own_topology(cache: &Cache, term: &Value, path: &str, issues: &mut FieldIssues) {
    if json::text(term, &["topologyKey"]).is_some_and(|key| own_labels::is_own_label(cache, key)) {
        let why = "the host's scheduler does not see labels that you gave your Nodes: use one that the platform gave them, such as \
                   kubernetes.io/hostname, or a scheduler of your own";
        issues.ignore(format!("{path}.topologyKey"), why);
    }
}

fn selects_all(selector: &Value) -> bool {
    selector
        .as_object()
        .is_some_and(|fields| fields.values().all(json::is_unset))
}

/// Adds the requirements of another selector to a selector.
fn join(selector: &mut Value, other: &Value) {
    for (key, value) in json::strings(other, &["matchLabels"]) {
        json::set(selector, &["matchLabels", &key], value);
    }
    let mut expressions = json::items(selector, &["matchExpressions"]).to_vec();
    expressions.extend(json::items(other, &["matchExpressions"]).iter().cloned());
    if !expressions.is_empty() {
        json::set(selector, &["matchExpressions"], expressions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{KindId, store::Stored, tenant::test_tenant};
    use crate::registry;
    use berth_api::{labels, pod_labels};
    use serde_json::json;

    fn term(term: &Value) -> (Value, Vec<String>) {
        let cache = registry::new_cache(test_tenant());
        let mut issues = FieldIssues::default();
        let translated = pod_term(&cache, &Name::new("research", "p"), term, "t", &mut issues);
        let denied = issues.denied.into_iter().map(|denied| denied.field).collect();
        (translated, denied)
    }

    #[test]
    fn namespaces_are_selected_by_the_labels_that_their_pods_carry() {
        let (translated, denied) = term(
            &json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}},
            "namespaceSelector": {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}}),
        );
        assert_eq!(denied, [""; 0]);
        let selector = &translated["labelSelector"];
        assert_eq!(selector["matchLabels"][pod_labels::host_key("app")], "web");
        assert_eq!(selector["matchLabels"][labels::TENANT], test_tenant().slug);
        assert_eq!(selector["matchLabels"][namespace_labels::label("team")], "a");
        assert_eq!(selector["matchExpressions"][0]["key"], namespace_labels::label("tier"));
        assert_eq!(selector["matchLabels"].get(labels::TENANT_OBJECT_NAMESPACE), None);
        assert_eq!(translated.get("namespaceSelector"), None);
    }

    #[test]
    fn every_namespace_and_listed_namespaces_are_the_tenants() {
        let all = term(&json!({"labelSelector": {}, "namespaceSelector": {}, "namespaces": ["a"]})).0;
        assert_eq!(
            all["labelSelector"],
            json!({"matchLabels": {labels::TENANT: test_tenant().slug}})
        );
        let own = term(&json!({"labelSelector": {}})).0;
        assert_eq!(
            own["labelSelector"]["matchLabels"][labels::TENANT_OBJECT_NAMESPACE],
            "research"
        );
        let none = term(&json!({"topologyKey": "zone"})).0;
        assert_eq!(none, json!({"topologyKey": "zone"}));
    }

    #[test]
    fn namespaces_beside_a_namespace_selector_are_denied() {
        let both =
            json!({"labelSelector": {}, "namespaces": ["a"], "namespaceSelector": {"matchLabels": {"team": "a"}}});
        assert_eq!(term(&both).1, ["t.namespaces"]);
    }

    #[test]
    fn labels_that_only_the_platform_sees_select_nothing() {
        let cache = registry::new_cache(test_tenant());
        let mut issues = FieldIssues::default();
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": labels::POOL, "operator": "Exists"}, {"key": labels::OWNER_UID, "operator": "Exists"}]}]}}});
        super::affinity(&cache, &Name::new("research", "p"), &affinity, &mut issues);
        assert_eq!(issues.denied.len(), 1, "{issues:?}");
    }

    #[test]
    fn a_topology_of_the_tenants_own_labels_is_said_to_be_none() {
        let cache = registry::new_cache(test_tenant());
        let node = |labels: Value| json!({"metadata": {"name": "n", "resourceVersion": "1", "labels": labels}});
        let published = json!({"metadata": {"name": "n", "resourceVersion": "1"}, "spec": {"labels": {"zone": "a"}}});
        let nodes = (cache.stores.tenant(KindId::Node), cache.stores.host(KindId::Node));
        nodes.0.written(
            Name::new("", "n"),
            Stored::new(&node(json!({"zone": "a", "rack": "7"}))),
        );
        nodes.1.written(Name::new("", "n"), Stored::new(&published));
        let ignored = |key: &str| {
            let term = json!({"topologyKey": key, "labelSelector": {}});
            let spread = json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
            let source = json!({"topologySpreadConstraints": [spread], "affinity": {"podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}});
            let mut issues = FieldIssues::default();
            translate(
                &cache,
                &Name::new("research", "p"),
                &source,
                &mut Map::new(),
                &mut issues,
            );
            issues
                .ignored
                .into_iter()
                .map(|ignored| ignored.field)
                .collect::<Vec<_>>()
        };
        assert_eq!(ignored("zone"), [""; 0]);
        assert_eq!(
            ignored("rack"),
            [
                "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey",
                "spec.topologySpreadConstraints[0].topologyKey",
            ]
        );
    }
}
