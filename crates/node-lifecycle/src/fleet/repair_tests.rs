//! Nodes that are not Ready, of a pool that repairs its nodes.

use super::TenantInput;
use super::testing::{GPU, Objects, at, cluster, free_node, gpu_pool, in_state, snapshot, waiting_pod};
use crate::{Assignment, AssignmentState, demand::Workload};
use berth_api::{HostNodePool, MaxUnhealthy, NodeGroup, RepairSpec, ScheduleState, conditions::REPAIR_ALLOWED};
use berth_planner::{ActionKind, ActionReason, Fleet, NodeState, plan};
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::json;
use std::sync::Arc;

/// The time of the snapshots.
const NOW: i64 = 10_000;

fn repairing_pool() -> HostNodePool {
    let mut pool = gpu_pool();
    pool.spec.repair = Some(RepairSpec {
        max_unhealthy: Some(MaxUnhealthy::Text("50%".into())),
        ..RepairSpec::default()
    });
    pool
}

fn free(name: &str) -> Node {
    free_node(name, &json!({GPU: "8", "pods": "110"}))
}

/// A node of the group `burst` of the tenant `vision`, in a state for an hour, that is not Ready for eleven minutes.
fn broken(name: &str, state: AssignmentState) -> Node {
    let mut node = in_state(&free(name), state, "vision", NOW - 3600);
    let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[0].status = "Unknown".into();
    conditions[0].last_transition_time = Some(Time(at(NOW - 660)));
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    taints.push(Taint {
        key: "node.kubernetes.io/unreachable".into(),
        effect: "NoSchedule".into(),
        time_added: Some(Time(at(NOW - 660))),
        ..Taint::default()
    });
    node
}

/// A tenant that has a private group of one node.
fn vision() -> TenantInput {
    let groups = vec![NodeGroup::private("burst", "h100", 1)];
    TenantInput::accepted(cluster("vision", "vision", groups))
}

/// The snapshot with this tenant.
fn fleet(nodes: Vec<Node>, workloads: Vec<Arc<Workload>>) -> Fleet {
    fleet_of(repairing_pool(), vision(), nodes, workloads)
}

fn fleet_of(pool: HostNodePool, tenant: TenantInput, nodes: Vec<Node>, workloads: Vec<Arc<Workload>>) -> Fleet {
    snapshot(Objects {
        now: NOW,
        pools: vec![Arc::new(pool)],
        nodes: nodes.into_iter().map(Arc::new).collect(),
        tenants: vec![tenant],
        workloads,
        ..Objects::default()
    })
}

/// A pod on the node `n1`, which is being deleted and had until then to end.
fn pod_on_n1(ends_at: Option<i64>) -> Arc<Workload> {
    waiting_pod("vision", "train", 0, |pod| {
        pod["spec"]["nodeName"] = "n1".into();
        if let Some(ends_at) = ends_at {
            pod["metadata"]["deletionTimestamp"] = at(ends_at).to_string().into();
        }
    })
}

#[test]
fn a_node_that_is_not_ready_for_too_long_is_replaced() {
    let fleet = fleet(
        vec![broken("n1", AssignmentState::Assigned), free("n2")],
        vec![pod_on_n1(None)],
    );
    assert_eq!(fleet.nodes[0].not_ready_since, Some(NOW - 660));
    let actions = plan(&fleet).actions;
    assert_eq!(actions[0].reason, ActionReason::NotReady { not_ready: 660 });
    assert!(
        matches!(actions[1].kind, ActionKind::Reserve { .. }) && actions[1].node == "n2",
        "{actions:?}"
    );
}

#[test]
fn the_most_nodes_that_may_be_not_ready_are_a_part_of_those_of_the_pool() {
    let with = |others: usize| {
        let mut nodes = vec![
            broken("n1", AssignmentState::Assigned),
            broken("n2", AssignmentState::Draining),
        ];
        nodes.extend((0..others).map(|number| free(&format!("n{}", number + 3))));
        plan(&fleet(nodes, vec![]))
    };
    let (small, large) = (with(1), with(2));
    assert_eq!((small.pool_health["h100"].max_unhealthy, small.actions.len()), (1, 0));
    assert_eq!((large.pool_health["h100"].max_unhealthy, large.actions.len()), (2, 2));
}

