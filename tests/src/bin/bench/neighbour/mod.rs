//! What a tenant feels of one that stores, or creates, as much as it can: the delay of small writes of a neighbour, alone and beside
//! it; with what the greedy tenant was answered, where its limits took hold, and what it cost the host.

mod flood;
mod growth;
mod histogram;
mod phases;
mod small_writes;
mod tally;
mod timeline;
mod toll;

use crate::{
    report::{Report, figure_of, milliseconds, percentile},
    shares::Shares,
};
use berth_api::{TenantClass, TenantClassSpec, TenantCluster, TenantLimits};
use berth_runtime::thread::Thread;
use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use kube::{Api, api::PostParams};
use phases::{Moment, Sources};
use small_writes::Written;
use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::Arc,
    time::{Duration, Instant},
};
use tally::Tally;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toll::{Limits, Toll};

/// Time in which the neighbour is alone: a p99 of 240 writes.
const ALONE: Duration = Duration::from_secs(60);
/// Time after which new tenants count as idle.
const SETTLE: Duration = Duration::from_secs(20);
/// The host has done all it does for a tenant once it has counted no further object of it for this long.
const QUIET: Duration = Duration::from_secs(20);
/// After this time the greedy tenant has written what it may write at once, and large writes have their pace.
const AT_ONCE: Duration = Duration::from_secs(15);
/// Concurrent requests of the greedy tenant.
const WRITERS: usize = 8;
/// Name of the greedy tenant's class, if it has one.
const CLASS: &str = "bench-greedy";

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// The greedy tenant: with a class of its own if the benchmark has a setting for the limits of one.
async fn greedy_tenant(host: &TestCluster) -> TenantCluster {
    let mut greedy = cluster("greedy", &[]);
    if let Ok(rate) = std::env::var("BENCH_WRITE_BYTES_PER_SECOND") {
        let limits = TenantLimits {
            datastore_write_bytes_per_second: rate,
            ..TenantLimits::default()
        };
        let spec = TenantClassSpec {
            limits,
            ..TenantClassSpec::default()
        };
        let classes: Api<TenantClass> = Api::all(host.client.clone());
        let class = TenantClass::new(CLASS, spec);
        classes.create(&PostParams::default(), &class).await.unwrap();
        greedy.spec.class_name = Some(CLASS.into());
    }
    greedy
}

/// How long the greedy tenant writes.
fn duration() -> Duration {
    Duration::from_secs(60 * u64::try_from(number("BENCH_MINUTES", 5)).unwrap())
}

pub(crate) async fn run() {
    beside_large_objects().await;
    if std::env::var("BENCH_NEIGHBOUR").is_ok_and(|which| which == "large-objects") {
        return;
    }
    beside_many_objects().await;
    beside_pods_that_grow().await;
    beside_changes_of_a_label().await;
}

/// The greedy tenant writes ConfigMaps of 1 MB, or of another size.
async fn beside_large_objects() {
    let scene = Scene::start().await;
    let begun = scene.begin().await;
    let large = flood::Large {
        size: number("BENCH_BYTES", 1_000_000),
        numbers: flood::Numbers::below(number("BENCH_WRITES", 20_000)),
        until: Instant::now() + duration(),
        tally: Arc::clone(&begun.tally),
    };
    let mut writers = JoinSet::new();
    for writer in 0..number("BENCH_WRITERS", WRITERS) {
        writers.spawn(flood::store(scene.greedy.client.clone(), writer, large.clone()));
    }
    writers.join_all().await;
    let report = Report::new("neighbour-of-large-objects");
    scene.finish(begun, report).await;
}

