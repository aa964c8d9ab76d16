use super::{HostNodePoolContext, observe_pool, observe_shared_pool, reconcile, recorded_unavailable};
use crate::{
    clock::Clock,
    events::EventRecorder,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_api::{
    HostNodePool, HostNodePoolSpec, NodeCounts, UnavailableNode,
    conditions::{ConditionUpdate, READY},
};
use berth_node_lifecycle::{
    PoolSelectors,
    devices::{MOST_SLICES, Slice, Slices},
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

fn pool(name: &str, label: (&str, &str)) -> HostNodePool {
    HostNodePool::new(
        name,
        HostNodePoolSpec {
            node_selector: BTreeMap::from([(label.0.into(), label.1.into())]),
            gpu_resource_name: Some("nvidia.com/gpu".into()),
            ..HostNodePoolSpec::default()
        },
    )
}

fn node(name: &str, product: &str, owner: Option<&str>) -> Arc<Node> {
    let mut labels = json!({"nvidia.com/gpu.product": product, "gpu": "yes"});
    if let Some(owner) = owner {
        labels["berth.dev/tenant"] = owner.into();
        labels["berth.dev/state"] = "Assigned".into();
    }
    let annotations = owner.map(|uid| json!({"berth.dev/owner-uid": uid}));
    let node = json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// The last plan could assign all nodes without a tenant.
fn nothing_unavailable() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn selectors(pools: &[&HostNodePool]) -> PoolSelectors {
    PoolSelectors::new(
        pools
            .iter()
            .map(|pool| (pool.name_any(), pool.spec.node_selector.clone())),
    )
}

#[test]
fn nodes_and_gpus_are_counted() {
    let h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
    let nodes = [
        node("n1", "H100", None),
        node("n2", "H100", Some("t")),
        node("n3", "L40S", None),
    ];
    let (status, [update, health, risks]) = observe_pool(
        &h100,
        &selectors(&[&h100]),
        &nodes,
        &Slices::default(),
        &nothing_unavailable(),
    );
    assert_eq!(
        status.nodes,
        Some(NodeCounts {
            total: 2,
            free: 1,
            assigned: 1,
            ..NodeCounts::default()
        })
    );
    assert_eq!((status.gpus, status.product.as_deref()), (Some(16), Some("H100")));
    assert_eq!(
        update,
        ConditionUpdate::mark_true(READY, "Ready", "1 of 2 nodes are free")
    );
    assert!(health.is_true());
    assert_eq!((risks.status, risks.reason), (None, "NeverValidated"));
    assert_eq!(
        (status.free_gpus, status.sharing.as_deref()),
        (Some(8), Some("Exclusive"))
    );
}

#[test]
fn a_free_node_on_which_no_pod_may_start_is_unavailable() {
    let h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
    for (key, free) in [
        ("node.kubernetes.io/memory-pressure", 0),
        ("node.kubernetes.io/unschedulable", 1),
    ] {
        let mut node = Node::clone(&node("n1", "H100", None));
        let taint = json!({"key": key, "effect": "NoSchedule"});
        node.spec.get_or_insert_default().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
        let (status, _) = observe_pool(
            &h100,
            &selectors(&[&h100]),
            &[Arc::new(node)],
            &Slices::default(),
            &nothing_unavailable(),
        );
        let counts = status.nodes.unwrap();
        assert_eq!((counts.free, counts.unavailable), (free, 1 - free), "{key}");
    }
}

#[test]
fn a_node_that_the_plan_cannot_assign_is_named_with_the_reason() {
    let h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
    let why = |name: &str| (name.to_owned(), "it is in use: shop/web-1 runs there".to_owned());
    let unavailable = |names: &[&str]| names.iter().map(|name| why(name)).collect::<BTreeMap<_, _>>();
    let status_of = |nodes: &[Arc<Node>], names: &[&str]| {
        let (status, _) = observe_pool(
            &h100,
            &selectors(&[&h100]),
            nodes,
            &Slices::default(),
            &unavailable(names),
        );
        status
    };
    let nodes = [
        node("n1", "H100", None),
        node("n2", "H100", None),
        node("n3", "H100", Some("t")),
    ];
    let status = status_of(&nodes, &["n1", "n3", "elsewhere"]);
    let counts = status.nodes.unwrap();
    assert_eq!((counts.free, counts.unavailable, counts.assigned), (1, 1, 1));
    assert_eq!(status.free_gpus, Some(8));
    let (name, reason) = why("n1");
    assert_eq!(status.unavailable_nodes, [UnavailableNode { name, reason }]);
    assert_eq!(
        recorded_unavailable(&status),
        unavailable(&["n1"]),
        "a new control goes on with it"
    );

    let many: Vec<String> = (100..200).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let nodes: Vec<Arc<Node>> = names.iter().map(|name| node(name, "H100", None)).collect();
    let status = status_of(&nodes, &names);
    assert_eq!(
        (status.nodes.unwrap().unavailable, status.unavailable_nodes.len()),
        (100, 50)
    );
}

#[test]
fn overlapping_empty_and_mixed_pools_are_not_ready() {
    let (h100, all) = (
        pool("h100", ("nvidia.com/gpu.product", "H100")),
        pool("all", ("gpu", "yes")),
    );
    let nodes = [node("n1", "H100", None), node("n2", "L40S", None)];
    let (status, [update, ..]) = observe_pool(
        &h100,
        &selectors(&[&h100, &all]),
        &nodes,
        &Slices::default(),
        &nothing_unavailable(),
    );
    assert_eq!((update.reason, status.nodes.unwrap().total), ("OverlappingPools", 0));
    let (_, [update, ..]) = observe_pool(
        &all,
        &selectors(&[&all]),
        &nodes,
        &Slices::default(),
        &nothing_unavailable(),
    );
    assert_eq!(update.reason, "MixedProducts");
    let empty = pool("none", ("nvidia.com/gpu.product", "B200"));
    assert_eq!(
        observe_pool(
            &empty,
            &selectors(&[&empty]),
            &nodes,
            &Slices::default(),
            &nothing_unavailable()
        )
        .1[0]
            .reason,
        "NoNodes"
    );
}

#[test]
fn a_pool_whose_free_nodes_do_not_share_yet_is_ready() {
    let mut h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
    h100.spec.sharing = berth_api::Sharing::Mps;
    let reason = |pool: &HostNodePool| {
        let nodes = [node("n1", "H100", None)];
        let (_, [update, ..]) = observe_pool(
            pool,
            &selectors(&[pool]),
            &nodes,
            &Slices::default(),
            &nothing_unavailable(),
        );
        update.reason
    };
    assert_eq!(reason(&h100), "SharingMismatch");
    h100.spec.nvidia.get_or_insert_default().device_plugin_config = Some("mps-4".into());
    assert_eq!(reason(&h100), "Ready", "Berth sets up MPS when it assigns the node");
}

#[test]
fn broken_domains_are_fragmentation_and_quarantine_is_reported() {
    let mut h100 = pool("h100", ("gpu", "yes"));
    h100.spec.topology_key = Some("rack".into());
    let in_rack = |mut node: Arc<Node>, rack: &str| {
        Arc::make_mut(&mut node).labels_mut().insert("rack".into(), rack.into());
        node
    };
    let mut ill = node("n5", "H100", None);
    let annotations = Arc::make_mut(&mut ill).annotations_mut();
    annotations.insert("berth.dev/state".into(), "Quarantined".into());
    annotations.insert("berth.dev/reason".into(), "the scrub failed".into());
    let nodes = [
        in_rack(node("n1", "H100", None), "a"),
        in_rack(node("n2", "H100", None), "a"),
        in_rack(node("n3", "H100", None), "b"),
        in_rack(node("n4", "H100", Some("t")), "b"),
        in_rack(ill, "c"),
    ];
    let (status, [_, health, _]) = observe_pool(
        &h100,
        &selectors(&[&h100]),
        &nodes,
        &Slices::default(),
        &nothing_unavailable(),
    );
    assert_eq!((status.free_gpus, status.fragmentation), (Some(24), Some(33)));
    let counts = status.nodes.unwrap();
    assert_eq!((counts.free, counts.assigned, counts.quarantined), (3, 1, 1));
    assert!(health.message.starts_with("n5: the scrub failed"), "{}", health.message);
}

#[test]
fn device_attributes_give_product_and_driver_without_labels() {
    let mut dra = pool("dra", ("gpu", "yes"));
    dra.spec.gpu_resource_name = None;
    let mut node = node("n1", "", None);
    Arc::make_mut(&mut node).labels_mut().remove("nvidia.com/gpu.product");
    let slices = Slices::default();
    let spec = json!({"nodeName": "n1", "devices": [{"attributes": {
        "productName": {"string": "NVIDIA B200"}, "driverVersion": {"version": "580.95.5"},
    }}]});
    slices.put("s", Some(Slice::read(&spec.to_string()).unwrap()));
    let (status, _) = observe_pool(&dra, &selectors(&[&dra]), &[node], &slices, &nothing_unavailable());
    assert_eq!(status.product.as_deref(), Some("NVIDIA B200"));
    assert_eq!(status.driver.as_deref(), Some("580.95.5"));
    assert_eq!(status.sharing.as_deref(), Some("DRA"));
}

#[test]
fn a_node_with_more_slices_than_are_read_is_not_free_and_reported() {
    let h100 = pool("h100", ("gpu", "yes"));
    let nodes = [node("n1", "H100", None), node("n2", "H100", None)];
    let slices = Slices::default();
    for number in 0..=MOST_SLICES {
        let spec = json!({"nodeName": "n1", "driver": "gpu.example.com"});
        slices.put(&number.to_string(), Some(Slice::read(&spec.to_string()).unwrap()));
    }
    let (status, [_, health, _]) = observe_pool(&h100, &selectors(&[&h100]), &nodes, &slices, &nothing_unavailable());
    let counts = status.nodes.unwrap();
    assert_eq!((counts.free, counts.unavailable), (1, 1));
    assert_eq!((health.is_true(), health.reason), (false, "TooManyResourceSlices"));
    assert!(
        health.message.contains("no further tenant gets them: n1;"),
        "{}",
        health.message
    );
}

#[test]
fn risks_of_nodes_are_reported_unless_the_pool_accepts_them() {
    let mut h100 = pool("h100", ("gpu", "yes"));
    let at_risk = |name: &str, risks: &str| {
        let mut node = node(name, "H100", None);
        let annotations = Arc::make_mut(&mut node).annotations_mut();
        annotations.insert("berth.dev/risks".into(), risks.into());
        node
    };
    let (criu, key) = ("CheckpointRestore: criu is there", "AdminCredentials: ca.key");
    let other = "CheckpointRestore: criu is elsewhere";
    let mut nodes: Vec<_> = ["n4", "n3", "n2"].map(|name| at_risk(name, other)).to_vec();
    nodes.extend([at_risk("n1", criu), at_risk("n5", &format!("{other}; {key}"))]);
    nodes.extend([at_risk("n6", "none"), node("n7", "H100", None)]);
    let check = |pool: &HostNodePool| {
        let (status, [_, health, risks]) = observe_pool(
            pool,
            &selectors(&[pool]),
            &nodes,
            &Slices::default(),
            &nothing_unavailable(),
        );
        assert_eq!(status.nodes.unwrap().free, 7, "they can be assigned");
        assert!(health.is_true());
        risks
    };
    let risks = check(&h100);
    assert_eq!(
        (risks.kind, risks.is_true(), risks.reason),
        ("NoKnownRisks", false, "RisksFound")
    );
    for part in [
        "CheckpointRestore on n1, n2, n3 and 2 more (criu is there)",
        "AdminCredentials on n5 (ca.key)",
    ] {
        assert!(risks.message.contains(part), "{}", risks.message);
    }
    h100.spec.validate.accepted_risks = vec![berth_api::NodeRisk::CheckpointRestore];
    let risks = check(&h100);
    assert!(!risks.message.contains("criu"), "{}", risks.message);
    assert!(risks.message.contains("n5 (ca.key)"), "{}", risks.message);
    h100.spec
        .validate
        .accepted_risks
        .push(berth_api::NodeRisk::AdminCredentials);
    let risks = check(&h100);
    assert_eq!((risks.is_true(), risks.reason), (true, "NoRiskFound"));
    assert!(
        risks.message.ends_with("1 of 7 nodes were not validated yet"),
        "{}",
        risks.message
    );
}

#[test]
fn a_shared_pool_reports_the_nodes_it_rejects() {
    let mut cpu = pool("cpu", ("gpu", "yes"));
    (cpu.spec.modes, cpu.spec.gpu_resource_name) = (vec![berth_api::NodeMode::Shared], None);
    let pools = [Arc::new(cpu.clone())];
    let mut plain = node("n1", "", None).as_ref().clone();
    plain.labels_mut().remove("nvidia.com/gpu.product");
    plain.status.as_mut().unwrap().allocatable = None;
    let plain = Arc::new(plain);
    let (status, update) = observe_shared_pool(&cpu, &pools, &[Arc::clone(&plain)], |_| 0);
    assert_eq!(
        update,
        ConditionUpdate::mark_true(READY, "Ready", "tenants share 1 of 1 nodes")
    );
    assert_eq!(status.nodes.unwrap().assigned, 1);
    let (status, update) = observe_shared_pool(&cpu, &pools, &[plain, node("n2", "H100", None)], |_| 0);
    assert_eq!((update.reason, status.nodes.unwrap().unavailable), ("NodesRejected", 1));
    assert!(
        update.message.contains("n2 (it has the resource nvidia.com/gpu)"),
        "{}",
        update.message
    );
}

#[test]
fn a_node_that_waits_until_it_is_ready_need_not_be_released() {
    let h100 = pool("h100", ("gpu", "yes"));
    let mut waiting = node("n1", "H100", None);
    let annotations = Arc::make_mut(&mut waiting).annotations_mut();
    for (key, value) in [
        ("berth.dev/state", "Quarantined"),
        ("berth.dev/reason", "not Ready since then"),
        ("berth.dev/not-ready-since", "1970-01-01T00:01:40Z"),
    ] {
        annotations.insert(key.into(), value.into());
    }
    let slices = Slices::default();
    let (status, [_, health, _]) =
        observe_pool(&h100, &selectors(&[&h100]), &[waiting], &slices, &nothing_unavailable());
    assert_eq!(status.nodes.unwrap().quarantined, 1);
    assert_eq!((health.is_true(), health.reason), (false, "NodesNotReady"));
    assert!(
        health.message.contains("n1 (since 1970-01-01T00:01:40Z)"),
        "{}",
        health.message
    );
    assert!(!health.message.contains("release-quarantine"), "{}", health.message);
}

#[tokio::test]
async fn conditions_change_by_the_clock_of_the_host() {
    let host = ScriptedApi::new("host", &Script::default());
    let (stores, mut writers) = StoreWriters::new();
    let context = HostNodePoolContext {
        client: host.client(),
        stores,
        clock: Clock::at("2001-02-03T04:05:06Z".parse().unwrap()),
        requested: Arc::default(),
        unavailable: Arc::default(),
        health: Arc::default(),
        recorder: EventRecorder::new(host.client()),
    };
    let path = "/apis/berth.dev/v1alpha1/hostnodepools/h100";
    let mut object = serde_json::to_value(pool("h100", ("gpu", "yes"))).unwrap();
    object["metadata"]["uid"] = "p".into();
    host.insert(path, object);
    writers.update(&host);
    reconcile(&context, "h100").await.unwrap();
    let status = host.get(path).unwrap()["status"].clone();
    let changed = status["conditions"][0]["lastTransitionTime"].as_str().unwrap();
    assert!(changed.starts_with("2001-02-03T04:0"), "{changed}");
}
