//! The syncer's own delay: from a pod created in the tenant to the host's pod, and from the host's status to the tenant's,
//! at a steady 50 pods a second. And the requests that a pod costs until it runs, at both API servers.

use crate::{
    moments::{Moments, delays, origin},
    report::{Report, percentile},
    requests::Requests,
};
use berth_tests::{
    objects::{gpu_pod, phase},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::PostParams};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const PODS: usize = 500;
const PER_SECOND: u64 = 50;
const LIMIT: Duration = Duration::from_secs(120);
/// Time after which nothing more is done for pods that run: tokens that name the node, Events.
const SETTLE: Duration = Duration::from_secs(10);

pub(crate) async fn run() {
    let host = TestCluster::start("h100=8,cpu=1").await;
    let tenant = Tenant::create(&host, "bench-sync", &cluster("sync", &[("train", "h100", 8)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let host_pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let created = Arc::new(Mutex::new(BTreeMap::new()));
    let on_host = Moments::follow(host_pods.clone(), origin);
    let host_runs = Moments::follow(host_pods, |pod| origin(pod).filter(|_| phase(pod) == "Running"));
    let tenant_runs = Moments::follow(pods.clone(), |pod| (phase(pod) == "Running").then(|| pod.name_any()));
    tokio::time::sleep(Duration::from_secs(1)).await;

    let before = Requests::count(&host, &tenant).await;
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / PER_SECOND));
    let mut requests = tokio::task::JoinSet::new();
    for index in 0..PODS {
        tick.tick().await;
        let (pods, created) = (pods.clone(), Arc::clone(&created));
        requests.spawn(async move {
            let name = format!("p-{index:04}");
            pods.create(&PostParams::default(), &gpu_pod(&name, 0)).await.unwrap();
            created.lock().unwrap().insert(name, Instant::now());
        });
    }
    while let Some(result) = requests.join_next().await {
        result.unwrap();
    }
    let begun = Instant::now();
    while tenant_runs.all().len() < PODS {
        let run = tenant_runs.all().len();
        assert!(begun.elapsed() < LIMIT, "only {run} of {PODS} run");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(SETTLE).await;
    let after = Requests::count(&host, &tenant).await;
    let mut report = Report::new("sync-latency");
    let created = created.lock().unwrap().clone();
    let to_host = delays(&created, &on_host.all());
    let to_tenant = delays(&host_runs.all(), &tenant_runs.all());
    for (what, values) in [
        ("tenant create answered -> host pod seen", &to_host),
        ("host Running seen -> tenant Running seen", &to_tenant),
    ] {
        report.add(format!("{what}, p50"), percentile(values, 50.0), "ms");
        report.add(format!("{what}, p99"), percentile(values, 99.0), "ms");
    }
    after.since(&before).add_to(&mut report, PODS);
    report.finish();
    tenant.delete(&host).await;
}
