//! The configuration of a host cluster.

use std::path::PathBuf;

use crate::NodePlan;

/// For whom a cluster is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For Berth: with an etcd for tenants, a label on the nodes that no tenant gets, the features of Kubernetes that Berth can use, and on real
    /// nodes a network that enforces policies.
    Berth,
    /// For anybody, as others make theirs: for tests of an installation.
    Anybody,
}

/// The configuration of a host cluster.
#[derive(Clone, Debug)]
pub struct HostClusterConfig {
    /// Its state directory.
    pub home: PathBuf,
    /// Its Kubernetes version (`v1.37.1`).
    pub kubernetes_version: String,
    /// Minor version (`1.35`) that its API server behaves as; its own if absent.
    pub emulated_version: Option<String>,
    /// Its nodes. Nodes that exist already are left as they are.
    pub nodes: NodePlan,
    /// Whether its nodes are real ones: kubelets and container runtimes in namespaces of this machine. It cannot change in
    /// the life of a cluster.
    pub real_nodes: bool,
    /// For whom the cluster is made.
    pub purpose: Purpose,
    /// Whether every process is killed when this program ends. For tests.
    pub die_with_parent: bool,
    /// The addresses of services: one range, or one of each family with a comma between. The IPv4 range comes first and
    /// begins like the default one: its first address is the API server's own.
    pub service_ranges: String,
    /// Further flags of the API server, for tests.
    pub apiserver_flags: Vec<String>,
    /// Further flags of the tenants' shared etcd, for benchmarks.
    pub datastore_flags: Vec<String>,
    /// Whether etcd forces its writes to disk. Only tests may turn it off.
    pub fsync: bool,
    /// Controllers that its controller manager does not run. For tests in which it acts as a tenant.
    pub disabled_controllers: Vec<String>,
}

impl HostClusterConfig {
    /// A host cluster in `home` with the default version and nodes, that outlives this program.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            kubernetes_version: berth_kubernetes_versions::KUBERNETES_DEFAULT.into(),
            emulated_version: None,
            nodes: NodePlan::default(),
            real_nodes: false,
            purpose: Purpose::Berth,
            die_with_parent: false,
            service_ranges: SERVICE_RANGE.into(),
            apiserver_flags: Vec::new(),
            datastore_flags: Vec::new(),
            fsync: true,
            disabled_controllers: Vec::new(),
        }
    }
}

/// The addresses of services. The first of them is the API server's own.
pub(crate) const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The first address of [`SERVICE_RANGE`].
pub(crate) const SERVICE_ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 96, 0, 1);
/// The addresses of pods on nodes that have no range of their own.
pub(crate) const POD_RANGE: &str = "10.244.0.0/16";
