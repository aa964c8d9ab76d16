//! The steps of an idle workload, from the first warning to the eviction.
//!
//! | verdict | what happens |
//! |---|---|
//! | idle for the first time | the first step: a warning |
//! | idle, and the time of the step is over | the next step, one in each pass |
//! | not known | nothing; the time of the step starts again when it is known. One that was due gets the time for a checkpoint again |
//! | idle, and a pod waits for a node | the same, but the last step comes the longest start-up after the first one at the earliest |
//! | active, or a pod started since | all is forgotten |

use crate::{Seconds, evidence::Verdict, policy::Timings};
use berth_api::IdleStep;

/// Where a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LadderState {
    /// Since when its GPUs do nothing.
    pub idle_since: Seconds,
    /// The last step that was taken.
    pub step: IdleStep,
    /// When it was taken.
    pub step_since: Seconds,
    /// Whether it was not known in the last pass whether the GPUs do something.
    pub paused: bool,
    /// For how long that was not known. It is no part of the time for which they do nothing.
    pub unknown: UnknownTime,
}

/// How long it was not known whether the GPUs of a workload do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnknownTime {
    /// Since when it is not known; none: it is.
    pub since: Option<Seconds>,
    /// How long it was not known before, since the GPUs do nothing.
    pub before: Seconds,
}

impl LadderState {
    /// Where the pods of two workloads are that are one from now on: where the one is that has more time left.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let later = if self.idle_since >= other.idle_since {
            self
        } else {
            other
        };
        Self {
            step: self.step.min(other.step),
            step_since: self.step_since.max(other.step_since),
            paused: self.paused || other.paused,
            ..later
        }
    }
}

impl UnknownTime {
    /// It is not known now.
    fn begin(self, now: Seconds) -> Self {
        Self {
            since: self.since.or(Some(now)),
            ..self
        }
    }

    /// It is known again.
    fn end(self, now: Seconds) -> Self {
        let passed = self.since.map_or(0, |since| now.saturating_sub(since).max(0));
        Self {
            since: None,
            before: self.before.saturating_add(passed),
        }
    }
}

/// What a pass knows of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// What is known of its GPUs.
    pub verdict: Verdict,
    /// When the last of its pods that have a node [started](crate::evidence::start_of); none if one has not started.
    pub last_start: Option<Seconds>,
    /// Whether one of its pods waits for a node, or may not start now: the others may wait for it.
    pub awaits_pods: bool,
    /// Its times.
    pub timings: Timings,
}

/// Where the workload is after this pass; none if nothing is held against it.
pub fn advance(before: Option<LadderState>, observation: &Observation, now: Seconds) -> Option<LadderState> {
    let Observation {
        verdict,
        last_start,
        awaits_pods: _,
        timings,
    } = observation;
    // What was held against other pods does not count for new ones. A clock that was set back makes times impossible.
    let before = before
        .filter(|state| last_start.is_none_or(|started| started <= state.idle_since))
        .filter(|state| state.idle_since <= now);
    match (verdict, before) {
        (Verdict::Active, _) | (Verdict::Unknown(_), None) => None,
        (Verdict::Unknown(_), Some(state)) => Some(LadderState {
            paused: true,
            unknown: state.unknown.begin(now),
            ..state
        }),
        (Verdict::Idle, None) => Some(LadderState {
            idle_since: now - timings.window,
            step: IdleStep::Warned,
            step_since: now,
            paused: false,
            unknown: UnknownTime::default(),
        }),
        (Verdict::Idle, Some(state)) if state.paused || state.step_since > now => Some(LadderState {
            // What was due is not evicted at once: nobody knows what it did meanwhile.
            step: state.step.min(IdleStep::CheckpointRequested),
            step_since: now,
            paused: false,
            unknown: state.unknown.end(now),
            ..state
        }),
        (Verdict::Idle, Some(state)) => Some(match due_step(&state, observation) {
            Some((step, due)) if due <= now => LadderState {
                step,
                step_since: now,
                ..state
            },
            _ => state,
        }),
    }
}

