//! Whatever happens to a node, in any order.

use super::*;
use berth_api::RepairSpec;
use proptest::prelude::*;

/// The label by which the GPU Operator selects nodes for a program that uses GPUs.
const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";

/// Events that can happen to a node and to control.
#[derive(Clone, Debug)]
enum Happening {
    Step,
    Reserve,
    Release,
    PodComes,
    PodGoes,
    EvictedPodComes,
    EvictedPodGoes,
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
        1 => Just(Happening::EvictedPodComes),
        1 => Just(Happening::EvictedPodGoes),
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
    /// For any events in any order: a free node is clean and empty, and the platform's programs run there; a node is clean when it is reserved for a
    /// tenant, and pods of a tenant run only on its own nodes. No pod that the taint evicts is there when a tenant gets it.
    #[test]
    fn no_node_is_free_before_it_is_scrubbed(happenings in prop::collection::vec(happening(), 1..120), repairs in any::<bool>()) {
        let mut world = World::new();
        world.pool.repair = repairs.then(RepairSpec::default);
        world.label(DCGM, "true");
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
                // Later, its kubelet starts none.
                Happening::EvictedPodComes => {
                    if world.assignment().is_none_or(|assignment| assignment.state.is_pending()) {
                        world.evicted_pods.push("shop/web".into());
                    }
                }
                Happening::EvictedPodGoes => {
                    world.evicted_pods.pop();
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
                Happening::NodeReady(ready) => world.set_ready(ready),
                Happening::PeopleRelease => {
                    world.release_from_quarantine();
                }
            }
            if by_hand && had_assignment && world.assignment().is_none() {
                // No part of the assignment is left on the node. The executor detects that by its in-use markers.
                world.node = before;
            }
            if world.state() == Some(AssignmentState::Assigned) {
                prop_assert!(world.evicted_pods.is_empty(), "beside pods of others: {:?}", world.seen);
            }
            if world.assignment().is_none() && world.seen.last() == Some(&"Free") {
                prop_assert!(!world.dirty, "free and not clean: {:?}", world.seen);
                let label = world.node.labels().get(DCGM);
                prop_assert!(label.is_none_or(|label| label == "true"), "it stays paused: {:?}", world.seen);
            }
        }
    }
}
