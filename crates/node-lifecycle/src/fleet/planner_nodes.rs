//! Nodes as the planner sees them, from what is observed of them.

use super::{
    DemandCollector, SnapshotInput,
    growth::is_starting,
    nodes::{DevicesByPool, ObservedNode},
    repairs::Repairs,
    unavailable::unavailable_reason,
};
use crate::{
    AssignmentState,
    demand::{self, Workload},
    node::{find_closing_taint, not_ready_since},
    recorded_gpus,
    repair::should_have_ended,
};
use berth_api::{HostNodePool, is_node_ready};
use berth_planner::{Node, NodeState, Owner, Phase, Seconds};
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::collections::BTreeSet;

pub(super) fn planner_node(
    node: &ObservedNode<'_>,
    input: &SnapshotInput<'_>,
    now: Seconds,
    pools: &[&HostNodePool],
    devices: &DevicesByPool<'_>,
    collected: &DemandCollector,
    repairs: &Repairs,
) -> Node {
    let pool = pools.iter().find(|pool| pool.name_any() == node.pool);
    let key = pool.and_then(|pool| pool.spec.topology_key.as_ref());
    let needs_repair = pool.is_some_and(|pool| repairs.is_repaired(node, pool, input.now));
    let state = planner_state(node, needs_repair, now);
    let recorded_gpus = pool
        .and_then(|pool| pool.spec.gpu_resource_name.as_ref())
        .map_or(0, |resource| {
            recorded_gpus::track(node.object, &state, resource, node.reported_gpus)
        });
    let devices = devices.get(&node.pool).copied().unwrap_or_default();
    let users = node.list_users(devices);
    // Those that select the node and use none of its devices keep it, and it is idle.
    let is_in_use = users.iter().any(|pod| demand::uses_node_of(pod, devices));
    let (idle_since, free_since) = match &state {
        NodeState::Owned(owner) => (input.idle.track(node.object, is_in_use, owner.since, now), None),
        NodeState::Free => (None, Some(input.idle.track_free(node.object, now))),
        NodeState::Unavailable { .. } | NodeState::Draining { .. } | NodeState::Recycling { .. } => {
            input.idle.forget(&node.name);
            (None, None)
        }
    };
    let mut capacity = node.capacity.clone();
    for (resource, limit) in collected.limits.get(&node.pool).into_iter().flatten() {
        capacity.insert(resource.clone(), *limit);
    }
    Node {
        pool: node.pool.clone(),
        domain: key.and_then(|key| node.object.labels().get(key).cloned()),
        labels: collected.labels(node),
        used: node.sum_used(&capacity),
        capacity,
        recorded_gpus,
        pods: u32::try_from(node.pods.len()).unwrap_or(u32::MAX),
        idle_since,
        free_since,
        kept_by_pods: idle_since.is_some() && !users.is_empty(),
        gangs: list_gangs(&node.pods),
        priority: users.iter().map(|pod| pod.priority).max().unwrap_or_default(),
        not_ready_since: not_ready_since(node.object, input.now).map(Timestamp::as_second),
        exempt_from_repair: repairs.is_exempt(node),
        starting: matches!(state, NodeState::Unavailable { .. }) && is_starting(node, now),
        unusable: matches!(state, NodeState::Owned(_)) && is_broken(node, users.is_empty()),
        closed: matches!(state, NodeState::Owned(_)) && find_closing_taint(node.object).is_some(),
        state,
        name: node.name.clone(),
    }
}

fn list_gangs(pods: &[&Workload]) -> BTreeSet<String> {
    let gangs = pods.iter().filter_map(|pod| pod.gang.as_ref());
    gangs
        .filter(|gang| gang.size > 1)
        .map(|gang| gang.name.clone())
        .collect()
}

/// Whether a tenant cannot use its node now. A cordon that Berth set is part of the node's state.
fn is_broken(node: &ObservedNode<'_>, is_idle: bool) -> bool {
    let cordoned_by_berth = node
        .assignment
        .as_ref()
        .is_some_and(|assignment| assignment.state == AssignmentState::Cordoned);
    if cordoned_by_berth {
        !is_node_ready(node.object)
    } else {
        !node.is_usable(is_idle)
    }
}

