//! Pods that do not leave a node.

use super::*;

/// A node in Draining with a pod that is not evicted.
fn blocked() -> World {
    let mut world = World::new().serving();
    world.release(0);
    world.step();
    assert_eq!(world.state(), Some(AssignmentState::Draining));
    world.pods.push("berth-vision/a".into());
    world
}

#[test]
fn pods_are_evicted_then_announced_then_deleted() {
    let mut world = blocked();
    assert_eq!(world.next(), Some(Transition::EvictPods));
    for (elapsed, announced, then) in [
        (1800, "held up", Transition::EvictPods),
        (3600, "the time limit of the drain is over", DELETE),
    ] {
        world.now = 100 + elapsed;
        assert!(world.step(), "it is announced once");
        let reason = world.assignment().unwrap().reason;
        assert!(
            reason.contains(announced) && reason.contains("berth-vision/a"),
            "{reason}"
        );
        assert_eq!(
            (world.next(), world.state()),
            (Some(then), Some(AssignmentState::Draining))
        );
        // Other pods are no reason to write the node again.
        world.pods = vec!["berth-vision/b".into(), "berth-vision/a".into()];
        assert!(!matches!(world.next(), Some(Transition::SetAssignment(..))));
        world.pods.truncate(1);
        world.pods[0] = "berth-vision/a".into();
        assert_eq!(
            world.assignment().unwrap().elapsed(at(world.now)),
            elapsed,
            "the time in the state is kept"
        );
    }
    world.settle();
    let scrubbing = world.assignment().unwrap();
    assert_eq!(scrubbing.state, AssignmentState::Scrubbing);
    assert!(!scrubbing.reason.contains("berth-vision"), "{}", scrubbing.reason);
}

#[test]
fn the_announcement_says_when_pods_are_deleted() {
    let mut world = blocked();
    world.now = 100 + 1800;
    assert!(world.step());
    let deleted_at = at(100 + 3600).to_string();
    let reason = world.assignment().unwrap().reason;
    assert!(reason.contains(&deleted_at), "{reason}");
}

#[test]
fn time_limits_of_a_pool_hold() {
    let mut world = blocked();
    world.pool.timeouts.drain = Some("10s".into());
    world.pool.timeouts.terminate = Some("3s".into());
    world.now = 110;
    assert!(world.step());
    assert_eq!(
        world.next(),
        Some(Transition::DeletePods {
            max_grace_seconds: 3,
            removes_overdue: true
        })
    );
}

#[test]
fn without_a_scrub_no_node_is_free_while_processes_may_run() {
    let mut world = blocked();
    world.pool.scrub.policy = ScrubPolicy::None;
    world.now = 100 + 3600;
    assert!(world.step());
    assert_eq!(
        world.next(),
        Some(Transition::DeletePods {
            max_grace_seconds: 600,
            removes_overdue: false
        })
    );
    world.now += 600 + 120;
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    let why = &world.node.annotations()[labels::QUARANTINE];
    assert!(
        why.contains("berth-vision/a") && why.contains("scrubbing is disabled"),
        "{why}"
    );
}

#[test]
fn finalizers_do_not_keep_a_node_for_ever() {
    let mut world = blocked();
    world.now = 100 + 3600;
    assert!(world.step(), "the deletion is announced");
    world.held_pods.clone_from(&world.pods);
    world.now += 600 + 119;
    assert_eq!(world.next(), Some(DELETE));
    world.now += 1;
    let mut with_another = world.clone();
    with_another.pods.push("berth-vision/b".into());
    assert_eq!(with_another.next(), Some(DELETE), "one of them can still be removed");
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    let why = &world.node.annotations()[labels::QUARANTINE];
    assert!(why.contains("berth-vision/a") && why.contains("finalizers"), "{why}");
}
