//! Control planes as supervised child processes of this machine.
//!
//! Processes outlive control, as pods outlive an operator; the next control adopts them. Files of a component lie in
//! `<dir>/<tenant hash>/<component>/`, readable by this user only.

use super::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError};
use crate::control_plane::{
    API_SERVER, COMPONENTS, CONTROLLER_MANAGER, Component, Endpoints, Form, Health, Ports, Program, SCHEDULER,
    ServiceRange,
};
use async_trait::async_trait;
use berth_api::names::{self, TenantId};
use berth_kubernetes_versions::{self as versions, emulation};
use berth_process::{
    ProcessSpec, ProcessState, ProcessStatus, Supervisor, SupervisorConfig,
    binaries::{self, Binary},
    create_private_dir, free_port, write_atomic,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, api::PostParams};
use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::net::TcpStream;

/// Lifetime of tokens for components, in seconds. In a cluster the kubelet renews a token every hour; here control does, and
/// the longer lifetime covers a time without control.
const TOKEN_SECONDS: i64 = 12 * 3600;
/// Age at which a token is renewed.
const TOKEN_RENEWAL: Duration = Duration::from_secs(4 * 3600);
/// Time that a process which crashed must run before it counts as running again.
const STEADY_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// The environment variable by which Go programs take more memory or more processor time.
const COLLECTION: &str = "GOGC";

/// How the process runtime is set up.
#[derive(Clone, Debug)]
pub struct ProcessRuntimeConfig {
    /// Folder of all state.
    pub dir: PathBuf,
    /// Folder of log files.
    pub log_dir: PathBuf,
    /// Folder into which tenants' kubeconfigs are written as `<namespace>.<name>.yaml`, if any.
    pub kubeconfig_dir: Option<PathBuf>,
    /// The syncer's executable.
    pub syncer: PathBuf,
    /// Whether processes end with control. For tests: normally they outlive it.
    pub die_with_parent: bool,
}

/// Runs control planes as child processes.
pub struct ProcessRuntime {
    config: ProcessRuntimeConfig,
    supervisor: Supervisor,
    host: Client,
}

impl ProcessRuntime {
    /// Opens the runtime and adopts what an earlier control left running.
    ///
    /// # Errors
    /// The folder cannot be used, or another control uses it.
    pub async fn open(mut config: ProcessRuntimeConfig, host: Client) -> Result<Self, RuntimeError> {
        // Some files refer to others, which kube-apiserver needs with their full path.
        config.dir = std::path::absolute(&config.dir).map_err(|source| RuntimeError::Io {
            path: config.dir.display().to_string(),
            source,
        })?;
        for dir in [Some(&config.dir), Some(&config.log_dir), config.kubeconfig_dir.as_ref()]
            .into_iter()
            .flatten()
        {
            create_private_dir(dir)?;
        }
        let supervisor = Supervisor::open(SupervisorConfig {
            dir: config.dir.join("run"),
            die_with_parent: config.die_with_parent,
        })
        .await?;
        Ok(Self {
            config,
            supervisor,
            host,
        })
    }

    fn tenant_dir(&self, tenant: &TenantId) -> PathBuf {
        self.config.dir.join(tenant.hash())
    }

    fn program(&self, program: &Program, component: &str) -> Result<PathBuf, RuntimeError> {
        let version = match program {
            Program::Syncer => return Ok(self.config.syncer.clone()),
            Program::CoreDns => {
                return binaries::find(Binary::Coredns, versions::COREDNS)
                    .map_err(|error| RuntimeError::Program(error.to_string()));
            }
            Program::Kubernetes { version } => version,
        };
        let binary = match component {
            API_SERVER => Binary::KubeApiserver,
            CONTROLLER_MANAGER => Binary::KubeControllerManager,
            SCHEDULER => Binary::KubeScheduler,
            other => return Err(RuntimeError::Program(format!("{other} is not a Kubernetes binary"))),
        };
        binaries::find(binary, version).map_err(|error| RuntimeError::Program(error.to_string()))
    }

