//! One pass over the GPUs of a large fleet: the queries to a real Prometheus server, and the decisions. Status, Events and evictions are
//! written only for workloads that take a step, so they are not part of it.

use crate::report::{Report, percentile};
use berth_api::{IdleReclaim, IdleReclaimMode};
use berth_control::controllers::idle_gpus::{GpuMetricsSource, INTERVAL, collect};
use berth_idle_reclaim::{
    evidence::Verdict,
    gaps::GapMemory,
    pass::{self, States, TenantInput},
    pod::GpuPod,
    policy::Policy,
    query::QuerySettings,
    question::Questions,
};
use berth_prometheus::{Prometheus, PrometheusConfig, QueryError};
use berth_tests::gpu_metrics::{self, Behaviour, Exporters, GPUS, History, Server};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::process::Command;

/// Seconds between two scrapes, as the documentation recommends.
const SCRAPE_INTERVAL: i64 = 30;
/// The shortest window that a class may have. Prometheus takes no older samples from exporters than those of an hour.
const WINDOW: &str = "30m";
/// Age of the oldest sample.
const HISTORY: i64 = 2100;
/// Passes that are measured.
const PASSES: usize = 5;
/// Pods of a tenant, one for each of its nodes.
const PODS_OF_TENANT: usize = 25;
/// One of so many pods computes, and later one of so many does not.
const ODD_ONES: usize = 5;
/// Time for Prometheus to scrape everything once.
const LIMIT: Duration = Duration::from_mins(4);

/// How large the fleet is.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// GPUs; nodes have eight each.
    #[arg(long, default_value_t = Options::default().gpus)]
    gpus: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { gpus: 10_000 }
    }
}

/// What a process measured.
#[derive(Serialize, Deserialize)]
struct Measured {
    /// Seconds of each pass.
    passes: Vec<f64>,
    /// The part of each that was reading the metrics.
    reading: Vec<f64>,
    /// Mebibytes by which the process grew at most.
    growth: f64,
}

/// A source of metrics, and the tenants that are evaluated.
struct Fleet {
    source: GpuMetricsSource,
    policy: Policy,
    tenants: Vec<Vec<Arc<GpuPod>>>,
}

impl Fleet {
    fn new(prometheus: &str, nodes: usize) -> Self {
        let rules = IdleReclaim {
            mode: IdleReclaimMode::Enforce,
            window: WINDOW.into(),
            ..IdleReclaim::default()
        };
        let pods = gpu_metrics::pods(nodes);
        Self {
            source: GpuMetricsSource {
                prometheus: Prometheus::new(PrometheusConfig::new(prometheus.parse().unwrap())).unwrap(),
                settings: QuerySettings {
                    matchers: "job=\"dcgm-exporter\"".into(),
                    sample_interval: 2 * SCRAPE_INTERVAL,
                },
                interval: INTERVAL,
            },
            policy: Policy::new(&rules),
            tenants: pods.chunks(PODS_OF_TENANT).map(<[_]>::to_vec).collect(),
        }
    }

    /// One pass: the time until the metrics were read, and how many pods are idle.
    async fn pass(&self, gaps: &mut GapMemory) -> Result<(Duration, usize), QueryError> {
        let begun = Instant::now();
        let now = Timestamp::now().as_second();
        let (gpu_resources, states) = (BTreeSet::new(), States::new());
        let tenants = self.tenants.iter().map(|pods| (&self.policy, pods.as_slice()));
        let questions = Questions::about_all(tenants, &gpu_resources);
        let metrics = collect(&self.source, &questions, gaps, now).await?;
        let reading = begun.elapsed();
        let mut idle = 0;
        for pods in &self.tenants {
            let input = TenantInput {
                policy: &self.policy,
                pods,
                gpu_resources: &gpu_resources,
                states: &states,
            };
            let decisions = pass::evaluate(&input, Some(&metrics), now);
            drop(pass::report(&self.policy, &decisions));
            let is_idle = decisions.iter().filter(|decision| decision.verdict == Verdict::Idle);
            idle += is_idle.count();
        }
        Ok((reading, idle))
    }
}

