//! Which nodes tenants share and which of their pods must leave: pure.

use super::devices;
use crate::nodes::NodeRecord;
use berth_api::{HostNodePool, labels};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::sync::Arc;

/// Where a node stands with regard to shared pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in no shared pool and was in none.
    Elsewhere,
    /// Tenants share it.
    Shared(String),
    /// It belongs to this shared pool and can be taken in.
    Joins(String),
    /// It belongs to this shared pool and must not be taken in; the words say why.
    Refused(String, String),
}

/// Where a node should stand. `slices` is how many `ResourceSlices` are published for it.
pub fn standing(node: &Node, pools: &[Arc<HostNodePool>], slices: usize) -> Standing {
    let mut matching = pools.iter().filter(|pool| pool.spec.selects(node.labels()));
    let Some(pool) = matching.next() else {
        return Standing::Elsewhere;
    };
    // Several pools: whoever is told, it is nobody's.
    if matching.next().is_some() || !pool.spec.is_shared() || pool.metadata.deletion_timestamp.is_some() {
        return Standing::Elsewhere;
    }
    let name = pool.name_any();
    let refused = |why: String| Standing::Refused(name.clone(), why);
    if let Some(why) = devices::evidence(node, slices) {
        return refused(why);
    }
    if NodeRecord::read(node).is_some() || node.labels().contains_key(labels::NODE_STATE) {
        return refused("it is or was a single tenant's and is not free".into());
    }
    if node.metadata.deletion_timestamp.is_some() {
        return refused("it is being deleted".into());
    }
    if pool_of(node) == Some(&name) && node.labels().get(labels::POOL) == Some(&name) {
        Standing::Shared(name)
    } else {
        Standing::Joins(name)
    }
}

/// The shared pool whose tenants use a node now.
pub fn pool_of(node: &Node) -> Option<&String> {
    node.labels().get(labels::SHARED_POOL)
}

/// Whether a node is used by several tenants, or was and has not been cleaned since. No tenant can have it alone.
pub fn is_kept(node: &Node) -> bool {
    pool_of(node).is_some() || node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
}

/// Whether tenants shared a node and do no longer, and it was not cleaned since.
pub fn was_shared(node: &Node) -> bool {
    pool_of(node).is_none() && node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
}

/// A host pod that may run on shared nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPod {
    /// UID of the object.
    pub uid: String,
    /// Its tenant.
    pub tenant: String,
    /// Shared pools that its affinity names.
    pub pools: Vec<String>,
    /// Whether it is on its way out.
    pub is_ending: bool,
}

/// What is to be done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Nothing.
    Yes,
    /// It leaves as if its node were drained: disruption budgets hold.
    Drain,
    /// It leaves, whatever budgets say.
    No,
}

/// Whether a pod may be where it is. `node` is none as long as it has none; `allowed` are the shared pools of its tenant.
pub fn may_stay(pod: &SharedPod, node: Option<&Node>, has_devices: bool, allowed: &[String]) -> Stay {
    let Some(node) = node else {
        // It would still find nodes of a pool that its tenant has lost.
        let is_allowed = pod.pools.iter().all(|pool| allowed.contains(pool));
        return if is_allowed { Stay::Yes } else { Stay::No };
    };
    if node.labels().get(labels::TENANT) == Some(&pod.tenant) {
        return Stay::Yes;
    }
    let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
    match pool_of(node).or(before) {
        Some(pool) if !allowed.contains(pool) || has_devices => Stay::No,
        Some(_) if pool_of(node).is_some() => Stay::Yes,
        Some(_) => Stay::Drain,
        None => Stay::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_node_joins_once_and_without_devices_only() {
        let pools = [
            pool("cpu", "cpu", NodeMode::Shared),
            pool("h100", "gpu", NodeMode::Private),
        ];
        let mut plain = node(&json!({"cpu": "yes"}));
        assert_eq!(standing(&plain, &pools, 0), Standing::Joins("cpu".into()));
        let both = [(labels::SHARED_POOL, "cpu"), (labels::POOL, "cpu")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        plain.labels_mut().extend(both);
        assert_eq!(standing(&plain, &pools, 0), Standing::Shared("cpu".into()));
        assert!(matches!(standing(&plain, &pools, 1), Standing::Refused(..)));
        for elsewhere in [json!({}), json!({"gpu": "yes"}), json!({"cpu": "yes", "gpu": "yes"})] {
            assert_eq!(standing(&node(&elsewhere), &pools, 0), Standing::Elsewhere);
        }
    }

    #[test]
    fn a_node_that_is_or_was_a_tenants_does_not_join() {
        let pools = [pool("cpu", "cpu", NodeMode::Shared)];
        for (key, value) in [(labels::TENANT, "t"), (labels::NODE_STATE, "Scrubbing")] {
            let standing = standing(&node(&json!({"cpu": "yes", key: value})), &pools, 0);
            assert!(matches!(standing, Standing::Refused(..)), "{standing:?}");
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
        assert_eq!(may_stay(&pod, None, false, &mine), Stay::Yes);
        assert_eq!(may_stay(&pod, None, false, &none), Stay::No);
        let shared = node(&json!({labels::SHARED_POOL: "cpu"}));
        assert_eq!(may_stay(&pod, Some(&shared), false, &mine), Stay::Yes);
        assert_eq!(may_stay(&pod, Some(&shared), false, &none), Stay::No);
        assert_eq!(may_stay(&pod, Some(&shared), true, &mine), Stay::No);
        let own = node(&json!({labels::TENANT: "t"}));
        assert_eq!(may_stay(&pod, Some(&own), true, &none), Stay::Yes);
        let mut left = node(&json!({}));
        assert_eq!(may_stay(&pod, Some(&left), false, &mine), Stay::No);
        left.metadata.annotations = Some(BTreeMap::from([(labels::PREVIOUS_SHARED_POOL.into(), "cpu".into())]));
        assert_eq!(may_stay(&pod, Some(&left), false, &mine), Stay::Drain);
        assert!(is_kept(&left) && is_kept(&shared) && !is_kept(&own));
        assert!(was_shared(&left) && !was_shared(&shared) && !was_shared(&own));
    }
}
