//! Limits of the tenant on the host: what is beyond them waits, and says why.

use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, WORKLOADS},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, ResourceQuota, Service},
};
use kube::{
    Api, Error,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// A quota that leaves no room, as of a tenant that has what it may have: there are two pods. Waits until the host enforces it.
async fn exhaust(clusters: &Clusters, quotas: &Api<ResourceQuota>) {
    let hard = json!({"count/pods": "1", "count/services": "0", "count/leases.coordination.k8s.io": "0"});
    create(
        quotas,
        json!({"metadata": {"name": "berth-limits"}, "spec": {"hard": hard}}),
    )
    .await;
    let leases: Api<Lease> = clusters.host_api();
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "beyond"}})).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // The API server's own cache of quotas may be a moment old.
    eventually("the quota is enforced", async || {
        let answer = leases.create(&dry_run, &lease).await;
        matches!(answer, Err(Error::Api(status)) if status.message.contains("exceeded quota"))
    })
    .await;
}

pub async fn objects_beyond_a_limit_wait_and_say_why(clusters: &Clusters) {
    let quotas: Api<ResourceQuota> = clusters.host_api();
    exhaust(clusters, &quotas).await;
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("beyond", &json!({}))).await;
    eventually("condition and Event name the limit", async || {
        let status = pods.get("beyond").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default();
        let synced = conditions
            .into_iter()
            .find(|condition| condition.type_ == "berth.dev/Synced");
        let messages = events(clusters, "beyond", "QuotaExceeded").await;
        synced.is_some_and(|synced| {
            let message = synced.message.unwrap_or_default();
            synced.reason.as_deref() == Some("QuotaExceeded")
                && message.contains("spec.limits.pods")
                && !message.contains(WORKLOADS)
                && messages.contains(&message)
        })
    })
    .await;
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "beyond"));

    let service = json!({"metadata": {"name": "beyond"}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    let services = clusters.tenant_api::<Service>();
    match services.create(&PostParams::default(), &service).await.unwrap_err() {
        Error::Api(status) => assert!(
            status.code == 403 && status.message.contains("spec.limits.services"),
            "{status:?}"
        ),
        other => panic!("{other}"),
    }

    let raised = Patch::Merge(json!({"spec": {"hard": {"count/pods": "1000", "count/services": "1000",
        "count/leases.coordination.k8s.io": "1000"}}}));
    quotas
        .patch("berth-limits", &PatchParams::default(), &raised)
        .await
        .unwrap();
    eventually("it runs once there is room", async || {
        is_phase(&pods, "beyond", "Running").await
    })
    .await;
    pods.delete("beyond", &DeleteParams::default()).await.unwrap();
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
}
