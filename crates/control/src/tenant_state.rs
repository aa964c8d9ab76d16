//! What the status of a TenantCluster says that several controllers go by. Only control writes the status, so that nobody can pretend anything of it.

use berth_api::{TenantCluster, conditions::ACCEPTED};

/// Whether anything was created for a tenant.
pub(crate) fn is_created(cluster: &TenantCluster) -> bool {
    let status = cluster.status.as_ref();
    status.is_some_and(|status| status.control_plane_namespace.is_some())
}

/// Whether the spec of a tenant is accepted as it is now.
pub(crate) fn is_accepted(cluster: &TenantCluster) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| {
        let is_current = condition.observed_generation == cluster.metadata.generation;
        condition.type_ == ACCEPTED && condition.status == "True" && is_current
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;
    use serde_json::{Value, json};

    #[test]
    fn a_spec_is_accepted_if_the_status_says_so_of_its_generation() {
        let is_accepted_with = |status: &str, observed: Value| {
            let condition = json!({"type": "Accepted", "status": status, "reason": "Valid", "message": "",
                "observedGeneration": observed, "lastTransitionTime": "2026-11-10T12:00:00Z"});
            let cluster = json!({"metadata": {"name": "vision", "generation": 7}, "spec": {"nodeGroups": []},
                "status": {"conditions": [condition]}});
            is_accepted(&serde_json::from_value(cluster).unwrap())
        };
        assert!(is_accepted_with("True", json!(7)));
        assert!(!is_accepted_with("True", json!(6)));
        assert!(!is_accepted_with("True", Value::Null));
        assert!(!is_accepted_with("False", json!(7)));
        assert!(!is_accepted_with("Unknown", json!(7)));
        assert!(!is_accepted(&TenantCluster::new(
            "vision",
            TenantClusterSpec::default()
        )));
    }
}