/// The greedy tenant creates pods for which it has no node, and Services.
async fn beside_many_objects() {
    let scene = Scene::start().await;
    let begun = scene.begin().await;
    // Creating so many takes longer on a small machine.
    let until = Instant::now() + 3 * duration();
    let pods = flood::Numbers::below(number("BENCH_PODS", 20_000));
    let services = flood::Numbers::below(number("BENCH_SERVICES", 5_000));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS / 2 {
        let client = &scene.greedy.client;
        writers.spawn(flood::create_pods(
            client.clone(),
            Arc::clone(&pods),
            until,
            Arc::clone(&begun.tally),
        ));
        writers.spawn(flood::create_services(
            client.clone(),
            Arc::clone(&services),
            until,
            Arc::clone(&begun.tally),
        ));
    }
    writers.join_all().await;
    scene.until_quiet(until).await;
    let report = Report::new("neighbour-of-many-objects");
    scene.finish(begun, report).await;
}

/// The greedy tenant creates small pods in a namespace with many ports of Services.
async fn beside_pods_that_grow() {
    let scene = Scene::start().await;
    let begun = scene.begin().await;
    let until = Instant::now() + 3 * duration();
    growth::create(&scene.greedy.client, number("BENCH_LARGE_PODS", 7_000)).await;
    scene.until_quiet(until).await;
    let report = Report::new("neighbour-of-pods-that-grow");
    scene.finish(begun, report).await;
}

/// The greedy tenant changes a label of the namespace of such pods: the host's etcd keeps another version of each, each time.
async fn beside_changes_of_a_label() {
    let scene = Scene::start().await;
    growth::create(&scene.greedy.client, number("BENCH_CHANGED_PODS", 500)).await;
    scene.until_quiet(Instant::now() + duration()).await;
    let begun = scene.begin().await;
    let changes = growth::change_label(&scene.greedy.client, Instant::now() + duration()).await;
    let mut report = Report::new("neighbour-of-changes-of-a-label");
    report.add("changes of the label", f64::from(changes), "");
    scene.finish(begun, report).await;
}

/// Two tenants.
struct Scene {
    /// Shares of the processors, for as long as the scene lasts.
    shares: Shares,
    sources: Sources,
    host: TestCluster,
    greedy: Tenant,
    neighbour: Tenant,
}

/// What is known, and what goes on, when the greedy tenant begins.
struct Begun {
    alone: Written,
    beside: Thread<Written>,
    /// At the beginning of both phases.
    moments: [Moment; 2],
    toll: tokio::task::JoinHandle<Toll>,
    tally: Arc<Tally>,
    stop: CancellationToken,
}

impl Scene {
    /// A host of its own with two tenants: what is left of one measurement must not be in the next.
    async fn start() -> Self {
        let host = TestCluster::start_with("h100=1,cpu=1", |config| {
            config.fsync = std::env::var_os("BENCH_FSYNC").is_some();
            let flags = std::env::var("BENCH_DATASTORE_FLAGS").unwrap_or_default();
            config.datastore_flags = flags.split_whitespace().map(str::to_owned).collect();
        })
        .await;
        let greedy = Tenant::create(&host, "bench-greedy", &greedy_tenant(&host).await).await;
        let neighbour = Tenant::create(&host, "bench-neighbour", &cluster("neighbour", &[])).await;
        // Servers of tenants run in pods, which have shares. Without them, what is measured is how a kernel divides two cores among all threads.
        let shares = Shares::by_tenant(&host);
        tokio::time::sleep(SETTLE).await;
        Self {
            shares,
            sources: Sources::of(&host, &greedy, &neighbour).await,
            host,
            greedy,
            neighbour,
        }
    }

    /// Measures the neighbour alone, and goes on measuring.
    async fn begin(&self) -> Begun {
        let write = |prefix, stop: &CancellationToken| {
            small_writes::start(self.neighbour.kubeconfig.clone(), prefix, stop.clone())
        };
        let stop = CancellationToken::new();
        let first = self.sources.now(&self.host).await;
        let mut alone = write("alone-", &stop);
        tokio::time::sleep(ALONE).await;
        stop.cancel();
        let alone = alone.ended().await.unwrap();
        let stop = CancellationToken::new();
        let second = self.sources.now(&self.host).await;
        Begun {
            alone,
            beside: write("beside-", &stop),
            moments: [first, second],
            toll: tokio::spawn(toll::follow(toll::Places::of(&self.host, &self.greedy), stop.clone())),
            tally: Arc::new(Tally::begin()),
            stop,
        }
    }

