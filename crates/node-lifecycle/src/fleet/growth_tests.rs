use crate::{
    demand::{NodeRules, Workload},
    fleet::{
        TenantInput,
        testing::{GPU, Objects, at, cluster, gpu_pool, snapshot},
    },
};
use berth_api::{AutoscalingSpec, NodeGroup, PoolPolicy, PoolReclaim, names::TenantId};
use berth_planner::{Fleet, NodeState, Reclaim};
use serde_json::{Value, json};
use std::sync::Arc;

const NOW: i64 = 10_000;

/// A pool of H100s, a tenant with a group that follows demand, and one pod that waits.
fn fleet(autoscaling: Option<AutoscalingSpec>, nodes: &[Value], pod: &Workload) -> Fleet {
    fleet_with_policy(PoolPolicy::default(), autoscaling, nodes, pod)
}

fn fleet_with_policy(
    policy: PoolPolicy,
    autoscaling: Option<AutoscalingSpec>,
    nodes: &[Value],
    pod: &Workload,
) -> Fleet {
    let mut pool = gpu_pool();
    pool.spec.autoscaling = autoscaling;
    pool.spec.policy = policy;
    let cluster = cluster("vision", "uid", vec![NodeGroup::dynamic("burst", "h100", 0, 8)]);
    let pod = Workload {
        tenant: TenantId::new("vision", "uid").slug().into(),
        ..pod.clone()
    };
    let nodes = nodes.iter().map(|node| serde_json::from_value(node.clone()).unwrap());
    snapshot(Objects {
        now: NOW,
        pools: vec![Arc::new(pool)],
        nodes: nodes.map(Arc::new).collect(),
        tenants: vec![TenantInput::accepted(cluster)],
        workloads: vec![Arc::new(pod)],
        ..Objects::default()
    })
}

fn pod(amounts: &[(&str, u64)], selector: &[(&str, &str)]) -> Workload {
    Workload {
        name: "train".into(),
        amounts: amounts
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect(),
        rules: NodeRules {
            selector: selector
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..NodeRules::default()
        },
        ..Workload::default()
    }
}

fn node(age: i64, ready: bool, gpus: u32, taint: Option<&str>) -> Value {
    let taints: Vec<Value> = taint
        .iter()
        .map(|key| json!({"key": key, "effect": "NoSchedule"}))
        .collect();
    json!({
        "metadata": {
            "name": "n1", "labels": {"product": "H100"},
            "creationTimestamp": at(NOW - age).to_string(),
        },
        "spec": {"taints": taints},
        "status": {
            "allocatable": {GPU: gpus.to_string(), "cpu": "8"},
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

/// Autoscaling that adds nodes with eight GPUs.
fn by_eight() -> AutoscalingSpec {
    AutoscalingSpec {
        gpus_per_node: Some(8),
        ..AutoscalingSpec::default()
    }
}

fn asks(autoscaling: Option<AutoscalingSpec>, nodes: &[Value], pod: &Workload) -> bool {
    !fleet(autoscaling, nodes, pod).tenants[0].node_groups[0]
        .demand
        .is_empty()
}

#[test]
fn an_empty_pool_has_demand_only_if_it_grows_and_new_nodes_could_serve_it() {
    let train = pod(&[(GPU, 8)], &[("zone", "a"), ("product", "H100")]);
    assert!(asks(Some(by_eight()), &[], &train) && asks(Some(AutoscalingSpec::default()), &[], &train));
    assert!(!asks(None, &[], &train));
    for (pod, why) in [
        (pod(&[(GPU, 16)], &[]), "more than a node has"),
        (pod(&[("amd.com/gpu", 1)], &[]), "other GPUs"),
        (pod(&[(GPU, 8)], &[("product", "L40S")]), "another product"),
        (
            pod(&[(GPU, 8)], &[("kubernetes.io/hostname", "n1")]),
            "a node that does not exist",
        ),
        (pod(&[("millicpu", 8)], &[]), "no GPUs"),
    ] {
        assert!(!asks(Some(by_eight()), &[], &pod), "{why}");
    }
    // An existing node shows the labels of the pool's nodes.
    let there = [node(60, true, 8, None)];
    assert!(!asks(Some(by_eight()), &there, &train), "no node has the zone");
    assert!(asks(Some(by_eight()), &there, &pod(&[(GPU, 8)], &[])));
}

#[test]
fn a_starting_node_is_unavailable_and_does_not_represent_its_pool() {
    let train = pod(&[(GPU, 8)], &[]);
    for (node, is_starting) in [
        (node(60, false, 0, None), true),
        (node(60, true, 0, None), true),
        (
            node(60, true, 8, Some("node.cloudprovider.kubernetes.io/uninitialized")),
            true,
        ),
        (
            node(
                60,
                true,
                8,
                Some("startup-taint.cluster-autoscaler.kubernetes.io/driver"),
            ),
            true,
        ),
        (node(3600, false, 8, None), false),
        (node(60, false, 8, Some("ToBeDeletedByClusterAutoscaler")), false),
    ] {
        let fleet = fleet(Some(by_eight()), std::slice::from_ref(&node), &train);
        let planned = &fleet.nodes[0];
        assert!(matches!(planned.state, NodeState::Unavailable { .. }), "{node}");
        assert_eq!(planned.starting, is_starting, "{node}");
        if is_starting {
            assert!(!fleet.tenants[0].node_groups[0].demand.is_empty(), "{node}");
        }
    }
    let fleet = fleet(Some(by_eight()), &[node(60, true, 8, None)], &train);
    assert_eq!(fleet.nodes[0].state, NodeState::Free);
}

#[test]
fn the_policy_of_a_pool_reaches_the_planner() {
    let train = pod(&[(GPU, 8)], &[]);
    let pool = &fleet(None, &[], &train).pools[0];
    assert_eq!(
        (pool.reclaim, pool.starvation_limit),
        (Reclaim::NominalQuota, Some(600))
    );
    let policy = PoolPolicy {
        reclaim: PoolReclaim::FairShare,
        starvation_limit: Some("1h".into()),
        ..PoolPolicy::default()
    };
    let pool = &fleet_with_policy(policy, None, &[], &train).pools[0];
    assert_eq!((pool.reclaim, pool.starvation_limit), (Reclaim::FairShare, Some(3600)));
}

#[test]
fn pools_without_autoscaling_have_no_scale_up_limits() {
    let train = pod(&[(GPU, 8)], &[]);
    assert_eq!(fleet(None, &[], &train).pools[0].scale_up, None);
    let growth = fleet(Some(by_eight()), &[], &train).pools[0].scale_up.clone().unwrap();
    assert_eq!(growth.node_capacity.unwrap()[GPU], 8);
    assert_eq!(growth.max_pods, Some(500));
}
