//! The syncer's own delay: from a pod created in the tenant to the host's pod, and from the host's status to the tenant's,
//! at a steady 50 pods a second. And the requests that a pod costs until it runs, at both API servers.

use crate::{
    report::{Report, milliseconds, percentile},
    requests::Requests,
};
use berth_api::labels;
use berth_tests::{
    objects::{gpu_pod, phase},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt, watcher},
};
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

/// When each pod was first seen in one state.
type Moments = Arc<Mutex<BTreeMap<String, Instant>>>;

pub(crate) async fn run() {
    let host = TestCluster::start("h100=8,cpu=1").await;
    let tenant = Tenant::create(&host, "bench-sync", &cluster("sync", &[("train", "h100", 8)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let host_pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let [created, on_host, host_runs, tenant_runs]: [Moments; 4] = Default::default();

    let origin = |pod: &Pod| pod.annotations().get(labels::ORIGIN_NAME).cloned();
    let watches = [
        watch(host_pods.clone(), Arc::clone(&on_host), move |pod| origin(pod)),
        watch(host_pods, Arc::clone(&host_runs), move |pod| {
            (phase(pod) == "Running").then(|| origin(pod)).flatten()
        }),
        watch(pods.clone(), Arc::clone(&tenant_runs), |pod| {
            (phase(pod) == "Running").then(|| pod.name_any())
        }),
    ];
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
    while tenant_runs.lock().unwrap().len() < PODS {
        assert!(
            begun.elapsed() < LIMIT,
            "only {} of {PODS} run",
            tenant_runs.lock().unwrap().len()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for watch in watches {
        watch.abort();
    }
    tokio::time::sleep(SETTLE).await;
    let after = Requests::count(&host, &tenant).await;
    let mut report = Report::new("sync-latency");
    let between = |from: &Moments, to: &Moments| -> Vec<f64> {
        let (from, to) = (from.lock().unwrap(), to.lock().unwrap());
        from.iter()
            .filter_map(|(name, at)| Some(milliseconds(to.get(name)?.saturating_duration_since(*at))))
            .collect()
    };
    let to_host = between(&created, &on_host);
    let to_tenant = between(&host_runs, &tenant_runs);
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

fn watch(
    api: Api<Pod>,
    moments: Moments,
    name: impl Fn(&Pod) -> Option<String> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut stream = watcher(api, watcher::Config::default())
            .default_backoff()
            .applied_objects()
            .boxed();
        while let Ok(Some(pod)) = stream.try_next().await {
            if let Some(name) = name(&pod) {
                moments.lock().unwrap().entry(name).or_insert_with(Instant::now);
            }
        }
    })
}
