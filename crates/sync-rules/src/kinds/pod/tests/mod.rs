//! Golden tests of pods as a whole; the parts have their own.

mod capability;
mod class;
mod gates;
mod own_taint;
mod property;
mod schema;
mod too_large;

use super::*;
use crate::model::{store::Stored, tenant::test_tenant};
use crate::{model::KindId, registry};
use berth_api::pod_labels;
use proptest::prelude::*;

pub(super) fn cache() -> Cache {
    let cache = registry::new_cache(test_tenant());
    let service = json!({"metadata": {"name": "web", "namespace": "research", "resourceVersion": "1"},
        "spec": {"clusterIP": "10.96.5.5", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}});
    cache
        .stores
        .tenant(KindId::Service)
        .written(Name::new("research", "web"), Stored::new(&service));
    cache
}

pub(super) fn name() -> Name {
    Name::new("research", "train-0")
}

/// A pod as the tenant's API server stores it.
pub(super) fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": "research", "uid": "pod-uid", "resourceVersion": "7", "generation": 1,
            "labels": {"job": "train", "berth.dev/tenant": "other"}, "annotations": {"note": "x", "simulation.berth.dev/run-for": "3s"},
            "ownerReferences": [{"kind": "Job"}], "finalizers": ["batch.kubernetes.io/job-tracking"]},
        "spec": {
            "containers": [{
                "name": "main", "image": "trainer:1", "command": ["train"], "imagePullPolicy": "IfNotPresent",
                "env": [
                    {"name": "POD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
                    {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode", "optional": true}}},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "creds", "key": "key"}}},
                    {"name": "TWICE", "value": "1"}, {"name": "TWICE", "value": "2"}],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8", "cpu": "4"}},
                "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}],
                "securityContext": {"runAsNonRoot": true},
                "volumeMounts": [{"name": "api", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}]
            }],
            "volumes": [
                {"name": "config", "configMap": {"name": "settings", "defaultMode": 420}},
                {"name": "secret", "secret": {"secretName": "creds", "defaultMode": 420}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}]}},
                {"name": "api", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": "default",
            "serviceAccount": "default", "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            "nodeSelector": {"nvidia.com/gpu.product": "H100"}, "imagePullSecrets": [{"name": "registry"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job": "train"}}},
                {"topologyKey": "kubernetes.io/hostname", "namespaces": ["a", "b"], "labelSelector": {}}]}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"job": "train"}}}]
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"}
    })
}

/// Puts the host's pod into the store.
fn put_host(cache: &Cache, spec: &Value, annotations: &Value) {
    let host = json!({"metadata": {"name": "p", "resourceVersion": "1", "annotations": annotations}, "spec": spec});
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
}

