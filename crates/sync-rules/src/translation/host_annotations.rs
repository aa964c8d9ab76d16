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

const DEVICES: &str = "devices are assigned by resource requests only";
const NETWORK: &str = "the pod network is the platform's";
const RUNTIME: &str = "the container runtime is the platform's";
const STATIC_PODS: &str = "static pods cannot be made through the API";

/// Annotations without which an object would not be what the tenant asked for.
pub const DENIED: &[HostAnnotation] = &[
    // Devices.
    row(
        "cdi.k8s.io",
        DEVICES,
        "https://github.com/cncf-tags/container-device-interface",
    ),
    row(
        "gpu-fraction",
        DEVICES,
        "https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing",
    ),
    row(
        "gpu-fraction-num-devices",
        DEVICES,
        "https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing",
    ),
    row(
        "gpu-memory",
        DEVICES,
        "https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing",
    ),
    row(
        "hami.io",
        DEVICES,
        "https://github.com/Project-HAMi/HAMi/blob/master/docs/develop/protocol.md",
    ),
    row(
        "noderesource.dev",
        DEVICES,
        "https://github.com/containerd/nri/tree/main/plugins/device-injector",
    ),
    row(
        "nri.io",
        DEVICES,
        "https://github.com/containerd/nri/tree/main/plugins/device-injector",
    ),
    row(
        "nvidia.com/use-gputype",
        DEVICES,
        "https://github.com/Project-HAMi/HAMi/tree/master/examples/nvidia",
    ),
    row(
        "nvidia.com/use-gpuuuid",
        DEVICES,
        "https://github.com/Project-HAMi/HAMi/tree/master/examples/nvidia",
    ),
    // The container runtime.
    row(
        "blockio.resources.beta.kubernetes.io",
        RUNTIME,
        "https://github.com/containerd/containerd/blob/main/docs/cri/config.md",
    ),
    row(
        "crio.io",
        RUNTIME,
        "https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md",
    ),
    row(
        "dev.gvisor",
        RUNTIME,
        "https://gvisor.dev/docs/user_guide/containerd/configuration/",
    ),
    row(
        "io.katacontainers",
        RUNTIME,
        "https://github.com/kata-containers/kata-containers/blob/main/docs/how-to/how-to-set-sandbox-config-kata.md",
    ),
    row(
        "io.kubernetes.cri",
        RUNTIME,
        "https://github.com/containerd/containerd/blob/main/internal/cri/annotations/annotations.go",
    ),
    row(
        "io.kubernetes.cri-o",
        RUNTIME,
        "https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md",
    ),
    row(
        "kubernetes.cri-o.io",
        RUNTIME,
        "https://github.com/cri-o/cri-o/blob/main/tutorials/seccomp-oci-artifacts.md",
    ),
    row(
        "org.systemd.property",
        RUNTIME,
        "https://nvd.nist.gov/vuln/detail/CVE-2024-3154",
    ),
    row(
        "rdt.resources.beta.kubernetes.io",
        RUNTIME,
        "https://github.com/containerd/containerd/blob/main/docs/cri/config.md",
    ),
    row(
        "run.oci",
        RUNTIME,
        "https://github.com/containers/crun/blob/main/crun.1.md",
    ),
    // Marks of the kubelet.
    row(
        "kubernetes.io/config.hash",
        STATIC_PODS,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/",
    ),
    row(
        "kubernetes.io/config.mirror",
        STATIC_PODS,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror",
    ),
    row(
        "kubernetes.io/config.seen",
        STATIC_PODS,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/",
    ),
    row(
        "kubernetes.io/config.source",
        STATIC_PODS,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-source",
    ),
    // The network.
    row("antrea.io", NETWORK, "https://antrea.io/docs/main/docs/antrea-ipam/"),
    row(
        "cilium.io",
        NETWORK,
        "https://docs.cilium.io/en/stable/network/concepts/ipam/multi-pool/",
    ),
    row(
        "io.cilium",
        NETWORK,
        "https://docs.cilium.io/en/stable/network/lb-ipam/",
    ),
    row(
        "ipam.spidernet.io",
        NETWORK,
        "https://spidernet-io.github.io/spiderpool/latest/reference/annotation/",
    ),
    row("k8s.ovn.org", NETWORK, "https://ovn-kubernetes.io/"),
    row(
        "k8s.v1.cni.cncf.io",
        NETWORK,
        "https://github.com/k8snetworkplumbingwg/multus-cni/blob/master/docs/how-to-use.md",
    ),
    row("kube-router.io", NETWORK, "https://www.kube-router.io/docs/user-guide/"),
    row(
        "networking.gke.io/default-interface",
        NETWORK,
        "https://cloud.google.com/kubernetes-engine/docs/how-to/setup-multinetwork-support-for-pods",
    ),
    row(
        "networking.gke.io/interfaces",
        NETWORK,
        "https://cloud.google.com/kubernetes-engine/docs/how-to/setup-multinetwork-support-for-pods",
    ),
    row(
        "ovn.kubernetes.io",
        NETWORK,
        "https://kubeovn.github.io/docs/stable/en/reference/annotation/",
    ),
    row(
        "projectcalico.org",
        NETWORK,
        "https://docs.tigera.io/calico/latest/networking/ipam/use-specific-ip",
    ),
    row(
        "v1.multus-cni.io",
        NETWORK,
        "https://github.com/k8snetworkplumbingwg/multus-cni/blob/master/docs/configuration.md",
    ),
    row(
        "vpc.amazonaws.com",
        NETWORK,
        "https://github.com/aws/amazon-vpc-cni-k8s",
    ),
    // Identities.
    row(
        "iam.amazonaws.com",
        "identities in the platform's cloud are given to service accounts by the class",
        "https://github.com/jtblin/kube2iam",
    ),
];

