//! Risks in the set-up of a node: they are reported, and keep it from tenants if its pool says so. A bootstrap token is left on the node here, as GKE and AKS
//! leave it. No tenant is needed: a free node is validated when people ask for it.

use crate::{
    node_recycling::{until_event, until_free},
    on_node,
    pods::SOON,
};
use berth_api::{HostNodePool, conditions::NO_KNOWN_RISKS, labels};
use berth_tests::{test_cluster::TestCluster, wait::until};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::sync::Arc;

const POOL: &str = "l40s";
/// The folder is the node's own.
const FILE: &str = "/var/lib/kubelet/bootstrap-kubeconfig";
const KUBECONFIG: &str = "{users: [{name: a, user: {token: abcdef.0123456789abcdef}}]}";
const FOUND: &str = "/var/lib/kubelet/bootstrap-kubeconfig (bootstrap token abcdef)";

/// A node of the pool that no tenant has: those of other tests keep theirs.
async fn any_free_node(host: &TestCluster) -> String {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let labels = pools.get(POOL).await.unwrap().spec.node_selector;
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let of_pool = ListParams::default().labels(&labels.join(","));
    let listed = nodes.list(&of_pool).await.unwrap();
    let free = listed
        .into_iter()
        .find(|node| !node.labels().contains_key(labels::TENANT));
    free.unwrap().name_any()
}

async fn annotate(nodes: &Api<Node>, node: &str, key: &str, value: &str) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until an annotation of the node is as wanted.
async fn until_annotated(nodes: &Api<Node>, node: &str, key: &str, is_wanted: impl Fn(Option<&str>) -> bool) {
    until(&format!("{key} is as wanted"), SOON, async || {
        let node = nodes.get(node).await.map_err(|error| error.to_string())?;
        let value = node.annotations().get(key).map(String::as_str);
        if is_wanted(value) {
            Ok(())
        } else {
            Err(format!("{value:?}, {:?}", node.labels().get(labels::NODE_STATE)))
        }
    })
    .await;
}

/// Waits until the pool says whether the node has the risk.
async fn until_reported(host: &TestCluster, node: &str, has_risk: bool) {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    until(
        &format!("the pool says that the risk is there: {has_risk}"),
        SOON,
        async || {
            let pool = pools.get(POOL).await.map_err(|error| error.to_string())?;
            let conditions = pool.status.unwrap_or_default().conditions;
            let condition = conditions.iter().find(|condition| condition.type_ == NO_KNOWN_RISKS);
            let message = condition
                .map(|condition| condition.message.as_str())
                .unwrap_or_default();
            let is_reported = message.contains(FOUND) && message.contains(node);
            if condition.is_some() && is_reported == has_risk {
                Ok(())
            } else {
                Err(format!("{condition:?}"))
            }
        },
    )
    .await;
}

pub(crate) async fn risks_of_a_node_are_reported_and_can_keep_it(host: Arc<TestCluster>) {
    let node = any_free_node(&host).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    until_free(&host, &node).await;
    on_node::run(&host, &node, "sh", &["-c", &format!("echo '{KUBECONFIG}' > {FILE}")]);
    annotate(&nodes, &node, labels::NODE_STATE, "Scrubbing").await;
    until_annotated(&nodes, &node, labels::NODE_RISKS, |risks| {
        risks.is_some_and(|risks| risks.contains(FOUND))
    })
    .await;
    until_free(&host, &node).await;
    until_reported(&host, &node, true).await;
    until_event(&host.client, &node, &["RisksFound: ", FOUND]).await;

    host.patch_pool(POOL, &json!({"validate": {"riskPolicy": "Quarantine"}}))
        .await;
    annotate(&nodes, &node, labels::NODE_STATE, "Scrubbing").await;
    until_annotated(&nodes, &node, labels::QUARANTINE, |why| {
        why.is_some_and(|why| why.contains("the validation failed: check: ") && why.contains(FOUND))
    })
    .await;

    on_node::run(&host, &node, "rm", &[FILE]);
    // The machine of the tests may have other risks, which are its own affair.
    host.patch_pool(POOL, &json!({"validate": null})).await;
    annotate(&nodes, &node, labels::RELEASE_QUARANTINE, "yes").await;
    until_annotated(&nodes, &node, labels::NODE_RISKS, |risks| {
        risks.is_none_or(|risks| !risks.contains(FOUND))
    })
    .await;
    until_free(&host, &node).await;
    until_reported(&host, &node, false).await;
}