#[test]
fn a_pod_that_runs_follows_labels_and_policies_although_it_is_denied() {
    let cache = cache();
    put_host(&cache, &json!({"nodeName": "node-1"}), &json!({}));
    let mut denied = pod();
    denied["spec"]["nodeName"] = "node-1".into();
    denied["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
    denied["metadata"]["labels"]["later"] = "yes".into();
    denied["metadata"]["annotations"]["kubernetes.io/ingress-bandwidth"] = "1M".into();
    denied["metadata"]["annotations"]["io.katacontainers.config.hypervisor.path"] = "/tmp/x".into();
    assert!(Pods.translate(&cache, &name(), &denied).is_err());
    let reduce = |host: &Value| match Pods.when_denied(&cache, &name(), &denied, host) {
        WhenDenied::Reduce(object) => object,
        other => panic!("{other:?}"),
    };
    let reduced = reduce(&json!({}));
    assert_eq!(reduced["spec"], json!({}), "nothing of what runs changes");
    let (labels, annotations) = (&reduced["metadata"]["labels"], &reduced["metadata"]["annotations"]);
    assert_eq!(labels[pod_labels::host_key("later")], "yes");
    // No policy selects it, so that it is open: the label goes with the first policy that does.
    assert_eq!(labels[labels::NETWORK_EGRESS], labels::NETWORK_OPEN);
    assert_eq!(annotations["kubernetes.io/ingress-bandwidth"], "1M");
    assert_eq!(annotations.get("io.katacontainers.config.hypervisor.path"), None);
    let applied = annotations[labels::APPLIED_KEYS].as_str().unwrap();
    assert!(
        applied.contains(labels::NETWORK_EGRESS) && !applied.contains(labels::APPLIED_KEYS),
        "{applied}"
    );
    // Where it may run was decided at its creation.
    assert_eq!(labels.get(labels::SHARED_NODES), None);
    let shared = reduce(&json!({"metadata": {"annotations": {(labels::SHARED_POOLS): "cpu"}}}));
    assert_eq!(
        shared["metadata"]["labels"][labels::SHARED_NODES],
        labels::SHARED_NODES_ALLOWED
    );
    assert_eq!(shared["metadata"]["annotations"][labels::SHARED_POOLS], "cpu");
    // One that waits would start with what is denied.
    put_host(&cache, &json!({}), &json!({}));
    assert_eq!(
        Pods.when_denied(&cache, &name(), &denied, &json!({})),
        WhenDenied::Withdraw
    );
}

fn translate(pod: &Value) -> Result<Translated, Vec<DeniedField>> {
    Pods.translate(&cache(), &name(), pod)
}

fn denied(pod: &Value) -> Vec<String> {
    translate(pod)
        .unwrap_err()
        .iter()
        .map(|denied| denied.field.clone())
        .collect()
}

#[test]
fn annotations_that_stay_in_the_tenant_are_shown_by_the_downward_api() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({"note": "x", "karpenter.sh/do-not-disrupt": "true",
        "kubernetes.io/egress-bandwidth": "10M"});
    pod["spec"]["volumes"][3]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] = "metadata.annotations".into();
    let translated = translate(&pod).unwrap();
    let annotations = &translated.object["metadata"]["annotations"];
    assert_eq!(
        annotations[downward::annotation("metadata.annotations")],
        "karpenter.sh/do-not-disrupt=\"true\"\nkubernetes.io/egress-bandwidth=\"10M\"\nnote=\"x\""
    );
    assert_eq!(annotations["kubernetes.io/egress-bandwidth"], "10M");
    assert!(annotations.get("note").is_none() && annotations.get("karpenter.sh/do-not-disrupt").is_none());
    let ignored: Vec<&str> = translated.ignored.iter().map(|issue| issue.field.as_str()).collect();
    assert!(
        ignored.contains(&"metadata.annotations[karpenter.sh/do-not-disrupt]"),
        "{ignored:?}"
    );
}

#[test]
fn a_pod_that_has_a_node_keeps_what_is_beyond_the_limits() {
    let cache = cache();
    let mut large = pod();
    large["spec"]["readinessGates"] = vec![json!({"conditionType": "example.com/ready"}); 121].into();
    large["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
    let denied = |pod: &Value| -> Vec<String> {
        let denied = Pods.translate(&cache, &name(), pod).err().unwrap_or_default();
        denied.iter().map(|denied| denied.field.clone()).collect()
    };
    let field = "spec.readinessGates and spec.schedulingGates";
    assert_eq!(denied(&large), [field]);
    let host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"nodeName": "n"}});
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host));
    assert_eq!(denied(&large), [field], "it may still be created again");
    large["spec"]["nodeName"] = "n".into();
    assert!(denied(&large).is_empty());
    // What can be added is limited still.
    let debug = |n: usize| json!({"name": format!("d{n}"), "image": "busybox"});
    large["spec"]["ephemeralContainers"] = (0..251).map(debug).collect();
    assert_eq!(denied(&large), ["spec.ephemeralContainers"]);
}

#[test]
fn annotations_that_act_on_the_node_are_denied_unless_the_class_lists_them() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({"v1.multus-cni.io/default-network": "host",
        "io.katacontainers.config.hypervisor.path": "/bin/sh"});
    assert_eq!(
        denied(&pod),
        [
            "metadata.annotations[io.katacontainers.config.hypervisor.path]",
            "metadata.annotations[v1.multus-cni.io/default-network]"
        ]
    );
    let mut tenant = test_tenant();
    std::sync::Arc::make_mut(&mut tenant.policy).pods.annotations = vec!["v1.multus-cni.io/*".into()];
    let denied = Pods.translate(&registry::new_cache(tenant), &name(), &pod).unwrap_err();
    assert_eq!(denied.len(), 1, "{denied:?}");
}

