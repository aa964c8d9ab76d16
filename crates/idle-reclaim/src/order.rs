//! The order in which workloads that are due are given back, because a pass gives back only a few.
//!
//! Tenants [take turns](take_turns): in each round each of them has one place, for the workload of it that comes first. So no tenant keeps
//! another one from its turn, however many workloads it has, and whatever becomes of them. In a round, and among the workloads of one
//! tenant, this order holds:
//!
//! | first | why |
//! |---|---|
//! | not tried yet, or not for longer | what [was tried](crate::attempts) and is still due is kept by a budget, or by an owner that ends no pod |
//! | of tenants that have more than their quota | they borrow from others |
//! | with a lower priority | the most important of its pods counts |
//! | idle for longer | |
//! | with less lost work | GPU time in which it worked before: what it did not write to a checkpoint is lost |
//!
//! Workloads outside the window of their schedule come before all of these, and not by this order: the schedule stops them, idle or not,
//! and they never become due ([`Unknown::OutsideSchedule`](crate::evidence::Unknown::OutsideSchedule)).

use crate::{Seconds, pass::Decision, workload::WorkloadName};
use std::{cmp::Reverse, collections::HashMap, hash::Hash};

/// Workloads whose owners are stopped or whose pods are evicted in one pass at most: wrong metrics must not empty a fleet before somebody sees it.
/// An owner that was stopped counts whether its pods end or not: that shows later.
pub const MAX_RECLAIMED: usize = 10;
/// Workloads that are tried in one pass at most. Those that a budget keeps do not count as given back, so that they keep no others.
const MAX_TRIED: usize = 200;

/// The place of a workload: the least comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReclaimOrder {
    last_try: Option<Seconds>,
    is_over_quota: Reverse<bool>,
    priority: Option<i32>,
    idle_since: Seconds,
    lost_gpu_seconds: Seconds,
    /// So that the same workloads always come in the same order.
    workload: WorkloadName,
}

impl ReclaimOrder {
    /// That of a workload of a tenant that has more than its quota, or not. `last_try` is the time when it was tried last.
    pub fn new(decision: &Decision, is_over_quota: bool, last_try: Option<Seconds>) -> Self {
        let idle_since = decision.state.map_or(Seconds::MAX, |state| state.idle_since);
        let first_start = decision.pods.iter().filter_map(|pod| pod.started_at).min();
        let worked = first_start.map_or(0, |started| idle_since.saturating_sub(started).max(0));
        Self {
            last_try,
            is_over_quota: Reverse(is_over_quota),
            priority: decision.pods.iter().map(|pod| pod.priority).max(),
            idle_since,
            lost_gpu_seconds: worked.saturating_mul(Seconds::from(decision.gpus)),
            workload: decision.workload.clone(),
        }
    }
}

