//! Where control planes run: as supervised child processes on this machine, or as pods of the host cluster. Both take the
//! same [`Component`]s.

pub mod cluster;
mod process;

pub use process::{ProcessRuntime, ProcessRuntimeConfig, free_ports, kubeconfig_path};

use crate::{
    apply::{Applier, ApplyError},
    control_plane::{Component, Endpoints, Form, Ports, ServiceRange},
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use std::collections::BTreeMap;

pub use cluster::ClusterRuntime;

/// Why an operation of a runtime failed.
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
    #[error("cannot {what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Pods did not terminate in time, or the host may create others.
    #[error("{0}")]
    StillRunning(String),
    /// The platform's settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// Another error of files on this machine.
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

/// The tenant whose components a runtime runs.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Labels of all objects of the tenant on the host.
    pub labels: &'a BTreeMap<String, String>,
    /// Applies the tenant's objects on the host.
    pub host: &'a Applier,
}

/// Runs the components of tenants' control planes. All methods are idempotent: control calls them in every reconcile, also
/// after a crash in the middle of one.
#[async_trait]
pub trait ControlPlaneRuntime: Send + Sync {
    /// Kubernetes versions of which this runtime has the binaries, newest first.
    fn versions(&self) -> Vec<String>;

    /// How components run, with `replicas` of those that may have several.
    fn form(&self, replicas: u32) -> Form;

    /// Whether components are pods of the host: their ports are always the same, and the host Service of the API server
    /// selects them.
    fn uses_pods(&self) -> bool {
        matches!(self.form(1), Form::Pods { .. })
    }

    /// Ports for a new tenant. Control records them before anything listens on them, unless [`Self::uses_pods`].
    ///
    /// # Errors
    /// No free ports.
    fn allocate_ports(&self, tenant: &TenantId) -> Result<Ports, RuntimeError>;

    /// The addresses of a tenant's servers, given their ports and the address of the API server's Service. The control-plane
    /// namespace must exist.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    async fn find_endpoints(
        &self,
        owner: Owner<'_>,
        ports: &Ports,
        range: &ServiceRange,
    ) -> Result<Endpoints, RuntimeError>;

    /// Whether this runtime can run a DNS server for each tenant.
    fn has_dns(&self) -> bool;

    /// Starts a component, or changes it to the desired arguments and files.
    ///
    /// # Errors
    /// It cannot be started.
    async fn apply_component(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError>;

    /// Whether every instance of a component that runs, also one that is ending, has the files of `component`, which was applied before.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    async fn is_rolled_out(&self, owner: Owner<'_>, component: &Component) -> Result<bool, RuntimeError>;

    /// Whether the host finds an instance of a component ready, although control may not reach it. No, if nobody but control looks at them.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    async fn is_available(&self, _tenant: &TenantId, _component: &str) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    /// Whether an instance of a component that was started before goes on if the next one does not start. No, if one ends before the next one starts.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    async fn keeps_previous(&self, _tenant: &TenantId, _component: &str) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    /// Publishes the admin kubeconfig of a tenant in a place that suits this runtime, beside the Secret.
    ///
    /// # Errors
    /// It cannot be written.
    fn publish_kubeconfig(&self, namespace: &str, name: &str, kubeconfig: &str) -> Result<(), RuntimeError>;

    /// Stops a component that the control plane no longer has, and deletes its files. Does nothing if there is none.
    ///
    /// # Errors
    /// It cannot be stopped, or its files cannot be deleted.
    async fn delete_component(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError>;

    /// Stops every component of a tenant. Returns when none runs.
    ///
    /// # Errors
    /// One cannot be stopped.
    async fn stop_components(&self, tenant: &TenantId) -> Result<(), RuntimeError>;

    /// Whether nothing starts a component of a tenant again that was stopped: what watches over components may be behind. Does not wait for that.
    ///
    /// # Errors
    /// [`RuntimeError::StillRunning`] if something may, or has, or the host refuses or does not answer.
    async fn check_stopped(&self, _tenant: &TenantId) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Deletes the files of a tenant, and the published kubeconfig of `namespace`/`name`. Its components must be stopped.
    ///
    /// # Errors
    /// A file cannot be deleted.
    async fn delete_tenant(&self, tenant: &TenantId, namespace: &str, name: &str) -> Result<(), RuntimeError>;
}
