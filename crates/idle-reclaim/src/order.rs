//! The order in which workloads that are due are given back, because a pass gives back only a few.
//!
//! | first | why |
//! |---|---|
//! | of tenants that have more than their quota | they borrow from others |
//! | with a lower priority | the most important of its pods counts |
//! | idle for longer | |
//! | with less lost work | GPU time in which it worked before: what it did not write to a checkpoint is lost |
//!
//! Workloads outside the window of their schedule come before all of these, and not by this order: the schedule stops them, idle or not,
//! and they never become due ([`Unknown::OutsideSchedule`](crate::evidence::Unknown::OutsideSchedule)).

use crate::{Seconds, pass::Decision, workload::WorkloadName};
use std::cmp::Reverse;

/// The place of a workload: the least comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReclaimOrder {
    is_over_quota: Reverse<bool>,
    priority: Option<i32>,
    idle_since: Seconds,
    lost_gpu_seconds: Seconds,
    /// So that the same workloads always come in the same order.
    workload: WorkloadName,
}

impl ReclaimOrder {
    /// That of a workload of a tenant that has more than its quota, or not.
    pub fn new(decision: &Decision, is_over_quota: bool) -> Self {
        let idle_since = decision.state.map_or(Seconds::MAX, |state| state.idle_since);
        let first_start = decision.pods.iter().filter_map(|pod| pod.started_at).min();
        let worked = first_start.map_or(0, |started| idle_since.saturating_sub(started).max(0));
        Self {
            is_over_quota: Reverse(is_over_quota),
            priority: decision.pods.iter().map(|pod| pod.priority).max(),
            idle_since,
            lost_gpu_seconds: worked.saturating_mul(Seconds::from(decision.gpus)),
            workload: decision.workload.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        evidence::Verdict,
        ladder::LadderState,
        pod::GpuPod,
        testing::{self, NOW},
    };
    use berth_api::IdleStep;
    use std::sync::Arc;

    fn decision(name: &str, gpus: u32, change: impl FnOnce(&mut GpuPod, &mut LadderState)) -> Decision {
        let mut pod = testing::pod(name, gpus);
        let mut state = LadderState {
            idle_since: NOW - 7200,
            step: IdleStep::Reclaimable,
            step_since: NOW,
            paused: false,
        };
        change(&mut pod, &mut state);
        Decision {
            workload: WorkloadName {
                name: name.into(),
                ..WorkloadName::default()
            },
            pods: vec![Arc::new(pod)],
            gpus,
            profile: None,
            verdict: Verdict::Idle,
            is_opted_out: false,
            state: Some(state),
            next_step_at: None,
        }
    }

    fn sorted(mut all: Vec<(Decision, bool)>) -> Vec<String> {
        all.sort_by_cached_key(|(decision, is_over_quota)| ReclaimOrder::new(decision, *is_over_quota));
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
