//! A tenant whose objects are small there and would be large on the host: Services lend their variables to every pod, and one label of a
//! namespace is on all of its pods.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Service},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The namespace of everything here.
const NAMESPACE: &str = "default";
/// Services, each with a hundred ports and the longest names.
const SERVICES: usize = 10;
/// Time between two changes of the label.
const PAUSE: Duration = Duration::from_secs(5);

/// Creates the Services and a Deployment of pods for which the tenant has no node.
pub(super) async fn create(client: &Client, pods: usize) {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let ports: Vec<Value> = (1..=100)
        .map(|port| json!({"name": format!("port-{port:0>10}"), "port": port}))
        .collect();
    for number in 0..SERVICES {
        let name = format!("service-{number:0>55}");
        let service = json!({"metadata": {"name": name}, "spec": {"ports": ports, "selector": {"app": "none"}}});
        let service: Service = serde_json::from_value(service).unwrap();
        services.create(&PostParams::default(), &service).await.unwrap();
    }
    let labels = json!({"app": "large"});
    let deployment = json!({"metadata": {"name": "large"}, "spec": {"replicas": pods, "selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]}}}});
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
}

/// Changes a label of the namespace again and again. Returns how often.
pub(super) async fn change_label(client: &Client, until: Instant) -> u32 {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut changes = 0;
    while Instant::now() < until {
        changes += 1;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"change": changes.to_string()}}}));
        namespaces
            .patch(NAMESPACE, &PatchParams::default(), &patch)
            .await
            .unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    changes
}