pub(crate) async fn run(options: Options) {
    let nodes = options.gpus.div_ceil(GPUS);
    let exporters = Exporters::with_history(History {
        seconds: HISTORY,
        interval: SCRAPE_INTERVAL,
    });
    for node in (0..nodes).step_by(ODD_ONES) {
        exporters.set(node, Behaviour::Busy);
    }
    let server = Server::start(exporters.serve().await, nodes, SCRAPE_INTERVAL);
    let fleet = Fleet::new(&server.url(), nodes);
    let idle = nodes - nodes.div_ceil(ODD_ONES);
    until_scraped(&fleet, idle, &server).await;
    let many_idle = measure(&server, nodes).await;
    // As the GPUs of a fleet are.
    let stay_idle = |node: &usize| node % ODD_ONES == 1;
    for node in (0..nodes).filter(|node| !stay_idle(node)) {
        exporters.set(node, Behaviour::Busy);
    }
    until_scraped(&fleet, (0..nodes).filter(stay_idle).count(), &server).await;
    let few_idle = measure(&server, nodes).await;

    let mut report = Report::new("idle-pass");
    for (measured, share) in [(many_idle, "four of five"), (few_idle, "one of five")] {
        let of = |what: &str| format!("{what}, {} GPUs, {share} pods idle", nodes * GPUS);
        report.add(
            of("one pass, median of 5 (goal 1)"),
            percentile(&measured.passes, 50.0),
            "s",
        );
        report.add(of("one pass, longest of 5"), percentile(&measured.passes, 100.0), "s");
        report.add(
            of("reading the metrics, median"),
            percentile(&measured.reading, 50.0),
            "s",
        );
        report.add(of("growth of resident memory (goal 95)"), measured.growth, "MiB");
    }
    report.note(format!(
        "window {WINDOW}, a sample every {SCRAPE_INTERVAL} s; Prometheus runs on the same machine; the first pass looks for gaps, the others remember \
         that there were none"
    ));
    report.finish();
}

/// Measures passes in a process of their own: this one has the exporters.
async fn measure(server: &Server, nodes: usize) -> Measured {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .arg("run-idle-pass")
        .args(["--prometheus", &server.url(), "--nodes", &nodes.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    assert!(output.status.success(), "a pass failed; {}", server.log());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until passes find what the exporters say.
async fn until_scraped(fleet: &Fleet, expected: usize, server: &Server) {
    let begun = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let last = match fleet.pass(&mut GapMemory::default()).await {
            Ok((_, idle)) if idle == expected => return,
            Ok((_, idle)) => format!("{idle} of {expected} pods are idle"),
            Err(error) => error.to_string(),
        };
        assert!(begun.elapsed() < LIMIT, "{last}; {}", server.log());
    }
}

/// What the process of the passes does: it prints what it measured as JSON.
pub(crate) async fn run_passes(prometheus: &str, nodes: usize) {
    let fleet = Fleet::new(prometheus, nodes);
    let before = resident("VmRSS");
    let mut gaps = GapMemory::default();
    let (mut passes, mut reading) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        let begun = Instant::now();
        let (read, _) = fleet.pass(&mut gaps).await.unwrap();
        passes.push(begun.elapsed().as_secs_f64());
        reading.push(read.as_secs_f64());
    }
    let measured = Measured {
        passes,
        reading,
        growth: resident("VmHWM") - before,
    };
    println!("{}", serde_json::to_string(&measured).unwrap());
}

/// Mebibytes of this process by a line of `/proc/self/status`: `VmRSS` now, `VmHWM` at most until now.
fn resident(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let kibibytes: f64 = line
        .trim_start_matches(':')
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap();
    kibibytes / 1024.0
}
