//! Whether a pod's GPUs are active, idle, or neither is known.

use crate::{
    Seconds,
    pod::{ClaimedGpus, GpuPod},
    policy::{Policy, Timings},
    series::{Aggregate, DeviceSeries, SeriesTable},
    signal::Signal,
};
use std::collections::{BTreeSet, HashMap};

/// The share of the intervals of a window that may be without a sample: one of this many, and at least one.
const TOLERATED: Seconds = 20;

/// All metrics of a pass.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// What Prometheus knows, by window.
    pub tables: HashMap<Seconds, SeriesTable>,
    /// Length of an interval in which there must be a sample.
    pub sample_interval: Seconds,
}

/// Why it is not known whether a pod is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unknown {
    /// Prometheus did not answer.
    NoMetrics,
    /// None of its containers has run.
    NotStarted,
    /// A schedule of the platform restricts it: what it waits for may not start, or it is being stopped.
    OutsideSchedule,
    /// It has not run for the start-up grace period and the window.
    StartingUp,
    /// It is not known how many GPUs it has by claims, or there are no metrics of them.
    DevicesByClaims,
    /// A metric of one of its GPUs is missing.
    MissingSeries,
    /// There are metrics of more GPUs than it requests.
    MoreDevicesThanRequested,
    /// The newest sample is too old.
    StaleSeries,
    /// There are gaps in the window.
    PartialSeries,
}

impl Unknown {
    /// Its name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoMetrics => "NoMetrics",
            Self::NotStarted => "NotStarted",
            Self::OutsideSchedule => "OutsideSchedule",
            Self::StartingUp => "StartingUp",
            Self::DevicesByClaims => "DevicesByClaims",
            Self::MissingSeries => "MissingSeries",
            Self::MoreDevicesThanRequested => "MoreDevicesThanRequested",
            Self::StaleSeries => "StaleSeries",
            Self::PartialSeries => "PartialSeries",
        }
    }
}

/// What is known of a pod. Of several pods that are judged as one, the largest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All its GPUs did nothing in the whole window.
    Idle,
    /// It is not known whether they did something.
    Unknown(Unknown),
    /// One of its GPUs did something.
    Active,
}

/// When a pod started: when its containers did, or when it got its node, if none of them has run after the longest start-up. None before that.
pub fn start_of(pod: &GpuPod, timings: Timings, now: Seconds) -> Option<Seconds> {
    let late = pod.scheduled_at.filter(|_| has_overrun(pod, timings, now));
    start_of_containers(pod, timings, now).or(late)
}

/// When its containers started. Kubelets write that by the clock of the node. If that is ahead, they have started by now all the same: the pod is not young until
/// then, but for the longest start-up since the API server gave it its node.
fn start_of_containers(pod: &GpuPod, timings: Timings, now: Seconds) -> Option<Seconds> {
    let started = pod.started_at?;
    let latest = pod.scheduled_at.filter(|_| started > now);
    let latest = latest.map(|scheduled| scheduled.saturating_add(timings.max_startup));
    Some(latest.map_or(started, |latest| latest.min(started)))
}

/// Whether none of its containers has run although it has had its node for the longest start-up and the window.
fn has_overrun(pod: &GpuPod, timings: Timings, now: Seconds) -> bool {
    let longest = timings.max_startup.max(timings.window);
    let is_late = |scheduled_at: Seconds| now >= scheduled_at.saturating_add(longest);
    pod.started_at.is_none() && pod.scheduled_at.is_some_and(is_late)
}

