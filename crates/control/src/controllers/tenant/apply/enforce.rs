//! The API server and the syncer of a tenant that sleeps, while its objects on the host follow earlier rules of its class.
//!
//! Nothing else of it runs: without its controllers no Job begins, and the host lets none of its pods start. To everybody else it sleeps.

use super::{
    super::{
        context::TenantContext,
        enforcement,
        error::{TenantError, in_step},
        fetch::ObservedNodes,
    },
    ApiServer, ControlPlane, Prepared, Started, SyncerState,
    bootstrap_objects::apply_bootstrap_objects,
    components::run_component,
    control_plane::{probe_syncer, start},
};
use crate::{
    control_plane::SYNCER,
    runtime::{ComponentState, RuntimeError},
};

/// Runs both, and notes when the syncer is done. The outcome is that of a tenant that sleeps.
pub(super) async fn enforce(context: &TenantContext, prepared: &Prepared<'_>, nodes: &ObservedNodes) -> ControlPlane {
    let started = match start(context, prepared, nodes).await {
        Ok(started) => started,
        Err(error) => return ControlPlane::NotStarted(error),
    };
    match run_syncer(context, prepared, &started).await {
        Ok(()) => ControlPlane::Asleep {
            kubeconfig: started.kubeconfig.map(drop),
        },
        Err(error) => ControlPlane::NotStarted(error),
    }
}

async fn run_syncer(context: &TenantContext, prepared: &Prepared<'_>, started: &Started) -> Result<(), TenantError> {
    let tenant = &prepared.accepted.tenant;
    let (ApiServer::Answers(applier) | ApiServer::Bootstrapping(applier)) = &started.api_server else {
        return Ok(());
    };
    // Webhooks of the tenant may refuse them until its pods run. The syncer has the rights that it had before.
    if let Err(error) = apply_bootstrap_objects(context, prepared, started, applier).await {
        tracing::debug!(%error, tenant = tenant.id.slug(), "a tenant whose class is enforced does not accept the objects");
    }
    let state = run_component(context, tenant, &started.components, SYNCER)
        .await
        .map_err(in_step(TenantError::Components))?;
    let syncer = match state {
        ComponentState::Running => probe_syncer(context, tenant, &prepared.endpoints).await,
        ComponentState::Down(why) => SyncerState::Down(why),
    };
    tenant.memory.note_syncer(syncer == SyncerState::Ready);
    if syncer == SyncerState::Ready {
        observe(context, prepared, started).await;
    }
    Ok(())
}

/// Notes whether the syncer, which is ready, has enforced the rules of the class. If that is new, the tenant is reconciled again.
pub(super) async fn observe(context: &TenantContext, prepared: &Prepared<'_>, started: &Started) {
    let tenant = &prepared.accepted.tenant;
    let rules = enforcement::rules_hash(&prepared.accepted.settings.sync);
    if tenant.memory.follows(&rules) {
        return;
    }
    // One with other rules may still answer.
    match has_rolled_out(context, prepared, started).await {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            tracing::debug!(%error, tenant = tenant.id.slug(), "cannot find out with which rules a syncer runs");
            return;
        }
    }
    let syncer = &prepared.endpoints.syncer_admin;
    enforcement::observe(context.remote.as_ref(), &tenant.slot, syncer, &tenant.memory, &rules).await;
    if tenant.memory.follows(&rules) {
        context.queue.add(tenant.key());
    }
}

/// Whether the syncer that was rendered runs, and no other.
async fn has_rolled_out(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> Result<bool, RuntimeError> {
    let mut components = started.components.iter();
    match components.find(|component| component.name == SYNCER) {
        Some(syncer) => {
            let owner = prepared.accepted.tenant.owner();
            context.runtime.is_rolled_out(owner, syncer).await
        }
        None => Ok(false),
    }
}

/// Before the syncer of a tenant is started with the rules that its class has now: forgets that one with other rules was done.
pub(super) fn expect_rules(prepared: &Prepared<'_>) {
    let accepted = prepared.accepted;
    let rules = enforcement::rules_hash(&accepted.settings.sync);
    accepted.tenant.memory.forget_other_rules(&rules);
}