/// When the next step is due, if it stays idle; none after the last one and while nothing is known.
pub fn next_step_at(state: &LadderState, observation: &Observation) -> Option<Seconds> {
    (!state.paused)
        .then(|| due_step(state, observation))
        .flatten()
        .map(|(_, due)| due)
}

fn due_step(state: &LadderState, observation: &Observation) -> Option<(IdleStep, Seconds)> {
    let Observation {
        verdict: _,
        last_start,
        awaits_pods,
        timings,
    } = observation;
    let next = state.step.next()?;
    let due = state.step_since.saturating_add(timings.wait_after(state.step));
    if next != IdleStep::Reclaimable {
        return Some((next, due));
    }
    let started = (*last_start)?;
    let due = due.max(started.saturating_add(timings.minimum_runtime));
    // Not since the pod that waits was created: a team would create another one again and again.
    let warned_at = state.idle_since.saturating_add(timings.window);
    let waited = awaits_pods.then(|| warned_at.saturating_add(timings.max_startup));
    Some((next, waited.map_or(due, |waited| waited.max(due))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Unknown;

    const TIMINGS: Timings = Timings {
        window: 3600,
        grace_period: 1800,
        checkpoint_period: 600,
        startup_grace_period: 1800,
        max_startup: 6 * 3600,
        minimum_runtime: 0,
    };

    fn observed(verdict: Verdict) -> Observation {
        Observation {
            verdict,
            last_start: Some(0),
            awaits_pods: false,
            timings: TIMINGS,
        }
    }

    /// The steps that are taken with these verdicts, one pass a minute from second 100,000 on, with the minute of each.
    fn steps(verdicts: impl Fn(i64) -> Verdict, minutes: i64) -> Vec<(i64, IdleStep)> {
        let mut state = None;
        let mut taken = Vec::new();
        for minute in 0..minutes {
            let after = advance(state, &observed(verdicts(minute)), 100_000 + minute * 60);
            if let Some(after) = after
                && state.is_none_or(|before: LadderState| before.step != after.step)
            {
                taken.push((minute, after.step));
            }
            state = after;
        }
        taken
    }

    #[test]
    fn an_idle_workload_takes_one_step_after_the_other() {
        assert_eq!(
            steps(|_| Verdict::Idle, 200),
            [
                (0, IdleStep::Warned),
                (15, IdleStep::WarnedAgain),
                (30, IdleStep::CheckpointRequested),
                (40, IdleStep::Reclaimable),
            ]
        );
    }

    #[test]
    fn activity_ends_it_and_the_next_time_begins_with_a_warning() {
        let busy_at_35 = |minute| if minute == 35 { Verdict::Active } else { Verdict::Idle };
        let taken = steps(busy_at_35, 60);
        assert_eq!(taken[3..], [(36, IdleStep::Warned), (51, IdleStep::WarnedAgain)]);
    }

    #[test]
    fn an_hour_without_metrics_changes_nothing() {
        let gap = |minute| {
            if (5..65).contains(&minute) {
                Verdict::Unknown(Unknown::NoMetrics)
            } else {
                Verdict::Idle
            }
        };
        let taken = steps(gap, 90);
        assert_eq!(taken[..2], [(0, IdleStep::Warned), (80, IdleStep::WarnedAgain)]);
        assert!(steps(|_| Verdict::Unknown(Unknown::NoMetrics), 90).is_empty());
        let after_checkpoint = |minute| {
            if minute >= 31 {
                Verdict::Unknown(Unknown::PartialSeries)
            } else {
                Verdict::Idle
            }
        };
        let last = steps(after_checkpoint, 600).pop();
        assert_eq!(last, Some((30, IdleStep::CheckpointRequested)), "never reclaimed");
    }

    #[test]
    fn what_was_due_before_a_gap_is_not_evicted_at_once() {
        let due = LadderState {
            idle_since: 90_000,
            step: IdleStep::Reclaimable,
            step_since: 99_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        let missing = observed(Verdict::Unknown(Unknown::NoMetrics));
        let during = advance(Some(due), &missing, 100_000);
        let unknown = |since, before| UnknownTime { since, before };
        let paused = LadderState {
            paused: true,
            unknown: unknown(Some(100_000), 0),
            ..due
        };
        assert_eq!(during, Some(paused));
        assert_eq!(advance(during, &missing, 110_000), during, "it goes on");
        let idle = observed(Verdict::Idle);
        let after = advance(during, &idle, 120_000);
        let again = LadderState {
            step: IdleStep::CheckpointRequested,
            step_since: 120_000,
            unknown: unknown(None, 20_000),
            ..due
        };
        assert_eq!(after, Some(again));
        let step = |now| advance(after, &idle, now).map(|state| state.step);
        assert_eq!(step(120_599), Some(IdleStep::CheckpointRequested));
        assert_eq!(step(120_600), Some(IdleStep::Reclaimable));
    }

    #[test]
    fn the_minimum_runtime_delays_only_the_last_step() {
        let mut observation = observed(Verdict::Idle);
        observation.last_start = Some(90_000);
        observation.timings.minimum_runtime = 20_000;
        let state = LadderState {
            idle_since: 95_000,
            step: IdleStep::CheckpointRequested,
            step_since: 100_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        assert_eq!(next_step_at(&state, &observation), Some(110_000));
        let step = |now| advance(Some(state), &observation, now).map(|state| state.step);
        assert_eq!(step(109_999), Some(IdleStep::CheckpointRequested));
        assert_eq!(step(110_000), Some(IdleStep::Reclaimable));
    }

    #[test]
    fn a_pod_without_a_node_delays_only_the_last_step_and_only_once() {
        let observation = Observation {
            awaits_pods: true,
            ..observed(Verdict::Idle)
        };
        let state = LadderState {
            idle_since: 95_000,
            step: IdleStep::CheckpointRequested,
            step_since: 100_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        // The first warning came in second 98,600.
        assert_eq!(next_step_at(&state, &observation), Some(98_600 + 6 * 3600));
        let late = LadderState {
            step_since: 130_000,
            ..state
        };
        assert_eq!(next_step_at(&late, &observation), Some(130_600));
    }

    #[test]
    fn two_workloads_that_become_one_are_where_the_later_one_is() {
        let one = LadderState {
            idle_since: 95_000,
            step: IdleStep::Reclaimable,
            step_since: 100_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        let other = LadderState {
            idle_since: 96_000,
            step: IdleStep::Warned,
            step_since: 99_000,
            paused: true,
            unknown: UnknownTime {
                since: Some(98_000),
                before: 60,
            },
        };
        let merged = LadderState {
            step_since: 100_000,
            ..other
        };
        assert_eq!((one.merge(other), other.merge(one)), (merged, merged));
        assert_eq!(one.merge(one), one);
    }

    #[test]
    fn new_pods_of_an_owner_begin_anew() {
        let state = LadderState {
            idle_since: 95_000,
            step: IdleStep::Reclaimable,
            step_since: 100_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        let mut observation = observed(Verdict::Idle);
        observation.last_start = Some(95_001);
        let after = advance(Some(state), &observation, 101_000).unwrap();
        assert_eq!((after.step, after.step_since), (IdleStep::Warned, 101_000));
        observation.verdict = Verdict::Unknown(Unknown::StartingUp);
        assert_eq!(advance(Some(state), &observation, 101_000), None);
    }

    #[test]
    fn a_clock_that_is_set_back_never_makes_a_step_due() {
        let state = LadderState {
            idle_since: 95_000,
            step: IdleStep::CheckpointRequested,
            step_since: 100_000,
            paused: false,
            unknown: UnknownTime::default(),
        };
        let back = advance(Some(state), &observed(Verdict::Idle), 99_000).unwrap();
        assert_eq!((back.step, back.step_since), (IdleStep::CheckpointRequested, 99_000));
        let far_back = advance(Some(state), &observed(Verdict::Idle), 90_000).unwrap();
        assert_eq!((far_back.step, far_back.idle_since), (IdleStep::Warned, 86_400));
    }
}
