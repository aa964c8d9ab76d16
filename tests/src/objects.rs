//! Makes objects from JSON and YAML, and reads pods.

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    discovery,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, path::Path};

/// Applies every document of a file of `examples/`, namespaced ones into `namespace`.
pub async fn apply_example(client: &Client, namespace: &str, path: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for document in crate::files::documents(&text) {
        apply(client, namespace, &document)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Applies one object, as `kubectl apply --server-side` does.
///
/// # Errors
/// What the API server answers.
pub async fn apply(client: &Client, namespace: &str, object: &Value) -> kube::Result<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let gvk = GroupVersionKind::gvk(group, version, &kind);
    #[expect(
        clippy::disallowed_methods,
        reason = "the servers of tests are honest, and an error says what is not served"
    )]
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        discovery::Scope::Namespaced => {
            let own = object["metadata"]["namespace"].as_str();
            Api::namespaced_with(client.clone(), own.unwrap_or(namespace), &resource)
        }
        discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    api.patch(name, &PatchParams::apply("berth-tests").force(), &Patch::Apply(object))
        .await
}

/// Applies an object, which the API server must reject with this in its message.
pub async fn expect_rejected(client: &Client, namespace: &str, object: &Value, expected: &str) {
    let rejected = apply(client, namespace, object).await;
    let error = rejected.expect_err(&object.to_string()).to_string();
    assert!(error.contains(expected), "{expected:?} is not in: {error}");
}

/// An API for objects of a kind without a Rust type.
pub fn dynamic(client: &Client, group: &str, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// A pod with one container that requests GPUs and runs for ever.
pub fn gpu_pod(name: &str, gpus: u32) -> Pod {
    let limits = if gpus > 0 {
        json!({"nvidia.com/gpu": gpus.to_string()})
    } else {
        json!({})
    };
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{
            "name": "main", "image": "registry.example.com/any", "resources": {"limits": limits},
        }]},
    }))
    .unwrap()
}

/// The phase of a pod.
pub fn phase(pod: &Pod) -> String {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.clone())
        .unwrap_or_default()
}

/// Names of the nodes that the pods of a namespace are on.
pub async fn nodes_of_pods(client: &Client, namespace: &str) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let mut nodes: Vec<String> = pods
        .items
        .iter()
        .filter_map(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Names of the host nodes that carry a tenant's label.
pub async fn nodes_of_tenant(host: &Client, slug: &str) -> Vec<String> {
    let nodes: Api<Node> = Api::all(host.clone());
    let params = ListParams::default().labels(&format!("{}={slug}", berth_api::labels::TENANT));
    names(&nodes, &params).await
}

/// Names of the objects that a list has, sorted.
pub async fn names<K>(api: &Api<K>, params: &ListParams) -> Vec<String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let list = api.list(params).await.unwrap();
    let mut names: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// The address of the API server in its cluster: that of the Service `default/kubernetes`.
pub async fn api_server_address(client: &Client) -> String {
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let kubernetes = services.get("kubernetes").await.unwrap();
    kubernetes.spec.unwrap().cluster_ip.unwrap()
}

/// Makes a simulated Node like another one, with labels of its own, as a kubelet would. kwok keeps it alive.
pub async fn simulate_node(client: &Client, twin: &str, name: &str, labels: Value) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut own = serde_json::to_value(nodes.get(twin).await.unwrap()).unwrap();
    own["metadata"] = json!({"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels});
    own["metadata"]["labels"]["kubernetes.io/hostname"] = name.into();
    own["spec"] = json!({});
    let own: Node = serde_json::from_value(own).unwrap();
    nodes.create(&PostParams::default(), &own).await.unwrap();
    let status = Patch::Merge(json!({ "status": own.status }));
    nodes
        .patch_status(name, &PatchParams::default(), &status)
        .await
        .unwrap();
}
