//! A tenant's control plane as data: command lines and files, the same for every runtime.
//!
//! [`render`] turns what is known about a tenant into [`Component`]s. A runtime decides only where files lie and how a
//! program is started; what it is told to do is decided here, so that what the tests run is what production runs.

mod admission;
mod api_server;
mod authentication;
mod certificates;
mod controller_manager;
mod coredns;
mod egress;
mod endpoints;
mod scheduler;
mod syncer;

pub use certificates::{Authorities, CertificateError, Leaf, LeafStore};
pub use coredns::{DNS_USER, DnsInput, customisation};
pub use endpoints::{Endpoint, Endpoints, Ports, PublicEndpoint, authority};
pub use syncer::TENANT_USER;

use berth_api::{NetworkLimits, SchedulingMode, SyncPolicy, names::TenantId};
use berth_kubernetes_versions::{emulation::emulation, features};
use std::{collections::BTreeMap, net::IpAddr};

/// Name of the component that serves the tenant's API.
pub const API_SERVER: &str = "kube-apiserver";
/// Name of the component that runs the tenant's built-in controllers.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Name of the component that places the tenant's pods, if that is not done by the host.
pub const SCHEDULER: &str = "kube-scheduler";
/// Name of the component that carries the tenant's objects to the host.
pub const SYNCER: &str = "syncer";

/// Name of the component that answers the tenant's pods about names.
pub const COREDNS: &str = "coredns";

/// Domain of every tenant's cluster.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// Every component that a control plane may have, in the order in which they are stopped.
pub const COMPONENTS: [&str; 5] = [SYNCER, SCHEDULER, COREDNS, CONTROLLER_MANAGER, API_SERVER];

/// Stands in arguments and files for the folder in which a runtime puts the component's files.
pub const FILES: &str = "$(FILES)";

/// What has to be known to render a control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneInput<'a> {
    /// Whose it is.
    pub tenant: &'a TenantId,
    /// Kubernetes version.
    pub version: &'a str,
    /// Name of the tenant's class.
    pub class: &'a str,
    /// Who places the tenant's pods.
    pub scheduling: SchedulingMode,
    /// What crosses from the tenant to the host.
    pub policy: &'a SyncPolicy,
    /// Whether the components are processes or pods.
    pub form: Form,
    /// What is open of the network outside of the tenant.
    pub network: &'a NetworkLimits,
    /// Where the components listen and can be reached.
    pub endpoints: &'a Endpoints,
    /// Address range of the tenant's own Services; its first address is `default/kubernetes`.
    pub service_range: &'a ServiceRange,
    /// Where the tenant's objects are stored.
    pub datastore: &'a DatastoreInput,
    /// How to reach the host cluster.
    pub host: &'a HostInput,
    /// The tenant's DNS, if it has one.
    pub dns: Option<&'a DnsInput>,
}

/// What becomes of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One process on this machine; its supervisor knows whether it runs.
    Process,
    /// Pods of the host. Two of them may run at the same time, if only while one replaces the other.
    Pods {
        /// How many of each component that more than one can run of.
        replicas: u32,
    },
}

impl Form {
    /// Flags of a component of which one must work at a time, and how it is asked for its health at `port`.
    fn one_at_a_time(self, port: u16) -> ([String; 2], Option<Health>) {
        match self {
            // Electing itself would cost a start seconds and the tenant's API server writes. Nobody scrapes it in a
            // tenant, and several on one machine would fight for the port.
            Self::Process => ([flag("leader-elect", "false"), flag("secure-port", "0")], None),
            Self::Pods { .. } => (
                [flag("leader-elect", "true"), flag("secure-port", port)],
                Some(Health {
                    port,
                    tls: true,
                    live: "/healthz",
                    ready: "/healthz",
                }),
            ),
        }
    }

    /// How many run of a component that more than one can run of.
    fn replicas(self) -> u32 {
        match self {
            Self::Process => 1,
            Self::Pods { replicas } => replicas.max(1),
        }
    }
}

/// How a component is asked whether it is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Port on which it answers.
    pub port: u16,
    /// Whether it speaks HTTPS there.
    pub tls: bool,
    /// Path that fails when only a restart helps.
    pub live: &'static str,
    /// Path that fails while it cannot be used.
    pub ready: &'static str,
}

