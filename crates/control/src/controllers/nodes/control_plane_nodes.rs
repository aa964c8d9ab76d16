//! The nodes of the host's control plane, whose static pods Services may select: those of its schedulers, for example, by which they are
//! monitored. The admission policy `berth-mirror-pod-services` lets no other kubelet create such pods.

use super::NodesContext;
use crate::install::manifests::mirror_pod_binding;
use berth_node_lifecycle::PoolSelectors;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Labels of the nodes of a control plane; some distributions have nodes for etcd alone. The host's API server lets no kubelet set them.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"];

/// When it is tried again if the host's API server refuses or does not answer. Plans do not wait for it.
const RETRY: Duration = Duration::from_secs(60);

/// Writes which nodes they are, if that changed. Returns when to try again, if that failed.
pub async fn reconcile(context: &NodesContext) -> Option<Duration> {
    let pools = PoolSelectors::from_pools(&context.stores.pools.state());
    let nodes = context.stores.nodes.state();
    let names = names(&nodes, &pools);
    let binding = mirror_pod_binding(names.iter().map(String::as_str));
    let error = context.host.apply(&binding).await.err()?;
    tracing::warn!(%error, "kubelets of the host's control plane may not create static pods that Services select");
    Some(RETRY)
}

/// Nodes of the control plane that no tenant can get.
fn names(nodes: &[Arc<Node>], pools: &PoolSelectors) -> BTreeSet<String> {
    nodes
        .iter()
        .filter(|node| {
            let labels = node.labels();
            CONTROL_PLANE.iter().any(|role| labels.contains_key(*role)) && pools.pool_of(labels) == Ok(None)
        })
        .map(|node| node.name_any())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_of_pools_are_never_of_the_control_plane() {
        let node = |name: &str, labels: &[&str]| {
            let labels: serde_json::Map<_, _> = labels.iter().map(|key| ((*key).to_owned(), "".into())).collect();
            Arc::new(serde_json::from_value::<Node>(json!({"metadata": {"name": name, "labels": labels}})).unwrap())
        };
        let selector = |key: &str| [(key.to_owned(), String::new())].into();
        let pools = PoolSelectors::new([
            ("h100".to_owned(), selector("gpu")),
            ("fast".to_owned(), selector("fast")),
        ]);
        let nodes = [
            node("master", &[CONTROL_PLANE[0]]),
            node("etcd", &[CONTROL_PLANE[1]]),
            node("worker", &[]),
            node("single", &[CONTROL_PLANE[0], "gpu"]),
            node("in-two-pools", &[CONTROL_PLANE[0], "gpu", "fast"]),
            node("gpu", &["gpu"]),
        ];
        assert_eq!(
            names(&nodes, &pools),
            BTreeSet::from(["etcd".to_owned(), "master".to_owned()])
        );
    }
}
