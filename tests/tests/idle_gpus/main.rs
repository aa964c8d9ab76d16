//! Idle GPUs by the metrics of a real Prometheus server, which scrapes the synthetic exporters of 1,000 GPUs, and what happens to the
//! owner of idle pods in a real tenant.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod hostile_owners;
mod owners;

use berth_api::{IdleReclaim, IdleReclaimMode, IdleStep};
use berth_control::controllers::idle_gpus::{GpuMetricsSource, INTERVAL, collect};
use berth_idle_reclaim::{
    Seconds,
    evidence::{Metrics, Unknown, Verdict},
    gaps::GapMemory,
    ladder::LadderState,
    pass::{self, Decision, States, TenantInput},
    pod::GpuPod,
    policy::Policy,
    query::QuerySettings,
    question::Questions,
};
use berth_prometheus::{Prometheus, PrometheusConfig, QueryError};
use berth_tests::gpu_metrics::{self, Behaviour, Exporters, GPUS, History, Server};
use jiff::Timestamp;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// Seconds between two scrapes.
const SCRAPE_INTERVAL: i64 = 2;

const NODES: usize = 125;
/// Every fifth pod computes.
const BUSY_PODS: usize = 25;
/// A window that a test can wait for.
const WINDOW: Seconds = 40;

/// The node whose exporter lacks a metric of one GPU, the one whose exporter fails later, the one that computes later, the one
/// whose exporter lacks a metric of one GPU for a while, and the one of which a metric of one GPU is no number for a while.
const INCOMPLETE: usize = 1;
const FAILING: usize = 2;
const WAKING: usize = 3;
const PAUSING: usize = 4;
const WITHOUT_NUMBER: usize = 6;

struct Fleet {
    exporters: Exporters,
    server: Server,
    source: GpuMetricsSource,
    policy: Policy,
    pods: Vec<Arc<GpuPod>>,
}

impl Fleet {
    /// So many nodes with exporters that say this; GPUs of others do nothing.
    async fn start(nodes: usize, behaviours: impl IntoIterator<Item = (usize, Behaviour)>) -> Self {
        let exporters = Exporters::default();
        for (node, behaviour) in behaviours {
            exporters.set(node, behaviour);
        }
        let rules = IdleReclaim {
            mode: IdleReclaimMode::Enforce,
            window: berth_api::KubeDuration::of_seconds(u32::try_from(WINDOW).unwrap()),
            startup_grace_period: "0s".into(),
            ..IdleReclaim::default()
        };
        let policy = Policy::with_shortest_window(&rules, WINDOW);
        Self::scraped(exporters, nodes, policy, 2 * SCRAPE_INTERVAL).await
    }

    /// So many nodes with these exporters.
    async fn scraped(exporters: Exporters, nodes: usize, policy: Policy, sample_interval: Seconds) -> Self {
        let server = Server::start(exporters.serve().await, nodes, SCRAPE_INTERVAL);
        let prometheus = Prometheus::new(PrometheusConfig::new(server.url().parse().unwrap())).unwrap();
        Self {
            source: GpuMetricsSource {
                prometheus,
                settings: QuerySettings {
                    matchers: "job=\"dcgm-exporter\"".into(),
                    sample_interval,
                },
                interval: INTERVAL,
            },
            exporters,
            server,
            policy,
            pods: gpu_metrics::pods(nodes),
        }
    }

    async fn collect(&self) -> Result<Metrics, QueryError> {
        let gpu_resources = BTreeSet::new();
        let all = [(&self.policy, self.pods.as_slice())];
        let questions = Questions::about_all(all, &gpu_resources);
        collect(&self.source, &questions, &mut GapMemory::default(), now()).await
    }

    /// What is decided with these metrics.
    fn decide(&self, metrics: Option<&Metrics>) -> Vec<Decision> {
        self.decide_at(metrics, &States::new(), now())
    }

