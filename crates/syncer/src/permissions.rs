//! What the syncer may do, as data. Control writes exactly these rules; nothing here is cluster-scoped on the host.

use k8s_openapi::api::rbac::v1::PolicyRule;

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

/// Rules of the `Role` in the host's workload namespace.
pub fn host_workload_rules() -> Vec<PolicyRule> {
    vec![
        rule(
            "",
            &["pods", "services", "configmaps", "secrets"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        // Conditions of readiness gates; containers added to and resources changed in running pods.
        rule(
            "",
            &["pods/status", "pods/ephemeralcontainers", "pods/resize"],
            &["patch"],
        ),
        rule("", &["events"], READ),
    ]
}

/// Rules of the `Role` in the host's control-plane namespace.
pub fn host_control_plane_rules() -> Vec<PolicyRule> {
    vec![rule("berth.dev", &["tenantnodes"], READ)]
}

/// Rules of the `ClusterRole` in the tenant, for the user `berth:syncer`.
pub fn tenant_rules() -> Vec<PolicyRule> {
    vec![
        rule("", &["pods"], &["get", "list", "watch", "delete"]),
        rule("", &["pods/status"], &["patch"]),
        rule("", &["pods/binding", "serviceaccounts/token"], &["create"]),
        rule("", &["configmaps", "secrets", "services"], READ),
        rule("", &["nodes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["nodes/status"], &["patch"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "patch"]),
        rule("", &["events"], &["create", "patch"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_by_wildcard_and_no_rights_are_managed() {
        for rule in [host_workload_rules(), host_control_plane_rules(), tenant_rules()].concat() {
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
    fn the_host_lets_the_syncer_read_no_node_and_no_namespace() {
        for rule in [host_workload_rules(), host_control_plane_rules()].concat() {
            for resource in rule.resources.unwrap_or_default() {
                assert!(!matches!(resource.as_str(), "nodes" | "namespaces"), "{resource}");
            }
        }
    }
}