    /// Writes the token of a component's host service account, if it is missing or getting old. Programs read the file
    /// again by themselves.
    async fn refresh_token(
        &self,
        tenant: &TenantId,
        component: &'static str,
        account: &str,
        dir: &Path,
    ) -> Result<(), RuntimeError> {
        let path = dir.join("token");
        let age = fs::metadata(&path)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|written| SystemTime::now().duration_since(written).ok());
        if age.is_some_and(|age| age < TOKEN_RENEWAL) {
            return Ok(());
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.host.clone(), &tenant.control_plane_namespace());
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let token = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(|source| RuntimeError::Token {
                component,
                source: Box::new(source),
            })?
            .status
            .and_then(|status| status.token)
            .unwrap_or_default();
        write_atomic(&path, token.as_bytes(), 0o600).map_err(|source| RuntimeError::Files { component, source })
    }
}

/// Whether a running process crashed a short while ago and may crash again.
fn is_flapping(status: &ProcessStatus) -> bool {
    status.restarts > 0
        && status
            .started_at
            .is_some_and(|at| Timestamp::now().duration_since(at) < STEADY_AFTER)
}

/// Whether a process has come so far that it listens where its health endpoints are, if it has any.
async fn listens(health: Option<&Health>) -> bool {
    match health {
        Some(health) => TcpStream::connect((Ipv4Addr::LOCALHOST, health.port)).await.is_ok(),
        None => true,
    }
}

fn process_name(tenant: &TenantId, component: &str) -> String {
    format!("{}.{component}", tenant.slug())
}

/// The file of a tenant's kubeconfig in a folder for those of all tenants. Namespace and name of a TenantCluster are DNS labels: they
/// have no slash, and no dot, so that two tenants never share a file.
pub fn kubeconfig_path(dir: &Path, namespace: &str, name: &str) -> PathBuf {
    dir.join(format!("{namespace}.{name}.yaml"))
}