/// The workloads that a pass tries, those that come first in front.
pub fn take_turns<T, K: Eq + Hash>(
    mut due: Vec<T>,
    tenant: impl Fn(&T) -> K,
    order: impl Fn(&T) -> ReclaimOrder,
) -> Vec<T> {
    due.sort_by_cached_key(order);
    let mut rounds: HashMap<K, usize> = HashMap::new();
    let mut placed: Vec<(usize, T)> = due
        .into_iter()
        .map(|due| {
            let round = rounds.entry(tenant(&due)).or_default();
            *round += 1;
            (*round, due)
        })
        .collect();
    // The order in a round stays.
    placed.sort_by_key(|(round, _)| *round);
    placed.truncate(MAX_TRIED);
    placed.into_iter().map(|(_, due)| due).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attempts::{Attempts, PodStep},
        ladder::LadderState,
        pod::GpuPod,
        testing::{self, NOW},
    };
    use berth_api::IdleLastStep;
    use std::{collections::BTreeSet, sync::Arc};

    fn decision(name: &str, gpus: u32, change: impl FnOnce(&mut GpuPod, &mut LadderState)) -> Decision {
        let mut decision = testing::due(name, gpus);
        let pod = Arc::make_mut(&mut decision.pods[0]);
        change(pod, decision.state.as_mut().unwrap());
        decision
    }

    fn sorted(mut all: Vec<(Decision, bool)>) -> Vec<String> {
        all.sort_by_cached_key(|(decision, is_over_quota)| ReclaimOrder::new(decision, *is_over_quota, None));
        all.into_iter().map(|(decision, _)| decision.workload.name).collect()
    }

    #[test]
    fn quota_comes_before_priority_and_priority_before_time() {
        let order = sorted(vec![
            (decision("plain", 1, |_, _| ()), false),
            (decision("longest", 1, |_, state| state.idle_since -= 1), false),
            (decision("unimportant", 1, |pod, _| pod.priority = -1), false),
            (decision("important", 1, |pod, _| pod.priority = 100), false),
            (decision("borrows", 1, |pod, _| pod.priority = 1000), true),
        ]);
        assert_eq!(order, ["borrows", "unimportant", "longest", "plain", "important"]);
    }

    #[test]
    fn of_those_that_are_idle_as_long_the_one_with_the_least_lost_work_comes_first() {
        let started = |hours: Seconds| {
            move |pod: &mut GpuPod, state: &mut LadderState| pod.started_at = Some(state.idle_since - hours * 3600)
        };
        let order = sorted(vec![
            (decision("worked-for-days", 1, started(72)), false),
            (decision("many-gpus", 8, started(10)), false),
            (decision("few-gpus", 2, started(10)), false),
            (decision("never-worked", 8, started(0)), false),
        ]);
        assert_eq!(order, ["never-worked", "few-gpus", "worked-for-days", "many-gpus"]);
    }

    /// What becomes of a workload that is tried.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        /// Its pod leaves.
        Leaves,
        /// A budget keeps its pod from leaving.
        Blocked,
        /// Its owner is not what ends its pod, and is started again after each pass.
        FakeOwner,
    }

    /// Workloads of tenants that are due, in passes a minute apart.
    #[derive(Default)]
    struct Fleet {
        due: Vec<(&'static str, Decision, Kind)>,
        attempts: Attempts,
        passes: i64,
    }

    impl Fleet {
        /// Adds workloads of a tenant, which have been idle for longer than those that were added before.
        fn add(&mut self, tenant: &'static str, count: usize, kind: Kind) {
            for _ in 0..count {
                let name = format!("{tenant}-{}", self.due.len());
                let longer = i64::try_from(self.due.len()).unwrap();
                let decision = decision(&name, 1, |_, state| state.idle_since -= longer);
                self.due.push((tenant, decision, kind));
            }
        }

        /// One pass, as control makes it. Returns the workloads that were tried.
        fn run(&mut self) -> BTreeSet<String> {
            let now = NOW + 60 * self.passes;
            self.passes += 1;
            let chosen = take_turns(
                self.due.iter().collect(),
                |(tenant, _, _)| *tenant,
                |(_, decision, _)| ReclaimOrder::new(decision, false, self.attempts.last_try(decision)),
            );
            let mut tried = BTreeSet::new();
            let mut left = BTreeSet::new();
            let mut reclaimed = 0;
            for (_, decision, kind) in chosen {
                if reclaimed == MAX_RECLAIMED {
                    break;
                }
                tried.insert(decision.workload.name.clone());
                self.attempts.note_tried(decision, now);
                let pod = &decision.pods[0];
                let step = self.attempts.next_step(pod, IdleLastStep::StopOwner, now);
                if *kind == Kind::Blocked || step == PodStep::Wait {
                    continue;
                }
                reclaimed += 1;
                if *kind == Kind::FakeOwner && step == PodStep::StopOwner {
                    self.attempts.note_stopped(pod, now);
                } else {
                    left.insert(decision.workload.name.clone());
                }
            }
            self.due
                .retain(|(_, decision, _)| !left.contains(&decision.workload.name));
            tried
        }

        fn left_of(&self, tenant: &str) -> usize {
            self.due.iter().filter(|(of, _, _)| *of == tenant).count()
        }
    }

    #[test]
    fn owners_that_are_started_again_do_not_keep_the_workloads_of_others() {
        let mut fleet = Fleet::default();
        fleet.add("other", 5, Kind::Leaves);
        fleet.add("hostile", 10, Kind::FakeOwner);
        fleet.run();
        assert_eq!(fleet.left_of("other"), 0, "each tenant has half of the places");
        fleet.run();
        assert!(
            fleet.left_of("hostile") <= 5,
            "pods that stay are evicted a minute later"
        );
        fleet.run();
        fleet.run();
        assert_eq!(fleet.left_of("hostile"), 0);
    }

    #[test]
    fn workloads_behind_budgets_do_not_keep_the_others() {
        let mut fleet = Fleet::default();
        fleet.add("other", 1, Kind::Leaves);
        fleet.add("hostile", MAX_TRIED + 1, Kind::Blocked);
        fleet.run();
        assert_eq!(fleet.left_of("other"), 0);
        // One tenant alone: those that were tried come last.
        let mut fleet = Fleet::default();
        fleet.add("alone", 1, Kind::Leaves);
        fleet.add("alone", MAX_TRIED, Kind::Blocked);
        fleet.run();
        assert_eq!(fleet.left_of("alone"), MAX_TRIED + 1, "the one that leaves comes last");
        fleet.run();
        assert_eq!(fleet.left_of("alone"), MAX_TRIED);
    }

    #[test]
    fn all_workloads_are_tried_in_turn() {
        let mut fleet = Fleet::default();
        fleet.add("a", 3 * MAX_TRIED, Kind::Blocked);
        let all: BTreeSet<String> = (0..3).flat_map(|_| fleet.run()).collect();
        assert_eq!(all.len(), 3 * MAX_TRIED);
        let [first, second] = [fleet.run(), fleet.run()];
        assert!(first.is_disjoint(&second));
    }

    #[test]
    fn tenants_take_turns_and_among_the_workloads_of_each_the_order_holds() {
        let one = |name, change: fn(&mut GpuPod, &mut LadderState)| decision(name, 1, change);
        let due = vec![
            ("a", one("a-important", |pod, _| pod.priority = 100)),
            ("a", one("a-plain", |_, _| ())),
            ("b", one("b-plain", |_, state| state.idle_since -= 1)),
            ("b", one("b-unimportant", |pod, _| pod.priority = -1)),
            ("c", one("c-tried", |pod, _| pod.priority = -100)),
        ];
        let order = |(_, decision): &(&str, Decision)| {
            let is_tried = decision.workload.name == "c-tried";
            ReclaimOrder::new(decision, false, is_tried.then_some(NOW))
        };
        let chosen = take_turns(due, |(tenant, _)| *tenant, order);
        let names: Vec<&str> = chosen
            .iter()
            .map(|(_, decision)| decision.workload.name.as_str())
            .collect();
        assert_eq!(names, ["b-unimportant", "a-plain", "c-tried", "b-plain", "a-important"]);
    }

    #[test]
    fn the_order_of_equals_is_always_the_same() {
        let equal = || {
            vec![
                (decision("b", 1, |_, _| ()), false),
                (decision("a", 1, |_, _| ()), false),
            ]
        };
        assert_eq!(sorted(equal()), ["a", "b"]);
    }
}
