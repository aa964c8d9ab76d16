//! Limits of the tenant on the host: what is beyond them waits, and says why.

use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, WORKLOADS},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{LimitRange, Pod, ResourceQuota, Service},
};
use kube::{
    Api, Error,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Creates a quota with these limits. Waits until the host enforces it.
pub async fn enforce(clusters: &Clusters, quotas: &Api<ResourceQuota>, mut hard: Value) {
    hard["count/leases.coordination.k8s.io"] = "0".into();
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
    // It leaves no room, as of a tenant that has what it may have: there are two pods.
    let hard = json!({"count/pods": "1", "count/services": "0"});
    enforce(clusters, &quotas, hard).await;
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

pub async fn requests_beyond_a_limit_wait_and_pods_without_requests_have_the_default(clusters: &Clusters) {
    let (quotas, ranges): (Api<ResourceQuota>, Api<LimitRange>) = (clusters.host_api(), clusters.host_api());
    let defaults = json!([{"type": "Container", "defaultRequest": {"cpu": "10m"}}]);
    create(
        &ranges,
        json!({"metadata": {"name": "berth-limits"}, "spec": {"limits": defaults}}),
    )
    .await;
    enforce(clusters, &quotas, json!({"requests.cpu": "1"})).await;
    let pods = clusters.tenant_api::<Pod>();
    let container = json!([{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "2"}}}]);
    create(&pods, pod("large", &json!({"containers": container}))).await;
    create(&pods, pod("small", &json!({}))).await;
    eventually("the Event names the limit", async || {
        let messages = events(clusters, "large", "QuotaExceeded").await;
        messages.iter().any(|message| message.contains("1 requested CPU"))
    })
    .await;
    eventually("a pod without requests runs", async || {
        is_phase(&pods, "small", "Running").await
    })
    .await;
    let on_host = clusters.host_pods().await;
    assert!(on_host.iter().all(|pod| origin(pod) != "large"));
    let small = on_host.into_iter().find(|pod| origin(pod) == "small").unwrap();
    let resources = small.spec.unwrap().containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["cpu"].0, "10m");
    for name in ["large", "small"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    ranges.delete("berth-limits", &DeleteParams::default()).await.unwrap();
}
