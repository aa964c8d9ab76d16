//! Variables and mounts by which a pod would get devices that it does not request.

use super::{
    super::*,
    class::{cache, denied, name, pod, spec},
};

#[test]
fn variables_never_choose_devices() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let with = |container: Value| json!({"containers": [container]});
    let off = with(json!({"name": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}));
    assert_eq!(spec(&cache, &off)["containers"][0]["env"].as_array().unwrap().len(), 9);
    let by_key = with(json!({"name": "a", "env": [{"name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}));
    assert_eq!(denied(&cache, &by_key), ["spec.containers[0].env[0]"]);
    let by_prefix =
        with(json!({"name": "a", "envFrom": [{"prefix": "NVIDIA_VISIBLE_", "configMapRef": {"name": "c"}}]}));
    assert_eq!(denied(&cache, &by_prefix), ["spec.containers[0].envFrom[0].prefix"]);
    for name in [
        "NVIDIA_MOFED",
        "NVIDIA_NEW_DEVICES",
        "CUDA_VERSION",
        "DOCKER_RESOURCE_GPU",
    ] {
        let other = with(json!({"name": "a", "env": [{"name": name, "value": "enabled"}]}));
        assert_eq!(denied(&cache, &other), ["spec.containers[0].env[0]"], "{name}");
    }
    let harmless = with(
        json!({"name": "a", "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
        {"name": "NVIDIA_API_KEY", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}),
    );
    assert_eq!(
        spec(&cache, &harmless)["containers"][0]["env"]
            .as_array()
            .unwrap()
            .len(),
        11
    );
    let harmless = with(json!({"name": "a", "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "c"}}]}));
    assert_eq!(spec(&cache, &harmless)["containers"][0]["envFrom"][0]["prefix"], "APP_");
    let by_mount = with(
        json!({"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/var//run/x/../nvidia-container-devices/all"}]}),
    );
    assert_eq!(
        denied(&cache, &by_mount),
        ["spec.containers[0].volumeMounts[0].mountPath"]
    );
}

#[test]
fn people_learn_what_a_path_of_a_mount_may_not_contain() {
    let cache = cache(SchedulingMode::Host, |_| {});
    let mount = json!({"name": "v", "mountPath": "/data/nvidia-container-devices-old"});
    let spec = json!({"containers": [{"name": "a", "volumeMounts": [mount]}]});
    let denied = Pods.translate(&cache, &name(), &pod(&spec)).unwrap_err();
    assert_eq!(denied.len(), 1);
    assert!(
        denied[0].why.contains("contain nvidia-container-devices"),
        "{}",
        denied[0].why
    );
}

#[test]
fn the_class_gives_device_variables_by_name() {
    let cache = cache(SchedulingMode::Host, |policy| {
        policy.pods.device_variables = vec!["NVIDIA_GDS".into()];
    });
    let with = |name: &str| {
        let variable = json!({"name": name, "value": "enabled"});
        json!({"containers": [{"name": "a", "env": [variable]}], "ephemeralContainers": [{"name": "b", "env": [variable]}]})
    };
    let given = spec(&cache, &with("NVIDIA_GDS"));
    for containers in ["containers", "ephemeralContainers"] {
        let variables = json::items(&given[containers][0], &["env"]);
        assert!(variables.iter().any(|variable| variable["name"] == "NVIDIA_GDS"));
    }
    let mut issues = FieldIssues::default();
    build::host_pod(&cache, &name(), &pod(&with("NVIDIA_NVSWITCH")), &mut issues);
    let fields: Vec<String> = { issues.denied.into_iter().chain(issues.parts.left_out) }
        .map(|denied| denied.field)
        .collect();
    assert_eq!(
        fields,
        ["spec.containers[0].env[0]", "spec.ephemeralContainers[0].env[0]"]
    );
}
