//! What the GPUs of a node must be like before it serves, and before it is free.

use super::*;
use crate::nvidia_labels::restored_metadata;
use berth_api::Sharing;

const STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
const CAPABLE: &str = "nvidia.com/mps.capable";

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

/// A node that is reserved in a pool whose nodes share GPUs.
fn sharing(sharing: Sharing, config: &str) -> World {
    let mut world = World::new();
    world.pool.sharing = sharing;
    world.pool.nvidia.get_or_insert_default().device_plugin_config = Some(config.into());
    world.reserve();
    world
}

#[test]
fn gpu_sharing_is_awaited_where_it_is_reported() {
    let mut unreported = sharing(Sharing::TimeSlicing, "four");
    unreported.settle();
    assert_eq!(unreported.state(), Some(AssignmentState::Assigned));
    assert_eq!(unreported.node.labels()[DEVICE_PLUGIN_CONFIG], "four");

    let mut reported = sharing(Sharing::TimeSlicing, "four");
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

/// A node that serves a tenant whose pods share GPUs by MPS.
fn serving_by_mps() -> World {
    let mut world = sharing(Sharing::Mps, "mps-4");
    world.label(STRATEGY, "mps");
    world.label(CAPABLE, "true");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
    assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], "mps-4");
    world
}

#[test]
fn mps_ends_before_the_scrub_and_begins_with_the_next_tenant() {
    let mut world = serving_by_mps();
    world.release(0);
    world.settle();
    assert!(!world.node.labels().contains_key(DEVICE_PLUGIN_CONFIG));
    assert_eq!(
        (world.state(), &world.job_of),
        (Some(AssignmentState::Scrubbing), &None)
    );
    world.label(STRATEGY, "none");
    world.settle();
    assert_eq!(world.job_of, None, "NVIDIA's DaemonSet still selects the node");
    world.label(CAPABLE, "false");
    world.settle();
    assert!(world.job_of.is_some(), "the scrub begins");
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
    assert!(
        !world.node.labels().contains_key(DEVICE_PLUGIN_CONFIG),
        "a free node has no MPS"
    );

    world.reserve();
    world.settle();
    assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], "mps-4");
    assert_eq!(world.state(), Some(AssignmentState::Joining));
    world.label(STRATEGY, "mps");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
}

#[test]
fn mps_that_does_not_end_quarantines_the_node() {
    let mut world = serving_by_mps();
    world.release(0);
    world.settle();
    world.now += 1800;
    world.settle();
    assert_eq!(
        (world.state(), &world.job_of),
        (Some(AssignmentState::Quarantined), &None)
    );
    let why = world.node.annotations()[labels::QUARANTINE].clone();
    assert!(
        why.contains("MPS did not end") && why.contains("nvidia.com/gpu.sharing-strategy: mps"),
        "{why}"
    );
    world.release_from_quarantine();
    world.label(STRATEGY, "none");
    world.label(CAPABLE, "false");
    world.settle();
    assert!(world.job_of.is_some(), "the scrub goes on");
}

#[test]
fn mps_ends_also_where_the_pool_has_another_sharing_by_now() {
    let mut world = serving_by_mps();
    world.pool.sharing = Sharing::Exclusive;
    world.pool.nvidia = None;
    world.release(0);
    world.settle();
    assert!(!world.node.labels().contains_key(DEVICE_PLUGIN_CONFIG));
    assert_eq!(
        (world.state(), &world.job_of),
        (Some(AssignmentState::Scrubbing), &None)
    );
}

#[test]
fn a_configuration_without_mps_stays() {
    let mut world = sharing(Sharing::TimeSlicing, "four");
    world.label(STRATEGY, "time-slicing");
    world.label(CAPABLE, "false");
    world.settle();
    world.release(0);
    world.settle();
    assert!(world.job_of.is_some());
    assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], "four");
}

/// A free node that has served a tenant of the pool, with this label before.
fn free_again(sharing_of_pool: Sharing, config: &str, before: Option<&str>) -> World {
    let mut world = World::new();
    world.pool.sharing = sharing_of_pool;
    world.pool.nvidia.get_or_insert_default().device_plugin_config = Some(config.into());
    if let Some(before) = before {
        world.label(DEVICE_PLUGIN_CONFIG, before);
    }
    world.reserve();
    world.settle();
    assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], config);
    world.release(0);
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
    world
}

/// The label of a node after it has left its pool.
fn label_outside(world: &World) -> Option<String> {
    let node = outside(world);
    assert!(!node.annotations().contains_key(labels::CHANGED_DEVICE_PLUGIN_CONFIG));
    node.labels().get(DEVICE_PLUGIN_CONFIG).cloned()
}

/// A free node after it has left its pool.
fn outside(world: &World) -> Node {
    let other = HostNodePoolSpec::default();
    let restored = |pool| restored_metadata(&world.node, pool);
    assert_eq!(restored(Some(&world.pool)), None, "it is in its pool");
    assert_eq!(restored(None), restored(Some(&other)));
    let node = match restored(None) {
        Some(metadata) => patched(&world.node, &json!({"metadata": metadata})),
        None => world.node.clone(),
    };
    assert_eq!(restored_metadata(&node, None), None);
    node
}

/// A node that serves a tenant with a MIG layout, and had this layout before; none: no label.
fn serving_with_mig(before: Option<&str>) -> World {
    let mut world = World::new();
    world.pool.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    if let Some(before) = before {
        world.label(MIG_CONFIG, before);
    }
    world.reserve();
    world.settle();
    world.label(MIG_STATE, "success");
    world.settle();
    assert_eq!(world.state(), Some(AssignmentState::Assigned));
    world
}