/// The address range of a tenant's own Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    /// The range, for example 10.96.0.48/29.
    pub cidr: String,
    /// The first address: `default/kubernetes` in the tenant, and a Service on the host.
    pub first: IpAddr,
    /// The range of the other address family, if the host has both.
    pub secondary: Option<String>,
}

impl ServiceRange {
    /// As kube-apiserver takes it: one range, or one of each family.
    pub fn flag(&self) -> String {
        std::iter::once(self.cidr.as_str())
            .chain(self.secondary.as_deref())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// Where and as whom a tenant's API server stores its objects.
#[derive(Clone, Debug)]
pub struct DatastoreInput {
    /// Endpoints of etcd.
    pub endpoints: Vec<String>,
    /// CA that signed etcd's serving certificates.
    pub ca_pem: String,
}

/// How a syncer reaches the host cluster.
#[derive(Clone, Debug)]
pub struct HostInput {
    /// URL of the host's API server.
    pub server: String,
    /// CA of the host's API server.
    pub ca_pem: String,
    /// DNS domain of the host cluster, of which tenants see nothing.
    pub cluster_domain: String,
}

/// Which program a component runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A Kubernetes binary of the given version.
    Kubernetes {
        /// For example v1.37.1.
        version: String,
    },
    /// Berth's own syncer.
    Syncer,
    /// CoreDNS.
    CoreDns,
}

/// One program of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// One of [`COMPONENTS`].
    pub name: &'static str,
    /// What runs.
    pub program: Program,
    /// Arguments; [`FILES`] stands for the folder of the files.
    pub args: Vec<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Files by name, most of them secret.
    pub files: BTreeMap<String, String>,
    /// Name of the host ServiceAccount (in the control-plane namespace) whose token the runtime keeps fresh in the
    /// file `token`, if the component needs one.
    pub host_service_account: Option<&'static str>,
    /// How many of it run side by side.
    pub replicas: u32,
    /// Whether a second one may run for a moment while it replaces the first.
    pub overlaps: bool,
    /// How it is asked whether it is well; not at all where its supervisor knows.
    pub health: Option<Health>,
}

impl Component {
    /// Arguments with the folder of the files filled in.
    pub fn args_in(&self, folder: &str) -> Vec<String> {
        self.args.iter().map(|arg| arg.replace(FILES, folder)).collect()
    }

    /// Files with the folder of the files filled in.
    pub fn files_in(&self, folder: &str) -> BTreeMap<String, String> {
        self.files
            .iter()
            .map(|(name, text)| (name.clone(), text.replace(FILES, folder)))
            .collect()
    }
}

/// Renders every component of a control plane. `leaves` holds certificates of earlier renderings, which are used
/// again as long as they are valid, and takes new ones.
///
/// # Errors
/// A certificate cannot be made.
pub fn render(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
) -> Result<Vec<Component>, CertificateError> {
    let mut components = vec![
        api_server::render(input, authorities, leaves)?,
        controller_manager::render(input, authorities, leaves)?,
        syncer::render(input, authorities, leaves)?,
    ];
    if input.scheduling == SchedulingMode::Tenant {
        components.push(scheduler::render(input, authorities, leaves)?);
    }
    if let Some(dns) = input.dns {
        components.extend(coredns::render(input, dns, authorities, leaves)?);
    }
    Ok(components)
}

/// The program of a Kubernetes version, which may be a newer one that behaves as this version does.
fn kubernetes(version: &str) -> Program {
    let programs = emulation(version).map_or(version, |emulation| emulation.programs);
    Program::Kubernetes {
        version: programs.into(),
    }
}

/// Flags of every component of a Kubernetes version: which version to behave as, and what to turn on so that groups of
/// pods can be scheduled.
fn version_flags(version: &str) -> impl Iterator<Item = String> {
    let emulated = emulation(version).map(|emulation| flag("emulated-version", emulation.minor));
    let gates = features::group_scheduling(version).map(|on| flag("feature-gates", on.feature_gates));
    emulated.into_iter().chain(gates)
}

/// `--name=value`.
fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// `--name=<folder of files>/file`.
fn file_flag(name: &str, file: &str) -> String {
    format!("--{name}={FILES}/{file}")
}

#[cfg(test)]
mod tests;