const LOAD_BALANCER: &str = "load balancers are the platform's, and this setting is not offered here";

/// Annotations that set up load balancers.
pub const LOAD_BALANCERS: &[HostAnnotation] = &[
    row(
        "ako.vmware.com",
        LOAD_BALANCER,
        "https://github.com/vmware/load-balancer-and-ingress-services-for-kubernetes",
    ),
    row(
        "cloud.google.com",
        LOAD_BALANCER,
        "https://cloud.google.com/kubernetes-engine/docs/concepts/service-load-balancer-parameters",
    ),
    row("f5.com", LOAD_BALANCER, "https://clouddocs.f5.com/containers/latest/"),
    row(
        "kube-vip.io",
        LOAD_BALANCER,
        "https://kube-vip.io/docs/usage/kubernetes-services/",
    ),
    row(
        "kubernetes.civo.com",
        LOAD_BALANCER,
        "https://github.com/civo/civo-cloud-controller-manager",
    ),
    row(
        "kubernetes.digitalocean.com",
        LOAD_BALANCER,
        "https://github.com/digitalocean/digitalocean-cloud-controller-manager",
    ),
    row("lb.kubesphere.io", LOAD_BALANCER, "https://openelb.io/docs/"),
    row(
        "lbipam.cilium.io",
        LOAD_BALANCER,
        "https://docs.cilium.io/en/stable/network/lb-ipam/",
    ),
    row(
        "load-balancer.hetzner.cloud",
        LOAD_BALANCER,
        "https://github.com/hetznercloud/hcloud-cloud-controller-manager",
    ),
    row(
        "loadbalancer.openstack.org",
        LOAD_BALANCER,
        "https://github.com/kubernetes/cloud-provider-openstack/blob/master/docs/openstack-cloud-controller-manager/expose-applications-using-loadbalancer-type-service.md",
    ),
    row("loxilb.io", LOAD_BALANCER, "https://docs.loxilb.io/latest/kube-loxilb/"),
    row("metallb.io", LOAD_BALANCER, "https://metallb.io/usage/"),
    row("metallb.universe.tf", LOAD_BALANCER, "https://metallb.io/usage/"),
    row(
        "networking.gke.io",
        LOAD_BALANCER,
        "https://cloud.google.com/kubernetes-engine/docs/concepts/service-load-balancer-parameters",
    ),
    row("openelb.kubesphere.io", LOAD_BALANCER, "https://openelb.io/docs/"),
    row(
        "oraclecloud.com",
        LOAD_BALANCER,
        "https://github.com/oracle/oci-cloud-controller-manager/blob/master/docs/load-balancer-annotations.md",
    ),
    row("purelb.io", LOAD_BALANCER, "https://purelb.gitlab.io/docs/"),
    row(
        "service.beta.kubernetes.io",
        LOAD_BALANCER,
        "https://kubernetes.io/docs/concepts/services-networking/service/#internal-load-balancer",
    ),
    row(
        "service.kubernetes.io",
        LOAD_BALANCER,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/",
    ),
];

const AGENTS: &str = "agents of the platform do not follow it; those that you run in your cluster do";
const AUTOSCALERS: &str = "the platform's autoscalers do not follow it: use a PodDisruptionBudget";
const EDGE: &str = "controllers at the platform's edge do not follow it; those that you run in your cluster do";
const WEBHOOKS: &str = "webhooks of the platform do not follow it; those that you run in your cluster do";

