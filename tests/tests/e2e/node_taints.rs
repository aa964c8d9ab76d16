//! Taints of a tenant's Node as its real kubelet fills up, and as the node is cordoned. A stopped kubelet is in `node_failures`.

use crate::pods::{SOON, Space, only, script, server};
use berth_tests::{
    objects::phase,
    processes::{find, kill, until_replaced},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, sync::Arc};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable:NoSchedule";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure:NoSchedule";

/// The taints of a node, as `key:effect`.
pub(crate) async fn taints(client: &Client, node: &str) -> BTreeSet<String> {
    let node = Api::<Node>::all(client.clone()).get(node).await.unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints
        .into_iter()
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect()
}

/// Waits until a node has exactly these taints.
pub(crate) async fn until_taints(client: &Client, node: &str, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|taint| (*taint).to_owned()).collect();
    until(&format!("{node} has the taints {expected:?}"), SOON, async || {
        let found = taints(client, node).await;
        if found == expected { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn cordon(client: &Client, node: &str, unschedulable: bool) {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Changes the configuration of a node's kubelet and starts it again.
async fn configure(host: &TestCluster, node: &str, change: impl FnOnce(&mut Value)) {
    let file = host.home().root().join("nodes").join(node).join("kubelet.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut config);
    fs::write(&file, config.to_string()).unwrap();
    let records = host.home().run();
    let kubelet = find(&records, &format!("{node}.kubelet")).unwrap();
    kill(&kubelet);
    until_replaced(&records, &kubelet).await;
}

fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

/// A pod that waits for a node.
fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    phase(pod) == "Pending"
        && conditions
            .into_iter()
            .any(|c| c.type_ == "PodScheduled" && c.status == "False")
}

pub(crate) async fn full_and_cordoned_nodes_have_their_taints(host: Arc<TestCluster>) {
    // For the process: a space lives as long.
    let tenant = Box::leak(Box::new(
        Tenant::create(&host, "node-taints", &cluster("tainted", &[("own", "l40s", 1)])).await,
    ));
    let client = tenant.client.clone();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let space = Space::new(tenant, "taints").await;
    until_taints(&client, &node, &[]).await;

    // The team cordons its node: new pods wait, but those of DaemonSets, which tolerate it.
    cordon(&client, &node, true).await;
    until_taints(&client, &node, &[UNSCHEDULABLE]).await;
    space.create("plain", only(server())).await;
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": only(server())}}}),
        )
        .await;
    let agents = ListParams::default().labels("app=agent");
    until("the DaemonSet has its pod", SOON, async || {
        let list = space.pods.list(&agents).await.map_err(|error| error.to_string())?;
        match list.items.first() {
            Some(pod) if is_running(pod) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    space.until("plain", "waits", is_unschedulable).await;
    cordon(&client, &node, false).await;
    until_taints(&client, &node, &[]).await;
    space.until("plain", "runs", is_running).await;

    // So does the platform.
    cordon(&host.client, &node, true).await;
    until_taints(&client, &node, &[UNSCHEDULABLE]).await;
    cordon(&host.client, &node, false).await;
    until_taints(&client, &node, &[]).await;

    // Too little memory is left: the kubelet says so and evicts.
    let mut before = Value::Null;
    configure(&host, &node, |config| {
        before = config["evictionHard"].clone();
        config["evictionHard"]["memory.available"] = "99%".into();
        config["evictionPressureTransitionPeriod"] = "1s".into();
    })
    .await;
    until_taints(&client, &node, &[MEMORY_PRESSURE]).await;
    // A server that ends well when it is evicted has succeeded.
    let has_ended = |pod: &Pod| ["Failed", "Succeeded"].contains(&&*phase(pod));
    space.until("plain", "is evicted", has_ended).await;
    space.create("later", only(script("echo ran"))).await;
    space.until("later", "waits", is_unschedulable).await;
    configure(&host, &node, |config| config["evictionHard"] = before).await;
    until_taints(&client, &node, &[]).await;
    assert_eq!(space.ended("later").await.said().trim(), "ran");
    tenant.delete(&host).await;
}
