use super::*;
use crate::assignment::{clear_assignment_patch, tests::patched};
use berth_api::{ScrubPolicy, Sharing};
use proptest::prelude::*;
use serde_json::json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// How pods are deleted with the default time limits.
const DELETE: Transition = Transition::DeletePods {
    max_grace_seconds: 600,
    removes_overdue: true,
};

fn alive() -> Tenant {
    Tenant::Alive("vision-abc".into())
}

/// A simulated node on which transitions are carried out.
#[derive(Clone, Debug)]
struct World {
    now: i64,
    node: Node,
    pool: HostNodePoolSpec,
    tenant: Tenant,
    is_group_complete: bool,
    pods: Vec<String>,
    job: JobState,
    /// The Job that `job` is of: recycling and kind.
    job_of: Option<(String, JobKind)>,
    /// Whether anything of a tenant may be on the node's disks and GPUs.
    dirty: bool,
    seen: Vec<&'static str>,
}

impl World {
    fn new() -> Self {
        let node = json!({
            "metadata": {"name": "n1", "uid": "node-uid", "resourceVersion": "1"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"},
            },
        });
        Self {
            now: 100,
            node: serde_json::from_value(node).unwrap(),
            pool: HostNodePoolSpec {
                gpu_resource_name: Some("nvidia.com/gpu".into()),
                ..HostNodePoolSpec::default()
            },
            tenant: alive(),
            is_group_complete: true,
            pods: Vec::new(),
            job: JobState::Missing,
            job_of: None,
            dirty: false,
            seen: Vec::new(),
        }
    }

    fn assignment(&self) -> Option<Assignment> {
        Assignment::read(&self.node)
    }

    fn state(&self) -> Option<AssignmentState> {
        self.assignment().map(|assignment| assignment.state)
    }

    fn reserve(&mut self) {
        assert_eq!(self.assignment(), None);
        let assignment = Assignment::reserved("uid-1", "train", "h100", 2, at(self.now), "asked for");
        self.write(&assignment, &[]);
    }

    fn release(&mut self, until: i64) {
        let assignment = Assignment {
            cordoned_until: Some(at(until)),
            ..self
                .assignment()
                .unwrap()
                .with_state(AssignmentState::Cordoned, at(self.now), "reclaimed")
        };
        self.write(&assignment, &[]);
    }

    fn write(&mut self, assignment: &Assignment, more: &[(String, Option<String>)]) {
        self.node = patched(&self.node, &assignment.to_patch(&self.node, more));
        self.seen.push(assignment.state.name());
    }

    fn next(&self) -> Option<Transition> {
        let assignment = self.assignment()?;
        let kind = match assignment.state {
            AssignmentState::Scrubbing => Some(JobKind::Scrub),
            AssignmentState::Validating => Some(JobKind::Validate),
            _ => None,
        };
        let is_this = kind.is_some_and(|kind| self.job_of == Some((assignment.recycling_id.clone(), kind)));
        Some(next_transition(&Observation {
            now: at(self.now),
            node: &self.node,
            assignment: &assignment,
            pool: &self.pool,
            tenant: self.tenant.clone(),
            is_group_complete: self.is_group_complete,
            pods: &self.pods,
            job: if is_this { self.job.clone() } else { JobState::Missing },
        }))
    }

    /// Carries out the next transition; returns whether there was one.
    fn step(&mut self) -> bool {
        match self.next() {
            None | Some(Transition::Wait | Transition::CheckAfter(_)) => return false,
            Some(Transition::SetAssignment(assignment, more)) => self.write(&assignment, &more),
            Some(Transition::CorrectDrift(assignment)) => self.write(&assignment, &[]),
            Some(Transition::Free(_)) => {
                self.node = patched(&self.node, &clear_assignment_patch(&self.node));
                self.seen.push("Free");
            }
            Some(Transition::EvictPods | Transition::DeletePods { .. }) => self.pods.clear(),
            Some(Transition::StartJob(kind)) => {
                self.job = JobState::Running;
                self.job_of = Some((self.assignment().unwrap().recycling_id, kind));
            }
        }
        true
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            if !self.step() {
                return;
            }
        }
        panic!("no end: {:?}", self.seen);
    }

    /// The Job succeeds.
    fn succeed(&mut self) {
        self.job = JobState::Succeeded;
        if matches!(self.job_of, Some((_, JobKind::Scrub))) && self.pods.is_empty() {
            self.dirty = false;
        }
        self.settle();
    }

    /// What people do after they have repaired a node.
    fn release_from_quarantine(&mut self) {
        let annotations = self.node.annotations_mut();
        annotations.insert(labels::RELEASE_QUARANTINE.into(), "yes".into());
    }

    fn label(&mut self, key: &str, value: &str) {
        self.node.labels_mut().insert(key.into(), value.into());
    }
}

