//! Pods, new and changed.

use super::{StolenCredential, every_field, expect_denied, with};
use berth_api::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The scheduler makes claims for extended resources that have the name of a DeviceClass.
pub(super) async fn devices_by_class(credential: &StolenCredential) {
    for containers in ["containers", "initContainers"] {
        let pod = |class: &str| {
            let name = format!("deviceclass.resource.kubernetes.io/{class}");
            credential
                .pod(&json!({ containers: [{"name": "device", "image": "i", "resources": {"limits": {name: "1"}}}] }))
        };
        credential.expect_allowed(&pod("gpu")).await;
        credential.expect_denied("DeviceClasses", &pod("other")).await;
    }
}

pub(super) async fn new(credential: &StolenCredential) {
    let volume = |source: &Value| json!({"volumes": [with(&json!({"name": "v"}), source)]});
    let patient = json!({"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 86_400});
    for allowed in [
        json!({}),
        json!({"runtimeClassName": "gvisor", "schedulerName": "gangs", "priorityClassName": "berth-policies-3-never"}),
        with(
            &json!({"serviceAccountName": "s3-reader"}),
            &token_volume("sts.example.com"),
        ),
        with(
            &json!({"serviceAccountName": "s3-reader"}),
            &token_volume("https://vault.example.com:8200"),
        ),
        json!({"serviceAccountName": "no-tokens"}),
        json!({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}),
        json!({"terminationGracePeriodSeconds": 600}),
        volume(&json!({"csi": {"driver": "scratch.example.com", "volumeAttributes": {"size": "1Gi"}}})),
        // The API server writes null for the list.
        volume(&json!({"projected": {}})),
        affinity(
            "podAntiAffinity",
            &json!({"labelSelector": {"matchLabels": {"pod.berth.dev/app": "a"}}}),
        ),
    ] {
        credential.expect_allowed(&credential.pod(&allowed)).await;
    }
    for (message, spec) in [
        // To the labels of a pod for a node that exists, the host adds some of the node's, which another policy denies.
        ("spec.nodeName", json!({"nodeName": "no-node"})),
        ("spec.nodeSelector", json!({"nodeSelector": null})),
        ("spec.nodeSelector", json!({"nodeSelector": {labels::TENANT: "other"}})),
        ("spec.tolerations", json!({"tolerations": [{"operator": "Exists"}]})),
        (
            "spec.tolerations",
            json!({"tolerations": [{"key": labels::TENANT, "operator": "Exists"}]}),
        ),
        (
            "spec.tolerations",
            json!({"tolerations": [{"key": labels::TENANT, "value": "other"}]}),
        ),
        ("spec.serviceAccountName", json!({"serviceAccountName": "powerful"})),
        (
            "spec.automountServiceAccountToken",
            json!({"automountServiceAccountToken": null}),
        ),
        // A Service `docker-resource-gpu` would choose a device.
        ("spec.enableServiceLinks", json!({"enableServiceLinks": true})),
        ("spec.enableServiceLinks", json!({"enableServiceLinks": null})),
        ("spec.dnsPolicy", json!({"dnsPolicy": "ClusterFirst"})),
        ("spec.schedulerName", json!({"schedulerName": "other"})),
        (
            "spec.priorityClassName",
            json!({"priorityClassName": "system-node-critical"}),
        ),
        // The host's default priority, which may be above the band.
        ("spec.priorityClassName", json!({"priorityClassName": null})),
        ("spec.runtimeClassName", json!({"runtimeClassName": "kata"})),
        (
            "spec.volumes may not",
            volume(&json!({"nfs": {"server": "10.0.0.1", "path": "/"}})),
        ),
        (
            "spec.volumes[].csi.driver",
            volume(&json!({"csi": {"driver": "other.example.com"}})),
        ),
        (
            "spec.volumes[].csi.volumeAttributes",
            volume(
                &json!({"csi": {"driver": "scratch.example.com", "volumeAttributes": {"csi.storage.k8s.io/pod.namespace": "other"}}}),
            ),
        ),
        (
            "spec.terminationGracePeriodSeconds",
            json!({"terminationGracePeriodSeconds": 1_000_000_000}),
        ),
        (
            "spec.terminationGracePeriodSeconds",
            json!({"terminationGracePeriodSeconds": 601}),
        ),
        (
            "of probes",
            json!({"containers": [{"name": "c", "image": "i", "livenessProbe": patient}]}),
        ),
        (
            "of probes",
            json!({"initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always", "startupProbe": patient}]}),
        ),
    ] {
        credential.expect_denied(message, &credential.pod(&spec)).await;
    }
    tokens_for_others(credential).await;
    let theirs = json!({"metadata": {"labels": {labels::TENANT: "other"}}});
    credential
        .expect_denied("berth.dev/tenant", &with(&credential.pod(&json!({})), &theirs))
        .await;
}

