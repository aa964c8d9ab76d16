//! The RBAC rules of the syncer, derived from what the kinds declare. Control writes exactly these rules; on the host
//! nothing cluster-scoped may be written.

use crate::{
    admission,
    model::{HostNamespace, Kind},
    registry,
};
use berth_api::SyncPolicy;
use k8s_openapi::api::rbac::v1::PolicyRule;
use std::collections::{BTreeMap, BTreeSet};

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(texts(resources)),
        verbs: texts(verbs),
        ..PolicyRule::default()
    }
}

const READ: &[&str] = &["get", "list", "watch"];

/// Verbs by (API group, resource).
#[derive(Default)]
struct Rules(BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>);

impl Rules {
    fn add(&mut self, group: &'static str, resource: &'static str, verbs: &[&'static str]) {
        self.0.entry((group, resource)).or_default().extend(verbs);
    }

    /// As RBAC writes it: resources of one group with the same verbs in one rule.
    fn into_policy(self) -> Vec<PolicyRule> {
        let mut rules: BTreeMap<(&str, Vec<&str>), Vec<&str>> = BTreeMap::new();
        for ((group, resource), verbs) in self.0 {
            rules
                .entry((group, verbs.into_iter().collect()))
                .or_default()
                .push(resource);
        }
        rules
            .into_iter()
            .map(|((group, verbs), resources)| rule(group, &resources, &verbs))
            .collect()
    }
}

/// The kinds of a tenant of a class.
fn kinds_of(policy: &SyncPolicy) -> impl Iterator<Item = Kind> {
    registry::kind_ids(policy).into_iter().map(registry::kind)
}

fn host_rules(policy: &SyncPolicy, namespace: HostNamespace) -> Vec<PolicyRule> {
    let mut rules = Rules::default();
    for kind in kinds_of(policy) {
        if let Some((_, spec)) = kind.host.filter(|(home, _)| *home == namespace) {
            rules.add(spec.resource.group, spec.resource.plural, READ);
            rules.add(spec.resource.group, spec.resource.plural, kind.rights.host_verbs);
            for (resource, verbs) in kind.rights.host {
                rules.add(spec.resource.group, resource, verbs);
            }
        }
    }
    rules.into_policy()
}

/// Rules of the `Role` in the host's workload namespace.
pub fn host_workload_rules(policy: &SyncPolicy) -> Vec<PolicyRule> {
    let mut rules = host_rules(policy, HostNamespace::Workloads);
    // The usage of its pods. On a host without this API, the rule has no effect.
    rules.push(rule("metrics.k8s.io", &["pods"], &["get", "list"]));
    rules
}

/// Rule of the `ClusterRole` on the host for the usage of these nodes, which are the tenant's alone; none without
/// nodes, because RBAC takes an empty list of names for all of them.
pub fn host_node_metrics_rule(mut nodes: Vec<String>) -> Option<PolicyRule> {
    nodes.sort();
    (!nodes.is_empty()).then(|| PolicyRule {
        resource_names: Some(nodes),
        ..rule("metrics.k8s.io", &["nodes"], &["get"])
    })
}

/// Rules of the `Role` in the host's control-plane namespace.
pub fn host_control_plane_rules() -> Vec<PolicyRule> {
    host_rules(&SyncPolicy::default(), HostNamespace::ControlPlane)
}

/// Rules of the `ClusterRole` on the host: classes, which are read only and hold no secrets.
pub fn host_cluster_rules() -> Vec<PolicyRule> {
    host_rules(&SyncPolicy::default(), HostNamespace::Cluster)
}

/// Rules of the `ClusterRole` in the tenant, for the user `berth:syncer`.
pub fn tenant_rules(policy: &SyncPolicy) -> Vec<PolicyRule> {
    let mut rules = Rules::default();
    for kind in kinds_of(policy) {
        let group = kind.resource().map(|resource| resource.group).unwrap_or_default();
        if let Some(spec) = kind.tenant {
            rules.add(spec.resource.group, spec.resource.plural, READ);
            rules.add(spec.resource.group, spec.resource.plural, kind.rights.tenant_verbs);
        }
        for (resource, verbs) in kind.rights.tenant {
            rules.add(group, resource, verbs);
        }
    }
    // Leases say that nodes are alive.
    rules.add("coordination.k8s.io", "leases", &["get", "create", "patch"]);
    let mut rules = rules.into_policy();
    // Its own webhook configuration, which the tenant may edit or delete.
    let (group, resource) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
    rules.push(rule(group, &[resource], &["create"]));
    rules.push(PolicyRule {
        resource_names: Some(vec![admission::configuration::NAME.into()]),
        ..rule(group, &[resource], &["get", "list", "watch", "patch"])
    });
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A class that lists a further kind.
    fn policy() -> SyncPolicy {
        SyncPolicy {
            kinds: vec![berth_api::sync_policy::SyncedKind {
                group: "example.com".into(),
                version: "v1".into(),
                kind: "Gang".into(),
                resource: "gangs".into(),
                ..Default::default()
            }],
            ..SyncPolicy::default()
        }
    }

    fn all() -> [Vec<PolicyRule>; 4] {
        let policy = policy();
        [
            host_workload_rules(&policy),
            host_control_plane_rules(),
            host_cluster_rules(),
            tenant_rules(&policy),
        ]
    }

    #[test]
    fn nothing_is_granted_by_wildcard_and_no_rights_are_managed() {
        for rule in all().concat() {
            let all = [
                rule.resources.clone().unwrap_or_default(),
                rule.verbs.clone(),
                rule.api_groups.clone().unwrap_or_default(),
            ];
            assert!(all.concat().iter().all(|text| !text.contains('*')), "{rule:?}");
            assert!(
                !rule
                    .verbs
                    .iter()
                    .any(|verb| matches!(verb.as_str(), "escalate" | "bind" | "impersonate")),
                "{rule:?}"
            );
        }
    }

    #[test]
    fn the_host_lets_the_syncer_read_no_node_and_no_namespace_and_write_nothing_cluster_scoped() {
        let [workloads, control_plane, cluster, _] = all();
        for rule in &[workloads, control_plane, cluster.clone()].concat() {
            for resource in rule.resources.clone().unwrap_or_default() {
                let secret = ["nodes", "namespaces", "persistentvolumes", "resourceslices"];
                assert!(!secret.contains(&resource.as_str()), "{resource}");
            }
        }
        assert!(
            cluster.iter().all(|rule| rule.verbs == ["get", "list", "watch"]),
            "{cluster:?}"
        );
    }

    /// The admission policy `berth-deletions` denies the syncer the deletion of anything else.
    #[test]
    fn what_the_syncer_deletes_on_the_host_it_finds_by_its_label() {
        let mut count = 0;
        for kind in kinds_of(&policy()) {
            let rights = kind.rights;
            let mut verbs = rights
                .host
                .iter()
                .flat_map(|(_, verbs)| *verbs)
                .chain(rights.host_verbs);
            if !verbs.any(|verb| *verb == "delete") {
                continue;
            }
            let (namespace, spec) = kind.host.unwrap();
            assert_eq!(namespace, HostNamespace::Workloads, "{}", spec.resource.plural);
            let mut labels = spec.labels.split(',');
            let is_marked = labels.any(|label| label == "berth.dev/managed-by=syncer");
            assert!(is_marked, "{}: {}", spec.resource.plural, spec.labels);
            count += 1;
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn without_nodes_there_is_no_rule_for_node_metrics() {
        assert_eq!(host_node_metrics_rule(Vec::new()), None);
        let rule = host_node_metrics_rule(vec!["b".into(), "a".into()]).unwrap();
        assert_eq!(rule.resource_names, Some(vec!["a".into(), "b".into()]));
        assert_eq!(rule.verbs, ["get"]);
    }

    #[test]
    fn the_rights_are_as_reviewed() {
        let text: Vec<String> = all()
            .map(|rules| {
                let lines = rules.iter().map(|rule| {
                    let list = |texts: &Option<Vec<String>>| texts.clone().unwrap_or_default().join(",");
                    format!(
                        "{}: {}: {}",
                        list(&rule.api_groups),
                        list(&rule.resources),
                        rule.verbs.join(",")
                    )
                });
                lines.collect::<Vec<_>>().join("\n")
            })
            .into();
        insta::assert_snapshot!(text.join("\n---\n"));
    }
}
