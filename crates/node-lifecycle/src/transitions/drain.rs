//! Transitions from Cordoned and Draining.
//!
//! | time in Draining | stage | pods of the tenant |
//! |---|---|---|
//! | less than half of `drain` | `Evict` | are evicted; disruption budgets and their grace periods hold |
//! | less than `drain` | `Warn` | the same; Events say when budgets cease to hold |
//! | more | `Delete` | are deleted, and have `terminate` to end at most; then they are removed without their kubelet |
//!
//! What finalizers alone still hold after that keeps no node: it is quarantined.

use super::{
    Observation, Tenant, Transition, quarantine, recycle::requires_scrub, repair::await_ready, set_assignment,
};
use crate::{Assignment, AssignmentState};
use berth_api::RecyclingTimeouts;
use jiff::{SignedDuration, Timestamp};

/// Seconds beyond `drain` and `terminate` for kubelets and the API server to report and remove pods.
const MARGIN: i64 = 120;

/// How far Berth goes to empty a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStage {
    /// Pods are evicted.
    Evict,
    /// The same, and it is announced that they are deleted next.
    Warn,
    /// Pods are deleted whatever disruption budgets say.
    Delete,
}

impl DrainStage {
    /// The stage of a node that has been in Draining for this number of seconds.
    pub fn after(elapsed: i64, timeouts: &RecyclingTimeouts) -> Self {
        let limit = timeouts.drain();
        if elapsed >= limit {
            Self::Delete
        } else if elapsed >= limit / 2 {
            Self::Warn
        } else {
            Self::Evict
        }
    }

    /// How the reason of a node in this stage starts.
    pub(crate) fn announcement(self) -> &'static str {
        match self {
            Self::Evict => "",
            Self::Warn => "the eviction of pods is held up, for example by a PodDisruptionBudget",
            Self::Delete => {
                "the time limit of the drain is over: pods are deleted although disruption budgets may forbid it"
            }
        }
    }

    /// The reason of a node whose drain began at `since` and is in this stage: what happens, when the next stage begins, and
    /// because of which pods.
    pub(crate) fn announce(self, since: Timestamp, timeouts: &RecyclingTimeouts, pods: &[String]) -> String {
        let deleted_at = since.saturating_add(SignedDuration::from_secs(timeouts.drain()));
        let next = match self {
            Self::Delete => format!("; each has {} s to end at most", timeouts.terminate()),
            Self::Evict | Self::Warn => format!(
                "; at {} they are deleted whatever budgets say",
                deleted_at.unwrap_or(Timestamp::MAX)
            ),
        };
        format!("{}{next}; remaining pods: {}", self.announcement(), name_some(pods))
    }
}

pub(super) fn from_cordoned(observation: &Observation<'_>) -> Transition {
    let Observation { assignment, now, .. } = observation;
    let left = assignment
        .cordoned_until
        .map_or(0, |until| until.as_second() - now.as_second());
    if observation.tenant == Tenant::Gone || left <= 0 {
        return set_assignment(assignment.with_state(AssignmentState::Draining, *now, &assignment.reason));
    }
    Transition::CheckAfter(left)
}

pub(super) fn from_draining(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    if observation.pods.is_empty() {
        if !requires_scrub(pool) {
            return Transition::Free("no pods are left; scrubbing is disabled in its pool".into());
        }
        if let Some(wait) = await_ready(observation) {
            return wait;
        }
        return set_assignment(assignment.start_recycling(observation.node, *now, reason_after_drain(assignment)));
    }
    let timeouts = &pool.timeouts;
    let elapsed = assignment.elapsed(*now);
    let stage = DrainStage::after(elapsed, timeouts);
    if stage != DrainStage::Evict && !assignment.reason.starts_with(stage.announcement()) {
        // The state and its start time stay the same; only the reason changes.
        return set_assignment(Assignment {
            reason: stage.announce(assignment.since.unwrap_or(*now), timeouts, observation.pods),
            ..(*assignment).clone()
        });
    }
    if stage != DrainStage::Delete && observation.tenant != Tenant::Gone {
        return Transition::EvictPods;
    }
    let is_over = elapsed >= timeouts.drain() + timeouts.terminate() + MARGIN;
    if requires_scrub(pool) {
        // There is nothing left to do here, and it is not known what sets finalizers on a host.
        if is_over && observation.held_pods.len() == observation.pods.len() {
            let why = format!(
                "finalizers hold pods that were removed: {}; find out what set them before you release the node",
                name_some(observation.pods)
            );
            return quarantine(observation, &why);
        }
        return Transition::DeletePods {
            max_grace_seconds: timeouts.terminate(),
            removes_overdue: true,
        };
    }
    // Processes of a pod that is removed without its kubelet may go on. The scrub ends them; without it, nothing does.
    if is_over {
        let why = format!(
            "pods did not end: {}; they may still run, and scrubbing is disabled in the pool",
            name_some(observation.pods)
        );
        return quarantine(observation, &why);
    }
    Transition::DeletePods {
        max_grace_seconds: timeouts.terminate(),
        removes_overdue: false,
    }
}

/// The reason of the state after Draining: announcements about pods are outdated by then.
fn reason_after_drain(assignment: &Assignment) -> &str {
    let announced = [DrainStage::Warn, DrainStage::Delete].map(DrainStage::announcement);
    if announced.iter().any(|start| assignment.reason.starts_with(start)) {
        "its pods have ended after they held up its drain"
    } else {
        &assignment.reason
    }
}

/// The first few of these names.
pub(super) fn name_some(names: &[String]) -> String {
    name_first(names, 5)
}

/// The first of these names, and how many more there are.
pub(super) fn name_first(names: &[String], most: usize) -> String {
    let named = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > most {
        format!("{named} and {} more", names.len() - most)
    } else {
        named
    }
}
