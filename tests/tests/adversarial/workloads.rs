//! Pod escape, and hijacking through fields and metadata, tried as a tenant's admin through the tenant's own API server.

use berth_api::{labels, pod_labels::BOUND};
use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn pod(name: &str, spec: &Value) -> Pod {
    let mut all = json!({"containers": [{"name": "c", "image": "i"}]});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": all})).unwrap()
}

/// A spec with one container, which has these fields.
fn with_container(extra: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    for (key, value) in extra.as_object().unwrap() {
        container[key] = value.clone();
    }
    json!({"containers": [container]})
}

/// Names and specs of pods that reach for the host, and the field that the reason names.
fn refused_pods() -> Vec<(&'static str, Value, &'static str)> {
    let container = |extra: Value| with_container(&extra);
    vec![
        ("host-network", json!({"hostNetwork": true}), "hostNetwork"),
        ("host-pid", json!({"hostPID": true}), "hostPID"),
        ("host-ipc", json!({"hostIPC": true}), "hostIPC"),
        (
            "host-path",
            json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}),
            "hostPath",
        ),
        (
            "capability",
            container(json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})),
            "capabilities",
        ),
        (
            "raw-sockets",
            container(json!({"securityContext": {"capabilities": {"add": ["NET_RAW"]}}})),
            "NET_RAW",
        ),
        (
            "unconfined",
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            "seccompProfile",
        ),
        (
            "host-port",
            container(json!({"ports": [{"containerPort": 1, "hostPort": 1}]})),
            "hostPort",
        ),
        (
            "sysctl",
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            "sysctls",
        ),
        (
            "privileged",
            container(json!({"securityContext": {"privileged": true}})),
            "privileged",
        ),
        ("node-name", json!({"nodeName": "cpu-01"}), "nodeName"),
        (
            "toleration",
            json!({"tolerations": [{"key": "berth.dev/tenant", "operator": "Exists"}]}),
            "tolerations",
        ),
        (
            "selector",
            json!({"nodeSelector": {"berth.dev/tenant": "somebody-else"}}),
            "nodeSelector",
        ),
        (
            "runtime-env",
            container(json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (
            "mofed-env",
            container(json!({"env": [{"name": "NVIDIA_MOFED", "value": "enabled"}]})),
            "NVIDIA_MOFED",
        ),
        (
            "prefix-env",
            container(json!({"envFrom": [{"prefix": "NVIDIA_", "configMapRef": {"name": "c", "optional": true}}]})),
            "envFrom[0].prefix",
        ),
    ]
}

