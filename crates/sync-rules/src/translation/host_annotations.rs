//! Annotations that programs on a host act on: the network of its nodes, container runtimes, devices, load balancers,
//! webhooks, agents. Only annotations on an allow-list reach the host (see [`metadata`](super::metadata)); these tables say
//! for which of the others the tenant gets an answer.
//!
//! | table | what the annotation asks for | without it |
//! |---|---|---|
//! | [`LOAD_BALANCERS`] | another address, or less exposure, from a load balancer | a Service of type LoadBalancer is denied: it could be open to the internet instead of internal. Services of other types have no load balancer: an Event |
//! | [`DENIED`] | more of the node, or something other than the object says: a network, a device, a hypervisor's option, an identity. Only the platform's programs could do it | the object would be another one than the tenant asked for: denied |
//! | [`IGNORED`] | less (no eviction, no sidecar), or something beside the object that a program in the tenant can do as well: a sidecar, a DNS record, a log parser | the object works as on a cluster without that program: an Event |
//! | none | something of the tenant's own tools (kubectl, Helm, Argo CD, Prometheus, checksums) | nothing is lost: no Event |
//!
//! Keys that read as harmless but make programs of the host execute commands or connect to addresses (checks of monitoring
//! agents, hooks of backups) are in [`IGNORED`] because the object works without them. The allow-list is what protects the host;
//! a row that is missing here costs a message.

mod denied;
mod ignored;
mod load_balancers;

pub use denied::DENIED;
pub use ignored::IGNORED;
pub use load_balancers::LOAD_BALANCERS;

/// Annotations of one domain that a program on the host acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAnnotation {
    /// The domain, with all domains below it, or a whole key.
    pub key: &'static str,
    /// Why it does not reach the host, as a message for the tenant.
    pub why: &'static str,
    /// Where the program documents it.
    pub source: &'static str,
}

const fn row(key: &'static str, why: &'static str, source: &'static str) -> HostAnnotation {
    HostAnnotation { key, why, source }
}

/// Labels that programs on the host act on, with the source of each: network plug-ins take them for their own, webhooks and
/// meshes for instructions. Programs that put labels of the same domain on pods themselves are listed by key.
pub const LABELS: &[(&str, &str)] = &[
    ("aadpodidbinding", "https://azure.github.io/aad-pod-identity/docs/"),
    (
        "admission.datadoghq.com",
        "https://docs.datadoghq.com/containers/cluster_agent/admission_controller/",
    ),
    (
        "azure.workload.identity",
        "https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html",
    ),
    ("io.cilium", "https://nvd.nist.gov/vuln/detail/CVE-2023-39347"),
    (
        "istio.io/dataplane-mode",
        "https://istio.io/latest/docs/reference/config/labels/",
    ),
    (
        "istio.io/global",
        "https://istio.io/latest/docs/reference/config/labels/",
    ),
    ("istio.io/rev", "https://istio.io/latest/docs/reference/config/labels/"),
    (
        "istio.io/use-waypoint",
        "https://istio.io/latest/docs/reference/config/labels/",
    ),
    (
        "istio.io/use-waypoint-namespace",
        "https://istio.io/latest/docs/reference/config/labels/",
    ),
    ("k8s.ovn.org", "https://ovn-kubernetes.io/"),
    (
        "kuma.io/sidecar-injection",
        "https://kuma.io/docs/latest/reference/kubernetes-annotations/",
    ),
    ("mirror.linkerd.io", "https://linkerd.io/2/tasks/multicluster/"),
    (
        "ovn.kubernetes.io",
        "https://kubeovn.github.io/docs/stable/en/reference/annotation/",
    ),
    (
        "projectcalico.org",
        "https://docs.tigera.io/calico/latest/reference/resources/workloadendpoint",
    ),
    (
        "sidecar.istio.io",
        "https://istio.io/latest/docs/reference/config/labels/",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_source_and_tables_do_not_repeat_keys() {
        let rows: Vec<&HostAnnotation> = [DENIED, LOAD_BALANCERS, IGNORED].into_iter().flatten().collect();
        let sources = rows.iter().map(|row| (row.key, row.source));
        for (key, source) in sources.chain(LABELS.iter().copied()) {
            assert!(source.starts_with("https://"), "{key}");
        }
        let mut keys: Vec<&str> = rows.iter().map(|row| row.key).collect();
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
        for row in rows {
            assert!(!row.why.ends_with('.') && row.why.len() < 120, "{}", row.key);
        }
    }
}