    /// What is decided with these metrics at a time, if the workloads were in these states.
    fn decide_at(&self, metrics: Option<&Metrics>, states: &States, now: Seconds) -> Vec<Decision> {
        let input = TenantInput {
            policy: &self.policy,
            pods: &self.pods,
            gpu_resources: &BTreeSet::new(),
            states,
        };
        pass::evaluate(&input, metrics, now)
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
    let busy = (0..NODES).step_by(NODES / BUSY_PODS);
    let behaviours = busy.map(|node| (node, Behaviour::Busy));
    let mut fleet = Fleet::start(NODES, behaviours.chain([(INCOMPLETE, Behaviour::Incomplete)])).await;
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
    fleet.exporters.set(WITHOUT_NUMBER, Behaviour::NotANumber);
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
    fleet.exporters.set(WITHOUT_NUMBER, Behaviour::Idle);
    fleet
        .wait_until("their series have gaps", |decisions| {
            [FAILING, PAUSING, WITHOUT_NUMBER]
                .iter()
                .all(|node| verdict(decisions, *node) == Verdict::Unknown(Unknown::PartialSeries))
        })
        .await;
    fleet
        .wait_until("the gaps and the burst are over", |decisions| {
            [FAILING, PAUSING, WITHOUT_NUMBER, WAKING]
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

/// With the shortest window that a class may have, and what exporters said in the last 35 minutes.
#[tokio::test]
async fn jobs_that_pause_are_active_and_a_forgotten_notebook_is_idle() {
    let [loading, checkpointing, forgotten] = [0, 1, 2];
    let exporters = Exporters::with_history(History {
        seconds: 2100,
        interval: 30,
    });
    exporters.set(loading, Behaviour::LoadingData);
    exporters.set(checkpointing, Behaviour::Checkpointing);
    let policy = Policy::new(&IdleReclaim {
        mode: IdleReclaimMode::Enforce,
        window: "30m".into(),
        ..IdleReclaim::default()
    });
    let fleet = Fleet::scraped(exporters, 3, policy, 60).await;
    let decisions = fleet
        .wait_until(
            "the notebook is idle, and Prometheus has asked all exporters",
            |decisions| {
                let is_known = |job: &usize| !matches!(verdict(decisions, *job), Verdict::Unknown(_));
                verdict(decisions, forgotten) == Verdict::Idle && [loading, checkpointing].iter().all(is_known)
            },
        )
        .await;
    for job in [loading, checkpointing] {
        assert_eq!(verdict(&decisions, job), Verdict::Active);
    }
    let states = pass::states_after(&decisions, &States::new());
    let warned: Vec<(&str, IdleStep)> = states
        .workloads()
        .map(|(name, state)| (name.name.as_str(), state.step))
        .collect();
    assert_eq!(warned, [("train-2", IdleStep::Warned)]);
}

/// A short outage of the server, during which the clock of control goes on for an hour.
#[tokio::test]
async fn an_hour_without_prometheus_changes_nothing() {
    const PODS: usize = 3;
    let mut fleet = Fleet::start(PODS, []).await;
    let all_idle = |decisions: &[Decision]| count(decisions, Verdict::Idle) == PODS;
    let decisions = fleet.wait_until("all pods are idle", all_idle).await;
    let warned = pass::states_after(&decisions, &States::new());
    assert_eq!(warned.workloads().count(), PODS);
    assert!(warned.workloads().all(|(_, state)| state.step == IdleStep::Warned));

    fleet.server.kill();
    let down = now();
    assert!(fleet.collect().await.is_err());
    let mut states = warned.clone();
    for minute in 0..60 {
        let decisions = fleet.decide_at(None, &states, down + minute * 60);
        assert_eq!(count(&decisions, Verdict::Unknown(Unknown::NoMetrics)), PODS);
        let evicts = |decision: &Decision| decision.is_due(IdleReclaimMode::Enforce) || decision.next_step_at.is_some();
        assert!(!decisions.iter().any(evicts), "{decisions:?}");
        states = pass::states_after(&decisions, &states);
    }
    for (name, state) in states.workloads() {
        let before = LadderState {
            paused: true,
            unknown: state.unknown,
            ..*warned.get(name).unwrap()
        };
        assert_eq!(*state, before, "{name:?}");
        assert_eq!(state.unknown.since, Some(down), "{name:?}");
    }

    // The gap is long enough to be seen in the window; then the time of the step begins anew.
    tokio::time::sleep(Duration::from_secs(12)).await;
    fleet.server.start_again();
    let is_unknown = |decision: &Decision| matches!(decision.verdict, Verdict::Unknown(_));
    fleet
        .wait_until("the gap is seen", |decisions| decisions.iter().all(is_unknown))
        .await;
    let back = now();
    fleet.wait_until("all pods are idle again", all_idle).await;
    let metrics = fleet.collect().await.unwrap();
    let after = pass::states_after(&fleet.decide_at(Some(&metrics), &states, now()), &states);
    assert_eq!(after.workloads().count(), PODS);
    for (_, state) in after.workloads() {
        assert!(
            state.step == IdleStep::Warned && !state.paused && state.step_since >= back,
            "{state:?}"
        );
    }
}
