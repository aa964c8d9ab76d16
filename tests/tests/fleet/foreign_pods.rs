//! Pods that say that a syncer made them, and are in no namespace of a tenant.

use crate::setup::{NAMESPACE, SOON, Team, until_all_free};
use berth_api::{NodeGroup, labels, names::TenantId};
use berth_tests::{test_cluster::TestCluster, wait::until_true};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::sync::Arc;

const NODES: [&str; 4] = ["gpu-h100-01", "gpu-h100-02", "gpu-h100-03", "gpu-h100-04"];

/// On every node there is one, which a finalizer holds.
pub(crate) async fn a_pod_elsewhere_with_the_labels_of_a_tenants_keeps_no_node(host: Arc<TestCluster>) {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), NAMESPACE);
    let other = TenantId::new("other", "6f2c");
    for node in NODES {
        let pod = json!({
            "metadata": {
                "name": node, "finalizers": ["example.com/held"],
                "labels": {labels::TENANT: other.slug(), labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
            },
            "spec": {
                "nodeName": node, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "train:1"}],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        pods.delete(node, &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
    let team = Team::create(&host, "foreign", None, vec![NodeGroup::private("all", "h100", 4)]).await;
    until_true("the team has all nodes", SOON, async || {
        team.group().await.assigned == 4
    })
    .await;
    team.delete(&host).await;
    until_all_free(&host).await;
    for node in NODES {
        assert!(pods.get(node).await.is_ok(), "it is not Berth's to delete");
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        pods.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }
}
