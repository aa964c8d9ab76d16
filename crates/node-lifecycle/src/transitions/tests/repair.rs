//! Nodes that are not Ready, in a pool that repairs its nodes.

use super::*;
use berth_api::RepairSpec;
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::Time};

/// The taint of a node whose readiness is not known.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// A node in Draining, with a pod, of a pool that repairs its nodes.
fn draining() -> World {
    let mut world = World::new().serving();
    world.pool.repair = Some(RepairSpec::default());
    world.pods.push("berth-vision/a".into());
    world.release(0);
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Draining));
    world
}

impl World {
    pub(super) fn set_ready(&mut self, ready: bool) {
        let now = Time(at(self.now));
        let conditions = self.node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        let status = if ready { "True" } else { "Unknown" };
        if conditions[0].status == status {
            return;
        }
        conditions[0].status = status.into();
        conditions[0].last_transition_time = Some(now.clone());
        let taints = self.node.spec.get_or_insert_default().taints.get_or_insert_default();
        taints.retain(|taint| taint.key != UNREACHABLE);
        if !ready {
            taints.push(Taint {
                key: UNREACHABLE.into(),
                effect: "NoSchedule".into(),
                time_added: Some(now),
                ..Taint::default()
            });
        }
    }
}

#[test]
fn a_node_that_is_not_ready_waits_in_quarantine_and_is_scrubbed_when_it_is() {
    let mut world = draining();
    world.set_ready(false);
    world.now += 700;
    assert_eq!(
        world.next(),
        Some(Transition::EvictPods),
        "its pods are evicted as on other nodes"
    );
    world.pods.clear();
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    let annotations = world.node.annotations();
    assert_eq!(annotations[labels::NOT_READY_SINCE], at(100).to_string());
    let why = &annotations[labels::QUARANTINE];
    assert!(why.starts_with("not Ready since 1970-01-01T00:01:40Z"), "{why}");
    world.now += 1_000_000;
    assert_eq!(world.next(), Some(Transition::Wait));
    world.set_ready(true);
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    assert!(!world.node.annotations().contains_key(labels::NOT_READY_SINCE));
    world.succeed();
    world.succeed();
    assert_eq!(world.assignment(), None);
    let states = "Draining Quarantined Scrubbing Validating Free";
    assert!(world.seen.join(" ").ends_with(states), "{:?}", world.seen);
    assert!(world.node.annotations().is_empty(), "{:?}", world.node.annotations());
}

#[test]
fn pods_of_a_node_that_is_not_ready_are_removed_no_earlier() {
    let mut world = draining();
    world.set_ready(false);
    for (elapsed, then) in [
        (700, Transition::EvictPods),
        (1800, Transition::EvictPods),
        (3600, DELETE),
    ] {
        world.now = 100 + elapsed;
        let next = world.next();
        if let Some(Transition::SetAssignment(..)) = next {
            assert!(world.step(), "it is announced");
        }
        assert_eq!(world.next(), Some(then), "{elapsed}");
    }
    assert_eq!(
        world.state(),
        Some(AssignmentState::Draining),
        "it is its tenant's until they are gone"
    );
}

#[test]
fn a_node_that_comes_back_in_time_is_scrubbed_at_once() {
    let mut world = draining();
    world.set_ready(false);
    world.now += 599;
    world.pods.clear();
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
}

#[test]
fn without_repair_a_scrub_that_takes_too_long_ends_in_quarantine_until_people_release_it() {
    let mut world = draining();
    world.pool.repair = None;
    world.set_ready(false);
    world.now += 700;
    world.pods.clear();
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    world.now += 3600;
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    world.set_ready(true);
    assert_eq!(world.next(), Some(Transition::Wait), "the scrub failed");
    world.release_from_quarantine();
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
}