#[test]
fn a_training_pod() {
    insta::assert_yaml_snapshot!(translate(&pod()).unwrap().object);
}

#[test]
fn pods_use_the_tenants_dns_server_and_their_own_settings_are_merged() {
    let mut cache = cache();
    cache.tenant.dns_address = Some("10.96.0.50".into());
    let mut pod = pod();
    pod["spec"]["dnsConfig"] = json!({"searches": ["corp.example"], "options": [{"name": "ndots", "value": "2"}]});
    let spec = Pods.translate(&cache, &name(), &pod).unwrap().object["spec"].take();
    assert_eq!(spec["dnsPolicy"], "None");
    insta::assert_yaml_snapshot!(spec["dnsConfig"]);
}

#[test]
fn all_denied_fields_are_named_at_once() {
    let mut pod = pod();
    let spec = &mut pod["spec"];
    spec["hostNetwork"] = true.into();
    spec["hostPID"] = true.into();
    spec["nodeName"] = "gpu-1".into();
    spec["runtimeClassName"] = "kata".into();
    spec["priorityClassName"] = "system-node-critical".into();
    spec["somethingNew"] = json!({"a": 1});
    spec["nodeSelector"]["berth.dev/tenant"] = "other".into();
    spec["tolerations"] = json!([{"key": "berth.dev/state", "operator": "Exists"}]);
    spec["volumes"] =
        json!([{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "csi": {"driver": "any.example.com"}}]);
    let container = &mut spec["containers"][0];
    container["ports"][0]["hostPort"] = 80.into();
    container["securityContext"]["privileged"] = true.into();
    container["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    container["livenessProbe"] = json!({"httpGet": {"host": "169.254.169.254", "port": 80}});
    let mut fields = denied(&pod);
    fields.sort();
    insta::assert_yaml_snapshot!(fields);
}

#[test]
fn a_toleration_of_everything_does_not_reach_the_platforms_taints() {
    let mut pod = pod();
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let object = translate(&pod).unwrap().object;
    for toleration in json::items(&object, &["spec", "tolerations"]) {
        let key = json::text(toleration, &["key"]).unwrap();
        assert!(key == labels::TENANT || !labels::is_reserved(key), "{toleration}");
    }
}

#[test]
fn a_bound_pod_may_have_a_node_name() {
    let mut pod = pod();
    pod["spec"]["nodeName"] = "gpu-1".into();
    pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
    assert!(translate(&pod).is_ok());
    assert_eq!(Pods.desired_state(&cache(), &name(), &pod), DesiredState::Once);
}

#[test]
fn a_pod_that_has_finished_in_the_tenant_alone_is_still_followed() {
    let cache = cache();
    let state = |phase: &str, conditions: &Value| {
        let mut pod = pod();
        pod["spec"]["nodeName"] = "gpu-1".into();
        pod["status"] = json!({"phase": phase, "conditions": conditions});
        Pods.desired_state(&cache, &name(), &pod)
    };
    let bound = json!([{"type": "PodScheduled", "status": "True"}]);
    assert_eq!(state("Succeeded", &bound), DesiredState::Leave, "it is not on the host");
    put_host(&cache, &json!({"nodeName": "gpu-1"}), &json!({}));
    assert_eq!(state("Succeeded", &bound), DesiredState::Once);
    assert_eq!(state("Failed", &json!([])), DesiredState::Sync);
    let finished = json!({"metadata": {"name": "p", "resourceVersion": "2"}, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Failed"}});
    let store = cache.stores.host(KindId::Pod);
    store.written(name(), Stored::new(&finished));
    assert_eq!(state("Succeeded", &bound), DesiredState::Leave);
}

#[test]
fn status_comes_back_with_the_tenants_names_and_generation() {
    let cache = cache();
    let host_name = resource::host_name(KindId::Pod, &name());
    let host_pod = json!({"metadata": {"name": host_name, "resourceVersion": "9"}, "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running", "podIP": "10.1.0.7", "hostIP": "192.168.0.1", "qosClass": "Burstable", "observedGeneration": 4,
            "conditions": [{"type": "PodScheduled", "status": "True", "observedGeneration": 4}, {"type": "example.com/gate", "status": "False"}],
            "containerStatuses": [{"name": "main", "ready": true, "state": {"waiting": {"reason": "X", "message": format!("pod {host_name} waits")}}}]}});
    cache.stores.host(KindId::Pod).written(name(), Stored::new(&host_pod));
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}});
    cache
        .stores
        .tenant(KindId::Node)
        .written(Name::new("", "gpu-1"), Stored::new(&node));
    let mut tenant = pod();
    tenant["spec"]["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    tenant["status"]["conditions"] = json!([{"type": "example.com/gate", "status": "True"}]);
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let denied = [DeniedField::new("spec.x", "no")];
    let observation = Observation {
        tenant: &tenant,
        host: &host_pod,
        in_sync: true,
        denied: &denied,
        now,
    };
    assert_eq!(
        Pods.sync_status(&cache, &name(), &observation),
        [TenantWrite::Bind { node: "gpu-1".into() }]
    );
    let mut tenant = tenant.clone();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    let observation = Observation {
        tenant: &tenant,
        ..observation
    };
    let writes = Pods.sync_status(&cache, &name(), &observation);
    let [TenantWrite::Status(status)] = writes.as_slice() else {
        panic!("{writes:?}")
    };
    insta::assert_yaml_snapshot!(status);
    let gates = Pods.host_status(&tenant, &host_pod).unwrap();
    assert_eq!(
        gates,
        json!({"conditions": [{"type": "example.com/gate", "status": "True"}]})
    );
}