/// Judges one pod with at least one GPU. Without an answer of Prometheus nothing is known.
///
/// Of a pod that has overrun its start-up only the metrics count that there are: GPUs without any do nothing, because no container has run.
/// An init container may use them. A pod that has run needs complete metrics, also while none of its containers runs: what it did is not
/// known without them.
pub fn judge(
    pod: &GpuPod,
    policy: &Policy,
    timings: Timings,
    gpu_resources: &BTreeSet<String>,
    metrics: Option<&Metrics>,
    now: Seconds,
) -> Verdict {
    let Some((metrics, table)) = metrics.and_then(|metrics| Some((metrics, metrics.tables.get(&timings.window)?)))
    else {
        return Verdict::Unknown(Unknown::NoMetrics);
    };
    let series = table.of_pod(&pod.namespace, &pod.name);
    if series.iter().any(|device| is_active(device, policy)) {
        return Verdict::Active;
    }
    let unknown = if has_overrun(pod, timings, now) {
        None
    } else {
        find_unknown_age(pod, timings, now).or_else(|| find_unknown_devices(pod, gpu_resources, series))
    };
    let unknown = unknown.or_else(|| {
        let required = Required::new(metrics.sample_interval, timings.window, now);
        series.iter().find_map(|device| required.find_unknown(device, policy))
    });
    unknown.map_or(Verdict::Idle, Verdict::Unknown)
}

fn is_active(device: &DeviceSeries, policy: &Policy) -> bool {
    evaluated(device, policy).any(|signal| {
        let peak = device.signals[signal.index()].peak;
        peak.is_some_and(|peak| peak > policy.limits.of(signal, &device.model))
    })
}

/// Signals of a device that are evaluated.
fn evaluated<'a>(device: &'a DeviceSeries, policy: &'a Policy) -> impl Iterator<Item = Signal> + 'a {
    let signals = policy.signals.iter().copied();
    signals.filter(move |signal| !device.is_instance() || signal.is_of_instance())
}

fn find_unknown_age(pod: &GpuPod, timings: Timings, now: Seconds) -> Option<Unknown> {
    let Some(started_at) = start_of_containers(pod, timings, now) else {
        return Some(Unknown::NotStarted);
    };
    let evaluated_from = started_at
        .saturating_add(timings.startup_grace_period)
        .saturating_add(timings.window);
    (now < evaluated_from).then_some(Unknown::StartingUp)
}

fn find_unknown_devices(pod: &GpuPod, gpu_resources: &BTreeSet<String>, series: &[DeviceSeries]) -> Option<Unknown> {
    if pod.claimed_gpus == ClaimedGpus::Unknown {
        return Some(Unknown::DevicesByClaims);
    }
    let count = |gpus: u32| usize::try_from(gpus).unwrap_or(usize::MAX);
    // A pod may have several shares of one GPU. A team would otherwise keep GPUs that are shared by a request for more shares than there are GPUs.
    let units: usize = series.iter().map(DeviceSeries::units).sum();
    if units > count(pod.gpus(gpu_resources)) {
        return Some(Unknown::MoreDevicesThanRequested);
    }
    // Kubelets do not name the devices that only init containers request, nor claims that no container names: nothing can use these. A team would
    // otherwise keep GPUs by an init container that ends at once.
    if units >= count(pod.usable_gpus(gpu_resources)) {
        return None;
    }
    // Exporters do not name the pods of claims unless they are configured for it.
    Some(if pod.claimed_gpus == ClaimedGpus::default() {
        Unknown::MissingSeries
    } else {
        Unknown::DevicesByClaims
    })
}

/// What a series must have.
struct Required {
    /// Least number of intervals with a sample.
    coverage: f64,
    /// Least time of the newest sample.
    last_sample: f64,
}

impl Required {
    fn new(sample_interval: Seconds, window: Seconds, now: Seconds) -> Self {
        let interval = sample_interval.max(1);
        let intervals = window / interval;
        Self {
            coverage: as_float(intervals - (intervals / TOLERATED).max(1)),
            last_sample: as_float(now - 2 * interval),
        }
    }

    fn find_unknown(&self, device: &DeviceSeries, policy: &Policy) -> Option<Unknown> {
        evaluated(device, policy).find_map(|signal| {
            let Aggregate {
                peak,
                coverage,
                last_sample,
            } = device.signals[signal.index()];
            if peak.is_none() {
                return Some(Unknown::MissingSeries);
            }
            if last_sample.is_none_or(|last| last < self.last_sample) {
                return Some(Unknown::StaleSeries);
            }
            if coverage.is_none_or(|coverage| coverage < self.coverage) {
                return Some(Unknown::PartialSeries);
            }
            None
        })
    }
}

