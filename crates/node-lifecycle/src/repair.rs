//! Nodes that are not Ready for so long that their pool repairs them: the planner takes them from their node groups, and they wait until they are Ready.

use crate::{demand::Workload, node::not_ready_since};
use berth_api::{HostNodePool, HostNodePoolSpec, conditions::REPAIR_ALLOWED};
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
pub(crate) fn repair_policy(pool: &HostNodePool, nodes: usize, now: Timestamp) -> Option<RepairPolicy> {
    let repair = pool.spec.repair.as_ref()?;
    Some(RepairPolicy {
        not_ready_after: repair.not_ready_after(),
        max_unhealthy: repair.max_unhealthy(u32::try_from(nodes).unwrap_or(u32::MAX)),
        allowed_since: repair_allowed_since(pool, now).map(Timestamp::as_second),
    })
}

/// Since when no more nodes of a pool are not Ready than may be, as its status says, which outlasts a control; now if it says that more are. `None`: it says
/// nothing yet.
fn repair_allowed_since(pool: &HostNodePool, now: Timestamp) -> Option<Timestamp> {
    let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.type_ == REPAIR_ALLOWED)?;
    let is_allowed = condition.status == "True";
    Some(if is_allowed {
        condition.last_transition_time.0.min(now)
    } else {
        now
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
    fn the_status_of_a_pool_says_since_when_its_nodes_may_be_taken() {
        let mut pool = HostNodePool::new("h100", HostNodePoolSpec::default());
        assert_eq!(repair_policy(&pool, 20, at(1000)), None);
        pool.spec.repair = Some(RepairSpec::default());
        let allowed_since = |pool: &HostNodePool| repair_policy(pool, 20, at(1000)).unwrap().allowed_since;
        assert_eq!(allowed_since(&pool), None, "nothing was planned yet");
        for (status, since, expected) in [("True", 400, 400), ("False", 400, 1000), ("True", 2000, 1000)] {
            let condition = json!({
                "type": REPAIR_ALLOWED, "status": status, "reason": "r", "message": "", "lastTransitionTime": at(since).to_string(),
            });
            pool.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
            assert_eq!(allowed_since(&pool), Some(expected), "{status} since {since}");
        }
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
