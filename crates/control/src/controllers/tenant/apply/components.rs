//! Running a tenant's components.

use super::{
    super::{context::TenantContext, target::Tenant},
    Prepared, Started,
};
use crate::{
    control_plane::{CONTROLLER_MANAGER, COREDNS, Component, SCHEDULER, SYNCER},
    error::ReconcileError,
    runtime::{ComponentState, RuntimeError},
};

/// The components that need the API server.
pub(crate) struct Running {
    /// Controller manager, scheduler and DNS: running, or why the first of them is down.
    pub(crate) components: ComponentState,
    pub(super) syncer: ComponentState,
}

impl Running {
    /// Whether every component runs.
    pub(super) fn is_complete(&self) -> bool {
        self.components == ComponentState::Running && self.syncer == ComponentState::Running
    }
}

/// Runs the components that need the API server.
pub(super) async fn run_components(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> Result<Running, ReconcileError> {
    let kubernetes = run_kubernetes_components(context, prepared, started).await?;
    let OwnComponents { syncer, dns } = run_own_components(context, prepared, started).await?;
    let mut all = kubernetes.into_iter().chain(dns);
    let down = all.find(|state| *state != ComponentState::Running);
    Ok(Running {
        components: down.unwrap_or(ComponentState::Running),
        syncer,
    })
}

/// Runs the controller manager and the scheduler, whose roles are default roles of the API server.
async fn run_kubernetes_components(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> Result<Vec<ComponentState>, ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let components = &started.components;
    let mut states = vec![run_component(context, tenant, components, CONTROLLER_MANAGER).await?];
    if started.is_rendered(SCHEDULER) {
        states.push(run_component(context, tenant, components, SCHEDULER).await?);
    } else {
        context.runtime.delete_component(&tenant.id, SCHEDULER).await?;
    }
    Ok(states)
}

/// States of [`run_own_components`].
pub(super) struct OwnComponents {
    syncer: ComponentState,
    dns: Option<ComponentState>,
}

/// Runs the syncer and the DNS, whose roles are among the objects that control applies.
pub(super) async fn run_own_components(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> Result<OwnComponents, ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let components = &started.components;
    let syncer = run_component(context, tenant, components, SYNCER).await?;
    let dns = if started.is_rendered(COREDNS) {
        Some(run_component(context, tenant, components, COREDNS).await?)
    } else {
        None
    };
    Ok(OwnComponents { syncer, dns })
}

/// Stops the components of a tenant. All other objects stay applied, which makes the next start quicker.
pub(super) async fn stop_components(context: &TenantContext, tenant: &Tenant) -> Result<(), ReconcileError> {
    tenant.memory.connection.close();
    // Before anything is scaled down, and here, so that nothing is lost if the next start is recorded and control does not learn it.
    tenant.memory.host.forget_kind("Deployment");
    let stopped = context.runtime.stop_components(&tenant.id).await;
    // What does not end, because its node does not answer, is not started again either.
    if matches!(stopped, Ok(()) | Err(RuntimeError::StillRunning(_))) {
        let was_known = tenant.memory.note_stopped(true);
        if !was_known && tenant.memory.is_outdated() {
            // Its class can be enforced from now on.
            context.queue.add(tenant.key());
        }
    }
    Ok(stopped?)
}

/// Starts a component that was rendered, or changes it to what was rendered.
pub(super) async fn run_component(
    context: &TenantContext,
    tenant: &Tenant,
    components: &[Component],
    name: &str,
) -> Result<ComponentState, ReconcileError> {
    match components.iter().find(|component| component.name == name) {
        Some(component) => Ok(context.runtime.apply_component(tenant.owner(), component).await?),
        None => Ok(ComponentState::Down(format!("{name} was not rendered"))),
    }
}
