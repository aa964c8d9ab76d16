//! How many GPUs nodes count for, and which pods use them.

use super::testing::{GPU, Objects, at, free_node, gpu_pool, in_state, later_snapshot, snapshot, tenant, waiting_pod};
use crate::{
    AssignmentState,
    demand::Workload,
    devices::{DeviceClass, Devices, MOST_SLICES, Slice, Slices},
    idle::IdleTracker,
};
use berth_api::{HostNodePool, labels};
use berth_planner::{ActionKind, Fleet, Node as PlannedNode, NodeState, plan};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::sync::Arc;

/// A pool that divides its GPUs when it assigns a node.
fn divided_pool() -> HostNodePool {
    let mut pool = gpu_pool();
    pool.spec.gpus_per_assigned_node = Some(56);
    pool
}

fn fleet(pool: HostNodePool, now: i64, node: Node) -> Fleet {
    snapshot(Objects {
        now,
        pools: vec![Arc::new(pool)],
        nodes: vec![Arc::new(node)],
        tenants: vec![tenant("vision")],
        ..Objects::default()
    })
}

#[test]
fn a_node_that_will_be_divided_counts_as_it_will_be() {
    let free = || free_node("n1", &json!({GPU: "8"}));
    let capacity = |now: i64, node: Node| {
        let fleet = fleet(divided_pool(), now, node);
        let (pool, node) = (&fleet.pools[0], &fleet.nodes[0]);
        (node.capacity[GPU], pool.count_gpus(node))
    };
    assert_eq!(capacity(10, free()), (56, 56));
    for state in [
        AssignmentState::Reserved,
        AssignmentState::Joining,
        AssignmentState::Scrubbing,
    ] {
        assert_eq!(
            capacity(10, in_state(&free(), state, "vision", 0)),
            (56, 56),
            "{state:?}"
        );
    }
    let assigned = |gpus: &str| {
        let node = free_node("n1", &json!({GPU: gpus}));
        in_state(&node, AssignmentState::Assigned, "vision", 0)
    };
    assert_eq!(capacity(10, assigned("8")), (56, 56), "its kubelet may not know yet");
    assert_eq!(
        capacity(1_000, assigned("8")),
        (8, 56),
        "pods do not fit, and it counts"
    );
    assert_eq!(capacity(1_000, assigned("64")), (64, 64));
    let recorded = fleet(divided_pool(), 10, assigned("8")).nodes[0].recorded_gpus;
    assert_eq!(recorded, 8, "what it really had");
}

#[test]
fn pods_get_as_many_nodes_as_they_need_once_these_are_divided() {
    let nodes = (0..8).map(|number| Arc::new(free_node(&format!("n{number}"), &json!({GPU: "8", "pods": "110"}))));
    let fleet = snapshot(Objects {
        pools: vec![Arc::new(divided_pool())],
        nodes: nodes.collect(),
        tenants: vec![tenant("vision")],
        workloads: (0..56)
            .map(|number| waiting_pod("vision", &format!("p{number}"), 0, |_| ()))
            .collect(),
        ..Objects::default()
    });
    let actions = plan(&fleet).actions;
    let reserved = actions
        .iter()
        .filter(|action| matches!(action.kind, ActionKind::Reserve { .. }));
    assert_eq!(reserved.count(), 1, "{actions:?}");
}

/// Eight devices of a class on the node `n1`.
fn devices(extended_resource: Option<&str>) -> Devices {
    let devices: Vec<Value> = (0..8).map(|number| json!({"name": format!("gpu-{number}")})).collect();
    let devices = Devices::new(Arc::new(slices(1, &devices)));
    let spec = serde_json::from_value(json!({"extendedResourceName": extended_resource})).unwrap();
    devices.put_class("gpu.example.com", Some(DeviceClass::read(spec)));
    devices
}

