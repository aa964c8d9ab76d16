//! The host's metrics of pods and nodes, as the tenant may see them. Pure.
//!
//! | field | rule |
//! |---|---|
//! | `metadata` | name, namespace and labels of the tenant's object |
//! | `timestamp`, `window`, `usage` | copied |
//! | `containers` | those of the host pod that are the tenant's: the platform may have added others |

use crate::model::{
    json,
    own_containers::{self, NamedContainer},
    resource::Name,
};
use serde_json::{Value, json};

/// API version of everything here.
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";
/// What is copied from the host.
const MEASURED: [&str; 3] = ["timestamp", "window", "usage"];

/// Metrics of a pod of the tenant, made from those of its host pod.
pub fn pod(name: &Name, pod: &Value, host_pod: &Value, host: &Value) -> Value {
    let mut metrics = with_metadata("PodMetrics", name, pod, host);
    let containers: Vec<Value> = json::items(host, &["containers"])
        .iter()
        .filter_map(|container| {
            let name = json::text(container, &["name"])?;
            (own_containers::find(pod, host_pod, name) == NamedContainer::Own)
                .then(|| json!({"name": name, "usage": container.get("usage")}))
        })
        .collect();
    metrics["containers"] = containers.into();
    metrics
}

/// Metrics of a node of the tenant, made from those of the host's node.
pub fn node(name: &Name, node: &Value, host: &Value) -> Value {
    with_metadata("NodeMetrics", name, node, host)
}

fn with_metadata(kind: &str, Name { namespace, name }: &Name, object: &Value, host: &Value) -> Value {
    let mut metadata = json!({"name": &**name, "creationTimestamp": host.get("timestamp")});
    if !namespace.is_empty() {
        metadata["namespace"] = (**namespace).into();
    }
    let labels = json::strings(object, &["metadata", "labels"]);
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    let mut metrics = json!({"kind": kind, "apiVersion": API_VERSION, "metadata": metadata});
    for field in MEASURED {
        if let Some(value) = host.get(field) {
            metrics[field] = value.clone();
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_the_tenants_with_its_own_containers() {
        let own = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "main"}], "initContainers": [{"name": "sidecar"}], "ephemeralContainers": [{"name": "mesh"}]}});
        let host_pod = json!({"status": {
            "containerStatuses": [{"name": "main"}, {"name": "injected"}, {"name": "mesh"}], "initContainerStatuses": [{"name": "sidecar"}]}});
        let host = json!({
            "metadata": {"name": "web-x-abc", "namespace": "berth-t", "labels": {"berth.dev/tenant": "t"}},
            "timestamp": "2026-01-01T00:00:00Z", "window": "15s",
            "containers": [
                {"name": "main", "usage": {"cpu": "5m", "memory": "10Mi"}},
                {"name": "injected", "usage": {"cpu": "1"}},
                {"name": "mesh", "usage": {"cpu": "1"}},
                {"name": "sidecar", "usage": {"cpu": "1n", "memory": "1Ki"}},
            ],
        });
        let name = Name::new("shop", "web");
        insta::assert_yaml_snapshot!(pod(&name, &own, &host_pod, &host));
    }

    #[test]
    fn a_node_keeps_its_name_and_its_labels_in_the_tenant() {
        let own = json!({"metadata": {"labels": {"zone": "a"}}});
        let host = json!({"metadata": {"name": "gpu-1", "labels": {"owner": "somebody"}}, "window": "20s",
            "timestamp": "2026-01-01T00:00:00Z", "usage": {"cpu": "1500m", "memory": "2Gi"}});
        insta::assert_yaml_snapshot!(node(&Name::new("", "gpu-1"), &own, &host));
    }
}
