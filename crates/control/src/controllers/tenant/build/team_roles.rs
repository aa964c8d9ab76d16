//! Roles for people in a tenant who are not its administrators: `berth:editor` and `berth:viewer`.
//!
//! They follow the roles `edit` and `view` of Kubernetes, with what charts add to those, and read what the platform shows in each tenant.
//! They are the platform's: nobody in the tenant changes or deletes them.

use berth_api::labels;
use k8s_openapi::{
    api::rbac::v1::{AggregationRule, ClusterRole, PolicyRule},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use std::collections::BTreeMap;

/// Role of people who work in the tenant. Like `edit`, it reads Secrets.
pub(super) const EDITOR: &str = "berth:editor";
/// Role of people who only look. Like `view`, it reads no Secrets.
pub(super) const VIEWER: &str = "berth:viewer";
/// What both read besides.
const SHARED: &str = "berth:aggregate-to-viewer";
/// Labels of ClusterRoles that `edit` and `view` aggregate.
const KUBERNETES_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
/// See [`KUBERNETES_EDIT`].
const KUBERNETES_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";

/// What the platform shows in each tenant, by API group: nodes and their usage, namespaces, and classes.
const SHOWN: [(&str, &[&str]); 7] = [
    ("", &["nodes", "namespaces", "persistentvolumes"]),
    ("metrics.k8s.io", &["nodes", "pods"]),
    ("networking.k8s.io", &["ingressclasses"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("resource.k8s.io", &["deviceclasses", "resourceslices"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    ("storage.k8s.io", &["storageclasses", "volumeattributesclasses"]),
];

/// The roles.
pub fn team_roles() -> [ClusterRole; 3] {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let rules = SHOWN.map(|(group, resources)| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(texts(resources)),
        verbs: texts(&["get", "list", "watch"]),
        ..PolicyRule::default()
    });
    let shared = ClusterRole {
        metadata: metadata(SHARED, &[(labels::AGGREGATE_TO_VIEWER, "true")]),
        rules: Some(rules.into()),
        aggregation_rule: None,
    };
    [
        shared,
        aggregating(VIEWER, KUBERNETES_VIEW),
        aggregating(EDITOR, KUBERNETES_EDIT),
    ]
}

/// A role with the rules of all roles that have the label, or that of [`SHARED`]. The tenant's controller manager fills them in.
fn aggregating(name: &str, label: &str) -> ClusterRole {
    let selector = |label: &str| LabelSelector {
        match_labels: Some(BTreeMap::from([(label.to_owned(), "true".to_owned())])),
        match_expressions: None,
    };
    ClusterRole {
        metadata: metadata(name, &[]),
        rules: None,
        aggregation_rule: Some(AggregationRule {
            cluster_role_selectors: Some(vec![selector(label), selector(labels::AGGREGATE_TO_VIEWER)]),
        }),
    }
}

fn metadata(name: &str, own: &[(&str, &str)]) -> ObjectMeta {
    let platform = (labels::MANAGED_BY, labels::MANAGED_BY_PLATFORM);
    let all = own.iter().chain([&platform]);
    ObjectMeta {
        name: Some(name.into()),
        labels: Some(
            all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        ),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_the_platforms_and_nothing_that_is_shown_is_secret() {
        for role in team_roles() {
            let labels = role.metadata.labels.unwrap();
            assert_eq!(labels[labels::MANAGED_BY], labels::MANAGED_BY_PLATFORM);
            for rule in role.rules.unwrap_or_default() {
                let resources = rule.resources.unwrap();
                assert!(
                    !resources
                        .iter()
                        .any(|resource| resource == "secrets" || resource.contains('*'))
                );
                assert_eq!(rule.verbs, ["get", "list", "watch"]);
            }
        }
    }

    #[test]
    fn editors_and_viewers_follow_the_roles_of_kubernetes() {
        let [_, viewer, editor] = team_roles();
        for (role, label) in [(viewer, KUBERNETES_VIEW), (editor, KUBERNETES_EDIT)] {
            let selectors = role.aggregation_rule.unwrap().cluster_role_selectors.unwrap();
            let labels: Vec<String> = selectors
                .into_iter()
                .flat_map(|selector| selector.match_labels.unwrap().into_keys())
                .collect();
            assert_eq!(labels, [label, labels::AGGREGATE_TO_VIEWER]);
        }
    }
}
