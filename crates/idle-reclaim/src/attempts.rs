//! What was tried to give back the GPUs of pods, so that what has no effect does not take the place of others in every pass.
//!
//! | workload | what follows |
//! |---|---|
//! | was tried, and is still due | it comes [after those](crate::order) that were not tried, or not for longer |
//! | its owner was stopped, and the pods are still there a minute later | they are evicted: nobody asks their owner again |
//!
//! A team names the owners of its pods, and starts again what was stopped. So an owner is stopped once for each pod.
//!
//! It is in memory only. A new control stops the owner of such a pod once more, after it has let the time for a checkpoint pass again.

use crate::{Seconds, pass::Decision, pod::GpuPod};
use berth_api::IdleLastStep;
use std::collections::HashMap;

/// Time in which the controllers of a tenant may delete the pods of an owner that was stopped.
const STOP_TIME: Seconds = 60;

/// What is to be done about a pod that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStep {
    /// Stop its owner, if that is possible, else evict it.
    StopOwner,
    /// Wait for the controllers of the tenant.
    Wait,
    /// Evict it.
    Evict,
}

/// What earlier passes tried, by UID of the host pod.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    pods: HashMap<String, Attempt>,
}

/// What was tried with a pod.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// When it was tried last.
    tried_at: Seconds,
    /// When its owner was stopped.
    stopped_at: Option<Seconds>,
}

impl Attempts {
    /// Forgets pods that are gone.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| exists(uid));
    }

    /// Notes that a workload is tried, whatever comes of it.
    pub fn note_tried(&mut self, decision: &Decision, now: Seconds) {
        for pod in &decision.pods {
            let attempt = self.pods.entry(pod.uid.clone()).or_insert(Attempt {
                tried_at: now,
                stopped_at: None,
            });
            attempt.tried_at = now;
        }
    }

    /// Notes that the owner of a pod was stopped.
    pub fn note_stopped(&mut self, pod: &GpuPod, now: Seconds) {
        let stopped = Attempt {
            tried_at: now,
            stopped_at: Some(now),
        };
        self.pods.insert(pod.uid.clone(), stopped);
    }

    /// When one of the pods of a workload was tried last.
    pub fn last_try(&self, decision: &Decision) -> Option<Seconds> {
        let tried = decision.pods.iter().filter_map(|pod| self.pods.get(&pod.uid));
        tried.map(|attempt| attempt.tried_at).max()
    }

    /// What is to be done about a pod that is due, under a class with this last step.
    pub fn next_step(&self, pod: &GpuPod, last_step: IdleLastStep, now: Seconds) -> PodStep {
        if last_step == IdleLastStep::EvictPods {
            return PodStep::Evict;
        }
        let attempt = self.pods.get(&pod.uid);
        match attempt.and_then(|attempt| attempt.stopped_at) {
            None => PodStep::StopOwner,
            // A clock that was set back makes nobody wait for long.
            Some(at) if (at..at.saturating_add(STOP_TIME)).contains(&now) => PodStep::Wait,
            Some(_) => PodStep::Evict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, NOW};

    #[test]
    fn an_owner_is_stopped_once_for_each_pod() {
        let (pod, other) = (testing::pod("fake", 1), testing::pod("other", 1));
        let mut attempts = Attempts::default();
        let step = |attempts: &Attempts, now| attempts.next_step(&pod, IdleLastStep::StopOwner, now);
        assert_eq!(step(&attempts, NOW), PodStep::StopOwner);
        attempts.note_tried(&testing::due("fake", 1), NOW);
        assert_eq!(step(&attempts, NOW + 60), PodStep::StopOwner, "it was not stopped");
        attempts.note_stopped(&pod, NOW);
        assert_eq!(step(&attempts, NOW + STOP_TIME - 1), PodStep::Wait);
        assert_eq!(step(&attempts, NOW + STOP_TIME), PodStep::Evict);
        assert_eq!(step(&attempts, NOW - 1), PodStep::Evict);
        attempts.note_tried(&testing::due("fake", 1), NOW + 86_400);
        assert_eq!(step(&attempts, NOW + 86_400), PodStep::Evict, "as long as it exists");
        assert_eq!(
            attempts.next_step(&other, IdleLastStep::StopOwner, NOW),
            PodStep::StopOwner
        );
        attempts.retain(|uid| uid != pod.uid);
        assert_eq!(step(&attempts, NOW + 86_400), PodStep::StopOwner);
    }

    #[test]
    fn a_class_that_evicts_waits_for_no_owner() {
        let pod = testing::pod("a", 1);
        let mut attempts = Attempts::default();
        attempts.note_stopped(&pod, NOW);
        assert_eq!(attempts.next_step(&pod, IdleLastStep::EvictPods, NOW), PodStep::Evict);
    }

    #[test]
    fn a_workload_was_tried_when_one_of_its_pods_was() {
        let due = testing::due("a", 1);
        let mut attempts = Attempts::default();
        assert_eq!(attempts.last_try(&due), None);
        attempts.note_tried(&due, NOW);
        attempts.note_stopped(&due.pods[0], NOW + 5);
        assert_eq!(attempts.last_try(&due), Some(NOW + 5));
        attempts.note_tried(&due, NOW + 60);
        assert_eq!(attempts.last_try(&due), Some(NOW + 60));
        assert_eq!(attempts.last_try(&testing::due("b", 1)), None);
    }
}