#[test]
fn recycling_goes_through_every_state() {
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.pods.push("berth-vision/a".into());
    world.release(160);
    world.settle();
    assert_eq!(
        world.next(),
        Some(Transition::CheckAfter(60)),
        "running pods may stay until the drain begins"
    );
    world.now = 160;
    world.settle();
    world.succeed();
    world.succeed();
    let all = "Reserved Joining Assigned Cordoned Draining Scrubbing Validating Free";
    assert_eq!(world.seen.join(" "), all);
    assert_eq!(world.assignment(), None);
}

#[test]
fn a_reservation_is_cancelled_when_the_other_nodes_do_not_come() {
    let mut world = World::new();
    world.is_group_complete = false;
    world.reserve();
    assert_eq!(world.next(), Some(Transition::CheckAfter(60)));
    world.now += 60;
    world.settle();
    assert_eq!(world.seen, ["Reserved", "Free"]);
}

#[test]
fn a_tenant_deleted_during_a_transition_leaves_nothing() {
    let mut world = World::new();
    world.is_group_complete = false;
    world.reserve();
    world.tenant = Tenant::Gone;
    world.settle();
    assert_eq!(world.state(), None, "no pod of the tenant was ever here");
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(10_000);
    world.pods.push("berth-vision/a".into());
    world.tenant = Tenant::Gone;
    assert!(world.step(), "the drain begins at once");
    assert_eq!(world.next(), Some(DELETE));
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
}

#[test]
fn a_mig_layout_is_requested_and_awaited_each_time() {
    let mut world = World::new();
    world.pool.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    world.label(MIG_CONFIG, "all-1g.10gb");
    world.label(MIG_STATE, "success");
    world.reserve();
    world.settle();
    assert_eq!(
        world.state(),
        Some(AssignmentState::Joining),
        "that was the state of an earlier request"
    );
    world.label(MIG_STATE, "rebooting");
    assert!(!world.step());
    world.label(MIG_STATE, "success");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
    world.release(0);
    world.settle();
    assert_eq!(world.node.labels()[MIG_CONFIG], "all-disabled");
    assert_eq!(
        (world.state(), &world.job_of),
        (Some(AssignmentState::Scrubbing), &None),
        "MIG instances are removed before the scrub"
    );
    world.label(MIG_STATE, "failed");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));
    assert!(world.node.annotations()[labels::QUARANTINE].contains("MIG manager"));
    // After the release by people the layout is requested again, and its earlier state does not count any more.
    world.release_from_quarantine();
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    assert_eq!(world.node.labels()[MIG_CONFIG], "all-disabled");
    assert!(!world.node.labels().contains_key(MIG_STATE));
    world.label(MIG_STATE, "success");
    world.settle();
    assert!(world.job_of.is_some(), "the scrub goes on");
}

#[test]
fn a_job_that_succeeded_while_control_was_down_counts() {
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
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
fn a_state_past_its_timeout_is_quarantined() {
    let mut world = World::new();
    world.pool.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    world.reserve();
    world.settle();
    world.now += 900;
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Quarantined));

    for kind in ["Scrubbing", "Validating"] {
        let mut world = World::new();
        world.reserve();
        world.settle();
        world.release(0);
        world.settle();
        if kind == "Validating" {
            world.succeed();
        }
        assert_eq!(world.state().unwrap().name(), kind);
        world.now += 3600;
        world.settle();
        assert_eq!(world.state(), Some(AssignmentState::Quarantined), "{kind} hangs");
    }
}

