//! A runtime without programs.

use super::Script;
use crate::{
    control_plane::{Component, Endpoints, Form, Ports, ServiceRange},
    runtime::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError},
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The version that it has, unless a test gives it others.
pub(crate) const VERSION: &str = "v1.37.1";

/// A runtime that starts nothing.
pub(crate) struct ScriptedRuntime {
    script: Script,
    /// What control planes are.
    pub(crate) form: Form,
    /// Versions that it has.
    pub(crate) versions: Vec<String>,
    /// Whether components are as they were rendered last.
    pub(crate) has_rolled_out: Arc<AtomicBool>,
    /// Whether the host finds components ready.
    pub(crate) is_available: Arc<AtomicBool>,
    /// Whether components do not end that are stopped.
    pub(crate) is_stuck: Arc<AtomicBool>,
    /// Whether the host may start components again that were stopped.
    pub(crate) is_unscaled: Arc<AtomicBool>,
}

impl ScriptedRuntime {
    pub(crate) fn new(script: &Script) -> Self {
        Self {
            script: script.clone(),
            form: Form::Process,
            versions: vec![VERSION.into()],
            has_rolled_out: Arc::new(true.into()),
            is_available: Arc::default(),
            is_stuck: Arc::default(),
            is_unscaled: Arc::default(),
        }
    }

    fn call(&self, what: &str) -> Result<(), RuntimeError> {
        let failed = || RuntimeError::Program("the script says so".into());
        self.script
            .record(format!("runtime {what}"))
            .then_some(())
            .ok_or_else(failed)
    }
}

#[async_trait]
impl ControlPlaneRuntime for ScriptedRuntime {
    fn versions(&self) -> Vec<String> {
        self.versions.clone()
    }

    fn form(&self, _: u32) -> Form {
        self.form
    }

    fn allocate_ports(&self, _: &TenantId) -> Result<Ports, RuntimeError> {
        self.call("allocate")?;
        Ok(Ports {
            api_server: 40001,
            syncer_admin: 40002,
            admission: 40003,
            egress: 40004,
            dns: 40005,
        })
    }

    async fn find_endpoints(&self, _: Owner<'_>, ports: &Ports, _: &ServiceRange) -> Result<Endpoints, RuntimeError> {
        Ok(Endpoints::direct(Ipv4Addr::LOCALHOST.into(), ports))
    }

    fn has_dns(&self) -> bool {
        true
    }

    async fn apply_component(&self, _: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError> {
        self.call(&format!("run {}", component.name))?;
        Ok(ComponentState::Running)
    }

    async fn is_rolled_out(&self, _: Owner<'_>, component: &Component) -> Result<bool, RuntimeError> {
        self.call(&format!("check {}", component.name))?;
        Ok(self.has_rolled_out.load(Ordering::SeqCst))
    }

    async fn is_available(&self, _: &TenantId, component: &str) -> Result<bool, RuntimeError> {
        self.call(&format!("look for {component}"))?;
        Ok(self.is_available.load(Ordering::SeqCst))
    }

    fn publish_kubeconfig(&self, _: &str, _: &str, _: &str) -> Result<(), RuntimeError> {
        self.call("publish the kubeconfig")
    }

    async fn delete_component(&self, _: &TenantId, component: &'static str) -> Result<(), RuntimeError> {
        self.call(&format!("stop {component}"))
    }

    async fn stop_components(&self, _: &TenantId) -> Result<(), RuntimeError> {
        self.call("stop everything")?;
        if self.is_stuck.load(Ordering::SeqCst) {
            return Err(RuntimeError::StillRunning("pod kube-apiserver-1 still runs".into()));
        }
        Ok(())
    }

    async fn check_stopped(&self, _: &TenantId) -> Result<(), RuntimeError> {
        if self.is_unscaled.load(Ordering::SeqCst) {
            return Err(RuntimeError::StillRunning(
                "the host may start kube-apiserver again".into(),
            ));
        }
        Ok(())
    }

    async fn delete_tenant(&self, _: &TenantId, _: &str, _: &str) -> Result<(), RuntimeError> {
        self.call("remove files")
    }
}