/// So many slices of the node `n1`, each with these devices.
fn slices(count: usize, devices: &[Value]) -> Slices {
    let slices = Slices::default();
    let pool = json!({"name": "n1", "generation": 1});
    let spec = json!({"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices}).to_string();
    for number in 0..count {
        slices.put(&number.to_string(), Some(Slice::read(&spec).unwrap()));
    }
    slices
}

#[test]
fn devices_that_the_resource_of_the_pool_does_not_count_are_no_gpus() {
    let node = |extended: Option<&str>, allocatable: &Value| -> PlannedNode {
        let mut fleet = snapshot(Objects {
            pools: vec![Arc::new(gpu_pool())],
            nodes: vec![Arc::new(free_node("n1", allocatable))],
            devices: devices(extended),
            ..Objects::default()
        });
        fleet.nodes.remove(0)
    };
    let counted = node(Some(GPU), &json!({}));
    assert_eq!((counted.state, counted.capacity[GPU]), (NodeState::Free, 8));
    let state = node(None, &json!({})).state;
    assert!(
        matches!(&state, NodeState::Unavailable { reason } if reason.contains("extendedResourceName")),
        "it would count as one GPU: {state:?}"
    );
    let partitions = json!({"nvidia.com/mig-1g.10gb": "56"});
    assert_eq!(node(None, &partitions).state, NodeState::Free);
}

#[test]
fn a_node_with_more_slices_than_are_read_is_unavailable_for_that_reason_also_if_it_has_no_gpus() {
    for allocatable in [json!({GPU: "8"}), json!({})] {
        let fleet = snapshot(Objects {
            pools: vec![Arc::new(gpu_pool())],
            nodes: vec![Arc::new(free_node("n1", &allocatable))],
            devices: Devices::new(Arc::new(slices(MOST_SLICES + 1, &[]))),
            ..Objects::default()
        });
        let state = &fleet.nodes[0].state;
        assert!(
            matches!(state, NodeState::Unavailable { reason } if reason.contains("ResourceSlices")),
            "{state:?}"
        );
    }
}

#[test]
fn a_node_with_network_devices_alone_has_no_gpus_yet() {
    let fleet = fleet(gpu_pool(), 10, free_node("n1", &json!({"rdma/hca": "8", "cpu": "64"})));
    let reason = "it has no GPUs yet".to_owned();
    assert_eq!(fleet.nodes[0].state, NodeState::Unavailable { reason });
}

/// A pod that runs on the node, and requests `amounts`.
fn running(amounts: &Value, selects_pool: bool) -> Arc<Workload> {
    waiting_pod("vision", "p", 0, |pod| {
        pod["spec"]["nodeName"] = "n1".into();
        pod["spec"]["containers"][0]["resources"]["requests"] = amounts.clone();
        if selects_pool {
            pod["spec"]["nodeSelector"] = json!({labels::POOL: "h100"});
        }
    })
}

#[test]
fn a_node_whose_pods_use_no_gpus_is_idle_also_if_they_keep_it() {
    for (pods, is_idle, is_kept) in [
        (vec![running(&json!({GPU: "1"}), false)], false, false),
        (vec![running(&json!({"cpu": "1"}), true)], true, true),
        (vec![running(&json!({"rdma/hca": "1"}), true)], true, true),
        (vec![running(&json!({"rdma/hca": "1"}), false)], true, false),
        (
            vec![running(&json!({"cpu": "1"}), true), running(&json!({GPU: "1"}), false)],
            false,
            false,
        ),
        (vec![], true, false),
    ] {
        let node = free_node("n1", &json!({GPU: "8", "rdma/hca": "8", "pods": "110"}));
        let objects = Objects {
            now: 1_000,
            pools: vec![Arc::new(gpu_pool())],
            nodes: vec![Arc::new(in_state(&node, AssignmentState::Assigned, "vision", 0))],
            tenants: vec![tenant("vision")],
            workloads: pods.clone(),
            ..Objects::default()
        };
        let fleet = later_snapshot(objects, &IdleTracker::default());
        let node = &fleet.nodes[0];
        assert_eq!(node.idle_since, is_idle.then(|| at(1_000).as_second()), "{pods:?}");
        assert_eq!(node.kept_by_pods, is_kept, "{pods:?}");
    }
}
