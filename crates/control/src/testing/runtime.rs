//! A runtime without programs.

use super::Script;
use crate::{
    control_plane::{Component, Endpoints, Form, Ports, ServiceRange},
    runtime::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError},
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use berth_runtime::locks::lock;
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// The version that it has, unless a test gives it others.
pub(crate) const VERSION: &str = "v1.37.1";

/// A component that was applied.
#[derive(Clone)]
pub(crate) struct Applied {
    /// The last one.
    pub(crate) last: Component,
    /// The last one that has started.
    pub(crate) started: Option<Component>,
}

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
    /// Text in the files of components with which these do not start. What was rolled out before goes on.
    pub(crate) refused: Arc<Mutex<Option<String>>>,
    /// Components as they were applied last, and as they were rolled out last, by name.
    pub(crate) applied: Arc<Mutex<BTreeMap<&'static str, Applied>>>,
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
            refused: Arc::default(),
            applied: Arc::default(),
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
        let refused = lock(&self.refused).clone();
        let is_refused = |text: &String| component.files.values().any(|file| file.contains(text));
        let starts = !refused.as_ref().is_some_and(is_refused);
        let mut applied = lock(&self.applied);
        let before = applied.get(component.name).and_then(|before| before.started.clone());
        let now = Applied {
            last: component.clone(),
            started: if starts { Some(component.clone()) } else { before },
        };
        applied.insert(component.name, now);
        Ok(if starts {
            ComponentState::Running
        } else {
            ComponentState::Down(format!("the new {} does not start", component.name))
        })
    }

    async fn is_rolled_out(&self, _: Owner<'_>, component: &Component) -> Result<bool, RuntimeError> {
        self.call(&format!("check {}", component.name))?;
        let applied = lock(&self.applied);
        let is_this = |applied: &Applied| applied.last == *component && applied.started.as_ref() == Some(component);
        Ok(self.has_rolled_out.load(Ordering::SeqCst) && applied.get(component.name).is_none_or(is_this))
    }

    async fn keeps_previous(&self, _: &TenantId, component: &str) -> Result<bool, RuntimeError> {
        Ok(matches!(self.form, Form::Pods { .. }) && lock(&self.applied).contains_key(component))
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
