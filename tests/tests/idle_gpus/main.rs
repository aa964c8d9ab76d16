//! Idle GPUs by the metrics of a real Prometheus server, which scrapes the synthetic exporters of 1,000 GPUs, and what happens to the
//! owner of idle pods in a real tenant.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod exporters;
mod owners;
mod server;

use berth_api::{IdleReclaim, IdleReclaimMode};
use berth_control::controllers::idle_gpus::{GpuMetricsSource, INTERVAL, collect};
use berth_idle_reclaim::{
    Seconds,
    evidence::{Metrics, Unknown, Verdict},
    pass::{self, Decision, States, TenantInput},
    pod::{DevicesHeld, GpuPod},
    policy::Policy,
    query::QuerySettings,
    signal::Signal,
};
use berth_prometheus::{Prometheus, PrometheusConfig, QueryError};
use exporters::{Behaviour, Exporters, GPUS, pod_name};
use jiff::Timestamp;
use server::{SCRAPE_INTERVAL, Server};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

const NODES: usize = 125;
/// Every fifth pod computes.
const BUSY_PODS: usize = 25;
/// A window that a test can wait for.
const WINDOW: Seconds = 40;

/// The node whose exporter lacks a metric of one GPU, the one whose exporter fails later, the one that computes later, and the one
/// whose exporter lacks a metric of one GPU for a while.
const INCOMPLETE: usize = 1;
const FAILING: usize = 2;
const WAKING: usize = 3;
const PAUSING: usize = 4;

struct Fleet {
    exporters: Exporters,
    server: Server,
    source: GpuMetricsSource,
    policy: Policy,
    pods: Vec<Arc<GpuPod>>,
}

impl Fleet {
    async fn start() -> Self {
        let exporters = Exporters::default();
        for node in (0..NODES).step_by(NODES / BUSY_PODS) {
            exporters.set(node, Behaviour::Busy);
        }
        exporters.set(INCOMPLETE, Behaviour::Incomplete);
        let server = Server::start(exporters.serve().await, NODES);
        let prometheus = Prometheus::new(PrometheusConfig::new(server.url().parse().unwrap())).unwrap();
        let rules = IdleReclaim {
            mode: IdleReclaimMode::Enforce,
            window: berth_api::KubeDuration::of_seconds(u32::try_from(WINDOW).unwrap()),
            startup_grace_period: "0s".into(),
            ..IdleReclaim::default()
        };
        Self {
            source: GpuMetricsSource {
                prometheus,
                settings: QuerySettings {
                    matchers: "job=\"dcgm-exporter\"".into(),
                    sample_interval: 2 * SCRAPE_INTERVAL,
                },
                interval: INTERVAL,
            },
            exporters,
            server,
            policy: Policy::with_shortest_window(&rules, WINDOW),
            pods: (0..NODES).map(|node| Arc::new(pod(node))).collect(),
        }
    }

    async fn collect(&self) -> Result<Metrics, QueryError> {
        let signals: BTreeSet<Signal> = self.policy.signals.iter().copied().collect();
        collect(&self.source, &self.policy.windows(), &signals, now()).await
    }

    /// What is decided with these metrics.
    fn decide(&self, metrics: Option<&Metrics>) -> Vec<Decision> {
        let input = TenantInput {
            policy: &self.policy,
            pods: &self.pods,
            gpu_resources: &BTreeSet::new(),
            states: &States::new(),
        };
        pass::evaluate(&input, metrics, now())
    }

