//! Jobs that scrub and validate a node, and what becomes of the node if they fail, hang or are lost.

use super::*;

#[test]
fn a_job_that_succeeded_while_control_was_down_counts() {
    let mut world = World::new().recycling();
    world.job = JobState::Succeeded;
    world.now += 7200;
    world.settle();
    assert_ne!(
        world.state(),
        Some(AssignmentState::Quarantined),
        "the Job had succeeded"
    );
}

#[test]
fn a_free_node_that_people_mark_is_scrubbed_and_validated() {
    let mut world = World::new();
    let annotations = world.node.annotations_mut();
    annotations.insert(labels::NODE_STATE.into(), "Scrubbing".into());
    world.settle();
    let job = world.job_of.as_ref().map(|(_, kind)| *kind);
    assert_eq!(
        (world.state(), job),
        (Some(AssignmentState::Scrubbing), Some(JobKind::Scrub))
    );
    world.succeed();
    assert_eq!(world.state(), Some(AssignmentState::Validating));
    world.succeed();
    assert_eq!(world.state(), None);
}

#[test]
fn a_node_whose_job_was_not_started_in_time_is_recycled_again_once() {
    for kind in ["Scrubbing", "Validating"] {
        let mut world = World::new().recycling();
        if kind == "Validating" {
            world.succeed();
        }
        // Control was killed before it started the Job, and did not run for an hour.
        world.job_of = None;
        world.now += 3600;
        world.settle();
        assert_eq!(
            (world.state(), world.job_of.as_ref().map(|(_, kind)| *kind)),
            (Some(AssignmentState::Scrubbing), Some(JobKind::Scrub)),
            "{kind}"
        );
        let mut lucky = world.clone();
        lucky.succeed();
        lucky.succeed();
        assert_eq!(lucky.state(), None, "{kind}");
        // It cannot be started.
        world.job_of = None;
        world.now += 3600;
        world.settle();
        assert_eq!(world.state(), Some(AssignmentState::Quarantined), "{kind}");
    }
}

#[test]
fn a_pool_without_validation_has_no_time_limit_for_its_job() {
    let mut world = World::new();
    world.pool.validate.policy = ScrubPolicy::None;
    let mut world = world.recycling();
    world.job = JobState::Succeeded;
    assert!(world.step());
    assert_eq!(world.state(), Some(AssignmentState::Validating));
    world.now += 3600;
    world.settle();
    assert_eq!(world.state(), None);
}

#[test]
fn a_failed_job_quarantines_until_people_release_the_node() {
    let mut world = World::new().recycling();
    world.job = JobState::Failed("gpureset: GPU 3 is busy".into());
    world.settle();
    let reason = world.node.annotations()[labels::QUARANTINE].clone();
    assert_eq!(reason, "the scrub failed: gpureset: GPU 3 is busy");
    let first = world.job_of.clone();
    world.release_from_quarantine();
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    assert_ne!(world.job_of, first, "the failed Job does not count");
    assert!(!world.node.annotations().contains_key(labels::RELEASE_QUARANTINE));
    assert!(!world.node.annotations().contains_key(labels::QUARANTINE));
}

#[test]
fn a_deleted_job_is_created_again_and_a_lost_id_restarts_recycling() {
    let mut world = World::new().recycling();
    world.job_of = None;
    assert_eq!(world.next(), Some(Transition::StartJob(JobKind::Scrub)));
    world.settle();
    world.job = JobState::Succeeded;
    world.node.annotations_mut().remove(labels::RECYCLING_ID);
    world.settle();
    assert_eq!(
        (world.state(), &world.job),
        (Some(AssignmentState::Scrubbing), &JobState::Running)
    );
}

#[test]
fn a_pod_that_arrives_during_the_scrub_restarts_it() {
    let mut world = World::new().recycling();
    let first = world.job_of.clone();
    world.pods.push("berth-vision/late".into());
    world.job = JobState::Succeeded;
    assert!(world.step());
    assert_eq!(world.next(), Some(DELETE));
    world.settle();
    assert_eq!(
        (world.state(), &world.job),
        (Some(AssignmentState::Scrubbing), &JobState::Running)
    );
    assert_ne!(world.job_of, first);
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
}
