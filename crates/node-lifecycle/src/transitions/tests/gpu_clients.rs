//! The platform's own programs leave the GPUs of a node before it is scrubbed, and come back.

use super::*;
use berth_api::{PauseSpec, Sharing, labels::PAUSED_FOR_SCRUB};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde_json::Value;

const PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";
const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";
const EXPORTER: &str = "nvidia.com/gpu.deploy.dcgm-exporter";

/// A node of the GPU Operator, whose exporter is switched off, that has left its tenant and is about to be scrubbed. No program uses its GPUs.
fn leaving() -> World {
    let mut world = World::new().serving();
    for (key, value) in [(PLUGIN, "true"), (DCGM, "true"), (EXPORTER, "false")] {
        world.label(key, value);
    }
    world.release(0);
    world
}

/// The same with a program that uses GPUs.
fn leaving_with_a_program() -> World {
    let mut world = leaving();
    world.gpu_clients.push("gpu-operator/nvidia-dcgm-x".into());
    world
}

/// The node while it is scrubbed.
fn scrubbing() -> World {
    let mut world = leaving();
    world.settle();
    world
}

fn value<'a>(world: &'a World, key: &str) -> Option<&'a str> {
    world.node.labels().get(key).map(String::as_str)
}

/// Changes what the device plugin reports.
fn advertise(world: &mut World, gpus: &str) {
    let status = world.node.status.as_mut().unwrap();
    for amounts in [&mut status.capacity, &mut status.allocatable] {
        let amounts = amounts.as_mut().unwrap();
        amounts.get_mut("nvidia.com/gpu").unwrap().0 = gpus.into();
    }
}

/// A pod of a DaemonSet, on nodes of every tenant.
fn daemon(name: &str, spec: &Value) -> Pod {
    let metadata = json!({"name": name, "namespace": "agents"});
    let mut pod = json!({"metadata": metadata, "spec": spec});
    pod["spec"]["tolerations"] = json!([{"key": labels::TENANT, "operator": "Exists"}]);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn programs_leave_before_the_scrub_and_come_back_after_it() {
    let mut world = leaving_with_a_program();
    world.settle();
    assert_eq!(
        (value(&world, PLUGIN), value(&world, DCGM), value(&world, EXPORTER)),
        (Some(PAUSED_FOR_SCRUB), Some(PAUSED_FOR_SCRUB), Some("false"))
    );
    assert_eq!(
        value(&world, "nvidia.com/gpu.deploy.nvsm"),
        None,
        "the node does not have it"
    );
    assert_eq!(
        (world.state(), &world.job_of, world.next()),
        (Some(AssignmentState::Scrubbing), &None, Some(Transition::CheckAfter(1)))
    );
    world.gpu_clients.clear();
    world.settle();
    assert!(world.job_of.is_some(), "the scrub begins");
    advertise(&mut world, "0");
    world.job = JobState::Succeeded;
    assert!(world.step());
    assert_eq!(
        (
            world.state(),
            value(&world, PLUGIN),
            value(&world, DCGM),
            value(&world, EXPORTER)
        ),
        (
            Some(AssignmentState::Validating),
            Some("true"),
            Some("true"),
            Some("false")
        )
    );
    world.settle();
    world.succeed();
    assert_eq!(world.state(), Some(AssignmentState::Validating), "no GPU is advertised");
    let mut broken = world.clone();
    advertise(&mut world, "8");
    world.settle();
    assert_eq!(world.state(), None);
    assert!(world.node.annotations().is_empty(), "{:?}", world.node.annotations());

    broken.now += 900;
    broken.settle();
    let why = broken.node.annotations()[labels::QUARANTINE].clone();
    assert!(why.contains("no nvidia.com/gpu is advertised"), "{why}");
}

#[test]
fn a_gpu_of_another_resource_of_the_vendor_is_advertised_as_well() {
    let mut world = leaving();
    // As on assigned nodes with such a layout.
    world.pool.gpu_resource_name = Some("nvidia.com/mig-1g.10gb".into());
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
}

#[test]
fn another_device_of_the_vendor_is_no_gpu() {
    let mut world = scrubbing();
    advertise(&mut world, "0");
    let allocatable = world.node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    // NVIDIA's network operator has a device plugin as well.
    allocatable.insert("nvidia.com/hostdev".into(), Quantity("8".into()));
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), Some(AssignmentState::Validating));
    advertise(&mut world, "8");
    world.settle();
    assert_eq!(world.state(), None);
}

#[test]
fn gpus_that_pods_claim_are_not_advertised() {
    let mut world = leaving();
    world.pool.sharing = Sharing::Dra;
    advertise(&mut world, "0");
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
}