fn as_float(number: Seconds) -> f64 {
    f64::from(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        query::Aggregation,
        testing::{self, NOW},
    };
    use berth_api::IdleReclaim;

    fn judge_by(pod: &GpuPod, metrics: Option<&Metrics>) -> Verdict {
        let policy = Policy::new(&IdleReclaim::default());
        let (_, timings) = policy.timings_of(&pod.labels);
        judge(pod, &policy, timings, &BTreeSet::new(), metrics, NOW)
    }

    fn judge_with(pod: &GpuPod, table: SeriesTable) -> Verdict {
        judge_by(pod, Some(&testing::metrics(table)))
    }

    fn unknown(why: Unknown) -> Verdict {
        Verdict::Unknown(why)
    }

    #[test]
    fn a_pod_whose_gpus_all_do_nothing_is_idle() {
        let pod = testing::pod("train", 2);
        assert_eq!(judge_with(&pod, testing::idle_table(&[&pod])), Verdict::Idle);
    }

    #[test]
    fn memory_in_use_says_nothing() {
        // No signal measures how much memory is in use: a notebook with a model in memory is idle.
        assert!(Signal::ALL.iter().all(|signal| !signal.metric().contains("FB_USED")));
    }

    #[test]
    fn activity_of_one_signal_of_one_gpu_is_enough() {
        let pod = testing::pod("train", 2);
        for (signal, peak) in [
            (Signal::Engine, 0.001),
            (Signal::Tensor, 0.01),
            (Signal::Memory, 0.2),
            (Signal::Power, 400.0),
        ] {
            let mut table = testing::idle_table(&[&pod]);
            table.record(&testing::row(&pod, 1), signal, Aggregation::Peak, peak);
            assert_eq!(judge_with(&pod, table), Verdict::Active, "{signal:?}");
        }
        let mut table = testing::idle_table(&[&pod]);
        table.record(&testing::row(&pod, 1), Signal::PcieSent, Aggregation::Peak, 1e9);
        assert_eq!(judge_with(&pod, table), Verdict::Idle, "the class does not list it");
    }

    #[test]
    fn a_gpu_without_metrics_is_not_idle() {
        let pod = testing::pod("train", 2);
        let one = testing::pod("train", 1);
        assert_eq!(
            judge_with(&pod, testing::idle_table(&[&one])),
            unknown(Unknown::MissingSeries)
        );
        assert_eq!(
            judge_with(&one, testing::idle_table(&[&pod])),
            unknown(Unknown::MoreDevicesThanRequested)
        );
        assert_eq!(judge_by(&pod, None), unknown(Unknown::NoMetrics));
    }

    #[test]
    fn gpus_that_no_container_can_use_need_no_metrics() {
        // An init container requested them, and has ended.
        let mut pod = testing::pod("train", 8);
        pod.unused_devices = [("nvidia.com/gpu".to_owned(), 8), ("rdma/hca".to_owned(), 1)].into();
        assert_eq!(judge_with(&pod, SeriesTable::default()), Verdict::Idle);
        assert_eq!(judge_with(&pod, testing::idle_table(&[&pod])), Verdict::Idle);
        let mut busy = testing::idle_table(&[&pod]);
        busy.record(&testing::row(&pod, 7), Signal::Engine, Aggregation::Peak, 0.1);
        assert_eq!(judge_with(&pod, busy), Verdict::Active);
        // Its container has two of the eight.
        pod.unused_devices = [("nvidia.com/gpu".to_owned(), 6)].into();
        let (one, two) = (testing::pod("train", 1), testing::pod("train", 2));
        assert_eq!(
            judge_with(&pod, testing::idle_table(&[&one])),
            unknown(Unknown::MissingSeries)
        );
        assert_eq!(judge_with(&pod, testing::idle_table(&[&two])), Verdict::Idle);
        // A claim that no container names.
        let claims = |unused_claimed_gpus| GpuPod {
            claimed_gpus: ClaimedGpus::Known(4),
            unused_claimed_gpus,
            ..testing::pod("train", 0)
        };
        assert_eq!(judge_with(&claims(4), SeriesTable::default()), Verdict::Idle);
        assert_eq!(
            judge_with(&claims(3), SeriesTable::default()),
            unknown(Unknown::DevicesByClaims)
        );
    }

    #[test]
    fn old_and_incomplete_metrics_are_not_idle() {
        let pod = testing::pod("train", 1);
        let mut stale = testing::idle_table(&[&pod]);
        stale.record(
            &testing::row(&pod, 0),
            Signal::Tensor,
            Aggregation::LastSample,
            as_float(NOW - 200),
        );
        assert_eq!(judge_with(&pod, stale), unknown(Unknown::StaleSeries));
        let mut partial = testing::idle_table(&[&pod]);
        partial.record(&testing::row(&pod, 0), Signal::Power, Aggregation::Coverage, 56.0);
        assert_eq!(judge_with(&pod, partial), unknown(Unknown::PartialSeries));
        let mut almost = testing::idle_table(&[&pod]);
        almost.record(&testing::row(&pod, 0), Signal::Power, Aggregation::Coverage, 57.0);
        assert_eq!(judge_with(&pod, almost), Verdict::Idle);
    }

    #[test]
    fn a_pod_is_not_judged_before_it_has_run_long_enough() {
        let mut pod = testing::pod("train", 1);
        // Half an hour to start up, one hour of the window.
        pod.started_at = Some(NOW - 5399);
        let table = || testing::idle_table(&[&testing::pod("train", 1)]);
        assert_eq!(judge_with(&pod, table()), unknown(Unknown::StartingUp));
        pod.started_at = Some(NOW - 5400);
        assert_eq!(judge_with(&pod, table()), Verdict::Idle);
        pod.started_at = None;
        assert_eq!(judge_with(&pod, table()), unknown(Unknown::NotStarted));
    }

    #[test]
    fn a_pod_on_a_node_whose_clock_is_ahead_does_not_stay_young() {
        let with_node_since = |scheduled_at| GpuPod {
            scheduled_at: Some(scheduled_at),
            started_at: Some(NOW + 30 * 86_400),
            ..testing::pod("train", 1)
        };
        let table = || testing::idle_table(&[&testing::pod("train", 1)]);
        // Six hours to start, half an hour more, and the window.
        let (young, old) = (with_node_since(NOW - 26_999), with_node_since(NOW - 27_000));
        assert_eq!(judge_with(&young, table()), unknown(Unknown::StartingUp));
        assert_eq!(judge_with(&old, table()), Verdict::Idle);
        assert_eq!(
            judge_with(&old, SeriesTable::default()),
            unknown(Unknown::MissingSeries),
            "it has run"
        );
        let timings = Policy::new(&IdleReclaim::default()).timings_of(&old.labels).1;
        assert_eq!(start_of(&old, timings, NOW), Some(NOW - 5400));
    }

    /// A pod with a node since then, none of whose containers has run: its image cannot be pulled, or an init container does not end.
    fn waiting_pod(scheduled_at: Seconds, gpus: u32) -> GpuPod {
        GpuPod {
            scheduled_at: Some(scheduled_at),
            started_at: None,
            ..testing::pod("train", gpus)
        }
    }

    #[test]
    fn a_pod_whose_containers_never_run_is_idle_after_the_longest_startup() {
        let late = waiting_pod(NOW - 6 * 3600, 8);
        let early = waiting_pod(NOW - 6 * 3600 + 1, 8);
        for table in [SeriesTable::default(), testing::idle_table(&[&late])] {
            assert_eq!(judge_with(&early, table.clone()), unknown(Unknown::NotStarted));
            assert_eq!(judge_with(&late, table), Verdict::Idle);
        }
        let by_claims = GpuPod {
            claims: vec!["claim".into()],
            claimed_gpus: ClaimedGpus::Unknown,
            ..late.clone()
        };
        assert_eq!(judge_with(&by_claims, SeriesTable::default()), Verdict::Idle);
        let without_node = GpuPod {
            scheduled_at: None,
            ..late
        };
        assert_eq!(
            judge_with(&without_node, SeriesTable::default()),
            unknown(Unknown::NotStarted)
        );
    }

    #[test]
    fn a_pod_that_has_run_needs_metrics_also_after_the_longest_startup() {
        // Its image cannot be pulled again since its node was restarted. It has had the node for a week.
        let pod = GpuPod {
            started_at: Some(NOW - 7 * 86_400),
            ..waiting_pod(NOW - 7 * 86_400, 1)
        };
        assert_eq!(
            judge_with(&pod, SeriesTable::default()),
            unknown(Unknown::MissingSeries)
        );
        assert_eq!(judge_with(&pod, testing::idle_table(&[&pod])), Verdict::Idle);
    }

    #[test]
    fn a_pod_whose_init_container_uses_the_gpu_is_not_idle() {
        let pod = waiting_pod(NOW - 7 * 86_400, 1);
        let mut busy = testing::idle_table(&[&pod]);
        busy.record(&testing::row(&pod, 0), Signal::Engine, Aggregation::Peak, 0.001);
        assert_eq!(judge_with(&pod, busy), Verdict::Active);
        let mut partial = testing::idle_table(&[&pod]);
        partial.record(&testing::row(&pod, 0), Signal::Power, Aggregation::Coverage, 56.0);
        assert_eq!(
            judge_with(&pod, partial),
            unknown(Unknown::PartialSeries),
            "what it did in the gap is not known"
        );
        assert_eq!(judge_by(&pod, None), unknown(Unknown::NoMetrics));
    }

    #[test]
    fn a_pod_that_runs_late_started_with_its_node() {
        let timings = Timings {
            window: 3600,
            max_startup: 7200,
            ..Timings::default()
        };
        let start = |pod: &GpuPod, timings| start_of(pod, timings, NOW);
        assert_eq!(start(&waiting_pod(NOW - 7199, 1), timings), None);
        assert_eq!(start(&waiting_pod(NOW - 7200, 1), timings), Some(NOW - 7200));
        // It began before the window did: else what is held against it would be forgotten in each pass.
        let long = Timings {
            window: 10_000,
            ..timings
        };
        assert_eq!(start(&waiting_pod(NOW - 9999, 1), long), None);
        assert_eq!(start(&waiting_pod(NOW - 10_000, 1), long), Some(NOW - 10_000));
        let started = GpuPod {
            started_at: Some(NOW - 60),
            ..waiting_pod(NOW - 86_400, 1)
        };
        assert_eq!(start(&started, timings), Some(NOW - 60));
    }

    #[test]
    fn only_gpus_that_are_by_claims_are_unknown() {
        let judge = |claimed: ClaimedGpus, measured: u32| {
            let pod = GpuPod {
                claims: vec!["claim".into()],
                claimed_gpus: claimed,
                ..testing::pod("train", 2)
            };
            judge_with(&pod, testing::idle_table(&[&testing::pod("train", measured)]))
        };
        // A claim of nothing, or of a network device, does not hide the GPUs that the pod requests.
        assert_eq!(judge(ClaimedGpus::Known(0), 2), Verdict::Idle);
        assert_eq!(judge(ClaimedGpus::Known(0), 1), unknown(Unknown::MissingSeries));
        assert_eq!(judge(ClaimedGpus::Known(1), 2), unknown(Unknown::DevicesByClaims));
        assert_eq!(judge(ClaimedGpus::Known(1), 3), Verdict::Idle, "all are measured");
        assert_eq!(judge(ClaimedGpus::Unknown, 2), unknown(Unknown::DevicesByClaims));
    }

    #[test]
    fn of_an_instance_only_its_own_signals_count() {
        let pod = testing::pod("train", 1);
        let mut table = SeriesTable::default();
        for signal in [Signal::Engine, Signal::Tensor, Signal::Memory] {
            testing::record_idle(&mut table, &testing::instance_row(&pod, 0), signal);
        }
        // The power is that of all instances together.
        table.record(&testing::instance_row(&pod, 0), Signal::Power, Aggregation::Peak, 600.0);
        assert_eq!(judge_with(&pod, table.clone()), Verdict::Idle);
        table.record(&testing::instance_row(&pod, 0), Signal::Memory, Aggregation::Peak, 0.1);
        assert_eq!(judge_with(&pod, table), Verdict::Active);
    }

    #[test]
    fn of_several_pods_the_most_active_counts() {
        let known = [Verdict::Active, unknown(Unknown::NoMetrics), Verdict::Idle];
        assert!(known[0] > known[1] && known[1] > known[2]);
    }
}
