//! Pods that the taint of a node evicts end before a tenant gets it.

use super::*;

/// A node that its tenant is about to get, on which there are such pods.
fn joining(pods: &[&str]) -> World {
    let mut world = World::new();
    world.evicted_pods = pods.iter().map(ToString::to_string).collect();
    world.reserve();
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Joining));
    world
}

/// How such pods are ended.
fn ends(max_grace_seconds: i64, deletes_running: bool) -> Transition {
    Transition::EndEvictedPods {
        max_grace_seconds,
        deletes_running,
    }
}

#[test]
fn a_tenant_gets_a_node_once_they_have_ended() {
    let mut world = joining(&["shop/web-1"]);
    for (elapsed, expected) in [
        (0, Some(ends(225, false))),
        (224, Some(ends(225, false))),
        (225, Some(ends(225, true))),
        (899, Some(ends(225, true))),
    ] {
        world.now = 100 + elapsed;
        assert_eq!(world.next(), expected, "{elapsed}");
    }
    world.evicted_pods.clear();
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
}

#[test]
fn a_pod_has_no_more_time_than_one_of_a_tenant() {
    let mut world = joining(&["shop/web-1"]);
    world.pool.timeouts.terminate = Some("20s".into());
    assert_eq!(world.next(), Some(ends(20, false)));
}

#[test]
fn a_pod_that_does_not_end_quarantines_the_node_by_name() {
    let mut world = joining(&["a/one", "b/two", "c/three", "d/four"]);
    world.now += 900;
    let mut lost = world.clone();
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    let why = &world.node.annotations()[labels::QUARANTINE];
    assert!(
        why.starts_with("pods that do not tolerate the taint berth.dev/tenant did not end within 900 s: a/one, b/two, c/three and 1 more;"),
        "{why}"
    );
    lost.set_ready(false);
    assert!(lost.step());
    let why = &lost.node.annotations()[labels::QUARANTINE];
    assert!(why.contains("the node is not Ready"), "{why}");
}

#[test]
fn a_node_whose_time_was_over_while_control_did_not_run_joins_again_once() {
    let mut world = joining(&["shop/web-1"]);
    world.now += 900 + 60;
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Joining));
    assert_eq!(world.next(), Some(ends(225, false)), "its pods have their time");
    let mut left = world.clone();
    left.evicted_pods.clear();
    left.settle();
    assert_eq!(left.state(), Some(AssignmentState::Assigned));
    assert_eq!(left.node.annotations()[labels::REASON], "asked for");
    world.now += 900 + 60;
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
}

#[test]
fn a_node_whose_tenant_is_gone_is_free_whatever_runs_there() {
    let mut world = joining(&["shop/web-1"]);
    world.tenant = Tenant::Gone;
    world.settle();
    assert_eq!(world.assignment(), None);
}

#[test]
fn a_mig_layout_is_requested_when_no_pod_can_have_a_gpu_open() {
    let mut world = World::new();
    world.pool.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    world.label(MIG_CONFIG, "all-1g.10gb");
    world.label(MIG_STATE, "success");
    world.evicted_pods.push("shop/train".into());
    world.reserve();
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Joining));
    assert!(!world.node.labels().contains_key(MIG_CONFIG));
    assert_eq!(world.next(), Some(ends(225, false)));
    world.evicted_pods.clear();
    world.settle();
    assert_eq!(world.node.labels()[MIG_CONFIG], "all-1g.10gb");
    assert_eq!(world.state(), Some(AssignmentState::Joining), "it is awaited");
    world.label(MIG_STATE, "success");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
}
