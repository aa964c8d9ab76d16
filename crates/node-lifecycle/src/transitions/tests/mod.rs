mod draining;
mod evicted;
mod gpu_clients;
mod gpus;
mod jobs;
mod properties;
mod repair;

use super::*;
use crate::{
    assignment::{clear_assignment_patch, tests::patched},
    nvidia_labels::{DEVICE_PLUGIN_CONFIG, MIG_CONFIG, MIG_STATE},
};
use berth_api::ScrubPolicy;
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
    evicted_pods: Vec<String>,
    pods: Vec<String>,
    held_pods: Vec<String>,
    gpu_clients: Vec<String>,
    client_images: BTreeSet<String>,
    claims: Vec<String>,
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
            evicted_pods: Vec::new(),
            pods: Vec::new(),
            held_pods: Vec::new(),
            gpu_clients: Vec::new(),
            client_images: BTreeSet::new(),
            claims: Vec::new(),
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

    /// The node serves its tenant.
    fn serving(mut self) -> Self {
        self.reserve();
        self.settle();
        self
    }

    /// The node has served a tenant, and its scrub has begun.
    fn recycling(self) -> Self {
        let mut world = self.serving();
        world.release(0);
        world.settle();
        world
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
            evicted_pods: &self.evicted_pods,
            pods: &self.pods,
            held_pods: &self.held_pods,
            gpu_clients: &self.gpu_clients,
            client_images: &self.client_images,
            claims: &self.claims,
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
            Some(Transition::EndEvictedPods { .. }) => self.evicted_pods.clear(),
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
    let mut world = World::new().serving();
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
    let mut world = World::new().serving();
    world.release(10_000);
    world.pods.push("berth-vision/a".into());
    world.tenant = Tenant::Gone;
    assert!(world.step(), "the drain begins at once");
    assert_eq!(world.next(), Some(DELETE));
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Scrubbing));
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
        let mut world = World::new().recycling();
        if kind == "Validating" {
            world.succeed();
        }
        assert_eq!(world.state().unwrap().name(), kind);
        world.now += 3600;
        world.settle();
        assert_eq!(world.state(), Some(AssignmentState::Quarantined), "{kind} hangs");
    }
}

#[test]
fn a_node_whose_devices_claims_of_tenants_keep_is_not_free() {
    for policy in [ScrubPolicy::Always, ScrubPolicy::None] {
        let mut world = World::new();
        world.pool.validate.policy = policy;
        let mut world = world.recycling();
        world.claims.push("berth-vision/group".into());
        world.succeed();
        world.job = JobState::Succeeded;
        assert_eq!(
            (world.state(), world.next()),
            (Some(AssignmentState::Validating), Some(Transition::CheckAfter(1)))
        );
        let mut freed = world.clone();
        freed.claims.clear();
        freed.settle();
        assert_eq!(freed.state(), None);
        world.now += 900;
        world.settle();
        assert_eq!(world.state(), Some(AssignmentState::Quarantined));
        let why = &world.node.annotations()[labels::QUARANTINE];
        assert!(why.contains("claims of tenants (berth-vision/group)"), "{why}");
    }
}

#[test]
fn a_clock_that_goes_back_delays_no_transition() {
    let mut world = World::new().serving();
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
fn an_empty_node_of_a_pool_without_scrub_is_free() {
    let mut world = World::new();
    world.pool.scrub.policy = ScrubPolicy::None;
    assert_eq!(
        world.recycling().seen,
        ["Reserved", "Joining", "Assigned", "Cordoned", "Draining", "Free"]
    );
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