/// The same for profiles, probes and volumes.
fn refused_by_profiles_probes_and_volumes() -> Vec<(&'static str, Value, &'static str)> {
    let mut unmasked = with_container(&json!({"securityContext": {"procMount": "Unmasked"}}));
    // Without a user namespace API servers reject it themselves.
    unmasked["hostUsers"] = false.into();
    let mut device =
        with_container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]}));
    device["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    vec![
        ("proc-mount", unmasked, "procMount"),
        ("device-mount", device, "mountPath"),
        (
            "app-armor",
            json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
            "appArmorProfile",
        ),
        (
            "se-linux",
            json!({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}),
            "seLinuxOptions",
        ),
        (
            "probe-host",
            with_container(&json!({"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}})),
            "livenessProbe",
        ),
        (
            "inline-volume",
            json!({"volumes": [{"name": "v", "csi": {"driver": "not-offered.example.com"}}]}),
            "csi",
        ),
    ]
}

/// The same for what NVIDIA's container toolkit takes for a choice of devices.
fn refused_by_choices_of_devices() -> Vec<(&'static str, Value, &'static str)> {
    let container = |extra: Value| with_container(&extra);
    let mounted = |volume: Value, path: &str| {
        let mut spec = with_container(&json!({"volumeMounts": [{"name": "v", "mountPath": path}]}));
        spec["volumes"] = json!([with_name(volume)]);
        spec
    };
    vec![
        // An image without NVIDIA_VISIBLE_DEVICES would get all GPUs.
        (
            "cuda-env",
            container(json!({"env": [{"name": "CUDA_VERSION", "value": "12.4"}]})),
            "CUDA_VERSION",
        ),
        (
            "secret-env",
            container(json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES",
                "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}}]})),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (
            "init-env",
            json!({"initContainers": [{"name": "i", "image": "i", "env": [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]}]}),
            "spec.initContainers[0].env[0]",
        ),
        (
            "cdi-mount",
            mounted(
                json!({"emptyDir": {}}),
                "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all",
            ),
            "mountPath",
        ),
        (
            "winding-mount",
            mounted(json!({"emptyDir": {}}), "/var/run/x/../nvidia-container-devices/0"),
            "mountPath",
        ),
        (
            "image-mount",
            mounted(json!({"image": {"reference": "i"}}), "/run/nvidia-container-devices/0"),
            "mountPath",
        ),
    ]
}

/// A volume `v`.
fn with_name(mut volume: Value) -> Value {
    volume["name"] = "v".into();
    volume
}

/// Pods whose annotations ask the container runtime for devices (CDI), and what the reason names.
fn refused_by_annotations() -> Vec<(Pod, &'static str)> {
    [
        ("cdi", "cdi.k8s.io/gpus", "nvidia.com/gpu=all"),
        ("cdi-toolkit", "nvidia.cdi.k8s.io/container.c", "nvidia.com/gpu=all"),
        ("cdi-injector", "cdi-devices.nri.io/container.c", "- nvidia.com/gpu=all"),
    ]
    .map(|(name, key, value)| {
        let mut pod = pod(name, &json!({}));
        pod.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        (pod, key)
    })
    .into()
}

pub(crate) async fn pods_that_reach_for_the_host_are_rejected_with_a_reason(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "adv-pods", &cluster("pods", &[("a", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let events: Api<Event> = Api::namespaced(tenant.client.clone(), "default");
    let by_spec = [
        refused_pods(),
        refused_by_profiles_probes_and_volumes(),
        refused_by_choices_of_devices(),
    ];
    let by_spec = by_spec.into_iter().flatten();
    let refused = by_spec.map(|(name, spec, field)| (pod(name, &spec), field));
    let refused: Vec<(Pod, &str)> = refused.chain(refused_by_annotations()).collect();
    for (pod, _) in &refused {
        pods.create(&PostParams::default(), pod)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", pod.name_any()));
    }
    for (pod, field) in &refused {
        let name = &pod.name_any();
        let text = until(&format!("an Event says why {name} does not run"), SOON, async || {
            let about = ListParams::default().fields(&format!("involvedObject.name={name},type=Warning"));
            let list = events.list(&about).await.map_err(|error| error.to_string())?;
            list.items
                .into_iter()
                .find_map(|event| event.message)
                .ok_or_else(|| "no Event".to_owned())
        })
        .await;
        assert!(text.contains(field), "{name}: {text:?} does not name {field}");
        // The Event comes first.
        until(&format!("the condition of {name} says so"), SOON, async || {
            let status = pods.get(name).await.map_err(|error| error.to_string())?.status;
            let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
            let found = conditions
                .iter()
                .any(|c| c.type_ == "berth.dev/Synced" && c.status == "False");
            if found { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    assert!(
        on_host.list(&ListParams::default()).await.unwrap().items.is_empty(),
        "one of them reached the host"
    );
    tenant.delete(&host).await;
}

pub(crate) async fn reserved_labels_and_owners_do_not_cross(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "adv-meta", &cluster("meta", &[("a", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let mut sly = pod("sly", &json!({}));
    sly.metadata.labels = Some(
        [
            ("berth.dev/tenant", "somebody-else"),
            ("berth.dev/managed-by", "nobody"),
            ("kueue.x-k8s.io/queue-name", "the-fast-one"),
            ("kai.scheduler/queue", "the-fast-one"),
            ("app", "mine"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    );
    sly.metadata.annotations = Some(
        [
            ("berth.dev/origin-name", "other"),
            ("berth.dev/origin-uid", "0"),
            ("example.com/note", "mine"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    );
    sly.metadata.finalizers = Some(vec!["example.com/never".into()]);
    pods.create(&PostParams::default(), &sly).await.unwrap();
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let host_pod = until("the pod is on the host", SOON, async || {
        on_host
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .pop()
            .ok_or("not yet")
    })
    .await;
    assert_eq!(host_pod.labels()[labels::TENANT], tenant.id.slug());
    assert_eq!(host_pod.labels()[labels::MANAGED_BY], labels::MANAGED_BY_SYNCER);
    assert_eq!(host_pod.labels()["pod.berth.dev/app"], "mine");
    // Every other key is one that means nothing to programs of the host, or was copied there from the node.
    let harmless = |key: &String| labels::is_reserved(key) || BOUND.contains(&key.as_str());
    assert!(host_pod.labels().keys().all(harmless), "{:?}", host_pod.labels());
    assert_eq!(host_pod.annotations()[labels::ORIGIN_NAME], "sly");
    assert_ne!(host_pod.annotations()[labels::ORIGIN_UID], "0");
    assert!(!host_pod.annotations().contains_key("example.com/note"));
    assert!(host_pod.finalizers().is_empty() && host_pod.owner_references().is_empty());
    // Labels that are set later, through another verb, do not cross either.
    let later = json!({"metadata": {"labels": {"berth.dev/tenant": "again", "later": "yes"}, "finalizers": null}});
    pods.patch(
        "sly",
        &kube::api::PatchParams::default(),
        &kube::api::Patch::Merge(&later),
    )
    .await
    .unwrap();
    until_true("a harmless label arrives", SOON, async || {
        on_host
            .get(&host_pod.name_any())
            .await
            .is_ok_and(|pod| pod.labels().contains_key("pod.berth.dev/later"))
    })
    .await;
    assert_eq!(
        on_host.get(&host_pod.name_any()).await.unwrap().labels()[labels::TENANT],
        tenant.id.slug()
    );
    tenant.delete(&host).await;
}