/// Ends the recycling of a node whose MIG manager does what the label says.
fn recycle_with_mig(world: &mut World) {
    assert_eq!(world.node.labels()[MIG_CONFIG], "all-disabled");
    world.label(MIG_STATE, "success");
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
}

#[test]
fn a_node_that_leaves_its_pool_gets_back_the_mig_layout_that_it_had() {
    for before in [None, Some("all-balanced"), Some("all-disabled")] {
        let mut world = serving_with_mig(before);
        world.release(0);
        world.settle();
        recycle_with_mig(&mut world);
        assert_eq!(
            world.node.labels()[MIG_CONFIG],
            "all-disabled",
            "a free node of the pool"
        );
        let node = outside(&world);
        assert_eq!(node.labels().get(MIG_CONFIG).map(String::as_str), before);
        assert!(!node.labels().contains_key(MIG_STATE) && !node.annotations().contains_key(labels::CHANGED_MIG_CONFIG));
        // Somebody else has chosen a layout since.
        world.label(MIG_CONFIG, "all-2g.20gb");
        world.label(MIG_STATE, "success");
        let node = outside(&world);
        assert_eq!(
            (&*node.labels()[MIG_CONFIG], &*node.labels()[MIG_STATE]),
            ("all-2g.20gb", "success")
        );
    }
}

#[test]
fn a_mig_layout_does_not_outlast_its_tenant_although_the_pool_names_none_any_more() {
    for is_quarantined in [false, true] {
        let mut world = serving_with_mig(None);
        world.pool.nvidia = None;
        world.release(0);
        world.settle();
        assert_eq!(
            (world.state(), &world.job_of),
            (Some(AssignmentState::Scrubbing), &None),
            "the instances of the tenant are still there"
        );
        if is_quarantined {
            world.label(MIG_STATE, "failed");
            world.settle();
            world.release_from_quarantine();
            world.settle();
            assert!(!world.node.labels().contains_key(MIG_STATE), "it is requested again");
        }
        recycle_with_mig(&mut world);
        let restored = restored_metadata(&world.node, Some(&world.pool)).unwrap();
        let node = patched(&world.node, &json!({"metadata": restored}));
        assert!(!node.labels().contains_key(MIG_CONFIG));
    }
}

#[test]
fn a_pool_that_names_one_of_both_gives_back_the_other_only() {
    let mut world = sharing(Sharing::Mig, "four");
    world.pool.nvidia.get_or_insert_default().mig_config = Some("all-1g.10gb".into());
    world.settle();
    world.label(MIG_STATE, "success");
    world.settle();
    world.release(0);
    world.settle();
    recycle_with_mig(&mut world);
    world.pool.nvidia.get_or_insert_default().mig_config = None;
    let restored = restored_metadata(&world.node, Some(&world.pool)).unwrap();
    assert_eq!(
        restored,
        json!({
            "labels": {MIG_CONFIG: null, MIG_STATE: null}, "annotations": {labels::CHANGED_MIG_CONFIG: null},
        })
    );
}

#[test]
fn a_node_that_leaves_its_pool_gets_back_the_configuration_that_it_had() {
    for sharing_of_pool in [Sharing::TimeSlicing, Sharing::Mps] {
        for before in [None, Some("default"), Some("four")] {
            let mut world = free_again(sharing_of_pool, "four", before);
            assert_eq!(label_outside(&world).as_deref(), before, "{sharing_of_pool:?}");
            // The next tenant of the pool does not change what was there before, nor does another configuration of the pool.
            world.pool.nvidia.get_or_insert_default().device_plugin_config = Some("eight".into());
            world.reserve();
            world.settle();
            assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], "eight");
            world.release(0);
            world.settle();
            world.succeed();
            world.succeed();
            assert_eq!(label_outside(&world).as_deref(), before, "{sharing_of_pool:?}");
        }
    }
}

#[test]
fn a_configuration_that_the_platform_has_set_meanwhile_stays() {
    let mut world = free_again(Sharing::TimeSlicing, "four", None);
    world.label(DEVICE_PLUGIN_CONFIG, "own");
    assert_eq!(label_outside(&world).as_deref(), Some("own"));
    world.reserve();
    world.settle();
    assert_eq!(world.node.labels()[DEVICE_PLUGIN_CONFIG], "four");
    world.release(0);
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(label_outside(&world).as_deref(), Some("own"));
}

/// A user who is root on a node can write labels that are not Berth's.
#[test]
fn a_configuration_that_a_tenant_has_set_is_not_restored() {
    for before in [None, Some("default"), Some("mps-4")] {
        let mut world = World::new();
        if let Some(before) = before {
            world.label(DEVICE_PLUGIN_CONFIG, before);
        }
        world.pool.sharing = Sharing::Mps;
        world.pool.nvidia.get_or_insert_default().device_plugin_config = Some("mps-4".into());
        world.reserve();
        world.settle();
        assert_eq!(world.state(), Some(AssignmentState::Assigned));
        world.label(DEVICE_PLUGIN_CONFIG, "of-a-tenant");
        world.release(0);
        world.settle();
        world.succeed();
        world.succeed();
        assert_eq!(world.state(), None);
        assert_eq!(label_outside(&world).as_deref(), before);
    }
}

#[test]
fn unhealthy_gpus_and_late_pods_keep_a_node_from_being_free() {
    let mut world = World::new().recycling();
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
