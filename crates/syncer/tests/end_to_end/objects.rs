//! What tests do with the objects of an API server: create, wait, read.

use super::setup::{Clusters, WORKLOADS};
use berth_api::labels;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

/// Time limit for a slow machine; nothing waits for it unless something is wrong.
pub const TIME_LIMIT: Duration = Duration::from_mins(5);

/// Creates an object from JSON. Tries again if the API server, or the webhook that it asks, is busy.
pub async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + Debug + DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object).unwrap();
    let start = Instant::now();
    loop {
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status))
                if matches!(status.code, 429 | 500 | 503 | 504) && start.elapsed() < TIME_LIMIT => {}
            result => return result.unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until something holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < TIME_LIMIT, "not within {TIME_LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing is left, and says what is left if that takes too long.
pub async fn eventually_none_left(what: &str, left: impl AsyncFn() -> Vec<String>) {
    let start = Instant::now();
    loop {
        let left = left().await;
        if left.is_empty() {
            return;
        }
        assert!(
            start.elapsed() < TIME_LIMIT,
            "not within {TIME_LIMIT:?}: {what}, left: {left:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until `observe` returns the same for a while: tokens are created after their pods, and the host's garbage
/// collector takes its time.
pub async fn settled<T: PartialEq>(what: &str, observe: impl AsyncFn() -> T) {
    let mut last = observe().await;
    eventually(what, async || {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = observe().await;
        let is_same = now == last;
        last = now;
        is_same
    })
    .await;
}

/// The phase of a pod.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// The tenant name of a host object.
pub fn origin(pod: &Pod) -> &str {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(labels::ORIGIN_NAME))
        .map_or("", String::as_str)
}

/// A pod of one container, labelled with its name, with more in its spec.
pub fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Messages of the tenant's Events about the object `about` with a reason.
pub async fn events(clusters: &Clusters, about: &str, reason: &str) -> Vec<String> {
    let events = clusters
        .tenant_api::<Event>()
        .list(&ListParams::default())
        .await
        .unwrap();
    events
        .into_iter()
        .filter(|event| event.involved_object.name.as_deref() == Some(about) && event.reason.as_deref() == Some(reason))
        .filter_map(|event| event.message)
        .collect()
}

/// Whether a pod of the tenant is in a phase.
pub async fn is_phase(pods: &Api<Pod>, name: &str, wanted: &str) -> bool {
    pods.get_opt(name)
        .await
        .unwrap()
        .is_some_and(|pod| phase(&pod) == wanted)
}

/// Objects of any kind as JSON.
pub struct Objects(pub Api<DynamicObject>, ApiResource);

impl Objects {
    pub fn new(client: &Client, group: &str, version: &str, kind: &str, namespace: Option<&str>) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        Self(api, resource)
    }

    pub async fn get(&self, name: &str) -> Option<Value> {
        let object = self.0.get_opt(name).await.unwrap()?;
        Some(serde_json::to_value(object).unwrap())
    }

    /// The object with its API version and kind.
    pub fn of_kind(&self, mut object: Value) -> Value {
        object["apiVersion"] = self.1.api_version.clone().into();
        object["kind"] = self.1.kind.clone().into();
        object
    }

    pub async fn create(&self, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        create(&self.0, self.of_kind(object)).await;
        self.get(&name).await.unwrap()
    }

    pub async fn patch(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.0.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn patch_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.0
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until an object is there and something holds for it.
    pub async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), async || {
            self.get(name).await.is_some_and(|object| holds(&object))
        })
        .await;
        self.get(name).await.unwrap()
    }

    pub async fn gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), async || self.get(name).await.is_none()).await;
    }
}

/// The two ends of a kind: the tenant's namespace `default`, and the workload namespace.
pub fn both(clusters: &Clusters, group: &str, version: &str, kind: &str) -> (Objects, Objects) {
    (
        Objects::new(&clusters.tenant_admin, group, version, kind, Some("default")),
        Objects::new(&clusters.host_admin, group, version, kind, Some(WORKLOADS)),
    )
}
