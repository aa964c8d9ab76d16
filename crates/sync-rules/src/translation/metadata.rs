//! Labels and annotations, for every kind.
//!
//! | key | rule |
//! |---|---|
//! | `berth.dev/…` and subdomains | Berth's own, never copied; except annotations under `simulation.berth.dev/`, which only simulated kubelets read. Those under `scheduling.berth.dev/` are read, see `pod::gang` |
//! | labels of schedulers and queues | not copied: on the host only the platform sets them; in the tenant they keep their meaning |
//! | topology labels of the node | not copied: each side's API server sets them when the pod is bound |
//! | annotations with effect on the node or its network | denied |
//! | annotations that are deprecated or for the API server | not copied |
//! | everything else | copied |

use crate::model::{DeniedField, json};
use berth_api::labels::is_reserved;
use serde_json::{Map, Value, json};

/// Domains whose labels and annotations steer schedulers and queues of the host.
const SCHEDULER_DOMAINS: &[&str] = &[
    "kai.scheduler",
    "kueue.x-k8s.io",
    "run.ai",
    "runai",
    "scheduling.k8s.io",
    "scheduling.run.ai",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
    "volcano.sh",
];

/// Labels that an API server copies from the node when a pod is bound.
const BOUND_LABELS: &[&str] = &["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// Annotations that act on the node, its runtime or its network: (domain or whole key, why).
pub const DENIED_ANNOTATIONS: &[(&str, &str)] = &[
    ("cdi.k8s.io", "devices are assigned by resource requests only"),
    ("cni.projectcalico.org", "the pod network is the platform's"),
    ("io.cilium", "the pod network is the platform's"),
    ("io.kubernetes.cri", "the container runtime is the platform's"),
    ("io.kubernetes.cri-o", "the container runtime is the platform's"),
    ("k8s.ovn.org", "the pod network is the platform's"),
    ("k8s.v1.cni.cncf.io", "the pod network is the platform's"),
    (
        "kubernetes.io/config.hash",
        "static pods cannot be made through the API",
    ),
    (
        "kubernetes.io/config.mirror",
        "mirror pods cannot be made through the API",
    ),
    (
        "kubernetes.io/config.seen",
        "static pods cannot be made through the API",
    ),
    (
        "kubernetes.io/config.source",
        "static pods cannot be made through the API",
    ),
    ("ovn.kubernetes.io", "the pod network is the platform's"),
];

/// Annotations that only the tenant's own API server reads, or that repeat a field.
const LOCAL_ANNOTATIONS: &[&str] = &[
    "container.apparmor.security.beta.kubernetes.io",
    "control-plane.alpha.kubernetes.io",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/limit-ranger",
    "kubernetes.io/psp",
    "scheduler.alpha.kubernetes.io",
    "seccomp.security.alpha.kubernetes.io",
];

/// Prefix of annotations that drive simulated kubelets. Real ones do not know them.
const SIMULATION: &str = "simulation.berth.dev/";

/// Whether a key belongs to a domain or one below it.
pub fn in_domain(key: &str, domain: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        // Container runtimes use names without a slash: `io.kubernetes.cri-o.Devices`.
        return key
            .strip_prefix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    };
    key == domain || prefix == domain || prefix.strip_suffix(domain).is_some_and(|sub| sub.ends_with('.'))
}

fn is_schedulers(key: &str) -> bool {
    SCHEDULER_DOMAINS.iter().any(|domain| in_domain(key, domain))
}

/// Whether a label of a tenant's object is on its host object as well, so that selectors may ask for it.
pub fn crosses(key: &str) -> bool {
    !is_reserved(key) && !is_schedulers(key)
}

/// Trims a host object of which only its existence and origin matter.
pub fn only(object: &mut Value) {
    *object = json!({"metadata": object.get_mut("metadata").map(Value::take).unwrap_or_default()});
}

/// Trims a host object of which only its origin and its status matter.
pub fn with_status(object: &mut Value) {
    let mut take = |field: &str| object.get_mut(field).map(Value::take).unwrap_or_default();
    *object = json!({"metadata": take("metadata"), "status": take("status")});
}

/// Removes kubectl's annotation, which is as long as the object itself.
pub fn without_last_applied(object: &mut Value) {
    let annotations = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Labels of the host object.
pub fn labels(object: &Value) -> Map<String, Value> {
    json::strings(object, &["metadata", "labels"])
        .into_iter()
        .filter(|(key, _)| crosses(key) && !BOUND_LABELS.contains(&key.as_str()))
        .map(|(key, value)| (key, value.into()))
        .collect()
}

/// Annotations of the host object; denied ones are added to `denied`.
pub fn annotations(object: &Value, denied: &mut Vec<DeniedField>) -> Map<String, Value> {
    let mut copied = Map::new();
    for (key, value) in json::strings(object, &["metadata", "annotations"]) {
        if let Some((_, why)) = DENIED_ANNOTATIONS.iter().find(|(domain, _)| in_domain(&key, domain)) {
            denied.push(DeniedField::new(format!("metadata.annotations[{key}]"), *why));
        } else if key.starts_with(SIMULATION)
            || !(is_reserved(&key)
                || is_schedulers(&key)
                || LOCAL_ANNOTATIONS.iter().any(|domain| in_domain(&key, domain)))
        {
            copied.insert(key, value.into());
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_and_scheduler_labels_stay_in_the_tenant() {
        let object = json!({"metadata": {"labels": {
            "app": "a", "berth.dev/tenant": "other", "x.berth.dev/y": "z", "kueue.x-k8s.io/queue-name": "q",
            "kai.scheduler/queue": "q", "runai/queue": "q", "topology.kubernetes.io/zone": "z", "batch.kubernetes.io/job-name": "j"
        }}});
        assert_eq!(
            Value::Object(labels(&object)),
            json!({"app": "a", "batch.kubernetes.io/job-name": "j"})
        );
    }

    #[test]
    fn annotations_are_copied_dropped_or_denied() {
        let object = json!({"metadata": {"annotations": {
            "note": "n", "simulation.berth.dev/run-for": "5s", "berth.dev/applied-hash": "x",
            "kubernetes.io/config.mirror": "m", "cdi.k8s.io/vendor": "all", "k8s.v1.cni.cncf.io/networks": "host",
            "io.kubernetes.cri.untrusted-workload": "true", "kubectl.kubernetes.io/last-applied-configuration": "{}"
        }}});
        let mut denied = Vec::new();
        let copied = annotations(&object, &mut denied);
        assert_eq!(
            Value::Object(copied),
            json!({"note": "n", "simulation.berth.dev/run-for": "5s"})
        );
        let fields: Vec<_> = denied.iter().map(|denied| denied.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "metadata.annotations[cdi.k8s.io/vendor]",
                "metadata.annotations[io.kubernetes.cri.untrusted-workload]",
                "metadata.annotations[k8s.v1.cni.cncf.io/networks]",
                "metadata.annotations[kubernetes.io/config.mirror]"
            ]
        );
    }
}