#[test]
fn a_disruption_in_the_tenant_stays_while_the_host_pod_ends() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let disruption =
        |status: &str, reason: &str| json!({"type": "DisruptionTarget", "status": status, "reason": reason});
    let reason_after = |tenant_conditions: Value, host_conditions: Value| {
        let mut tenant = pod();
        tenant["spec"]["nodeName"] = "gpu-1".into();
        tenant["status"] = json!({"phase": "Running", "conditions": tenant_conditions});
        let host =
            json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "conditions": host_conditions}});
        let observation = Observation {
            tenant: &tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now,
        };
        let writes = Pods.sync_status(&cache(), &name(), &observation);
        let [TenantWrite::Status(status)] = &writes[..] else {
            panic!("{writes:?}")
        };
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut found = conditions.into_iter();
        found
            .find(|condition| condition["type"] == "DisruptionTarget")
            .map(|condition| (condition["status"].clone(), condition["reason"].clone()))
    };
    let known = |status: &str, reason: &str| Some((json!(status), json!(reason)));
    let stopped = || json!([disruption("True", "OutsideSchedule")]);
    let ready = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(reason_after(stopped(), ready.clone()), known("True", "OutsideSchedule"));
    let evicted = json!([disruption("True", "EvictionByEvictionAPI")]);
    assert_eq!(
        reason_after(stopped(), evicted.clone()),
        known("True", "OutsideSchedule")
    );
    assert_eq!(
        reason_after(ready.clone(), evicted),
        known("True", "EvictionByEvictionAPI")
    );
    // The host withdraws a preemption that did not happen.
    assert_eq!(
        reason_after(stopped(), json!([disruption("False", "")])),
        known("False", "")
    );
    assert_eq!(reason_after(json!([disruption("False", "")]), ready), None);
}

#[test]
fn ephemeral_containers_of_the_platform_are_not_shown() {
    let cache = cache();
    let mut tenant = pod();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    let shown = |tenant: &Value, statuses: Value| {
        let host = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "ephemeralContainerStatuses": statuses}});
        let observation = Observation {
            tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        match Pods.sync_status(&cache, &name(), &observation).as_slice() {
            [TenantWrite::Status(status)] => status.get("ephemeralContainerStatuses").cloned(),
            other => panic!("{other:?}"),
        }
    };
    let [own, platforms] = ["debug", "debugger-x7k2p"].map(|name| json!({"name": name, "state": {"running": {}}}));
    assert_eq!(shown(&tenant, json!([platforms])), None);
    tenant["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    assert_eq!(shown(&tenant, json!([platforms, own])), Some(json!([own])));
}

