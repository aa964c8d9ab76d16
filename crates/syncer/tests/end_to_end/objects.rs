//! What tests do with the objects of an API server: create, wait, read.

use super::setup::Clusters;
use berth_api::labels;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api,
    api::{ListParams, PostParams},
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