    /// Waits until the host counts no further objects of the greedy tenant, `until` then at most.
    async fn until_quiet(&self, until: Instant) {
        let mut last = Limits::default();
        let mut changed = Instant::now();
        while changed.elapsed() < QUIET && Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(2)).await;
            // A host that does not answer has more to do.
            match Limits::read(&self.host, &self.greedy).await {
                Ok(now) if now == last => {}
                Ok(now) => (last, changed) = (now, Instant::now()),
                Err(_) => changed = Instant::now(),
            }
        }
    }

    /// Ends the measurements and reports. The tenants end with their host.
    async fn finish(self, mut begun: Begun, mut report: Report) {
        begun.stop.cancel();
        let beside = begun.beside.ended().await.unwrap();
        let third = self.sources.now(&self.host).await;
        let toll = begun.toll.await.unwrap();
        add_delays(&mut report, &begun.alone, &beside);
        begun.tally.add_to(&mut report);
        add_times(&mut report, &begun.tally, &beside);
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let [first, second] = &begun.moments;
        second.add_since(first, "alone", processors, &mut report);
        third.add_since(second, "beside", processors, &mut report);
        report.add("equal shares of the processors", f64::from(self.shares.are_equal()), "");
        report.note(self.shares.describe());
        match Limits::read(&self.host, &self.greedy).await {
            Ok(limits) => limits.add_to(&mut report),
            Err(error) => report.note(format!("the host does not say what it counts: {error}")),
        }
        toll.add_to(&mut report);
        report.finish();
    }
}

/// When the neighbour's writes were slow, and whether that was while the servers worked on a write of the greedy tenant.
fn add_times(report: &mut Report, tally: &Tally, beside: &Written) {
    let answers = tally.answers();
    let later: Vec<f64> = beside
        .accepted
        .iter()
        .filter(|write| write.at >= tally.begun() + AT_ONCE)
        .map(|write| milliseconds(write.took))
        .collect();
    for percent in [50.0, 99.0] {
        let what = format!(
            "neighbour's writes beside, without the first {} s, p{percent}",
            AT_ONCE.as_secs()
        );
        report.add(what, percentile(&later, percent), "ms");
    }
    let (during, others) = timeline::split(&beside.accepted, &answers);
    for (when, delays) in [("during", during), ("not during", others)] {
        let what = format!("neighbour's writes {when} an accepted one of the greedy tenant");
        report.add(format!("{what}, count"), figure_of(delays.len()), "");
        for percent in [50.0, 90.0, 99.0] {
            report.add(format!("{what}, p{percent}"), percentile(&delays, percent), "ms");
        }
    }
    for line in timeline::lines(tally.begun(), &beside.accepted, &answers) {
        report.note(line);
    }
}

fn add_delays(report: &mut Report, alone: &Written, beside: &Written) {
    for (when, written) in [("alone", alone), ("beside", beside)] {
        for percent in [50.0, 99.0, 100.0] {
            let what = format!("neighbour's writes {when}, p{percent}");
            report.add(what, percentile(&written.delays(), percent), "ms");
        }
        report.add(
            format!("neighbour's writes {when}, accepted"),
            figure_of(written.accepted.len()),
            "",
        );
    }
    let p99 = |written: &Written| percentile(&written.delays(), 99.0);
    report.add("neighbour's p99, beside / alone (goal 2)", p99(beside) / p99(alone), "");
    let failed = |errors: &BTreeMap<String, u32>| errors.values().sum::<u32>();
    for (when, written) in [("alone", alone), ("beside", beside)] {
        let what = format!("neighbour's writes {when}, failed (goal 0)");
        report.add(what, f64::from(failed(&written.errors)), "");
        for (answer, count) in &written.errors {
            let what = format!("neighbour's writes {when}, answered {answer}");
            report.add(what, f64::from(*count), "");
        }
    }
}