#[test]
fn images_of_programs_that_leave_are_recorded_until_the_node_is_free() {
    let mut world = leaving();
    world.client_images = ["q/dcgm:4".to_owned(), "q/plugin:1@sha256:ab".to_owned()].into();
    world.settle();
    // They have left, and the scrub begins again.
    world.client_images.clear();
    world.pods.push("berth-vision-abc/late".into());
    world.settle();
    let expected = ["q/dcgm:4".to_owned(), "q/plugin:1@sha256:ab".to_owned()];
    assert!(world.assignment().unwrap().paused_images.iter().eq(&expected));
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), None);
    assert!(world.node.annotations().is_empty(), "{:?}", world.node.annotations());
}

#[test]
fn labels_are_restored_however_the_scrub_ends() {
    let restored = |world: &World| {
        assert_eq!((value(world, PLUGIN), value(world, DCGM)), (Some("true"), Some("true")));
    };
    let mut stuck = leaving_with_a_program();
    stuck.settle();
    stuck.now += 1800;
    stuck.settle();
    assert_eq!(stuck.state(), Some(AssignmentState::Quarantined));
    let why = stuck.node.annotations()[labels::QUARANTINE].clone();
    assert!(why.contains("gpu-operator/nvidia-dcgm-x"), "{why}");
    restored(&stuck);

    let mut failed = scrubbing();
    failed.job = JobState::Failed("gpu-reset: in use".into());
    failed.settle();
    assert_eq!(failed.state(), Some(AssignmentState::Quarantined));
    restored(&failed);
    failed.release_from_quarantine();
    failed.settle();
    assert_eq!(value(&failed, PLUGIN), Some(PAUSED_FOR_SCRUB), "they leave again");
    failed.succeed();
    failed.succeed();
    assert_eq!(failed.state(), None);
    restored(&failed);
}

#[test]
fn only_what_is_still_paused_is_restored() {
    let mut world = scrubbing();
    world.label(PLUGIN, "false");
    world.node.labels_mut().remove(DCGM);
    world.succeed();
    assert_eq!((value(&world, PLUGIN), value(&world, DCGM)), (Some("false"), None));
}

#[test]
fn a_record_that_is_lost_is_made_again() {
    let mut world = scrubbing();
    assert_eq!(
        world.node.annotations()[labels::PAUSED_LABELS],
        "nvidia.com/gpu.deploy.dcgm=true,nvidia.com/gpu.deploy.device-plugin=true"
    );
    world.node.annotations_mut().remove(labels::PAUSED_LABELS);
    world.succeed();
    world.succeed();
    assert_eq!((world.state(), value(&world, PLUGIN)), (None, Some("true")));
}

#[test]
fn a_node_with_nothing_but_the_record_is_not_free() {
    let mut world = World::new();
    world.label(PLUGIN, PAUSED_FOR_SCRUB);
    let record = format!("{PLUGIN}=true");
    world
        .node
        .annotations_mut()
        .insert(labels::PAUSED_LABELS.into(), record);
    world.settle();
    world.succeed();
    world.succeed();
    assert_eq!((world.state(), value(&world, PLUGIN)), (None, Some("true")));
}

#[test]
fn what_others_pause_is_awaited_and_never_changed() {
    const OTHERS: &str = "paused-for-driver-upgrade";
    let mut world = leaving();
    world.label(DCGM, OTHERS);
    world.settle();
    assert_eq!(
        (value(&world, PLUGIN), value(&world, DCGM)),
        (Some("true"), Some(OTHERS))
    );
    assert_eq!(world.job_of, None);
    let mut stuck = world.clone();
    world.label(DCGM, "true");
    world.settle();
    assert!(world.job_of.is_some());

    stuck.now += 1800;
    stuck.settle();
    assert_eq!(
        (stuck.state(), value(&stuck, DCGM)),
        (Some(AssignmentState::Quarantined), Some(OTHERS))
    );
    let why = stuck.node.annotations()[labels::QUARANTINE].clone();
    assert!(why.contains("dcgm is paused-for-driver-upgrade after 1800 s"), "{why}");
}

#[test]
fn an_update_of_the_driver_during_the_scrub_loses_no_label() {
    let mut world = scrubbing();
    // NVIDIA's driver manager appends its own value, and takes it off when it is done.
    world.label(PLUGIN, "paused-for-berth-scrub_paused-for-driver-upgrade");
    world.succeed();
    world.succeed();
    assert_eq!(world.state(), Some(AssignmentState::Validating), "it is still paused");
    world.label(PLUGIN, PAUSED_FOR_SCRUB);
    world.settle();
    assert_eq!((world.state(), value(&world, PLUGIN)), (None, Some("true")));
}

