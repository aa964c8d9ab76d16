//! Services.

use crate::setup::{Clusters, create, events, eventually};
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use serde_json::json;

pub async fn a_service_has_one_address(clusters: &Clusters) {
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let created = create(&clusters.tenant_api::<Service>(), service).await;
    let address = created.spec.unwrap().cluster_ip.unwrap();
    eventually("the host has a Service of that address", async || {
        let services = clusters
            .host_api::<Service>()
            .list(&ListParams::default())
            .await
            .unwrap();
        services
            .iter()
            .any(|service| service.spec.as_ref().unwrap().cluster_ip.as_ref() == Some(&address))
    })
    .await;
    let node_port = json!({"metadata": {"name": "door"}, "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]}});
    create(&clusters.tenant_api::<Service>(), node_port).await;
    eventually("the refusal is told", async || {
        events(clusters, "door", "FieldRefused")
            .await
            .iter()
            .any(|message| message.contains("spec.type: NodePort"))
    })
    .await;
}
