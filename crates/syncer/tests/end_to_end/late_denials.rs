//! Pods that run with something that their class denies and that nobody can take out of them.

use crate::{
    objects::{create, events, eventually, is_phase, pod},
    setup::{Clusters, Syncer},
};
use berth_api::{SyncPolicy, pod_labels::host_key};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const NAME: &str = "debugged";

/// Starts another syncer, for a class that lists these images.
async fn with_images(clusters: &mut Clusters, syncer: Syncer, images: &[&str]) -> Syncer {
    syncer.stop().await;
    clusters.policy.pods.images = Some(images.iter().map(ToString::to_string).collect());
    clusters.syncer().await
}

/// The pod in the tenant as JSON.
async fn in_tenant(pods: &Api<Pod>) -> Value {
    serde_json::to_value(pods.get(NAME).await.unwrap()).unwrap()
}

/// The pod on the host as JSON.
async fn on_host(clusters: &Clusters) -> Value {
    serde_json::to_value(clusters.host_pod(NAME).await.unwrap()).unwrap()
}

/// The names of the ephemeral containers that the host pod has, sorted.
async fn names_on_host(clusters: &Clusters) -> Vec<String> {
    let pod = on_host(clusters).await;
    let containers = pod["spec"]["ephemeralContainers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let names = containers
        .iter()
        .map(|container| container["name"].as_str().unwrap_or_default());
    let mut names: Vec<String> = names.map(ToOwned::to_owned).collect();
    names.sort();
    names
}

fn is_denied(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "berth.dev/Synced")
}

async fn set_label(clusters: &Clusters, pods: &Api<Pod>, value: &str) {
    let label = Patch::Merge(json!({"metadata": {"labels": {"step": value}}}));
    pods.patch(NAME, &PatchParams::default(), &label).await.unwrap();
    eventually("the label is on the host", async || {
        on_host(clusters).await["metadata"]["labels"][host_key("step")] == value
    })
    .await;
}

async fn set_image(pods: &Api<Pod>, image: &str) {
    let patch = Patch::Strategic(json!({"spec": {"containers": [{"name": "main", "image": image}]}}));
    pods.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
}

pub async fn pods_that_run_keep_what_is_denied_by_now(
    clusters: &mut Clusters,
    syncer: Syncer,
    usual: SyncPolicy,
) -> Syncer {
    let syncer = with_images(clusters, syncer, &["docker.io/library/*"]).await;
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod(NAME, &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, NAME, "Running").await).await;
    for (name, image) in [("denied", "tools.example.com/debug:1"), ("allowed", "tools:1")] {
        let container = json!({"name": name, "image": image, "targetContainerName": "main"});
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
        pods.patch_ephemeral_containers(NAME, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    eventually("the one that is allowed is there", async || {
        names_on_host(clusters).await == ["allowed"]
    })
    .await;
    eventually("the status of the other says why it waits", async || {
        let pod = in_tenant(&pods).await;
        let statuses = pod["status"]["ephemeralContainerStatuses"]
            .as_array()
            .into_iter()
            .flatten();
        statuses.into_iter().any(|status| {
            let waiting = &status["state"]["waiting"];
            status["name"] == "denied"
                && waiting["reason"] == "FieldDenied"
                && waiting["message"].to_string().contains("tools.example.com")
        })
    })
    .await;
    assert!(!events(clusters, NAME, "FieldDenied").await.is_empty());
    set_label(clusters, &pods, "one").await;
    assert!(!is_denied(&in_tenant(&pods).await));

    // The class takes its image away.
    let syncer = with_images(clusters, syncer, &["tools.example.com/*"]).await;
    eventually("it is added now, in another order", async || {
        names_on_host(clusters).await == ["allowed", "denied"]
    })
    .await;
    set_label(clusters, &pods, "two").await;
    eventually("an Event says what a new pod would not get", async || {
        let messages = events(clusters, NAME, "NoLongerAllowed").await;
        messages
            .iter()
            .any(|message| message.contains("spec.containers[0].image"))
    })
    .await;
    assert!(!is_denied(&in_tenant(&pods).await));
    let image = async || on_host(clusters).await["spec"]["containers"][0]["image"].clone();
    set_image(&pods, "app:2").await;
    eventually("a change is denied", async || is_denied(&in_tenant(&pods).await)).await;
    assert_eq!(image().await, "app:1");
    set_image(&pods, "app:1").await;
    eventually("it is as it was", async || !is_denied(&in_tenant(&pods).await)).await;
    set_image(&pods, "tools.example.com/app:3").await;
    eventually("what is listed is taken", async || {
        image().await == "tools.example.com/app:3"
    })
    .await;
    pods.delete(NAME, &DeleteParams::default()).await.unwrap();
    syncer.stop().await;
    clusters.policy = usual;
    clusters.syncer().await
}
