//! Golden tests of pods as a whole; the parts have their own.

mod any_spec;
mod capability;
mod class;
mod device_variables;
mod ephemeral;
mod gates;
mod images;
mod late_denials;
mod own_taint;
mod property;
mod reported_status;
mod schema;
mod too_large;

use super::*;
use crate::model::{store::Stored, tenant::test_tenant};
use crate::{model::KindId, registry};
use berth_api::pod_labels;

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
    // What can be added is limited still, and is left out beyond that.
    let debug = |n: usize| json!({"name": format!("d{n}"), "image": "busybox"});
    large["spec"]["ephemeralContainers"] = (0..251).map(debug).collect();
    let translated = Pods.translate(&cache, &name(), &large).unwrap();
    let left_out: Vec<&str> = { translated.parts.left_out.iter() }
        .map(|denied| denied.field.as_str())
        .collect();
    assert_eq!(left_out, ["spec.ephemeralContainers"]);
    assert_eq!(translated.object["spec"].get("ephemeralContainers"), None);
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
