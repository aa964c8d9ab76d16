//! Which nodes several tenants share, and which of their pods must leave.

pub mod device_evidence;
pub mod drain;

use crate::{Assignment, node::shared_pool_of};
use berth_api::{HostNodePool, labels};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube_core::ResourceExt;
use std::sync::Arc;

/// Whether tenants share a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingStatus {
    /// It is in no shared pool and was in none.
    NotInSharedPool,
    /// Tenants share it.
    Shared(String),
    /// It is selected by this shared pool and can be added to it.
    Eligible(String),
    /// It is selected by this shared pool and must not be added to it, for this reason.
    Rejected(String, String),
}

/// The sharing status that a node should have. `slices` is how many `ResourceSlices` are published for it.
pub fn sharing_status(node: &Node, pools: &[Arc<HostNodePool>], slices: usize) -> SharingStatus {
    let mut matching = pools.iter().filter(|pool| pool.spec.selects(node.labels()));
    let Some(pool) = matching.next() else {
        return SharingStatus::NotInSharedPool;
    };
    // A node that several pools select is in none of them.
    if matching.next().is_some() || !pool.spec.is_shared() || pool.metadata.deletion_timestamp.is_some() {
        return SharingStatus::NotInSharedPool;
    }
    let name = pool.name_any();
    let refused = |why: String| SharingStatus::Rejected(name.clone(), why);
    if let Some(why) = device_evidence::find_device_evidence(node, slices) {
        return refused(why);
    }
    if Assignment::read(node).is_some() || node.labels().contains_key(labels::NODE_STATE) {
        return refused("it is assigned to a tenant or being recycled".into());
    }
    if node.metadata.deletion_timestamp.is_some() {
        return refused("it is being deleted".into());
    }
    if shared_pool_of(node) == Some(&name) && node.labels().get(labels::POOL) == Some(&name) {
        SharingStatus::Shared(name)
    } else {
        SharingStatus::Eligible(name)
    }
}

/// A host pod that may run on shared nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPod {
    /// UID of the object.
    pub uid: String,
    pub tenant: String,
    /// Shared pools that its affinity names.
    pub pools: Vec<String>,
    /// Whether it is terminating.
    pub is_ending: bool,
}

/// Reads a host pod that may run on shared nodes, and the name of its node, which is empty as long as it has none.
pub fn locate_pod(pod: &Pod) -> Option<(String, SharedPod)> {
    let spec = pod.spec.as_ref()?;
    let required = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let mut pools: Vec<String> = required
        .iter()
        .flat_map(|required| &required.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten())
        .filter(|expression| expression.key == labels::SHARED_POOL)
        .flat_map(|expression| expression.values.iter().flatten().cloned())
        .collect();
    pools.sort();
    pools.dedup();
    let pod = SharedPod {
        uid: pod.uid().unwrap_or_default(),
        tenant: pod.labels().get(labels::TENANT).cloned().unwrap_or_default(),
        pools,
        is_ending: pod.metadata.deletion_timestamp.is_some(),
    };
    Some((spec.node_name.clone().unwrap_or_default(), pod))
}

/// What to do with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDecision {
    Keep,
    /// Evict it, as from a drained node: disruption budgets apply.
    Evict,
    /// Delete it, even if budgets forbid its eviction.
    Delete,
}

