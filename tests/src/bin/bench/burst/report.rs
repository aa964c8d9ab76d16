//! The figures of a burst: from the measurements of all rounds to a report.

use super::{Burst, PODS, Queued, TENANTS, Writes};
use crate::{
    cores::Cores,
    processor::{Group, Owner, Seconds},
    report::{Report, figure_of, percentile},
};
use std::collections::{BTreeMap, BTreeSet};

/// What a key that waited in a queue of the syncer was for: words for the report, the queue's priority, and the results of the
/// reconciliation.
const WAITS: [(&str, &str, &[&str]); 5] = [
    ("creations", "normal", &["created"]),
    ("status", "normal", &["reported"]),
    ("keys without a change", "normal", &["nothing"]),
    ("tokens", "high", &[]),
    ("Events", "low", &[]),
];
/// What a pod waits for before it runs in its tenant.
const ON_THE_WAY: [&str; 2] = ["creations", "status"];

/// The measurements of all rounds of one variant.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) direct: Vec<Burst>,
    pub(super) through: Vec<Burst>,
    /// Seconds in the syncers' queues by priority and result, until all pods ran.
    pub(super) queued: Vec<Queued>,
    /// Writes to the host in the whole life of the pods.
    pub(super) writes: Vec<Writes>,
}

/// Processor time per pod in milliseconds, of one side.
struct Work {
    by_group: BTreeMap<Group, f64>,
}

impl Work {
    /// Medians of all bursts.
    fn of(bursts: &[Burst]) -> Self {
        let groups: BTreeSet<&Group> = bursts.iter().flat_map(|burst| burst.processor.keys()).collect();
        let median = |group: &Group| {
            let each = bursts.iter().map(|burst: &Burst| used(&burst.processor, group));
            percentile(&each.collect::<Vec<_>>(), 50.0)
        };
        let by_group = groups
            .into_iter()
            .map(|group| (group.clone(), per_pod(median(group)) * 1000.0));
        Self {
            by_group: by_group.collect(),
        }
    }

    fn of_group(&self, group: &Group) -> f64 {
        self.by_group.get(group).copied().unwrap_or_default()
    }

    /// The time of all groups for which `counts` is true.
    fn sum(&self, counts: impl Fn(&Group) -> bool) -> f64 {
        let counting = self.by_group.iter().filter(|(group, _)| counts(group));
        counting.map(|(_, milliseconds)| milliseconds).sum()
    }
}

fn used(processor: &Seconds, group: &Group) -> f64 {
    processor.get(group).copied().unwrap_or_default()
}

fn per_pod(value: f64) -> f64 {
    value / figure_of(PODS)
}

/// Seconds that keys waited for one of [`WAITS`].
fn waited(queued: &Queued, (_, priority, results): (&str, &str, &[&str])) -> f64 {
    let mine = queued
        .iter()
        .filter(|(labels, _)| labels[0] == priority && (results.is_empty() || results.contains(&labels[1].as_str())));
    mine.map(|(_, seconds)| seconds).sum()
}

impl Figures {
    /// The report, to which others may add.
    pub(super) fn report(&self, name: &'static str, cores: &Cores) -> Report {
        let mut report = Report::new(name);
        let [direct, through] = [&self.direct, &self.through].map(|bursts| median(bursts, |burst| burst.took));
        report.add(format!("{PODS} pods on the host directly"), direct, "s");
        report.add(format!("{PODS} pods over {TENANTS} tenants"), through, "s");
        self.add_throughput(&mut report, direct / through, cores);
        self.add_queues(&mut report);
        self.add_writes(&mut report);
        self.add_processor_time(&mut report, cores);
        report
    }

    fn add_throughput(&self, report: &mut Report, throughput: f64, cores: &Cores) {
        let [direct, through] = [&self.direct, &self.through].map(|bursts| Work::of(bursts));
        // On cores of their own the host's processes are slowed down only by what they do themselves.
        let counts = |group: &Group| !cores.are_apart() || group.owner == Owner::Host;
        let is_syncer = |group: &Group| group.owner == Owner::Tenants && group.name == "syncer";
        let bound = direct.sum(counts) / through.sum(counts);
        report.add("throughput, tenants / direct", throughput, "");
        report.add("its bound: processor time per pod, direct / tenants", bound, "");
        report.add("throughput / bound", throughput / bound, "");
        report.add(
            "the bound if syncers took no time",
            direct.sum(counts) / through.sum(|group| counts(group) && !is_syncer(group)),
            "",
        );
        report.note(if cores.are_apart() {
            "the bound counts the host's processes only: they have cores of their own"
        } else {
            "the bound counts all processes: they share the cores"
        });
    }