/// A node in Draining with a pod that is not evicted.
fn blocked() -> World {
    let mut world = World::new();
    world.reserve();
    world.settle();
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
fn a_failed_job_quarantines_until_people_release_the_node() {
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
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
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
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
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
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

#[test]
fn a_clock_that_goes_back_delays_no_transition() {
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.now = 1_000_000;
    world.release(1_000_060);
    world.now = 100;
    assert!(world.step());
    assert_eq!(
        world.next(),
        Some(Transition::CheckAfter(60)),
        "it is drained after the decided time"
    );
    world.now = 160;
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    world.now = 10;
    world.settle();
    world.now += 1830;
    world.settle();
    assert_eq!(
        world.state(),
        Some(AssignmentState::Quarantined),
        "it hangs, although the clock went back"
    );
}

#[test]
fn gpu_sharing_is_awaited_where_it_is_reported() {
    const STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
    let sharing = || {
        let mut world = World::new();
        world.pool.sharing = Sharing::TimeSlicing;
        world.pool.nvidia.get_or_insert_default().device_plugin_config = Some("four".into());
        world.reserve();
        world
    };
    let mut unreported = sharing();
    unreported.settle();
    assert_eq!(unreported.state(), Some(AssignmentState::Assigned));
    assert_eq!(unreported.node.labels()[DEVICE_PLUGIN_CONFIG], "four");

    let mut reported = sharing();
    reported.label(STRATEGY, "none");
    reported.settle();
    assert_eq!(
        (reported.state(), reported.next()),
        (Some(AssignmentState::Joining), Some(Transition::CheckAfter(900)))
    );
    let mut timed_out = reported.clone();
    reported.label(STRATEGY, "time-slicing");
    reported.settle();
    assert_eq!(reported.state(), Some(AssignmentState::Assigned));
    timed_out.now += 900;
    timed_out.settle();
    assert_eq!(timed_out.state(), Some(AssignmentState::Quarantined));
    assert!(timed_out.node.annotations()[labels::QUARANTINE].contains("none, not time-slicing"));
}

#[test]
fn a_formerly_shared_node_is_scrubbed() {
    let mut world = World::new();
    world
        .node
        .annotations_mut()
        .insert(labels::PREVIOUS_SHARED_POOL.into(), "cpu".into());
    let annotations = world.node.annotations_mut();
    annotations.insert(labels::SHARED_UNTIL.into(), at(50).to_string());
    let begin = |world: &World, pods: &[String]| {
        next_transition_after_sharing(at(100), &world.node, ("own", &world.pool), pods)
    };
    assert_eq!(
        begin(&world, &["berth-x/p".into()]),
        Transition::CheckAfter(1),
        "its pods leave first"
    );
    let Transition::SetAssignment(assignment, _) = begin(&world, &[]) else {
        panic!("it is not scrubbed");
    };
    world.write(&assignment, &[]);
    assert!(world.node.annotations()[labels::REASON].contains("shared in pool cpu"));
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(world.seen.join(" "), "Scrubbing Validating Free");
    assert!(world.node.annotations().is_empty(), "{:?}", world.node.annotations());

    world
        .node
        .annotations_mut()
        .insert(labels::PREVIOUS_SHARED_POOL.into(), "cpu".into());
    world.pool.scrub.policy = ScrubPolicy::None;
    assert!(matches!(begin(&world, &[]), Transition::Free(_)));
}

#[test]
fn unhealthy_gpus_and_late_pods_keep_a_node_from_being_free() {
    let mut world = World::new();
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
    world.succeed();
    let status = world.node.status.as_mut().unwrap();
    let allocatable = status.allocatable.as_mut().unwrap();
    allocatable.get_mut("nvidia.com/gpu").unwrap().0 = "7".into();
    world.succeed();
    assert_eq!(world.state(), Some(AssignmentState::Validating));
    world.pods.push("berth-vision/late".into());
    world.step();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
    world.settle();
    world.succeed();
    world.succeed();
    world.now += 900;
    world.settle();
    let reason = world.assignment().unwrap().reason;
    assert_eq!(reason, "1 of 8 nvidia.com/gpu are not healthy after 900 s");
}

#[test]
fn an_empty_node_of_a_pool_without_scrub_is_free() {
    let mut world = World::new();
    world.pool.scrub.policy = ScrubPolicy::None;
    world.reserve();
    world.settle();
    world.release(0);
    world.settle();
    assert_eq!(
        world.seen,
        ["Reserved", "Joining", "Assigned", "Cordoned", "Draining", "Free"]
    );
}

/// Events that can happen to a node and to control.
#[derive(Clone, Debug)]
enum Happening {
    Step,
    Reserve,
    Release,
    PodComes,
    PodGoes,
    JobEnds(bool),
    JobVanishes,
    TimePasses(i64),
    TenantGoes,
    LabelRemoved,
    TaintRemoved,
    AnnotationsRemoved,
    Uncordoned,
    NodeReady(bool),
    PeopleRelease,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => Just(Happening::Step),
        2 => Just(Happening::Reserve),
        2 => Just(Happening::Release),
        2 => Just(Happening::PodComes),
        1 => Just(Happening::PodGoes),
        3 => any::<bool>().prop_map(Happening::JobEnds),
        1 => Just(Happening::JobVanishes),
        1 => (-5000_i64..5000).prop_map(Happening::TimePasses),
        1 => Just(Happening::TenantGoes),
        1 => Just(Happening::LabelRemoved),
        1 => Just(Happening::TaintRemoved),
        1 => Just(Happening::AnnotationsRemoved),
        1 => Just(Happening::Uncordoned),
        1 => any::<bool>().prop_map(Happening::NodeReady),
        1 => Just(Happening::PeopleRelease),
    ]
}

proptest! {
    /// For any events in any order: a free node is clean and empty, a node is clean when it is reserved for a tenant, and
    /// pods of a tenant run only on its own nodes.
    #[test]
    fn no_node_is_free_before_it_is_scrubbed(happenings in prop::collection::vec(happening(), 1..120)) {
        let mut world = World::new();
        for happening in happenings {
            let before = world.node.clone();
            let had_assignment = world.assignment().is_some();
            let by_hand = matches!(
                happening,
                Happening::LabelRemoved | Happening::TaintRemoved | Happening::AnnotationsRemoved
            );
            match happening {
                Happening::Step => {
                    world.step();
                }
                Happening::Reserve => {
                    if world.assignment().is_none() && world.tenant != Tenant::Gone {
                        prop_assert!(!world.dirty && world.pods.is_empty());
                        world.reserve();
                    }
                }
                Happening::Release => {
                    if world.state() == Some(AssignmentState::Assigned) {
                        world.release(world.now + 30);
                    }
                }
                Happening::PodComes => {
                    // The scheduler and the kubelet check label, taint and cordon, not the assignment.
                    let is_open = world.node.labels().contains_key(labels::TENANT)
                        && !world.node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
                    if is_open {
                        world.pods.push("berth-vision/p".into());
                        world.dirty = true;
                    }
                }
                Happening::PodGoes => {
                    world.pods.pop();
                }
                Happening::JobEnds(well) => {
                    if world.job == JobState::Running {
                        if well && matches!(world.job_of, Some((_, JobKind::Scrub))) && world.pods.is_empty() {
                            world.dirty = false;
                        }
                        world.job = if well { JobState::Succeeded } else { JobState::Failed("x".into()) };
                    }
                }
                Happening::JobVanishes => world.job_of = None,
                Happening::TimePasses(seconds) => world.now = (world.now + seconds).max(1),
                Happening::TenantGoes => world.tenant = Tenant::Gone,
                Happening::LabelRemoved => {
                    world.node.labels_mut().clear();
                }
                Happening::TaintRemoved => {
                    if let Some(spec) = &mut world.node.spec {
                        spec.taints = None;
                    }
                }
                Happening::AnnotationsRemoved => {
                    world.node.annotations_mut().clear();
                }
                Happening::Uncordoned => {
                    if let Some(spec) = &mut world.node.spec {
                        spec.unschedulable = None;
                    }
                }
                Happening::NodeReady(ready) => {
                    let status = if ready { "True" } else { "False" };
                    let conditions = world.node.status.as_mut().unwrap().conditions.as_mut().unwrap();
                    conditions[0].status = status.into();
                }
                Happening::PeopleRelease => {
                    world.release_from_quarantine();
                }
            }
            if by_hand && had_assignment && world.assignment().is_none() {
                // No part of the assignment is left on the node. The executor detects that by its in-use markers.
                world.node = before;
            }
            if world.assignment().is_none() && world.seen.last() == Some(&"Free") {
                prop_assert!(!world.dirty, "free and not clean: {:?}", world.seen);
            }
        }
    }
}

#[test]
fn a_node_that_an_autoscaler_removes_is_freed_before_it_serves() {
    let state_after_removal_taint = |mut world: World| {
        let taint = json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}});
        world.node = patched(&world.node, &taint);
        let state = world.state();
        // The patch replaced the list of taints: Berth's own taint is restored first, if it is required.
        world.settle();
        (state, world.state())
    };
    let mut world = World::new();
    world.is_group_complete = false;
    world.reserve();
    assert_eq!(
        state_after_removal_taint(world.clone()),
        (Some(AssignmentState::Reserved), None)
    );
    world.is_group_complete = true;
    assert!(world.step());
    assert_eq!(
        state_after_removal_taint(world.clone()),
        (Some(AssignmentState::Joining), None)
    );
    world.settle();
    assert_eq!(
        state_after_removal_taint(world),
        (Some(AssignmentState::Assigned), Some(AssignmentState::Assigned))
    );
}
