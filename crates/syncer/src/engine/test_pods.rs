//! Pods in the stores of an engine, for unit tests: all in one namespace.

use super::{Engine, test_requests::name};
use berth_api::labels;
use berth_sync_rules::model::{KindId, store::Stored};
use serde_json::{Value, json};

/// Puts a pod with annotations into the tenant. Returns it.
pub(super) fn put_pod(engine: &Engine, of: &str, annotations: &Value) -> Value {
    let pod = json!({
        "metadata": {"name": of, "namespace": "team", "uid": of, "resourceVersion": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
    });
    change_pod(engine, of, &pod);
    pod
}

/// A pod in the tenant is like this now.
pub(super) fn change_pod(engine: &Engine, of: &str, pod: &Value) {
    let pods = engine.cache.stores.tenant(KindId::Pod);
    pods.written(name(of), Stored::new(pod));
}

/// Puts a pod on the host, as the store has it: without who created it.
pub(super) fn put_host_pod(engine: &Engine, of: &str, spec: &Value, status: &Value) {
    let pod = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": spec, "status": status});
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
}

/// Annotations of a member of a gang of so many pods.
pub(super) fn annotations_of_member(gang: &str, size: usize) -> Value {
    json!({labels::GANG_OF_TENANT: gang, labels::GANG_SIZE_OF_TENANT: size.to_string()})
}

/// Claims of devices that the tenant has made, for the spec of a pod: it takes one request more than there are claims.
pub(super) fn own_claims(number: usize) -> Value {
    let claim = |number: usize| json!({"name": format!("gpu-{number}"), "resourceClaimName": "shared"});
    (0..number).map(claim).collect()
}