/// Tokens of service accounts that the class does not list for these audiences.
async fn tokens_for_others(credential: &StolenCredential) {
    for (account, audience) in [
        ("default", "sts.example.com"),
        ("s3-reader", ""),
        // That of the host's API server, if it is named; and what is not listed for this account.
        ("s3-reader", "https://kubernetes.default.svc.cluster.local"),
        ("s3-reader", "other.example.com"),
        ("s3-reader", "sts.example.com,https://vault.example.com:8200"),
        ("no-tokens", "sts.example.com"),
        ("no-tokens", ""),
    ] {
        let spec = with(&json!({"serviceAccountName": account}), &token_volume(audience));
        credential
            .expect_denied("spec.volumes[].projected", &credential.pod(&spec))
            .await;
    }
}

/// A volume with a token of the host's service account.
fn token_volume(audience: &str) -> Value {
    json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": audience}}]}}]})
}

/// A spec with a required and a preferred term about other pods.
fn affinity(kind: &str, term: &Value) -> Value {
    let term = with(&json!({"topologyKey": "kubernetes.io/os"}), term);
    json!({"affinity": {kind: {
        "requiredDuringSchedulingIgnoredDuringExecution": [term],
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}],
    }}})
}

/// Terms about pods of others: the scheduler would place no pod of the host where this one keeps them all away.
pub(super) async fn pods_of_other_namespaces(credential: &StolenCredential) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        for others in [
            json!({"labelSelector": {}, "namespaceSelector": {}}),
            json!({"labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}}),
            json!({"labelSelector": {}, "namespaces": ["kube-system"]}),
        ] {
            let mut spec = affinity(kind, &others);
            for list in [
                "requiredDuringSchedulingIgnoredDuringExecution",
                "preferredDuringSchedulingIgnoredDuringExecution",
            ] {
                let removed = spec["affinity"][kind].as_object_mut().unwrap().remove(list).unwrap();
                credential
                    .expect_denied("pods of other namespaces", &credential.pod(&spec))
                    .await;
                spec["affinity"][kind][list] = removed;
            }
        }
    }
}