#[test]
fn a_lost_pod_fails_and_keeps_the_reason_the_host_gave() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut tenant = pod();
    tenant["status"] = json!({"phase": "Running", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}]});
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("PreemptionByScheduler"))
    );
    tenant["status"] = json!({
        "phase": "Running",
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": "2027-01-15T07:00:00Z"},
            {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "2027-01-15T07:00:00Z"},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2027-01-15T07:00:00Z"},
        ],
        "initContainerStatuses": [
            {"name": "first", "ready": true, "started": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "sidecar", "ready": true, "started": true, "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}}},
        ],
        "containerStatuses": [{
            "name": "main", "ready": true, "started": true, "containerID": "containerd://1", "restartCount": 2,
            "state": {"running": {"startedAt": "2027-01-15T07:00:00Z"}},
        }],
    });
    insta::assert_yaml_snapshot!(Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap());
    let tombstone = json!({"status": {"phase": "Succeeded"}});
    assert_eq!(
        Pods.lost_status(&cache(), &name(), &tenant, Some(&tombstone), now)
            .unwrap()["phase"],
        "Succeeded"
    );
    tenant["status"] = json!({"phase": "Succeeded"});
    assert_eq!(
        Pods.lost_status(&cache(), &name(), &tenant, None, now),
        None,
        "what finished stays finished"
    );
}

#[test]
fn a_deleted_pod_that_finalizers_keep_ends() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut tenant = pod();
    tenant["metadata"]["deletionTimestamp"] = "2027-01-15T07:00:00Z".into();
    tenant["spec"]["nodeName"] = "gpu-1".into();
    tenant["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": true, "state": {"running": {}}}]});
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now).unwrap();
    assert_eq!(status["phase"], "Failed");
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    let conditions = json::items(&status, &["conditions"]);
    assert!(
        conditions.iter().all(|condition| condition["status"] == "False"),
        "{conditions:?}"
    );
    let succeeded = json!({"status": {"phase": "Succeeded"}});
    let status = Pods
        .lost_status(&cache(), &name(), &tenant, Some(&succeeded), now)
        .unwrap();
    assert_eq!(status["phase"], "Succeeded");
    tenant["spec"]["nodeName"] = Value::Null;
    let status = Pods.lost_status(&cache(), &name(), &tenant, None, now);
    assert_eq!(status, None, "it never ran");
}

fn key() -> impl Strategy<Value = String> {
    let known = spec::SPEC
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect::<Vec<_>>();
    prop_oneof![prop::sample::select(known), "[a-z]{1,8}"]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        "[a-z/.]{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever a spec holds, translation does not panic, gives the same twice, and never lets a forbidden field through.
    #[test]
    fn no_spec_gets_anything_forbidden_through(spec in prop::collection::btree_map(key(), anything(), 0..8)) {
        let mut pod = pod();
        for (key, value) in spec {
            pod["spec"][key] = value;
        }
        let (first, second) = (translate(&pod), translate(&pod));
        match (first, second) {
            (Ok(first), Ok(second)) => {
                prop_assert_eq!(json::hash(&first.object), json::hash(&second.object));
                let spec = first.object["spec"].as_object().unwrap();
                for (key, value) in spec {
                    prop_assert!(spec::SPEC.iter().any(|(known, _)| known == key), "{key}");
                    let forbidden = ["hostNetwork", "hostPID", "hostIPC", "nodeName", "serviceAccountName", "runtimeClassName", "schedulerName"];
                    prop_assert!(!forbidden.contains(&key.as_str()) || json::is_unset(value), "{key}");
                }
                prop_assert_eq!(&spec["nodeSelector"][labels::TENANT], &json!(test_tenant().slug));
                prop_assert_eq!(&spec["automountServiceAccountToken"], &json!(false));
                prop_assert_eq!(&spec["enableServiceLinks"], &json!(false));
                for volume in json::items(&first.object, &["spec", "volumes"]) {
                    let allowed = ["name", "configMap", "secret", "emptyDir", "image", "downwardAPI", "projected", "persistentVolumeClaim"];
                    prop_assert!(volume.as_object().unwrap().keys().all(|key| allowed.contains(&key.as_str())), "{volume}");
                }
            }
            (Err(first), Err(second)) => prop_assert_eq!(first, second),
            _ => prop_assert!(false, "translated once and denied once"),
        }
    }
}
