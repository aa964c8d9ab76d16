use super::*;
use crate::{
    demand::SchedulingState,
    devices::{DeviceClass, Devices},
    own_nodes::list_own_nodes,
};
use berth_api::labels;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

const GPU: &str = "nvidia.com/gpu";
/// When the nodes became idle.
const SINCE: Seconds = 1_000;

fn pool(name: &str, resource: Option<&str>) -> Arc<HostNodePool> {
    let spec =
        json!({"nodeSelector": {"product": name}, "gpuResourceName": resource, "policy": {"idleTimeout": "20m"}});
    let pool =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": name}, "spec": spec});
    Arc::new(serde_json::from_value(pool).unwrap())
}

/// A node with eight GPUs that serves the tenant `vision-u`, and is idle; `change` makes another one of it.
fn node(name: &str, change: impl FnOnce(&mut Value)) -> Arc<Node> {
    let mut node = json!({
        "metadata": {
            "name": name,
            "labels": {
                labels::TENANT: "vision-u", labels::NODE_STATE: "Assigned", labels::POOL: "h100", labels::NODE_GROUP: "train",
            },
            "annotations": {
                labels::OWNER_UID: "u", labels::NODE_STATE: "Assigned", labels::RECORDED_GPUS: "nvidia.com/gpu=8",
                labels::IDLE_SINCE: "1970-01-01T00:16:40Z",
            },
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    change(&mut node);
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(name: &str, node: &str, amounts: &[(&str, u64)]) -> Arc<Workload> {
    let amounts = amounts
        .iter()
        .map(|(resource, amount)| ((*resource).to_owned(), *amount));
    Arc::new(Workload {
        tenant: "vision-u".into(),
        name: name.into(),
        amounts: amounts.collect(),
        scheduling: SchedulingState::Bound(node.into()),
        ..Workload::default()
    })
}

fn find(nodes: &[Arc<Node>], pods: &[Arc<Workload>], now: Seconds) -> UnrequestedGpus {
    let devices = Devices::default();
    let class = serde_json::from_value(json!({"extendedResourceName": GPU})).unwrap();
    devices.put_class("gpu.nvidia.com", Some(DeviceClass::read(class)));
    let resolved = devices.resolve(pods);
    let pools = [pool("h100", Some(GPU)), pool("cpu", None)];
    let own = list_own_nodes(nodes, &resolved);
    let mut found = find_unrequested_gpus(&own, &pools, &resolved, now);
    assert!(found.keys().all(|uid| uid == "u"), "{found:?}");
    found.remove("u").unwrap_or_default()
}

fn sums(found: &UnrequestedGpus) -> (u64, u64) {
    let sums = found.by_pool.get("h100").copied().unwrap_or_default();
    (sums.on_idle_nodes, sums.on_used_nodes)
}

fn names(found: &UnrequestedGpus) -> Vec<&str> {
    found.idle_nodes.iter().map(|node| node.name.as_str()).collect()
}

/// Later than any node may be idle.
const LATE: Seconds = SINCE + 3_600;

#[test]
fn a_node_that_only_pods_without_gpus_have_is_reported_with_them() {
    let pods = [pod("ml/web", "n1", &[("millicpu", 500)]), pod("ml/lab", "n1", &[])];
    let found = find(&[node("n1", |_| {})], &pods, LATE);
    let expected = IdleNode {
        name: "n1".into(),
        pool_name: "h100".into(),
        node_group_name: "train".into(),
        gpus: 8,
        idle_since: Time(Timestamp::from_second(SINCE).unwrap()),
        pods: vec!["ml/lab".into(), "ml/web".into()],
        unlisted_pods: None,
    };
    assert_eq!(found.idle_nodes, [expected]);
    assert_eq!(sums(&found), (8, 0));
}

#[test]
fn a_node_is_reported_after_the_time_of_its_pool_only() {
    let nodes = [node("n1", |_| {})];
    let names_at = |now| find(&nodes, &[], now).idle_nodes.len();
    assert_eq!((names_at(SINCE + 1_199), names_at(SINCE + 1_200)), (0, 1));
    assert_eq!(
        sums(&find(&nodes, &[], SINCE)),
        (8, 0),
        "nobody requests them all the same"
    );
}

#[test]
fn gpus_that_no_pod_requests_of_a_node_in_use_are_counted() {
    let by_claim = "dra:gpu.nvidia.com";
    for (pods, rest) in [
        (vec![pod("a", "n1", &[(GPU, 2)]), pod("b", "n1", &[(GPU, 3)])], 3),
        (vec![pod("a", "n1", &[(by_claim, 1)])], 7),
        (vec![pod("a", "n1", &[(GPU, 9)])], 0),
        // Of MIG instances it is not known how many GPUs they are.
        (vec![pod("a", "n1", &[("nvidia.com/mig-1g.10gb", 1)])], 0),
    ] {
        let found = find(&[node("n1", |_| {})], &pods, LATE);
        assert_eq!((sums(&found), found.idle_nodes.len()), ((0, rest), 0), "{pods:?}");
    }
}

#[test]
fn pods_of_others_use_no_node() {
    let mut other = Workload::clone(&pod("a", "n1", &[(GPU, 8)]));
    other.tenant = "other-u".into();
    let elsewhere = pod("b", "n2", &[(GPU, 8)]);
    let found = find(&[node("n1", |_| {})], &[Arc::new(other), elsewhere], LATE);
    assert_eq!((sums(&found), names(&found)), ((8, 0), vec!["n1"]));
    assert_eq!(found.idle_nodes[0].pods, [""; 0]);
}

#[test]
fn nodes_that_pods_cannot_use_do_not_count() {
    let state = |state: &'static str| {
        move |node: &mut Value| {
            node["metadata"]["annotations"][labels::NODE_STATE] = state.into();
            node["metadata"]["labels"][labels::NODE_STATE] = state.into();
        }
    };
    let nodes = [
        node("joining", state("Joining")),
        node("cordoned", state("Cordoned")),
        node("draining", state("Draining")),
        node("quarantined", state("Quarantined")),
        node("unschedulable", |node| node["spec"]["unschedulable"] = true.into()),
        node("not-ready", |node| {
            node["status"]["conditions"][0]["status"] = "False".into();
        }),
        node("full-disk", |node| {
            node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]);
        }),
        node("no-gpus", |node| {
            node["metadata"]["labels"][labels::POOL] = "cpu".into();
        }),
        node("no-pool", |node| {
            node["metadata"]["labels"][labels::POOL] = "gone".into();
        }),
    ];
    assert_eq!(find(&nodes, &[], LATE), UnrequestedGpus::default());
}

#[test]
fn the_time_of_an_earlier_tenant_does_not_count() {
    let assigned = |node: &mut Value| {
        node["metadata"]["annotations"][labels::ASSIGNED_SINCE] = "1970-01-01T01:00:00Z".into();
    };
    let nodes = [node("n1", assigned)];
    assert_eq!(find(&nodes, &[], 3_600 + 1_199).idle_nodes, []);
    assert_eq!(
        find(&nodes, &[], 3_600 + 1_200).idle_nodes[0].idle_since.0.as_second(),
        3_600
    );
}

#[test]
fn the_largest_nodes_come_first_and_few_pods_are_named() {
    let nodes = [
        node("small", |node| {
            node["metadata"]["annotations"][labels::RECORDED_GPUS] = "nvidia.com/gpu=4".into();
        }),
        node("later", |node| {
            node["metadata"]["annotations"][labels::IDLE_SINCE] = "1970-01-01T00:20:00Z".into();
        }),
        node("b", |_| {}),
        node("a", |_| {}),
    ];
    let mut pods: Vec<_> = ["p1", "p2", "p3", "p4", "p5"].map(|name| pod(name, "a", &[])).into();
    let mut oldest = Workload::clone(&pod("oldest", "a", &[]));
    oldest.since = -1;
    pods.push(Arc::new(oldest));
    let found = find(&nodes, &pods, LATE);
    assert_eq!(names(&found), ["a", "b", "later", "small"]);
    assert_eq!(found.idle_nodes[0].pods, ["oldest", "p1", "p2"]);
    assert_eq!(found.idle_nodes[0].unlisted_pods, Some(3));
}

/// A CronJob would change the status of its tenant each minute.
#[test]
fn pods_that_run_for_a_short_time_change_nothing() {
    let created = |name: &str, since: Seconds| {
        let mut pod = Workload::clone(&pod(name, "n1", &[]));
        pod.since = since;
        Arc::new(pod)
    };
    let mut pods: Vec<_> = (0..5)
        .map(|number| created(&format!("ml/cron-{number}"), LATE - 659))
        .collect();
    pods.push(created("ml/web", LATE - 660));
    let idle = find(&[node("n1", |_| {})], &pods, LATE).idle_nodes;
    assert_eq!(
        (idle[0].pods.as_slice(), idle[0].unlisted_pods),
        (&["ml/web".to_owned()][..], None)
    );
}

#[test]
fn pods_of_daemon_sets_are_not_named() {
    let daemon = json!({
        "metadata": {"name": "x", "labels": {labels::TENANT: "vision-u"}},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "c"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ]}}},
        },
    });
    let daemon = Workload::from_pod(&serde_json::from_value(daemon).unwrap()).unwrap();
    let found = find(
        &[node("n1", |_| {})],
        &[Arc::new(daemon), pod("ml/web", "n1", &[])],
        LATE,
    );
    assert_eq!(found.idle_nodes[0].pods, ["ml/web"]);
}