pub(super) async fn device_variables(credential: &StolenCredential) {
    let env = |value: &Value| json!({"containers": [{"name": "c", "image": "i", "env": [value]}]});
    let env_from = |source: &Value| json!({"containers": [{"name": "c", "image": "i", "envFrom": [source]}]});
    let many: Vec<Value> = (0..3000)
        .map(|n| json!({"name": format!("SERVICE_{n}_PORT"), "value": "tcp://10.96.0.1:80"}))
        .collect();
    for allowed in [
        env(&json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})),
        // Those of images and applications, those of a Service, and the one that the class gives.
        env(&json!({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"})),
        env(&json!({"name": "NVIDIA_PYTORCH_VERSION", "value": "25.01"})),
        env(&json!({"name": "NVIDIA_API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})),
        env(&json!({"name": "NVIDIA_DCGM_EXPORTER_PORT_9400_TCP_ADDR", "value": "10.96.0.7"})),
        env(&json!({"name": "CUDA_VISIBLE_DEVICES", "value": "0"})),
        env(&json!({"name": "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "value": "1"})),
        env(&json!({"name": "NVIDIA_GDS", "value": "enabled"})),
        env_from(&json!({"configMapRef": {"name": "c"}})),
        env_from(&json!({"prefix": "APP_", "configMapRef": {"name": "c"}})),
        env_from(&json!({"prefix": "NVIDIA_NIM_", "secretRef": {"name": "c"}})),
        env_from(&json!({"prefix": "CUDA_VISIBLE_", "secretRef": {"name": "c"}})),
        // As the syncer makes them for a namespace with hundreds of Services: the evaluation must not cost too much.
        json!({"containers": [{"name": "c", "image": "i", "env": many}, {"name": "d", "image": "i", "env": many}]}),
    ] {
        credential.expect_allowed(&credential.pod(&allowed)).await;
    }
    for denied in [
        env(&json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})),
        env(&json!({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
        json!({"initContainers": [{"name": "i", "image": "i", "env": [{"name": "AMD_VISIBLE_DEVICES", "value": "0"}]}]}),
    ] {
        credential
            .expect_denied("choose devices", &credential.pod(&denied))
            .await;
    }
    for name in [
        "NVIDIA_MOFED",
        "NVIDIA_GDRCOPY",
        "NVIDIA_NVSWITCH",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_NEW_DEVICES",
        "DOCKER_RESOURCE_GPU",
        "HABANA_VISIBLE_DEVICES",
        "NEW_VENDOR_VISIBLE_DEVICES",
    ] {
        let pod = credential.pod(&env(&json!({"name": name, "value": "enabled"})));
        credential.expect_denied("choose devices", &pod).await;
    }
    // Any version makes the runtime give all GPUs, if nothing else says which.
    for version in ["12.4", "none"] {
        let pod = credential.pod(&env(&json!({"name": "CUDA_VERSION", "value": version})));
        credential.expect_denied("choose devices", &pod).await;
    }
    for prefix in [
        "N",
        "NVIDIA_",
        "NVIDIA_VISIBLE_",
        "NVIDIA_NIM_V",
        "DOCKER_RESOURCE_",
        "AMD_VISIBLE_",
    ] {
        let pod = credential.pod(&env_from(&json!({"prefix": prefix, "configMapRef": {"name": "c"}})));
        credential.expect_denied("choose devices", &pod).await;
    }
    // Runtimes can be configured to take such mounts for devices.
    for list in ["containers", "initContainers"] {
        let mounted = |path: &str| {
            let container = json!({"name": "m", "image": "i", "volumeMounts": [{"name": "v", "mountPath": path}]});
            credential.pod(&json!({list: [container], "volumes": [{"name": "v", "emptyDir": {}}]}))
        };
        for path in [
            "/var/run/nvidia-container-devices/all",
            "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all",
            "/var/run/x/../nvidia-container-devices/0",
        ] {
            credential.expect_denied("choose devices", &mounted(path)).await;
        }
        credential.expect_allowed(&mounted("/var/run/devices")).await;
    }
}

pub(super) async fn changes(credential: &StolenCredential, admin: &Client) {
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    let pod = with(&credential.pod(&volumes), &json!({"metadata": {"name": "allowed"}}));
    let pods: Api<Pod> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let more = [
        json!({"key": labels::TENANT, "operator": "Equal", "value": credential.slug, "effect": "NoExecute"}),
        json!({"key": labels::TENANT, "operator": "Equal", "value": "other", "effect": "NoExecute"}),
    ];
    let live: Value = serde_json::to_value(pods.get("allowed").await.unwrap()).unwrap();
    let tolerations = [live["spec"]["tolerations"].as_array().unwrap().as_slice(), &more[1..]].concat();
    let debug = json!([{"name": "d", "image": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]);
    let mounts = json!([{"name": "d", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/run/nvidia-container-devices/0"}]}]);
    for (message, subresource, patch) in [
        ("spec.tolerations", None, json!({"spec": {"tolerations": tolerations}})),
        (
            "berth.dev/tenant",
            None,
            json!({"metadata": {"labels": {labels::TENANT: null}}}),
        ),
        (
            "metadata.annotations",
            None,
            json!({"metadata": {"annotations": {"cni.projectcalico.org/ipAddrs": "[]"}}}),
        ),
        (
            "metadata.annotations of pods",
            None,
            json!({"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}}),
        ),
        (
            "metadata.labels may hold only",
            None,
            json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}}),
        ),
        (
            "metadata.finalizers",
            None,
            json!({"metadata": {"finalizers": ["example.com/forever"]}}),
        ),
        (
            "metadata.ownerReferences",
            None,
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gpu-h100-01", "uid": "x"}]}}),
        ),
        (
            "choose devices",
            Some("ephemeralcontainers"),
            json!({"spec": {"ephemeralContainers": debug}}),
        ),
        (
            "choose devices by their mountPath",
            Some("ephemeralcontainers"),
            json!({"spec": {"ephemeralContainers": mounts}}),
        ),
    ] {
        credential.expect_pod_change_denied(message, subresource, &patch).await;
    }
    changes_of_status(credential).await;
    for (subresource, patch) in [
        (
            None,
            json!({"metadata": {"labels": {"pod.berth.dev/app": "a"}, "annotations": {"example.com/note": "n"}}}),
        ),
        (
            Some("status"),
            json!({"status": {"conditions": [{"type": "example.com/ready", "status": "True"}]}}),
        ),
        (
            Some("ephemeralcontainers"),
            json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}}),
        ),
        (
            Some("ephemeralcontainers"),
            json!({"spec": {"ephemeralContainers": [every_field::ephemeral_container()]}}),
        ),
    ] {
        credential.change_pod(subresource, &patch).await.unwrap();
    }
    // Requests of the host's admin are allowed.
    let admins: Api<Pod> = Api::namespaced(admin.clone(), &credential.namespace);
    let patch = json!({"metadata": {"annotations": {"cni.projectcalico.org/podIP": "10.1.1.1/32"}}});
    admins
        .patch("allowed", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    // And the syncer may still change a pod that others have changed.
    let patch = json!({"metadata": {"annotations": {"example.com/note": "n"}}});
    credential.change_pod(None, &patch).await.unwrap();
    deletions(credential, admin, &pods).await;
    pods.delete("allowed", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// Changes of the status of the pod `allowed`.
async fn changes_of_status(credential: &StolenCredential) {
    for (message, patch) in [
        // A Service would get these addresses as endpoints, and traffic would go there.
        (
            "not its addresses",
            json!({"status": {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}}),
        ),
        ("not its addresses", json!({"status": {"phase": "Running"}})),
        // The scheduler counts these for the node.
        (
            "not its addresses",
            json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": "1000"}, "resources": {"requests": {"cpu": "1000"}}}]}}),
        ),
        (
            "through a pod's status",
            json!({"metadata": {"labels": {labels::TENANT: "other"}}}),
        ),
        // Nobody could delete the pod, and its node would never be free.
        (
            "through a pod's status",
            json!({"metadata": {"finalizers": ["example.com/forever"]}}),
        ),
    ] {
        credential
            .expect_pod_change_denied(message, Some("status"), &patch)
            .await;
    }
}

/// A deletion must not give a pod more time than the class does: nobody could use its node meanwhile.
async fn deletions(credential: &StolenCredential, admin: &Client, pods: &Api<Pod>) {
    // A pod without a node goes at once, whatever the deletion says.
    let pod = with(&credential.pod(&json!({})), &json!({"metadata": {"name": "placed"}}));
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "placed"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}});
    let path = format!("/api/v1/namespaces/{}/pods/placed/binding", credential.namespace);
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&binding).unwrap())
        .unwrap();
    admin.request::<Value>(request).await.unwrap();
    let endless = DeleteParams {
        dry_run: true,
        ..DeleteParams::default().grace_period(1_000_000_000)
    };
    expect_denied("grace period of the deletion", pods.delete("placed", &endless).await);
    let allowed = DeleteParams {
        dry_run: true,
        ..DeleteParams::default().grace_period(600)
    };
    pods.delete("placed", &allowed).await.unwrap();
    pods.delete("placed", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}