/// Whether a pod may stay on its node. `node` is none as long as it has none; `allowed` are the shared pools of its tenant.
pub fn decide_about_pod(pod: &SharedPod, node: Option<&Node>, has_devices: bool, allowed: &[String]) -> PodDecision {
    let Some(node) = node else {
        // The scheduler could place it on a node of a pool that its tenant may not use any more.
        let is_allowed = pod.pools.iter().all(|pool| allowed.contains(pool));
        return if is_allowed {
            PodDecision::Keep
        } else {
            PodDecision::Delete
        };
    };
    if node.labels().get(labels::TENANT) == Some(&pod.tenant) {
        return PodDecision::Keep;
    }
    let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
    match shared_pool_of(node).or(before) {
        Some(pool) if !allowed.contains(pool) || has_devices => PodDecision::Delete,
        Some(_) if shared_pool_of(node).is_some() => PodDecision::Keep,
        Some(_) => PodDecision::Evict,
        None => PodDecision::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{is_or_was_shared, was_shared};
    use berth_api::{HostNodePoolSpec, NodeMode};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn pool(name: &str, key: &str, mode: NodeMode) -> Arc<HostNodePool> {
        let spec = json!({"nodeSelector": {key: "yes"}, "modes": [mode]});
        let spec: HostNodePoolSpec = serde_json::from_value(spec).unwrap();
        Arc::new(HostNodePool::new(name, spec))
    }

    fn node(labels: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap()
    }

    #[test]
    fn only_a_node_without_devices_joins_a_shared_pool() {
        let pools = [
            pool("cpu", "cpu", NodeMode::Shared),
            pool("h100", "gpu", NodeMode::Private),
        ];
        let mut plain = node(&json!({"cpu": "yes"}));
        assert_eq!(sharing_status(&plain, &pools, 0), SharingStatus::Eligible("cpu".into()));
        let both = [(labels::SHARED_POOL, "cpu"), (labels::POOL, "cpu")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        plain.labels_mut().extend(both);
        assert_eq!(sharing_status(&plain, &pools, 0), SharingStatus::Shared("cpu".into()));
        assert!(matches!(sharing_status(&plain, &pools, 1), SharingStatus::Rejected(..)));
        for elsewhere in [json!({}), json!({"gpu": "yes"}), json!({"cpu": "yes", "gpu": "yes"})] {
            assert_eq!(
                sharing_status(&node(&elsewhere), &pools, 0),
                SharingStatus::NotInSharedPool
            );
        }
    }

    #[test]
    fn a_node_with_an_assignment_does_not_join_a_shared_pool() {
        let pools = [pool("cpu", "cpu", NodeMode::Shared)];
        for (key, value) in [(labels::TENANT, "t"), (labels::NODE_STATE, "Scrubbing")] {
            let status = sharing_status(&node(&json!({"cpu": "yes", key: value})), &pools, 0);
            assert!(matches!(status, SharingStatus::Rejected(..)), "{status:?}");
        }
    }

    #[test]
    fn a_pod_stays_where_its_tenant_may_be() {
        let pod = SharedPod {
            tenant: "t".into(),
            pools: vec!["cpu".into()],
            ..SharedPod::default()
        };
        let (mine, none) = (["cpu".to_owned()], []);
        assert_eq!(decide_about_pod(&pod, None, false, &mine), PodDecision::Keep);
        assert_eq!(decide_about_pod(&pod, None, false, &none), PodDecision::Delete);
        let shared = node(&json!({labels::SHARED_POOL: "cpu"}));
        assert_eq!(decide_about_pod(&pod, Some(&shared), false, &mine), PodDecision::Keep);
        assert_eq!(decide_about_pod(&pod, Some(&shared), false, &none), PodDecision::Delete);
        assert_eq!(decide_about_pod(&pod, Some(&shared), true, &mine), PodDecision::Delete);
        let own = node(&json!({labels::TENANT: "t"}));
        assert_eq!(decide_about_pod(&pod, Some(&own), true, &none), PodDecision::Keep);
        let mut left = node(&json!({}));
        assert_eq!(decide_about_pod(&pod, Some(&left), false, &mine), PodDecision::Delete);
        left.metadata.annotations = Some(BTreeMap::from([(labels::PREVIOUS_SHARED_POOL.into(), "cpu".into())]));
        assert_eq!(decide_about_pod(&pod, Some(&left), false, &mine), PodDecision::Evict);
        assert!(is_or_was_shared(&left) && is_or_was_shared(&shared) && !is_or_was_shared(&own));
        assert!(was_shared(&left) && !was_shared(&shared) && !was_shared(&own));
    }
}
