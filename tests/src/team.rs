//! Tenants without control planes whose pods are made by hand on the host, as their syncers would make them.

use crate::{
    tenant::{ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use berth_api::{HostNodePool, NodeGroup, NodeGroupStatus, TenantCluster, TenantClusterSpec, labels, names::TenantId};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The namespace of all these tenants.
pub const NAMESPACE: &str = "fleet";

/// A cluster without control, whose pool `h100` recycles nodes quickly.
pub async fn cluster(nodes: &str) -> TestCluster {
    let host = TestCluster::without_control(nodes).await;
    ensure_namespace(&host.client, NAMESPACE).await;
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let spec = json!({"spec": {
        "modes": ["Private", "Dynamic"], "scrub": {"policy": "None"}, "validate": {"policy": "None"},
        "policy": {"minHoldDuration": "0s", "idleTimeout": "2s", "reclaimGracePeriod": "1s"},
    }});
    pools
        .patch("h100", &PatchParams::default(), &Patch::Merge(&spec))
        .await
        .unwrap();
    host
}

/// A tenant whose pods are made by hand.
pub struct Team {
    /// Its name.
    pub name: String,
    /// Its id, from which the names of its objects follow.
    pub id: TenantId,
    /// Pods of its workload namespace.
    pub pods: Api<Pod>,
    nodes: Api<Node>,
    clusters: Api<TenantCluster>,
}

impl Team {
    /// Makes it, and waits until pods can be made.
    pub async fn create(host: &TestCluster, name: &str, class: Option<&str>, groups: Vec<NodeGroup>) -> Self {
        let clusters = host.tenants(NAMESPACE);
        let spec = TenantClusterSpec {
            class_name: class.map(Into::into),
            node_groups: groups,
            ..TenantClusterSpec::default()
        };
        let cluster = clusters
            .create(&PostParams::default(), &TenantCluster::new(name, spec))
            .await
            .unwrap();
        let id = TenantId::new(name, &cluster.uid().unwrap());
        let team = Self {
            name: name.into(),
            pods: Api::namespaced(host.client.clone(), &id.workload_namespace()),
            nodes: Api::all(host.client.clone()),
            id,
            clusters,
        };
        // The service account is the last object that the host creates for a namespace.
        let accounts: Api<ServiceAccount> = Api::namespaced(host.client.clone(), &team.id.workload_namespace());
        until_true("pods can be made", SOON, async || accounts.get("default").await.is_ok()).await;
        team
    }

    /// A host pod as a syncer makes it. `more` is merged into it.
    pub fn pod(&self, name: &str, gpus: u32, more: &Value) -> Pod {
        let slug = self.id.slug();
        let mut pod = json!({
            "metadata": {
                "name": name,
                "labels": {labels::TENANT: slug, labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
                "annotations": {labels::ORIGIN_NAMESPACE: "default", labels::ORIGIN_NAME: name},
            },
            "spec": {
                "nodeSelector": {labels::TENANT: slug},
                "tolerations": [
                    {"key": labels::TENANT, "operator": "Equal", "value": slug, "effect": "NoExecute"},
                    {"key": "nvidia.com/gpu", "operator": "Exists"},
                ],
                "automountServiceAccountToken": false, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": "train:1",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
                }],
            },
        });
        merge(&mut pod, more);
        serde_json::from_value(pod).unwrap()
    }

    /// Creates a pod that requests GPUs.
    pub async fn run(&self, name: &str, gpus: u32, more: &Value) {
        self.pods
            .create(&PostParams::default(), &self.pod(name, gpus, more))
            .await
            .unwrap();
    }

    /// Pods that run.
    pub async fn running(&self) -> usize {
        let pods = self.pods.list(&ListParams::default()).await.unwrap();
        let runs = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.iter().filter(runs).count()
    }

    /// Deletes a pod for good.
    pub async fn stop(&self, name: &str) {
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(name, &at_once).await.unwrap();
    }

    /// Nodes that are assigned to the tenant, in any state.
    pub async fn held(&self) -> usize {
        let uid = self.cluster().await.uid().unwrap();
        let nodes = self.nodes.list(&ListParams::default()).await.unwrap();
        let owner = |node: &&Node| node.annotations().get(labels::OWNER_UID) == Some(&uid);
        nodes.iter().filter(owner).count()
    }

    /// Its TenantCluster.
    pub async fn cluster(&self) -> TenantCluster {
        self.clusters.get(&self.name).await.unwrap()
    }

    /// The status of its first group.
    pub async fn group(&self) -> NodeGroupStatus {
        let status = self.cluster().await.status.unwrap_or_default();
        status.node_groups.into_iter().next().unwrap_or_default()
    }

    /// Deletes it.
    pub async fn begin_to_delete(&self) {
        self.clusters
            .delete(&self.name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Deletes it and waits until nothing is left.
    pub async fn delete(self, host: &TestCluster) {
        self.begin_to_delete().await;
        until_gone(host, NAMESPACE, &self.name).await;
    }
}

/// Waits until no node of the pool has an owner.
pub async fn until_all_free(host: &TestCluster) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    until_true("all nodes are free", SOON, async || {
        let list = nodes.list(&ListParams::default()).await.unwrap();
        list.iter().all(|node| {
            !node.labels().contains_key(labels::NODE_STATE) && !node.annotations().contains_key(labels::OWNER_UID)
        })
    })
    .await;
}

fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) if target.is_object() => {
            for (key, value) in fields {
                merge(&mut target[key], value);
            }
        }
        _ => *target = patch.clone(),
    }
}
