//! Pods when programs of their node fail, as in `docs/operations/failures.md`.

use crate::{
    node_taints::{taints, until_taints},
    pods::{SOON, Space, only, script, server, state, with},
    teams::{speech, vision},
};
use berth_api::is_pod_ready;
use berth_device_plugin::DeviceList;
use berth_tests::{
    objects::phase,
    processes::{find, kill, signal, until_replaced},
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The taint of a node that does not answer.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// A node that does not answer is given up after some 50 seconds.
const GIVEN_UP: Duration = Duration::from_secs(150);

/// The container of a pod and how often it was started again.
fn life(pod: &Pod) -> (Option<String>, i32) {
    let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
    (status.container_id, status.restart_count)
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().unwrap().node_name.clone().unwrap()
}

/// A pod's spec with one container, on one node.
fn on(node: &str, container: Value) -> Value {
    let mut spec = only(container);
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    spec
}

/// The output of a new pod on a node. A pod that comes while programs of the node restart may be refused, or fail, for good,
/// as in any cluster; then another one is created.
async fn output_on(space: &Space, name: &str, node: &str, container: &Value) -> String {
    let mut attempt = 0;
    until(&format!("a pod {name} has run on {node}"), SOON, async || {
        attempt += 1;
        let name = format!("{name}-{attempt}");
        space.create(&name, on(node, container.clone())).await;
        let has_ended = |pod: &Pod| ["Succeeded", "Failed"].contains(&&*phase(pod));
        let pod = space.until(&name, "has ended", has_ended).await;
        match state(&pod, "main").and_then(|state| state.terminated) {
            Some(end) if end.exit_code == 0 => Ok(end.message.unwrap_or_default().trim().to_owned()),
            _ => Err(pod.status),
        }
    })
    .await
}

/// Kills a program of a node; pods go on, and new ones start there.
async fn pods_survive(host: &TestCluster, program: &str, namespace: &'static str) {
    let space = Space::new(vision(host).await, namespace).await;
    space.create("served", only(server())).await;
    let before = space.ready("served").await;
    let node = node_of(&before);
    let records = host.home().run();
    let process = find(&records, &format!("{node}.{program}")).unwrap();
    kill(&process);
    until_replaced(&records, &process).await;
    assert_eq!(output_on(&space, "after", &node, &script("echo here")).await, "here");
    let after = space.ready("served").await;
    assert_eq!(life(&after), life(&before), "the pod was disturbed");
    assert_eq!(space.exec("served", &["echo", "still here"]).await.trim(), "still here");
}

pub(crate) async fn pods_outlive_their_kubelet(host: Arc<TestCluster>) {
    pods_survive(&host, "kubelet", "machines-kubelet").await;
}

pub(crate) async fn pods_outlive_their_container_runtime(host: Arc<TestCluster>) {
    pods_survive(&host, "containerd", "machines-containerd").await;
}

pub(crate) async fn devices_stay_with_their_pods_when_the_plugin_dies(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "machines-plugin").await;
    let gpus = |count: &str| json!({"resources": {"limits": {"nvidia.com/gpu": count}}});
    let holds = "echo $NVIDIA_VISIBLE_DEVICES; until [ -e /tmp/end ]; do sleep 0.2; done";
    space.create("holder", only(with(script(holds), gpus("1")))).await;
    let holder = space.until("holder", "runs", |pod| phase(pod) == "Running").await;
    let node = node_of(&holder);
    let records = host.home().run();
    let process = find(&records, &format!("{node}.device-plugin")).unwrap();
    kill(&process);
    until_replaced(&records, &process).await;
    let printer = with(script("echo $NVIDIA_VISIBLE_DEVICES"), gpus("1"));
    let other = output_on(&space, "other", &node, &printer).await;
    space.exec("holder", &["touch", "/tmp/end"]).await;
    let held = space.ended("holder").await.said();
    assert_ne!(other, held, "a device was allocated twice");
}

/// Status of a node's condition Ready, in the tenant.
async fn ready_of(tenant: &Tenant, node: &str) -> Result<String, String> {
    let nodes: Api<Node> = Api::all(tenant.client.clone());
    let node = nodes.get(node).await.map_err(|error| error.to_string())?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready
        .map(|condition| condition.status)
        .ok_or_else(|| "no condition".into())
}

pub(crate) async fn unreachable_node_is_reported(host: Arc<TestCluster>) {
    let tenant = speech(&host).await;
    let space = Space::new(tenant, "machines-lost").await;
    space.create("served", only(server())).await;
    let before = space.ready("served").await;
    let node = node_of(&before);
    let mut impatient = only(server());
    impatient["tolerations"] =
        json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]);
    space.create("impatient", impatient).await;
    space.ready("impatient").await;
    assert_eq!(taints(&tenant.client, &node).await.len(), 0);
    let kubelet = find(&host.home().run(), &format!("{node}.kubelet")).unwrap();
    // It hangs: nothing starts another one.
    signal(&kubelet, Signal::STOP);
    until(
        "the team sees that its node does not answer",
        GIVEN_UP,
        async || match ready_of(tenant, &node).await {
            Ok(status) if status == "Unknown" => Ok(()),
            other => Err(other),
        },
    )
    .await;
    let pod = space.until("served", "is not ready", |pod| !is_pod_ready(pod)).await;
    // It is not deleted before the time of its toleration: it may still run.
    assert!(pod.metadata.deletion_timestamp.is_none());
    let both = ["NoSchedule", "NoExecute"].map(|effect| format!("{UNREACHABLE}:{effect}"));
    until_taints(&tenant.client, &node, &both.each_ref().map(|taint| &**taint)).await;
    let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    space.until("impatient", "is deleted", is_deleted).await;
    signal(&kubelet, Signal::CONT);
    until("the node is back", SOON, async || match ready_of(tenant, &node).await {
        Ok(status) if status == "True" => Ok(()),
        other => Err(other),
    })
    .await;
    until_taints(&tenant.client, &node, &[]).await;
    let after = space.ready("served").await;
    assert_eq!(life(&after), life(&before), "the pod was disturbed");
}

pub(crate) async fn failed_gpu_is_no_longer_allocatable(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let nodes: Api<Node> = Api::all(tenant.client.clone());
    let node = nodes
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0)
        .name_any();
    let failed = host.home().root().join("nodes").join(&node).join("unhealthy-gpus");
    let devices = DeviceList::new(&node, "nvidia.com/gpu", 8);
    let until_allocatable = async |count: &str| {
        until(&format!("{count} GPUs are allocatable"), SOON, async || {
            let status = nodes.get(&node).await.unwrap().status.unwrap();
            let gpus = status.allocatable.unwrap_or_default().remove("nvidia.com/gpu");
            if gpus.as_ref().is_some_and(|gpus| gpus.0 == count) {
                Ok(())
            } else {
                Err(gpus)
            }
        })
        .await;
    };
    until_allocatable("8").await;
    std::fs::write(&failed, &devices.ids()[5]).unwrap();
    until_allocatable("7").await;
    std::fs::remove_file(&failed).unwrap();
    until_allocatable("8").await;
}