    /// Decides again and again until something holds. Metrics that cannot be read are an error, except at the start.
    async fn wait_until(&self, what: &str, holds: impl Fn(&[Decision]) -> bool) -> Vec<Decision> {
        let deadline = Instant::now() + Duration::from_mins(4);
        let mut last = String::new();
        while Instant::now() < deadline {
            match self.collect().await {
                Ok(metrics) => {
                    let decisions = self.decide(Some(&metrics));
                    if holds(&decisions) {
                        return decisions;
                    }
                    last = format!("{:?}", pass::report(&self.policy, &decisions).unknown_gpus);
                }
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        panic!("not seen: {what}; last: {last}; {}", self.server.log());
    }
}

/// A pod that has all GPUs of a node, and has run for a day.
fn pod(node: usize) -> GpuPod {
    GpuPod {
        tenant: "vision-abc".into(),
        namespace: "berth-w".into(),
        name: pod_name(node),
        uid: format!("uid-{node}"),
        origin_namespace: "ml".into(),
        origin_name: format!("train-{node}"),
        devices: [("nvidia.com/gpu".to_owned(), u32::try_from(GPUS).unwrap())].into(),
        devices_held: DevicesHeld::Now,
        started_at: Some(now() - 86_400),
        ..GpuPod::default()
    }
}

fn now() -> Seconds {
    Timestamp::now().as_second()
}

fn verdict(decisions: &[Decision], node: usize) -> Verdict {
    let name = format!("train-{node}");
    let decision = decisions.iter().find(|decision| decision.workload.name == name);
    decision.expect("a decision about every pod").verdict
}

fn count(decisions: &[Decision], verdict: Verdict) -> usize {
    decisions.iter().filter(|decision| decision.verdict == verdict).count()
}

#[tokio::test]
async fn a_thousand_gpus_are_judged_by_what_prometheus_knows() {
    let mut fleet = Fleet::start().await;
    let idle = NODES - BUSY_PODS - 1;
    let decisions = fleet
        .wait_until(
            "all pods that do nothing are idle, but for the one without a metric",
            |decisions| {
                let incomplete = verdict(decisions, INCOMPLETE) == Verdict::Unknown(Unknown::MissingSeries);
                incomplete && count(decisions, Verdict::Idle) == idle
            },
        )
        .await;
    assert_eq!(count(&decisions, Verdict::Active), BUSY_PODS);

    let started = Instant::now();
    let metrics = fleet.collect().await.unwrap();
    let collected = started.elapsed();
    fleet.decide(Some(&metrics));
    eprintln!(
        "{} GPUs: metrics read in {collected:?}, decided in {:?}",
        NODES * GPUS,
        started.elapsed().saturating_sub(collected)
    );

    // A short burst makes a pod active for the whole window; an exporter that fails, or lacks a metric, makes its pod unknown.
    fleet.exporters.set(WAKING, Behaviour::Busy);
    fleet.exporters.set(FAILING, Behaviour::Down);
    fleet.exporters.set(PAUSING, Behaviour::Incomplete);
    let is_unknown = |decisions: &[Decision], node| matches!(verdict(decisions, node), Verdict::Unknown(_));
    fleet
        .wait_until("one pod is active, and two are unknown", |decisions| {
            verdict(decisions, WAKING) == Verdict::Active
                && [FAILING, PAUSING].iter().all(|node| is_unknown(decisions, *node))
        })
        .await;
    fleet.exporters.set(WAKING, Behaviour::Idle);
    let metrics = fleet.collect().await.unwrap();
    assert_eq!(verdict(&fleet.decide(Some(&metrics)), WAKING), Verdict::Active);

    // They are back after some scrapes: there is a gap in the window, also if all other metrics of the GPU have none. More
    // samples than intervals do not hide it.
    tokio::time::sleep(Duration::from_secs(12)).await;
    fleet.exporters.set(FAILING, Behaviour::Idle);
    fleet.exporters.set(PAUSING, Behaviour::Idle);
    fleet
        .wait_until("their series have gaps", |decisions| {
            [FAILING, PAUSING]
                .iter()
                .all(|node| verdict(decisions, *node) == Verdict::Unknown(Unknown::PartialSeries))
        })
        .await;
    fleet
        .wait_until("the gaps and the burst are over", |decisions| {
            [FAILING, PAUSING, WAKING]
                .iter()
                .all(|node| verdict(decisions, *node) == Verdict::Idle)
        })
        .await;

    fleet.server.kill();
    let error = fleet.collect().await.unwrap_err();
    assert_eq!(error.category(), "Connection", "{error}");
    let decisions = fleet.decide(None);
    assert_eq!(count(&decisions, Verdict::Unknown(Unknown::NoMetrics)), NODES);
    assert!(decisions.iter().all(|decision| decision.state.is_none()));
}