/// Removes a file or folder that may not exist.
fn remove(path: &Path, remove: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), RuntimeError> {
    match remove(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(RuntimeError::Io {
            path: path.display().to_string(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Removes files that the component no longer has and that an API server would read as admission policies.
fn remove_old_policies(dir: &Path, files: &BTreeMap<String, String>) -> Result<(), RuntimeError> {
    let entries = fs::read_dir(dir).map_err(|source| RuntimeError::Io {
        path: dir.display().to_string(),
        source,
    })?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_policy = path
            .extension()
            .is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|policy| ending == *policy));
        let is_used = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| files.contains_key(name));
        if is_policy && !is_used {
            remove(&path, |path| fs::remove_file(path))?;
        }
    }
    Ok(())
}

/// Ports of this machine that no process listens on now, for the components of a tenant.
///
/// # Errors
/// There are none.
pub fn free_ports() -> Result<Ports, RuntimeError> {
    Ok(Ports {
        api_server: free_port()?,
        syncer_admin: free_port()?,
        admission: free_port()?,
        egress: free_port()?,
        dns: free_port()?,
    })
}

#[async_trait]
impl ControlPlaneRuntime for ProcessRuntime {
    fn versions(&self) -> Vec<String> {
        emulation::offered(binaries::available_versions())
    }

    fn allocate_ports(&self, _tenant: &TenantId) -> Result<Ports, RuntimeError> {
        free_ports()
    }

    async fn find_endpoints(
        &self,
        _owner: Owner<'_>,
        ports: &Ports,
        _range: &ServiceRange,
    ) -> Result<Endpoints, RuntimeError> {
        Ok(Endpoints::direct(Ipv4Addr::LOCALHOST.into(), ports))
    }

    fn form(&self, _replicas: u32) -> Form {
        Form::Process
    }

    fn has_dns(&self) -> bool {
        binaries::find(Binary::Coredns, versions::COREDNS).is_ok()
    }

    async fn apply_component(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError> {
        let tenant = owner.tenant;
        let program = self.program(&component.program, component.name)?;
        let dir = self.tenant_dir(tenant).join(component.name);
        let files_error = |source| RuntimeError::Files {
            component: component.name,
            source,
        };
        create_private_dir(&dir).map_err(files_error)?;
        let folder = dir.display().to_string();
        let files = component.files_in(&folder);
        for (name, text) in &files {
            let path = dir.join(name);
            if let Some(folder) = path.parent().filter(|folder| *folder != dir) {
                create_private_dir(folder).map_err(files_error)?;
            }
            if fs::read(&path).is_ok_and(|current| current == text.as_bytes()) {
                continue;
            }
            write_atomic(&path, text.as_bytes(), 0o600).map_err(files_error)?;
        }
        remove_old_policies(&dir, &files)?;
        if let Some(account) = component.host_service_account {
            self.refresh_token(tenant, component.name, account, &dir).await?;
        }
        let name = process_name(tenant, component.name);
        let mut spec = ProcessSpec::new(&name, program, self.config.log_dir.join(format!("{name}.log")));
        spec.args = component.args_in(&folder);
        spec.env.clone_from(&component.env);
        // One who starts control with it has memory to spare, as tests do: what is inherited counts.
        if std::env::var_os(COLLECTION).is_some() {
            spec.env.remove(COLLECTION);
        }
        let parts: Vec<&str> = files
            .iter()
            .flat_map(|(name, text)| [name.as_str(), text.as_str()])
            .collect();
        spec.revision = names::hash(&parts);
        self.supervisor.ensure(spec).await?;
        Ok(match self.supervisor.status(&name) {
            Some(status) if status.state == ProcessState::Running && !is_flapping(&status) => ComponentState::Running,
            Some(status) => ComponentState::Down(format!(
                "{} is restarting after a crash ({}); its log is {}",
                component.name,
                status.last_exit.as_deref().unwrap_or("no exit status"),
                status.log_file.display()
            )),
            None => ComponentState::Down(format!("{} was stopped", component.name)),
        })
    }

    async fn is_rolled_out(&self, owner: Owner<'_>, component: &Component) -> Result<bool, RuntimeError> {
        // The one before had ended before this one was started, and so no longer listens.
        let status = self.supervisor.status(&process_name(owner.tenant, component.name));
        let is_running = status.is_some_and(|status| status.state == ProcessState::Running && !is_flapping(&status));
        Ok(is_running && listens(component.health.as_ref()).await)
    }

    fn publish_kubeconfig(&self, namespace: &str, name: &str, kubeconfig: &str) -> Result<(), RuntimeError> {
        let Some(dir) = &self.config.kubeconfig_dir else {
            return Ok(());
        };
        let path = kubeconfig_path(dir, namespace, name);
        if fs::read(&path).is_ok_and(|current| current == kubeconfig.as_bytes()) {
            return Ok(());
        }
        Ok(write_atomic(&path, kubeconfig.as_bytes(), 0o600)?)
    }

    async fn delete_component(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError> {
        self.supervisor.stop(&process_name(tenant, component), None).await?;
        remove(&self.tenant_dir(tenant).join(component), |path| {
            fs::remove_dir_all(path)
        })
    }

    async fn stop_components(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        // All at once: each may take its grace period.
        let stops = COMPONENTS.map(|component| {
            let name = process_name(tenant, component);
            async move { self.supervisor.stop(&name, None).await }
        });
        for result in futures::future::join_all(stops).await {
            result?;
        }
        Ok(())
    }

    async fn delete_tenant(&self, tenant: &TenantId, namespace: &str, name: &str) -> Result<(), RuntimeError> {
        remove(&self.tenant_dir(tenant), |path| fs::remove_dir_all(path))?;
        for component in COMPONENTS {
            let log = self
                .config
                .log_dir
                .join(format!("{}.log", process_name(tenant, component)));
            remove(&log, |path| fs::remove_file(path))?;
            remove(&log.with_extension("log.1"), |path| fs::remove_file(path))?;
        }
        if let Some(dir) = &self.config.kubeconfig_dir {
            remove(&kubeconfig_path(dir, namespace, name), |path| fs::remove_file(path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