#[test]
fn a_node_counts_for_its_tenant_until_its_pods_should_have_ended() {
    let state = |state, pods: &[Option<i64>]| {
        let pods = pods.iter().copied().map(pod_on_n1).collect();
        fleet(vec![broken("n1", state)], pods).nodes.remove(0).state
    };
    let counts = |state: &NodeState| matches!(state, NodeState::Draining { tenant, .. } if tenant == "vision");
    assert!(
        counts(&state(AssignmentState::Draining, &[None])),
        "its pod is not evicted yet"
    );
    assert!(counts(&state(
        AssignmentState::Draining,
        &[Some(NOW - 60), Some(NOW - 59)]
    )));
    for pods in [&[Some(NOW - 60)][..], &[]] {
        let found = state(AssignmentState::Draining, pods);
        assert!(matches!(found, NodeState::Unavailable { .. }), "{pods:?}: {found:?}");
    }
    assert!(
        counts(&state(AssignmentState::Cordoned, &[None])),
        "it is drained next, and its tenant does not get it back"
    );
}

#[test]
fn in_an_outage_a_node_counts_for_its_tenant_until_its_pods_have_ended() {
    let is_drained = |others: usize| {
        let mut nodes = vec![
            broken("n1", AssignmentState::Draining),
            broken("n2", AssignmentState::Assigned),
        ];
        nodes.extend((0..others).map(|number| free(&format!("n{}", number + 3))));
        let found = fleet(nodes, vec![pod_on_n1(Some(NOW - 60))]).nodes.remove(0).state;
        !matches!(found, NodeState::Draining { .. })
    };
    assert!(!is_drained(1), "two of three are not Ready");
    assert!(is_drained(2));
}

#[test]
fn a_tenant_that_gets_no_other_node_keeps_one_that_is_not_ready() {
    let count_actions = |change: &dyn Fn(&mut TenantInput)| {
        let mut tenant = vision();
        change(&mut tenant);
        let nodes = vec![broken("n1", AssignmentState::Assigned), free("n2")];
        plan(&fleet_of(repairing_pool(), tenant, nodes, vec![])).actions.len()
    };
    assert_eq!(count_actions(&|_| {}), 2);
    assert_eq!(count_actions(&|tenant| tenant.accepted = false), 0);
    let forbid = |tenant: &mut TenantInput| tenant.schedule = ScheduleState::StartsForbidden;
    assert_eq!(count_actions(&forbid), 0);
    let delete = |tenant: &mut TenantInput| {
        Arc::make_mut(&mut tenant.cluster).metadata.deletion_timestamp = Some(Time(at(NOW)));
    };
    assert_eq!(count_actions(&delete), 0, "its pods end first");
}

#[test]
fn the_last_nodes_that_come_back_after_an_outage_stay() {
    let count_actions = |status: &str, since: i64| {
        let mut pool = repairing_pool();
        let condition = json!({
            "type": REPAIR_ALLOWED, "status": status, "reason": "r", "message": "", "lastTransitionTime": at(since).to_string(),
        });
        pool.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
        let nodes = vec![broken("n1", AssignmentState::Assigned), free("n2")];
        plan(&fleet_of(pool, vision(), nodes, vec![])).actions.len()
    };
    assert_eq!(count_actions("False", NOW - 660), 0, "it is over now");
    assert_eq!(count_actions("True", NOW - 599), 0);
    assert_eq!(count_actions("True", NOW - 600), 2);
}

#[test]
fn a_node_that_drains_and_may_come_back_counts() {
    let mut node = broken("n1", AssignmentState::Draining);
    let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions[0].last_transition_time = Some(Time(at(NOW - 599)));
    let found = fleet(vec![node], vec![pod_on_n1(Some(NOW - 600))])
        .nodes
        .remove(0)
        .state;
    assert!(matches!(found, NodeState::Draining { .. }), "{found:?}");
}

#[test]
fn a_cordon_of_people_is_not_one_of_berth() {
    let cordoned = |mut node: Node| {
        node.spec.get_or_insert_default().unschedulable = Some(true);
        fleet(vec![node], vec![]).nodes.remove(0).exempt_from_repair
    };
    let assigned = broken("n1", AssignmentState::Assigned);
    assert!(cordoned(assigned.clone()));
    assert!(
        !cordoned(broken("n1", AssignmentState::Cordoned)),
        "Berth has cordoned it"
    );
    let mut by_people = free("n1");
    by_people.spec.get_or_insert_default().unschedulable = Some(true);
    let read = Assignment::read(&assigned).unwrap();
    let later = read.with_state(AssignmentState::Cordoned, at(NOW), "");
    let mut object = serde_json::to_value(&by_people).unwrap();
    object["metadata"]["annotations"] = later.to_patch(&by_people, &[])["metadata"]["annotations"].clone();
    object["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    assert!(cordoned(serde_json::from_value(object).unwrap()));
}
