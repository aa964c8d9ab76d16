//! Servers in tenants and on the host, with Services of each type.

use super::{HOSTS, address, idle, pod_ip, running};
use crate::pods::{Space, server};
use berth_tests::{objects::apply, tenant::ensure_namespace, test_cluster::TestCluster};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, api::ListParams};
use serde_json::json;

pub(super) async fn service(host: &TestCluster, namespace: &str, name: &str) -> Service {
    let services: Api<Service> = Api::namespaced(host.client.clone(), namespace);
    services.get(name).await.unwrap()
}

pub(super) fn cluster_ip(service: &Service) -> String {
    service.spec.as_ref().unwrap().cluster_ip.clone().unwrap()
}

/// Where a server in a tenant is reached.
pub(super) struct Served {
    pub(super) pod: String,
    pub(super) service: String,
    /// At each of the tenant's nodes.
    pub(super) node_ports: Vec<String>,
}

/// The node port of a Service at nodes.
pub(super) fn node_ports(service: &Service, nodes: &[Node]) -> Vec<String> {
    let port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0]
        .node_port
        .unwrap();
    let addresses = nodes
        .iter()
        .map(|node| address(node.status.as_ref().unwrap().addresses.as_ref().unwrap()));
    addresses.map(|address| format!("{address}:{port}")).collect()
}

/// A server and Services for it in a tenant.
pub(super) async fn served(space: &Space) -> Served {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server", "labels": {"app": "server"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [server()]}});
    space.apply(pod.clone()).await;
    pod["metadata"] = json!({"name": "sealed-in", "labels": {"app": "sealed-in"}});
    space.apply(pod).await;
    for (name, more) in [
        ("plain", json!({})),
        ("headless", json!({"clusterIP": "None"})),
        ("exposed", json!({"type": "NodePort"})),
    ] {
        let mut spec = json!({"selector": {"app": "server"}, "ports": [{"port": 8080}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        space
            .apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}))
            .await;
    }
    let pod = space.ready("server").await;
    let services: Api<Service> = space.api();
    let plain = services.get("plain").await.unwrap();
    let exposed = services.get("exposed").await.unwrap();
    let nodes: Api<Node> = Api::all(space.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    Served {
        pod: format!("{}:8080", pod_ip(&pod)),
        service: format!("{}:8080", cluster_ip(&plain)),
        node_ports: node_ports(&exposed, &nodes),
    }
}

/// A server of the platform that has a node port, at the addresses of these nodes.
pub(super) async fn served_by_the_host(host: &TestCluster, nodes: &[Node]) -> Vec<String> {
    ensure_namespace(&host.client, HOSTS).await;
    let mut pod = idle("exposed", &json!({"app": "exposed"}));
    pod["spec"]["containers"][0]["args"] = server()["args"].clone();
    running(host, HOSTS, pod).await;
    let exposed = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "exposed"},
        "spec": {"type": "NodePort", "selector": {"app": "exposed"}, "ports": [{"port": 8080}]}});
    apply(&host.client, HOSTS, &exposed).await.unwrap();
    node_ports(&service(host, HOSTS, "exposed").await, nodes)
}