    /// All writes to the host, then each kind of write of which there is at least one for every hundred pods.
    fn add_writes(&self, report: &mut Report) {
        let all: Vec<f64> = self.writes.iter().map(|writes| writes.values().sum()).collect();
        report.add(
            "writes to the host in a pod's life",
            per_pod(percentile(&all, 50.0)),
            "",
        );
        let kinds: BTreeSet<&String> = self.writes.iter().flat_map(BTreeMap::keys).collect();
        for kind in kinds {
            let each = self
                .writes
                .iter()
                .map(|writes| writes.get(kind).copied().unwrap_or_default());
            let count = per_pod(percentile(&each.collect::<Vec<_>>(), 50.0));
            if count >= 0.01 {
                report.add(format!("writes to the host in a pod's life: {kind}"), count, "");
            }
        }
    }

    fn add_queues(&self, report: &mut Report) {
        let per_round = |of: &dyn Fn(&Queued, &Burst) -> f64| {
            let rounds = self.queued.iter().zip(&self.through);
            percentile(
                &rounds.map(|(queued, burst)| of(queued, burst)).collect::<Vec<_>>(),
                50.0,
            )
        };
        for wait in WAITS {
            let seconds = per_round(&|queued, _| waited(queued, wait));
            report.add(
                format!("time in the syncers' queues per pod, {}", wait.0),
                per_pod(seconds) * 1000.0,
                "ms",
            );
        }
        let share = per_round(&|queued, burst| {
            let waits = WAITS.into_iter().filter(|wait| ON_THE_WAY.contains(&wait.0));
            waits.map(|wait| waited(queued, wait)).sum::<f64>() / burst.delays
        });
        report.add("share of a pod's delay in the queues, creations and status", share, "");
        let delay = median(&self.through, |burst| burst.delays);
        report.add("mean delay of a pod of a tenant", per_pod(delay) * 1000.0, "ms");
    }

    fn add_processor_time(&self, report: &mut Report, cores: &Cores) {
        let sides =
            [("directly", &self.direct), ("tenants", &self.through)].map(|(side, bursts)| (side, Work::of(bursts)));
        let groups: BTreeSet<&Group> = sides.iter().flat_map(|(_, work)| work.by_group.keys()).collect();
        for group in groups {
            for (side, work) in &sides {
                report.add(
                    format!("processor time per pod, {side}: {group}"),
                    work.of_group(group),
                    "ms",
                );
            }
        }
        for (side, work) in &sides {
            report.add(format!("processor time per pod, {side}: all"), work.sum(|_| true), "ms");
        }
        let count = figure_of(cores.count());
        for (side, bursts) in [("directly", &self.direct), ("tenants", &self.through)] {
            let busy = median(bursts, |burst| {
                burst.processor.values().sum::<f64>() / burst.took / count
            });
            report.add(format!("share of all cores' time that was used, {side}"), busy, "");
        }
    }
}

fn median(bursts: &[Burst], of: impl Fn(&Burst) -> f64) -> f64 {
    percentile(&bursts.iter().map(of).collect::<Vec<_>>(), 50.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_waits_for_deletions() {
        let queued = [
            (["normal", "created"], 1.0),
            (["normal", "reported"], 2.0),
            (["normal", "deleted"], 100.0),
            (["high", "minted"], 4.0),
            (["high", "owned"], 8.0),
        ];
        let queued = queued.map(|(labels, seconds)| (labels.map(str::to_owned).to_vec(), seconds));
        let seconds = WAITS.map(|wait| waited(&Queued::from(queued.clone()), wait) + 0.0);
        assert_eq!(format!("{seconds:?}"), "[1.0, 2.0, 0.0, 12.0, 0.0]");
    }
}