/// `needs_repair`: whether it is not Ready for so long that its pool repairs it, and that is no outage.
fn planner_state(node: &ObservedNode<'_>, needs_repair: bool, now: Seconds) -> NodeState {
    let second = |time: Option<Timestamp>| time.map_or(now, Timestamp::as_second);
    let Some(assignment) = &node.assignment else {
        return match unavailable_reason(node) {
            None => NodeState::Free,
            Some(why) => NodeState::Unavailable { reason: why },
        };
    };
    let is_drained = match assignment.state {
        AssignmentState::Draining => true,
        AssignmentState::Cordoned => second(assignment.cordoned_until) <= now,
        _ => false,
    };
    if needs_repair && is_drained && !assignment.uid.is_empty() {
        // Its tenant does not get it back. Nothing of the tenant runs there as far as Kubernetes knows: quotas count another node in its place.
        return if should_have_ended(&node.pods, now) {
            NodeState::Unavailable {
                reason: "it is not Ready, and is scrubbed once it is".into(),
            }
        } else {
            NodeState::Draining {
                tenant: assignment.uid.clone(),
                since: second(assignment.since),
            }
        };
    }
    let phase = match assignment.state {
        AssignmentState::Reserved => Phase::Reserved {
            required_nodes: assignment.reserved_with,
        },
        AssignmentState::Joining => Phase::Joining,
        AssignmentState::Assigned => Phase::Assigned,
        AssignmentState::Cordoned => Phase::Cordoned {
            drain_at: second(assignment.cordoned_until),
        },
        AssignmentState::Draining if !assignment.uid.is_empty() => {
            return NodeState::Draining {
                tenant: assignment.uid.clone(),
                since: second(assignment.since),
            };
        }
        AssignmentState::Draining | AssignmentState::Scrubbing | AssignmentState::Validating => {
            return NodeState::Recycling {
                previous_tenant: assignment.slug.clone(),
                since: second(assignment.since),
            };
        }
        AssignmentState::Quarantined => {
            return NodeState::Unavailable {
                reason: format!("quarantined: {}", assignment.reason),
            };
        }
    };
    NodeState::Owned(Owner {
        tenant: assignment.uid.clone(),
        node_group: assignment.group.clone(),
        since: second(assignment.owned_since.or(assignment.since)),
        phase,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::{GPU, Objects, free_node, gpu_pool, in_state, later_snapshot};
    use crate::{Assignment, idle::IdleTracker, node::is_assignable};
    use berth_planner::Amounts;
    use k8s_openapi::api::core::v1::{Node as HostObject, Taint};
    use serde_json::json;
    use std::sync::Arc;

    fn observed<'a>(object: &'a HostObject, assignment: Option<&Assignment>) -> ObservedNode<'a> {
        ObservedNode {
            object,
            name: "n1".into(),
            assignment: assignment.cloned(),
            pool: "h100".into(),
            overlap: None,
            rejected: None,
            in_use: None,
            capacity: Amounts::new(),
            reported_gpus: 0,
            lacks_gpus: None,
            has_unknown_devices: false,
            pods: Vec::new(),
        }
    }

    /// A node that is Ready, with a taint.
    fn with_taint(key: &str, effect: &str) -> HostObject {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let mut object: HostObject = serde_json::from_value(status).unwrap();
        let taint = Taint {
            key: key.into(),
            effect: effect.into(),
            ..Taint::default()
        };
        object.spec.get_or_insert_default().taints = Some(vec![taint]);
        object
    }

    #[test]
    fn a_node_that_the_platform_closed_is_not_assigned_and_is_broken_once_it_is_idle() {
        let now = Timestamp::from_second(10_000).unwrap();
        let assigned =
            Assignment::reserved("uid", "train", "h100", 1, now, "").with_state(AssignmentState::Assigned, now, "");
        let cordoned = assigned.clone().with_state(AssignmentState::Cordoned, now, "");
        for (key, effect, is_broken_if_idle, is_closed) in [
            ("node.kubernetes.io/disk-pressure", "NoSchedule", true, true),
            ("node.kubernetes.io/memory-pressure", "NoSchedule", false, true),
            ("node.kubernetes.io/pid-pressure", "NoSchedule", true, true),
            ("node-problem-detector.example.com/xid", "NoSchedule", true, true),
            ("node.kubernetes.io/disk-pressure", "PreferNoSchedule", false, false),
            ("node.kubernetes.io/reserved-for-gpus", "NoSchedule", false, false),
            ("nvidia.com/gpu", "NoSchedule", false, false),
        ] {
            let object = with_taint(key, effect);
            let node = observed(&object, Some(&assigned));
            assert_eq!(is_broken(&node, true), is_broken_if_idle, "{key} {effect}");
            assert!(!is_broken(&node, false), "{key}: its pods go on");
            assert!(
                !is_broken(&observed(&object, Some(&cordoned)), true),
                "{key}: it leaves"
            );
            let reason = unavailable_reason(&observed(&object, None));
            assert_eq!(reason.is_some(), is_closed, "{key} {effect}");
            assert_eq!(is_assignable(&object), !is_closed, "{key} {effect}");
        }
    }

    #[test]
    fn a_node_is_free_since_the_first_snapshot_in_which_it_is_until_one_in_which_it_is_not() {
        let idle = IdleTracker::default();
        let free_since = |now, node: &Arc<HostObject>| {
            let objects = Objects {
                now,
                pools: vec![Arc::new(gpu_pool())],
                nodes: vec![Arc::clone(node)],
                ..Objects::default()
            };
            later_snapshot(objects, &idle).nodes[0].free_since
        };
        let free = Arc::new(free_node("n1", &json!({GPU: "8"})));
        assert_eq!((free_since(100, &free), free_since(160, &free)), (Some(100), Some(100)));
        let scrubbed = Arc::new(in_state(&free, AssignmentState::Scrubbing, "a", 200));
        assert_eq!(free_since(200, &scrubbed), None);
        assert_eq!(free_since(300, &free), Some(300));
    }

    #[test]
    fn a_node_with_more_slices_than_are_read_is_not_assigned() {
        let object = with_taint("nvidia.com/gpu", "NoSchedule");
        let node = |has_unknown_devices| ObservedNode {
            has_unknown_devices,
            ..observed(&object, None)
        };
        assert_eq!(unavailable_reason(&node(false)), None);
        assert!(unavailable_reason(&node(true)).is_some_and(|why| why.contains("ResourceSlices")));
    }

    #[test]
    fn the_taint_of_a_cordon_counts_only_while_the_node_is_cordoned() {
        let now = Timestamp::from_second(10_000).unwrap();
        let assigned =
            Assignment::reserved("uid", "train", "h100", 1, now, "").with_state(AssignmentState::Assigned, now, "");
        let mut object = with_taint("node.kubernetes.io/unschedulable", "NoSchedule");
        assert!(!is_broken(&observed(&object, Some(&assigned)), true));
        assert_eq!(unavailable_reason(&observed(&object, None)), None);
        assert!(is_assignable(&object));
        object.spec.get_or_insert_default().unschedulable = Some(true);
        assert!(is_broken(&observed(&object, Some(&assigned)), true));
        assert!(unavailable_reason(&observed(&object, None)).is_some_and(|why| why == "it is cordoned"));
        assert!(!is_assignable(&object));
    }

    #[test]
    fn a_node_has_its_tenant_until_no_pod_can_run_there() {
        for state in AssignmentState::ALL {
            let now = Timestamp::from_second(10_000).unwrap();
            let assigned = Assignment::reserved("uid", "train", "h100", 1, now, "").with_state(state, now, "");
            let object = HostObject::default();
            let node = observed(&object, Some(&assigned));
            let tenant = match planner_state(&node, false, now.as_second()) {
                NodeState::Owned(owner) => owner.tenant,
                NodeState::Draining { tenant, .. } => tenant,
                NodeState::Free | NodeState::Unavailable { .. } | NodeState::Recycling { .. } => String::new(),
            };
            let may_run_pods = state.runs_tenant_pods() || state.is_pending();
            assert_eq!(tenant == "uid", may_run_pods, "{state:?}");
        }
    }
}
