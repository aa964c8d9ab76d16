//! Nodes that are not Ready for so long that their pool repairs them: the planner takes them from their node groups, and they wait until they are Ready.

use crate::{demand::Workload, node::not_ready_since};
use berth_api::HostNodePoolSpec;
use berth_planner::{RepairPolicy, Seconds};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// Seconds after the grace period of a pod in which its kubelet reports its end.
pub const REPORTED_WITHIN: i64 = 60;

/// Since when a node is not Ready, if that is so long that its pool repairs it; `None`: it is Ready, may come back soon, or its pool repairs no nodes.
pub fn broken_since(node: &Node, pool: &HostNodePoolSpec, now: Timestamp) -> Option<Timestamp> {
    let repair = pool.repair.as_ref()?;
    let since = not_ready_since(node, now)?;
    (now.as_second() - since.as_second() >= repair.not_ready_after()).then_some(since)
}

/// How the planner repairs the nodes of a pool that has so many.
pub(crate) fn repair_policy(pool: &HostNodePoolSpec, nodes: usize) -> Option<RepairPolicy> {
    let repair = pool.repair.as_ref()?;
    Some(RepairPolicy {
        not_ready_after: repair.not_ready_after(),
        max_unhealthy: repair.max_unhealthy(u32::try_from(nodes).unwrap_or(u32::MAX)),
    })
}

/// Whether all pods of a node should have ended that does not report their end: none is left, or the grace period of each is over. Kubernetes' own quotas
/// count no other pods either.
pub(crate) fn should_have_ended(pods: &[&Workload], now: Seconds) -> bool {
    pods.iter().all(|pod| {
        pod.ends_at
            .is_some_and(|ends_at| now >= ends_at.saturating_add(REPORTED_WITHIN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::RepairSpec;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_node_is_broken_once_the_time_of_its_pool_is_over() {
        let time = at(400).to_string();
        let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule", "timeAdded": time});
        let condition = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": time});
        let node =
            json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]}, "status": {"conditions": [condition]}});
        let node: Node = serde_json::from_value(node).unwrap();
        let mut pool = HostNodePoolSpec::default();
        assert_eq!(broken_since(&node, &pool, at(100_000)), None, "by default nodes stay");
        pool.repair = Some(RepairSpec::default());
        assert_eq!(broken_since(&node, &pool, at(999)), None);
        assert_eq!(broken_since(&node, &pool, at(1000)), Some(at(400)));
    }

    #[test]
    fn pods_count_until_their_grace_period_is_over() {
        let pod = |ends_at| Workload {
            ends_at,
            ..Workload::default()
        };
        let (runs, ends) = (pod(None), pod(Some(1000)));
        assert!(should_have_ended(&[], 0));
        assert!(!should_have_ended(&[&ends], 1059) && should_have_ended(&[&ends], 1060));
        assert!(!should_have_ended(&[&ends, &runs], 100_000), "it is not deleted");
    }
}
