//! Images that the class does not list, in pods and in changes of pods.

use super::{StolenCredential, expect_denied, with};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The tenant's own folder, by the placeholders of the class.
const OWN: &str = "registry.example.com/adv-policies/policies/app:1";
const FOREIGN: &str = "registry.example.com/adv-other/policies/app:1";
const DIGEST: &str = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Pods with an image in every place that can have one.
fn specs(image: &str) -> [(&'static str, Value); 3] {
    [
        (
            "images of containers",
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": image}]}),
        ),
        (
            "images of containers",
            json!({"initContainers": [{"name": "d", "image": image}]}),
        ),
        (
            "images of volumes",
            json!({"volumes": [{"name": "v", "image": {"reference": image}}]}),
        ),
    ]
}

pub(super) async fn of_pods(credential: &StolenCredential, admin: &Client) {
    let with_digest = format!("{OWN}{DIGEST}");
    for allowed in [
        "i",
        "i:1",
        "library/i",
        "docker.io/i",
        "docker.io/library/i:1",
        "index.docker.io/i",
        "index.docker.io/library/i",
        "docker.io/library/cafe",
        "localhost",
        "localhost:5000",
        OWN,
        with_digest.as_str(),
        "registry.example.com/adv-policies/policies/a/b__c.d-e",
        "registry.example.com/base/cuda",
        "registry.example.com/base/cuda:13.0",
        "localhost:5000/x:1",
    ] {
        for (_, spec) in specs(allowed) {
            credential.expect_allowed(&credential.pod(&spec)).await;
        }
    }
    let id = DIGEST.trim_start_matches('@');
    let digits = id.trim_start_matches("sha256:");
    for denied in [
        FOREIGN,
        "registry.example.com/adv-policies/policies",
        "registry.example.com/adv-policies/policies-b/app",
        "registry.example.com/base/cuda/x",
        "registry.example.com/base/cuda-devel",
        "registry.example.com.evil.example/base/cuda",
        "evil.example/registry.example.com/base/cuda",
        "registry.example.com:443/base/cuda",
        "registry.example.com./base/cuda",
        "Registry.example.com/base/cuda",
        "registry.example.com/adv-policies/policies/../../adv-other/policies/app",
        "team/i",
        "docker.io/team/i",
        "index.docker.io/team/i",
        "docker.io/index.docker.io/i",
        "localhost/x",
        "localhost:50000/x",
        "[::1]:5000/x",
        "registry.example.com/base/cuda x",
        id,
        digits,
        "sha256:0123",
        "cafe",
        "cafe:latest",
        "cafe:5000",
    ] {
        for (message, spec) in specs(denied) {
            credential.expect_denied(message, &credential.pod(&spec)).await;
        }
    }
    changes(credential, admin).await;
}

/// A pod keeps the image that its class allowed when it was created: labels, by which policies close it, must still reach it. Nothing that
/// comes into it later has an exception.
async fn changes(credential: &StolenCredential, admin: &Client) {
    let containers = json!({"containers": [{"name": "c", "image": FOREIGN}, {"name": "d", "image": "i"}]});
    let before = with(&credential.pod(&containers), &json!({"metadata": {"name": "images"}}));
    let before: Pod = serde_json::from_value(before).unwrap();
    let as_admin: Api<Pod> = Api::namespaced(admin.clone(), &credential.namespace);
    as_admin.create(&PostParams::default(), &before).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let relabeled = json!({"metadata": {"labels": {"pod.berth.dev/app": "a"}}});
    pods.patch("images", &dry_run, &Patch::Merge(&relabeled)).await.unwrap();
    let change = async |name: &str, image: &str| {
        let patch = json!({"spec": {"containers": [{"name": name, "image": image}]}});
        pods.patch("images", &dry_run, &Patch::Strategic(&patch)).await
    };
    let debug = async |image: &str| {
        let patch = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": image}]}});
        pods.patch_subresource("ephemeralcontainers", "images", &dry_run, &Patch::Strategic(&patch))
            .await
    };
    let other = "registry.example.com/adv-other/policies/app:2";
    expect_denied("images of containers", change("c", other).await);
    expect_denied("images of containers", change("d", other).await);
    // Nor the image of another container of the pod, which the platform may have added.
    expect_denied("images of containers", change("d", FOREIGN).await);
    expect_denied("images of containers", debug(FOREIGN).await);
    expect_denied("images of containers", debug(other).await);
    change("c", OWN).await.unwrap();
    change("d", "i:2").await.unwrap();
    debug(OWN).await.unwrap();
    pods.delete("images", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}