/// Annotations without which an object works as on a cluster that does not have the program.
pub const IGNORED: &[HostAnnotation] = &[
    // Operators put it on their own pods, for one distribution.
    row(
        "workload.openshift.io",
        AGENTS,
        "https://github.com/openshift/enhancements/blob/master/enhancements/workload-partitioning/management-workload-partitioning.md",
    ),
    // Autoscalers and what evicts pods.
    row(
        "cluster-autoscaler.kubernetes.io",
        AUTOSCALERS,
        "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md",
    ),
    row(
        "descheduler.alpha.kubernetes.io",
        AUTOSCALERS,
        "https://github.com/kubernetes-sigs/descheduler",
    ),
    row(
        "karpenter.sh",
        AUTOSCALERS,
        "https://karpenter.sh/docs/concepts/disruption/",
    ),
    // What makes names and ways in.
    row(
        "external-dns.alpha.kubernetes.io",
        "the platform's DNS does not follow it; an external-dns that you run in your cluster does",
        "https://kubernetes-sigs.github.io/external-dns/latest/docs/annotations/annotations/",
    ),
    row("getambassador.io", EDGE, "https://www.getambassador.io/docs/emissary"),
    row(
        "haproxy.org",
        EDGE,
        "https://www.haproxy.com/documentation/kubernetes-ingress/",
    ),
    row(
        "ingress.kubernetes.io",
        EDGE,
        "https://doc.traefik.io/traefik/routing/providers/kubernetes-ingress/",
    ),
    row(
        "konghq.com",
        EDGE,
        "https://docs.konghq.com/kubernetes-ingress-controller/latest/reference/annotations/",
    ),
    row("nginx.org", EDGE, "https://docs.nginx.com/nginx-ingress-controller/"),
    row(
        "projectcontour.io",
        EDGE,
        "https://projectcontour.io/docs/main/config/annotations/",
    ),
    row(
        "tailscale.com",
        EDGE,
        "https://tailscale.com/kb/1439/kubernetes-operator-cluster-ingress",
    ),
    row(
        "traefik.io",
        EDGE,
        "https://doc.traefik.io/traefik/routing/providers/kubernetes-ingress/",
    ),
    // Webhooks: sidecars, secrets, identities, libraries.
    row(
        "admission.datadoghq.com",
        WEBHOOKS,
        "https://docs.datadoghq.com/containers/cluster_agent/admission_controller/",
    ),
    row(
        "appmesh.k8s.aws",
        WEBHOOKS,
        "https://aws.github.io/aws-app-mesh-controller-for-k8s/",
    ),
    row(
        "azure.workload.identity",
        WEBHOOKS,
        "https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html",
    ),
    row(
        "bank-vaults.io",
        WEBHOOKS,
        "https://bank-vaults.dev/docs/mutating-webhook/annotations/",
    ),
    row(
        "banzaicloud.io",
        WEBHOOKS,
        "https://bank-vaults.dev/docs/mutating-webhook/annotations/",
    ),
    row("conjur.org", WEBHOOKS, "https://github.com/cyberark/sidecar-injector"),
    row(
        "consul.hashicorp.com",
        WEBHOOKS,
        "https://developer.hashicorp.com/consul/docs/reference/k8s/annotation-label",
    ),
    row(
        "dapr.io",
        WEBHOOKS,
        "https://docs.dapr.io/reference/arguments-annotations-overview/",
    ),
    row(
        "dynatrace.com",
        WEBHOOKS,
        "https://docs.dynatrace.com/docs/ingest-from/setup-on-k8s",
    ),
    row(
        "eks.amazonaws.com",
        WEBHOOKS,
        "https://github.com/aws/amazon-eks-pod-identity-webhook",
    ),
    row(
        "istio.io",
        WEBHOOKS,
        "https://istio.io/latest/docs/reference/config/annotations/",
    ),
    row(
        "kuma.io",
        WEBHOOKS,
        "https://kuma.io/docs/latest/reference/kubernetes-annotations/",
    ),
    row(
        "linkerd.io",
        WEBHOOKS,
        "https://linkerd.io/2/reference/proxy-configuration/",
    ),
    row(
        "openservicemesh.io",
        WEBHOOKS,
        "https://release-v1-2.docs.openservicemesh.io/docs/guides/app_onboarding/sidecar_injection/",
    ),
    row(
        "opentelemetry.io",
        WEBHOOKS,
        "https://github.com/open-telemetry/opentelemetry-operator",
    ),
    row(
        "operator.1password.io",
        WEBHOOKS,
        "https://developer.1password.com/docs/k8s/injector/",
    ),
    row(
        "vault.hashicorp.com",
        WEBHOOKS,
        "https://developer.hashicorp.com/vault/docs/deploy/kubernetes/injector/annotations",
    ),
    // Agents on nodes and in the cluster: logs, checks, backups. Checks connect to addresses and hooks run commands that the
    // annotation names.
    row(
        "ad.datadoghq.com",
        AGENTS,
        "https://docs.datadoghq.com/containers/kubernetes/integrations/",
    ),
    row(
        "co.elastic.hints",
        AGENTS,
        "https://www.elastic.co/guide/en/fleet/current/hints-annotations-autodiscovery.html",
    ),
    row(
        "co.elastic.logs",
        AGENTS,
        "https://www.elastic.co/guide/en/beats/filebeat/current/configuration-autodiscover-hints.html",
    ),
    row(
        "co.elastic.metrics",
        AGENTS,
        "https://www.elastic.co/guide/en/beats/metricbeat/current/configuration-autodiscover-hints.html",
    ),
    row(
        "fluentbit.io",
        AGENTS,
        "https://docs.fluentbit.io/manual/pipeline/filters/kubernetes",
    ),
    row("velero.io", AGENTS, "https://velero.io/docs/main/backup-hooks/"),
];

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
