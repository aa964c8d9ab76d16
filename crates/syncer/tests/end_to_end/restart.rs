//! Syncers that are killed and started again.

use crate::{
    objects::{create, eventually, eventually_none_left, origin, phase, pod, settled},
    setup::{Clusters, WORKLOADS},
};
use berth_api::labels::ORIGIN_NAME;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

pub async fn a_killed_syncer_goes_on(clusters: &Clusters) {
    const PODS: usize = 200;
    let pods = clusters.tenant_api::<Pod>();
    let syncer = clusters.syncer().await;
    for number in 0..PODS {
        create(&pods, pod(&format!("many-{number}"), &json!({}))).await;
    }
    syncer.kill().await;
    let start = Instant::now();
    let syncer = clusters.syncer().await;
    eventually("every pod runs", async || {
        let all = pods.list(&ListParams::default()).await.unwrap();
        all.iter()
            .filter(|pod| pod.metadata.name.as_ref().unwrap().starts_with("many-") && phase(pod) == "Running")
            .count()
            == PODS
    })
    .await;
    eprintln!("all {PODS} pods ran {:?} after the restart", start.elapsed());
    let count = clusters
        .host_pods()
        .await
        .iter()
        .filter(|pod| origin(pod).starts_with("many-"))
        .count();
    assert_eq!(count, PODS, "none twice");
    let tokens = async || {
        let all = clusters
            .host_api::<Secret>()
            .list(&ListParams::default().labels("berth.dev/pod-token"))
            .await
            .unwrap();
        // Those of earlier pods may still exist.
        all.iter()
            .filter(|secret| secret.annotations()[ORIGIN_NAME].starts_with("many-"))
            .count()
    };
    eventually("every pod has its tokens", async || tokens().await == PODS).await;
    settled("nothing changes on the host", async || host_versions(clusters).await).await;
    eventually_none_left("every pod's binding has an Event in the tenant", async || {
        without_events(clusters).await
    })
    .await;

    // A restart with nothing to do writes nothing.
    syncer.stop().await;
    let before = host_versions(clusters).await;
    let start = Instant::now();
    let syncer = clusters.syncer().await;
    eprintln!(
        "ready {:?} after a restart with {} host objects",
        start.elapsed(),
        before.len()
    );
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    // What the garbage collector removes later is not a change by the syncer.
    let after = host_versions(clusters).await;
    let written: Vec<_> = after
        .iter()
        .filter(|(name, version)| before.get(*name) != Some(*version))
        .collect();
    assert!(written.is_empty(), "{written:?}");
    let mut writes = String::new();
    prometheus_client::encoding::text::encode(&mut writes, &registry(&syncer.metrics)).unwrap();
    let written = |what: &str| -> Vec<_> {
        let reads = ["verb=\"get\"", "verb=\"list\""];
        let calls = writes.lines().filter(|line| line.contains("api_call_seconds_count"));
        calls
            .filter(|line| line.contains(what) && !reads.iter().any(|verb| line.contains(verb)))
            .collect()
    };
    let host_writes = written("side=\"host\"");
    assert!(host_writes.is_empty(), "{host_writes:?} in {WORKLOADS}");
    let events = written("resource=\"events\"");
    assert!(events.is_empty(), "they are in the tenant already: {events:?}");
    syncer.stop().await;
}

/// Pods that the host's scheduler has bound, and said so, for whose binding the tenant has no Event. The scheduler drops an Event that its
/// API server, when it is busy, refuses: then there is none to copy.
async fn without_events(clusters: &Clusters) -> Vec<String> {
    let scheduled = ListParams::default().fields("reason=Scheduled");
    let about = |event: Event| event.involved_object.name.unwrap_or_default();
    let host = clusters.host_api::<Event>().list(&scheduled).await.unwrap();
    let host: BTreeSet<String> = host.into_iter().map(about).collect();
    let tenant = clusters.tenant_api::<Event>().list(&scheduled).await.unwrap();
    let tenant: BTreeSet<String> = tenant.into_iter().map(about).collect();
    let pods = clusters.host_pods().await;
    let bound: Vec<&Pod> = pods
        .iter()
        .filter(|pod| origin(pod).starts_with("many-") && host.contains(&pod.name_any()))
        .collect();
    assert!(!bound.is_empty());
    let mut missing: Vec<String> = bound.into_iter().map(|pod| origin(pod).to_owned()).collect();
    missing.retain(|pod| !tenant.contains(pod));
    missing
}

async fn host_versions(clusters: &Clusters) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for pod in clusters.host_pods().await {
        versions.insert(format!("pod {}", origin(&pod)), pod.metadata.resource_version.unwrap());
    }
    for secret in clusters
        .host_api::<Secret>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        versions.insert(
            format!("secret {}", secret.metadata.name.unwrap()),
            secret.metadata.resource_version.unwrap(),
        );
    }
    for config in clusters
        .host_api::<ConfigMap>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        versions.insert(
            format!("config {}", config.metadata.name.unwrap()),
            config.metadata.resource_version.unwrap(),
        );
    }
    versions
}

fn registry(metrics: &berth_syncer::metrics::Metrics) -> prometheus_client::registry::Registry {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    registry
}
