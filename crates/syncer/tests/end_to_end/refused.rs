//! Pods that run and whose changes the host does not take: policies of the tenant close them nevertheless.

use crate::{
    limits::enforce,
    network::until_open,
    objects::{Objects, both, create, events, eventually, is_phase, origin, pod},
    setup::Clusters,
};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const POLICIES: &str = "networking.k8s.io";

/// A pod that runs and is open.
async fn run(clusters: &Clusters, name: &str, spec: &Value) -> Api<Pod> {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod(name, spec)).await;
    eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    until_open(clusters, name, [true, true]).await;
    pods
}

/// A policy for egress that selects the pod takes its label away.
async fn is_closed_by_a_policy(clusters: &Clusters, name: &str) {
    let (policies, _) = both(clusters, POLICIES, "v1", "NetworkPolicy");
    let selector = json!({"matchLabels": {"app": name}});
    let policy = json!({"metadata": {"name": name}, "spec": {"podSelector": selector, "policyTypes": ["Egress"]}});
    policies.create(policy).await;
    until_open(clusters, name, [true, false]).await;
    policies.delete(name).await;
}

pub async fn a_pod_whose_annotations_are_too_large_is_closed(clusters: &Clusters) {
    let item = json!({"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}});
    let volumes = json!([{"name": "info", "downwardAPI": {"items": [item]}}]);
    let pods = run(clusters, "wordy", &json!({"volumes": volumes})).await;
    // In the file of the downward API each of them has two bytes.
    let note = Patch::Merge(json!({"metadata": {"annotations": {"note": "\"".repeat(200 * 1024)}}}));
    pods.patch("wordy", &PatchParams::default(), &note).await.unwrap();
    eventually("an Event says what is too large", async || {
        let messages = events(clusters, "wordy", "FieldDenied").await;
        messages
            .iter()
            .any(|message| message.contains("metadata.annotations: "))
    })
    .await;
    is_closed_by_a_policy(clusters, "wordy").await;
    pods.delete("wordy", &DeleteParams::default()).await.unwrap();
}

pub async fn a_pod_that_may_not_grow_is_closed(clusters: &Clusters) {
    let container = json!([{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "100m"}}}]);
    let pods = run(clusters, "greedy", &json!({"containers": container})).await;
    let quotas: Api<ResourceQuota> = clusters.host_api();
    enforce(clusters, &quotas, json!({"requests.cpu": "1"})).await;
    let more = json!([{"name": "main", "resources": {"requests": {"cpu": "2"}}}]);
    let resize = Patch::Strategic(json!({"spec": {"containers": more}}));
    pods.patch_subresource("resize", "greedy", &PatchParams::default(), &resize)
        .await
        .unwrap();
    eventually("an Event names the limit", async || {
        !events(clusters, "greedy", "QuotaExceeded").await.is_empty()
    })
    .await;
    is_closed_by_a_policy(clusters, "greedy").await;
    pods.delete("greedy", &DeleteParams::default()).await.unwrap();
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
}

/// The host has a rule of its own that the syncer does not know.
pub async fn a_pod_that_the_host_refuses_is_closed(clusters: &Clusters) {
    let pods = run(clusters, "refused", &json!({})).await;
    let hosts = clusters.host_pods().await;
    let host = hosts.iter().find(|pod| origin(pod) == "refused").unwrap();
    let host_name = host.metadata.name.as_deref().unwrap();
    let of_host = |kind: &str| Objects::new(&clusters.host_admin, "admissionregistration.k8s.io", "v1", kind, None);
    let (policies, bindings) = (
        of_host("ValidatingAdmissionPolicy"),
        of_host("ValidatingAdmissionPolicyBinding"),
    );
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]});
    let check = json!({"expression": "object.spec.containers.all(c, c.image != 'forbidden:1')"});
    policies
        .create(json!({"metadata": {"name": "images"}, "spec": {
            "matchConstraints": {"resourceRules": [rule]}, "validations": [check]}}))
        .await;
    bindings
        .create(
            json!({"metadata": {"name": "images"}, "spec": {"policyName": "images", "validationActions": ["Deny"]}}),
        )
        .await;
    let image = Patch::Strategic(json!({"spec": {"containers": [{"name": "main", "image": "forbidden:1"}]}}));
    let trial = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    eventually("the rule is enforced", async || {
        clusters
            .host_api::<Pod>()
            .patch(host_name, &trial, &image)
            .await
            .is_err()
    })
    .await;
    pods.patch("refused", &PatchParams::default(), &image).await.unwrap();
    eventually("an Event says that the host refuses it", async || {
        !events(clusters, "refused", "SyncFailed").await.is_empty()
    })
    .await;
    is_closed_by_a_policy(clusters, "refused").await;
    pods.delete("refused", &DeleteParams::default()).await.unwrap();
    bindings.delete("images").await;
    policies.delete("images").await;
}
