//! A component of a control plane: its program, arguments and files.

use berth_kubernetes_versions::{emulation::emulation, features};
use std::collections::BTreeMap;

/// The tenant's API server.
pub const API_SERVER: &str = "kube-apiserver";
/// The Service by which a team reaches it, if it asks for one of another type.
pub const EXTERNAL_SERVICE: &str = "kube-apiserver-external";
/// The tenant's controller manager.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The tenant's scheduler, if the host does not schedule its pods.
pub const SCHEDULER: &str = "kube-scheduler";
/// The tenant's syncer.
pub const SYNCER: &str = "syncer";
/// The tenant's DNS server.
pub const COREDNS: &str = "coredns";

/// Every component that a control plane may have, in the order in which they are stopped.
pub const COMPONENTS: [&str; 5] = [SYNCER, SCHEDULER, COREDNS, CONTROLLER_MANAGER, API_SERVER];

/// Stands in arguments and files for the folder in which a runtime puts the component's files.
pub const FILES: &str = "$(FILES)";

/// How the components run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One process on this machine; its supervisor knows whether it runs.
    Process,
    /// Pods of the host. Two may run at the same time, at least while one replaces the other.
    Pods {
        /// Replicas of each component that may have several.
        replicas: u32,
    },
}

impl Form {
    /// Flags of a component of which one instance at a time must be active, and its health endpoint at `port`.
    pub(super) fn leader_election_flags(self, port: u16) -> ([String; 2], Option<Health>) {
        match self {
            // An election would delay the start by seconds and cost the tenant's API server writes. Nothing scrapes
            // metrics in a tenant, and ports of several tenants on one machine would collide.
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

    /// Replicas of a component that may have several.
    pub(super) fn replicas(self) -> u32 {
        match self {
            Self::Process => 1,
            Self::Pods { replicas } => replicas.max(1),
        }
    }
}

/// The health endpoints of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Their port.
    pub port: u16,
    /// Whether the port serves HTTPS.
    pub tls: bool,
    /// Path of the liveness probe.
    pub live: &'static str,
    /// Path of the readiness probe.
    pub ready: &'static str,
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
    /// Files by name, most of them secret. A name may have a folder: `folder/file`.
    pub files: BTreeMap<String, String>,
    /// Name of the host ServiceAccount (in the control-plane namespace) whose token the runtime keeps fresh in the
    /// file `token`, if the component needs one.
    pub host_service_account: Option<&'static str>,
    /// Bytes of memory that it may need with the most that its tenant may have; none: what all tenants have by default is enough.
    pub memory_limit: Option<u64>,
    /// Replicas.
    pub replicas: u32,
    /// Whether a new instance may start before the old one has ended.
    pub overlaps: bool,
    /// Its health endpoints; none if its supervisor knows whether it runs.
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

/// The program of a Kubernetes version, which may be a newer one that behaves as this version does.
pub(super) fn kubernetes_program(version: &str) -> Program {
    let programs = emulation(version).map_or(version, |emulation| emulation.programs);
    Program::Kubernetes {
        version: programs.into(),
    }
}

/// Flags of every component of a Kubernetes version: which version to behave as, what to turn on so that groups of pods can be scheduled, and what to turn
/// off because it shows the platform's settings to the tenant's admins.
pub(super) fn version_flags(version: &str) -> impl Iterator<Item = String> {
    let emulated = emulation(version).map(|emulation| flag("emulated-version", emulation.minor));
    let scheduling = features::group_scheduling(version).map(|on| on.feature_gates);
    // Of several flags of this name the last one counts.
    let gates: Vec<&str> = scheduling
        .into_iter()
        .chain(features::without_command_line(version))
        .collect();
    let gates = (!gates.is_empty()).then(|| flag("feature-gates", gates.join(",")));
    emulated.into_iter().chain(gates)
}

/// `--name=value`.
pub(super) fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// `--name=<folder of files>/file`.
pub(super) fn file_flag(name: &str, file: &str) -> String {
    format!("--{name}={FILES}/{file}")
}
