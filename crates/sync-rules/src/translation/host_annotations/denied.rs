//! Annotations that ask for more than the object says.

use super::{HostAnnotation, row};

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
