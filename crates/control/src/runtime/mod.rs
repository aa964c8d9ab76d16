//! Where control planes run: as supervised child processes on this machine, or as pods of the host cluster. Both take the
//! same [`Component`]s.

pub mod cluster;
mod process;

pub use process::{ProcessRuntime, ProcessRuntimeConfig};

use crate::{
    apply::{Applier, ApplyError},
    control_plane::{Component, Endpoints, Form, Ports, ServiceRange},
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use std::collections::BTreeMap;

pub use cluster::ClusterRuntime;

/// Why a runtime did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The program of a component cannot be found.
    #[error("{0}")]
    Program(String),
    /// A file of a component cannot be written.
    #[error("cannot write the files of {component}: {source}")]
    Files {
        /// The component.
        component: &'static str,
        /// Why not.
        source: berth_process::Error,
    },
    /// A process cannot be started or stopped.
    #[error(transparent)]
    Process(#[from] berth_process::Error),
    /// The host gave no token for a component's service account.
    #[error("the host gave no token for the service account of {component}: {source}")]
    Token {
        /// The component.
        component: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The host refuses an object of a component.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The host refuses or does not answer.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Pods that were told to end still run.
    #[error("{0}")]
    StillRunning(String),
    /// What the platform has set up cannot be used.
    #[error("{0}")]
    Settings(String),
    /// Something else about files on this machine.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Whether a component runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// It runs.
    Running,
    /// It is not running, for the given reason.
    Down(String),
}

/// Whose components a runtime is asked to run.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Labels of everything that is the tenant's on the host.
    pub labels: &'a BTreeMap<String, String>,
    /// Applies the tenant's objects on the host.
    pub host: &'a Applier,
}

/// Runs the components of tenants' control planes. Everything is idempotent: control calls it again and again, also
/// after it was killed in the middle.
#[async_trait]
pub trait ControlPlaneRuntime: Send + Sync {
    /// Kubernetes versions of which this runtime has the binaries, newest first.
    fn versions(&self) -> Vec<String>;

    /// What becomes of components, of which `replicas` are asked for.
    fn form(&self, replicas: u32) -> Form;

    /// Whether components are pods of the host: their ports are always the same, and the host Service of the API server
    /// leads to them.
    fn uses_pods(&self) -> bool {
        matches!(self.form(1), Form::Pods { .. })
    }

    /// Ports for a new tenant. Control records them before anything listens on them, unless [`Self::uses_pods`].
    ///
    /// # Errors
    /// No free ports.
    fn allocate(&self, tenant: &TenantId) -> Result<Ports, RuntimeError>;

    /// Where the servers of a tenant listen and are reached, given their ports and the address of the API server's
    /// Service. The control-plane namespace exists.
    ///
    /// # Errors
    /// It cannot be found out.
    async fn endpoints(&self, owner: Owner<'_>, ports: &Ports, range: &ServiceRange)
    -> Result<Endpoints, RuntimeError>;

    /// Whether this runtime can run a DNS server for each tenant.
    fn has_dns(&self) -> bool;

    /// Makes a component run as described.
    ///
    /// # Errors
    /// It cannot be started.
    async fn ensure(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError>;

    /// Publishes the admin kubeconfig of a tenant in a place that suits this runtime, beside the Secret.
    ///
    /// # Errors
    /// It cannot be written.
    fn publish_kubeconfig(&self, namespace: &str, name: &str, kubeconfig: &str) -> Result<(), RuntimeError>;

    /// Stops a component that the control plane no longer has, and removes its files. One that never ran is withdrawn
    /// already.
    ///
    /// # Errors
    /// It cannot be stopped, or its files cannot be removed.
    async fn withdraw(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError>;

    /// Stops every component of a tenant, and returns when none runs any more.
    ///
    /// # Errors
    /// One cannot be stopped.
    async fn stop(&self, tenant: &TenantId) -> Result<(), RuntimeError>;

    /// Removes what is left of a tenant: files, and the published kubeconfig of `namespace`/`name`. It must be stopped.
    ///
    /// # Errors
    /// Something cannot be removed.
    async fn remove(&self, tenant: &TenantId, namespace: &str, name: &str) -> Result<(), RuntimeError>;
}
