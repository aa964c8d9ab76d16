//! Annotations and labels that programs on the host act on.

use super::{StolenCredential, with};
use serde_json::{Value, json};

pub(super) async fn validate(credential: &StolenCredential) {
    let annotated =
        |object: &Value, key: &str, value: &str| with(object, &json!({"metadata": {"annotations": {key: value}}}));
    let pod = credential.pod(&json!({}));
    let service = credential.object("v1", "Service", &json!({"spec": {"ports": [{"port": 1}]}}));
    let map = credential.object("v1", "ConfigMap", &json!({}));
    let budget = credential.object(
        "policy/v1",
        "PodDisruptionBudget",
        &json!({"spec": {"minAvailable": 1}}),
    );

    for (object, key, value) in [
        (&pod, "downward.berth.dev/ajcdb346irrcl", "a"),
        (&pod, "simulation.berth.dev/run-for", "1s"),
        (&pod, "kubernetes.io/egress-bandwidth", "10M"),
        (
            &pod,
            "container.apparmor.security.beta.kubernetes.io/c",
            "runtime/default",
        ),
        (&pod, "example.com/note", "n"),
        (&pod, "tools.example.com/anything", "n"),
        (&service, "service.kubernetes.io/topology-mode", "Auto"),
        (&service, "metallb.io/address-pool", "teams"),
        (&map, "berth.dev/origin-name", "a"),
    ] {
        credential.expect_allowed(&annotated(object, key, value)).await;
    }
    for (message, object, keys) in [
        (
            "metadata.annotations of pods",
            &pod,
            &[
                "cdi.k8s.io/all",
                "cdi-devices.nri.io/container.c",
                "nvidia.cdi.k8s.io/container.c",
                "cluster-autoscaler.kubernetes.io/safe-to-evict",
                "dev.gvisor.spec.mount.share.type",
                "example.com/other",
                "iam.amazonaws.com/role",
                "io.katacontainers.config.hypervisor.path",
                "ipam.cilium.io/ip-pool",
                "k8s.v1.cni.cncf.io/networks",
                "karpenter.sh/do-not-disrupt",
                "metallb.io/address-pool",
                "note",
                "org.systemd.property.ExecStart",
                "run.oci.handler",
                "sidecar.istio.io/inject",
                "sub.tools.example.com/anything",
                "v1.multus-cni.io/default-network",
                "vault.hashicorp.com/agent-inject",
            ][..],
        ),
        (
            "metadata.annotations of Services",
            &service,
            &[
                "cloud.google.com/neg",
                "example.com/note",
                "external-dns.alpha.kubernetes.io/hostname",
                "lbipam.cilium.io/ips",
                "metallb.io/loadBalancerIPs",
                "service.beta.kubernetes.io/aws-load-balancer-type",
            ][..],
        ),
        (
            "lists for this kind",
            &map,
            &["replicator.v1.mittwald.de/replicate-from", "example.com/note"][..],
        ),
        ("lists for this kind", &budget, &["example.com/note"][..]),
    ] {
        for key in keys {
            credential.expect_denied(message, &annotated(object, key, "x")).await;
        }
    }
    validate_labels(credential, &[&pod, &service, &map, &budget]).await;
}

/// Labels on these objects.
async fn validate_labels(credential: &StolenCredential, objects: &[&Value; 4]) {
    let [pod, service, map, budget] = *objects;
    let labelled = |object: &Value, key: &str| with(object, &json!({"metadata": {"labels": {key: "x"}}}));
    for (object, key) in [
        (pod, "pod.berth.dev/app"),
        (pod, "batch.kubernetes.io/job-name"),
        (pod, "kueue.x-k8s.io/managed"),
        (pod, "example.com/tier"),
        (pod, "teams.example.com/anything"),
        (service, "service.kubernetes.io/headless"),
        (service, "pool"),
        (map, "namespace.berth.dev/x"),
    ] {
        credential.expect_allowed(&labelled(object, key)).await;
    }
    for (object, keys) in [
        (
            pod,
            &[
                "aadpodidbinding",
                "app",
                "applicationId",
                "azure.workload.identity/use",
                "io.cilium.k8s.policy.cluster",
                "kai.scheduler/queue",
                "koordinator.sh/qosClass",
                "pod-group.scheduling.sigs.k8s.io",
                "pool",
                "queue",
                "sidecar.istio.io/inject",
                "sub.teams.example.com/anything",
            ][..],
        ),
        (
            service,
            &[
                "app",
                "batch.kubernetes.io/job-name",
                "example.com/tier",
                "mirror.linkerd.io/exported",
            ][..],
        ),
        (map, &["grafana_dashboard", "pool"][..]),
        (budget, &["app"][..]),
    ] {
        for key in keys {
            credential
                .expect_denied("metadata.labels", &labelled(object, key))
                .await;
        }
    }
    let template = |labels: Value| {
        let requests = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]);
        let spec = json!({"metadata": {"labels": labels}, "spec": {"devices": {"requests": requests}}});
        credential.object("resource.k8s.io/v1", "ResourceClaimTemplate", &json!({ "spec": spec }))
    };
    credential
        .expect_denied("spec.metadata.labels", &template(json!({"app": "x"})))
        .await;
}