#[test]
fn a_pool_names_labels_of_its_own() {
    let mut world = leaving();
    world.pool.scrub.pause = Some(PauseSpec {
        labels: [("example.com/agent".to_owned(), "on".to_owned())].into(),
        add_labels: vec!["example.com/no-plugin".into(), "example.com/other".into()],
    });
    world.label("example.com/agent", "on");
    world.label("example.com/other", "of the platform");
    world.settle();
    let all = |world: &World| {
        ["example.com/agent", "example.com/no-plugin", "example.com/other"]
            .map(|key| value(world, key).map(str::to_owned))
    };
    let some = |value: &str| Some(value.to_owned());
    let paused = some(PAUSED_FOR_SCRUB);
    assert_eq!(all(&world), [paused.clone(), paused, some("of the platform")]);
    world.succeed();
    assert_eq!(all(&world), [some("on"), None, some("of the platform")]);
}

#[test]
fn pods_that_a_paused_label_keeps_off_are_awaited() {
    let mut world = leaving_with_a_program();
    world.pool.scrub.pause = Some(PauseSpec {
        add_labels: vec!["example.com/no-plugin".into()],
        ..PauseSpec::default()
    });
    let selects = |key: &str, value: &str| {
        let container = |name: &str| json!([{"name": name, "image": format!("q/{key}:{name}")}]);
        json!({"containers": container("main"), "initContainers": container("first"), "nodeSelector": {key: value}})
    };
    let requires = |expression: Value| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression], "matchFields": [field]}],
        }}}})
    };
    let pods = [
        daemon("plugin", &selects(PLUGIN, "true")),
        daemon("of-exporter", &selects(EXPORTER, "false")),
        daemon("elsewhere", &selects("rack", "r1")),
        daemon(
            "client",
            &requires(json!({"key": DCGM, "operator": "In", "values": ["true"]})),
        ),
        daemon("stays", &requires(json!({"key": DCGM, "operator": "Exists"}))),
        daemon(
            "default",
            &requires(json!({"key": "example.com/no-plugin", "operator": "DoesNotExist"})),
        ),
    ];
    let awaited = |world: &World| list_paused_pods(&world.node, &world.assignment().unwrap(), &pods);
    assert!(awaited(&world).is_empty(), "nothing is paused");
    let images = list_client_images(&world.node, &world.pool, &pods);
    let expected = [format!("q/{PLUGIN}:first"), format!("q/{PLUGIN}:main")];
    assert!(images.iter().eq(&expected), "{images:?}");
    world.settle();
    assert_eq!(awaited(&world), ["agents/plugin", "agents/client", "agents/default"]);
}

#[test]
fn a_pod_that_leaves_anyway_or_stays_keeps_no_image() {
    let world = leaving();
    let containers = json!([{"name": "main", "image": "registry.example/victim/model:1"}]);
    let client = daemon(
        "dcgm",
        &json!({"containers": containers, "nodeSelector": {DCGM: "true"}}),
    );
    let count_images = |pod: &Pod| list_client_images(&world.node, &world.pool, [pod]).len();
    assert_eq!(count_images(&client), 1);
    let mut terminating = client.clone();
    terminating.metadata.deletion_timestamp = Some(Time(at(50)));
    let mut intolerant = client.clone();
    intolerant.spec.as_mut().unwrap().tolerations = None;
    let expressions = json!([{"key": DCGM, "operator": "Exists"}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": expressions}],
    }}});
    let stays = daemon("dcgm", &json!({"containers": containers, "affinity": affinity}));
    for pod in [terminating, intolerant, stays] {
        assert_eq!(count_images(&pod), 0, "{pod:?}");
    }
}

#[test]
fn a_pod_that_has_ended_or_never_starts_holds_up_no_scrub() {
    let mut world = leaving();
    world.gpu_clients.clear();
    world.settle();
    let client = daemon("dcgm", &json!({"containers": [], "nodeSelector": {DCGM: "true"}}));
    let assignment = world.assignment().unwrap();
    let is_awaited = |tolerates: bool, status: &Value| {
        let mut pod = client.clone();
        pod.status = Some(serde_json::from_value(status.clone()).unwrap());
        if !tolerates {
            pod.spec.as_mut().unwrap().tolerations = None;
        }
        !list_paused_pods(&world.node, &assignment, [&pod]).is_empty()
    };
    let pending = json!({"phase": "Pending"});
    let running = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
    // A finalizer can hold one that the kubelet has not started.
    let failed = json!({"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"});
    assert!(is_awaited(true, &pending) && is_awaited(true, &running) && is_awaited(false, &running));
    assert!(!is_awaited(false, &pending) && !is_awaited(false, &failed) && !is_awaited(true, &failed));
}
