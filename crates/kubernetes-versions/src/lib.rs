//! The versions of Kubernetes, and of related programs, that Berth ships and is tested with.
//!
//! `hack/kubernetes/versions` lists the same versions for the build; a test of `berth-process` compares the two.

pub mod emulation;
pub mod features;

/// The Kubernetes version of local host clusters, and the one that tenants may run by default.
pub const KUBERNETES_DEFAULT: &str = "v1.37.1";
/// The oldest Kubernetes version that is built and tested.
pub const KUBERNETES_PREVIOUS: &str = "v1.36.4";
/// The etcd version.
pub const ETCD: &str = "v3.6.16";
/// The kwok version. kwok simulates kubelets.
pub const KWOK: &str = "v0.8.0";
/// The containerd version. containerd is the container runtime of local real nodes.
pub const CONTAINERD: &str = "v2.2.9";
/// The runc version. containerd starts containers with runc.
pub const RUNC: &str = "v1.5.2";
/// The version of the reference CNI plugins.
pub const CNI_PLUGINS: &str = "v1.9.1";
/// The Calico version. Calico enforces the network policies of local real nodes.
pub const CALICO: &str = "v3.31.0";
/// The CoreDNS version.
pub const COREDNS: &str = "v1.14.7";
/// The metrics-server version.
pub const METRICS_SERVER: &str = "v0.9.0";
/// The Helm version.
pub const HELM: &str = "v4.3.1";
