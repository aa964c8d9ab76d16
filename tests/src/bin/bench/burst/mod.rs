//! A burst of pods over several tenants until all of them run, against the same number of pods made on the host directly.
//! Both are done in turn, three times, medians count; without tokens and with tokens on both sides.
//!
//! Where both sides share the cores, throughput is bounded by work: a pod of a tenant takes the processor time that it takes on the
//! host, and that of the tenant's servers. The report has the processor time of each group of processes, the bound that follows from
//! it, and throughput beside the bound.

mod report;

use crate::{
    cores::Cores,
    load::{Place, Running},
    processor::{Seconds, Snapshot, until_idle},
    report::figure_of,
};
use berth_tests::{
    scrape::{Metrics, scrape},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{Api, ResourceExt, api::ListParams};
use report::Figures;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

const TENANTS: usize = 3;
const PODS: usize = 300;
const ROUNDS: usize = 3;
/// Concurrent requests over all tenants.
const WRITERS: usize = 12;

/// Seconds in the syncers' queues, by the queue's priority and by what was done then.
type Queued = BTreeMap<Vec<String>, f64>;

/// Writes of the syncers to the host, by verb and resource.
type Writes = BTreeMap<String, f64>;

/// One burst.
struct Burst {
    /// Seconds until all pods ran.
    took: f64,
    /// The delays of all pods added up, in seconds.
    delays: f64,
    /// Processor time that was used meanwhile.
    processor: Seconds,
}

/// Creates `PODS` pods, evenly spread over `places`, and waits until they run.
async fn burst(host: &TestCluster, places: &[Place], prefix: &str) -> Burst {
    let running: Vec<Running> = places.iter().map(Running::follow).collect();
    until_idle(host).await;
    let before = Snapshot::take(host);
    let begun = Instant::now();
    let names: Vec<String> = (0..PODS).map(|index| format!("{prefix}{index:04}")).collect();
    let created: Vec<(usize, &String, Instant)> = stream::iter(names.iter().enumerate())
        .map(async |(index, name)| {
            let place = index % places.len();
            let requested = Instant::now();
            places[place].create(name).await;
            (place, name, requested)
        })
        .buffer_unordered(WRITERS)
        .collect()
        .await;
    for (index, running) in running.iter().enumerate() {
        let mine = names.iter().enumerate().filter(|(at, _)| at % places.len() == index);
        running
            .until_all(&mine.map(|(_, name)| name.clone()).collect::<BTreeSet<_>>())
            .await;
    }
    let took = begun.elapsed().as_secs_f64();
    let processor = Snapshot::take(host).since(&before);
    let delays = created.iter().map(|(place, name, requested)| {
        let seen = running[*place].at(name).unwrap();
        seen.saturating_duration_since(*requested).as_secs_f64()
    });
    Burst {
        took,
        delays: delays.sum(),
        processor,
    }
}

/// What the syncers of all tenants have counted.
struct Counted {
    queued: Queued,
    writes: Writes,
}

impl Counted {
    async fn scrape(host: &TestCluster, tenants: &[Tenant]) -> Self {
        let mut counted = Self {
            queued: Queued::new(),
            writes: Writes::new(),
        };
        for tenant in tenants {
            let metrics = scrape(host, tenant).await.unwrap();
            let queued = metrics.sum_by("berth_syncer_queue_seconds_sum", &["priority", "result"]);
            for (labels, seconds) in queued {
                *counted.queued.entry(labels).or_default() += seconds;
            }
            for (what, count) in metrics.host_writes() {
                *counted.writes.entry(what).or_default() += count;
            }
        }
        counted
    }

    /// Seconds in the queues since `before`.
    fn queued_since(&self, before: &Self) -> Queued {
        since(&self.queued, &before.queued)
    }

    /// Writes to the host since `before`.
    fn writes_since(&self, before: &Self) -> Writes {
        since(&self.writes, &before.writes)
    }
}

/// What was added to each counter.
fn since<K: Ord + Clone>(now: &BTreeMap<K, f64>, before: &BTreeMap<K, f64>) -> BTreeMap<K, f64> {
    let earlier = |labels: &K| before.get(labels).copied().unwrap_or_default();
    now.iter()
        .map(|(labels, count)| (labels.clone(), count - earlier(labels)))
        .collect()
}

/// Which variants are measured: without tokens, with tokens, or both.
fn variants() -> Vec<bool> {
    match std::env::var("BENCH_TOKENS").as_deref() {
        Ok("without") => vec![false],
        Ok("with") => vec![true],
        Ok(other) => panic!("BENCH_TOKENS is {other}: set it to `with` or `without`, or unset it for both"),
        Err(_) => vec![false, true],
    }
}

/// How many of Berth's admission policies are bound on the host.
async fn policies(host: &TestCluster) -> usize {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(host.client.clone());
    let bound = bindings.list_metadata(&ListParams::default()).await.unwrap();
    let bound: BTreeSet<String> = bound.iter().map(ResourceExt::name_any).collect();
    let all = berth_admission_policies::all_policies();
    let count = all
        .iter()
        .filter(|policy| bound.contains(&policy.build_binding().name_any()))
        .count();
    assert_eq!(
        count,
        all.len(),
        "admission policies are missing: only {bound:?} are bound"
    );
    count
}

pub(crate) async fn run() {
    let host = TestCluster::start("h100=6,cpu=1").await;
    let mut tenants = Vec::new();
    for index in 0..TENANTS {
        let name = format!("burst{index}");
        tenants.push(Tenant::create(&host, "bench-burst", &cluster(&name, &[("train", "h100", 2)])).await);
    }
    let policies = policies(&host).await;
    let cores = Cores::separate(&host);
    for tokens in variants() {
        let mut figures = Figures::default();
        let through: Vec<Place> = tenants
            .iter()
            .map(|tenant| Place::in_tenant_with(&tenant.client, tokens))
            .collect();
        let direct = [Place::on_host_with(&host.client, tokens)];
        for round in 0..ROUNDS {
            let prefix = format!("burst-{tokens}-{round}-");
            figures.direct.push(burst(&host, &direct, &prefix).await);
            direct[0].clear(&prefix).await;
            let before = Counted::scrape(&host, &tenants).await;
            figures.through.push(burst(&host, &through, &prefix).await);
            // Before the pods are deleted: deletions are not part of their delay.
            let running = Counted::scrape(&host, &tenants).await;
            figures.queued.push(running.queued_since(&before));
            for place in &through {
                place.clear(&prefix).await;
            }
            // The Secrets of the last pods are deleted after them.
            until_idle(&host).await;
            let after = Counted::scrape(&host, &tenants).await;
            figures.writes.push(after.writes_since(&before));
        }
        let name = if tokens {
            "burst-with-tokens"
        } else {
            "burst-without-tokens"
        };
        let mut report = figures.report(name, &cores);
        report.add("admission policies of Berth on the host", figure_of(policies), "");
        for side in ["host", "tenant"] {
            let metrics = scrape(&host, &tenants[0]).await.unwrap();
            let what = format!("watches of a tenant's syncer, side {side}");
            report.add(what, watches(&metrics, side), "");
        }
        report.note(cores.describe());
        report.finish();
    }
    for tenant in &tenants {
        tenant.delete(&host).await;
    }
}

fn watches(metrics: &Metrics, side: &str) -> f64 {
    metrics.sum(&["berth_syncer_watches{", &format!("side=\"{side}\"")])
}
