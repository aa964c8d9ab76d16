//! Follows the rotation of a tenant's credentials: observes what runs, and records the next step.
//!
//! A step is one write of the Secret with the authorities. What follows from it is rendered and applied by the next reconcile, as everything
//! else is. What fails here is in the condition `CredentialsRotated` and stops nothing else.

use super::{
    super::{
        argo_cd::ObservedRegistration,
        context::TenantContext,
        rotation::{ObservedRotation, RotationProgress, check_registration},
    },
    ControlPlane, Prepared,
    issuers::Issuers,
    keys, published_authorities,
};
use crate::{
    control_plane::{API_SERVER, COREDNS, Component, Rotation, RotationFacts, RotationStep, due_request, next_step},
    error::ReconcileError,
};
use berth_api::RotationPhase;
use jiff::Timestamp;
use std::{sync::atomic::Ordering, time::Duration};

/// Pause before a rotation under way is looked at again.
const POLL: Duration = Duration::from_secs(2);
/// Pause before a step that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Takes the next step of the rotation of the tenant, if there is one and what it waits for was observed in this reconcile.
pub(super) async fn follow_rotation(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
    registration: &ObservedRegistration,
) -> ObservedRotation {
    let tenant = &prepared.accepted.tenant;
    let request = tenant.cluster.rotation_request();
    let recorded = prepared.authorities.rotation;
    let now = context.clock.now();
    let due = due_request(recorded.as_ref(), request, now);
    let is_under_way = recorded.is_some_and(|recorded| recorded.is_under_way());
    let observed = |recorded, progress| ObservedRotation::new(request, recorded, progress);
    if due.is_none() && !is_under_way {
        return observed(recorded, finish(context, prepared, control_plane, recorded).await);
    }
    if matches!(control_plane, ControlPlane::Asleep { .. }) {
        return observed(recorded, RotationProgress::Sleeps);
    }
    match take_step(context, prepared, control_plane, registration, due, now).await {
        Ok((recorded, progress)) => {
            let pause = if progress == RotationProgress::Done {
                Duration::ZERO
            } else {
                POLL
            };
            context.queue.add_after(tenant.key(), pause);
            let progress = if progress == RotationProgress::Done {
                finish(context, prepared, control_plane, recorded).await
            } else {
                progress
            };
            observed(recorded, progress)
        }
        Err(error) => {
            context.queue.add_after(tenant.key(), RETRY);
            observed(recorded, RotationProgress::Failed(error.to_string()))
        }
    }
}

/// Does what is left to do in the tenant of a rotation that is completed, if its API server answers. No later rotation waits for that.
async fn finish(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
    recorded: Option<Rotation>,
) -> RotationProgress {
    let tenant = &prepared.accepted.tenant;
    let is_finished = &tenant.memory.publishes_trusted_only;
    let is_completed = recorded.is_some_and(|recorded| !recorded.is_under_way());
    // With these authorities, the API servers that run were rendered.
    let rendered = prepared.authorities.rotation.map(|rotation| rotation.phase);
    let is_revoked = matches!(rendered, Some(RotationPhase::Revoking | RotationPhase::Completed));
    if !is_completed || !is_revoked {
        is_finished.store(false, Ordering::Relaxed);
        return RotationProgress::Done;
    }
    let applier = match control_plane {
        ControlPlane::Started { started, .. } => started.api_server.applier(),
        ControlPlane::NotStarted(_) | ControlPlane::Asleep { .. } => None,
    };
    let Some(applier) = applier.filter(|_| !is_finished.load(Ordering::Relaxed)) else {
        return RotationProgress::Done;
    };
    let trusted = &prepared.authorities.trusted_clients;
    match published_authorities::withdraw_revoked(tenant, applier.client(), trusted).await {
        Ok(()) => {
            is_finished.store(true, Ordering::Relaxed);
            RotationProgress::Done
        }
        Err(error) => {
            context.queue.add_after(tenant.key(), RETRY);
            RotationProgress::Failed(error.to_string())
        }
    }
}

/// Decides the next step and records it. Returns the rotation as it is then.
async fn take_step(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
    registration: &ObservedRegistration,
    due: Option<Timestamp>,
    now: Timestamp,
) -> Result<(Option<Rotation>, RotationProgress), ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let recorded = prepared.authorities.rotation;
    let facts = observe(context, prepared, control_plane, registration).await?;
    let step = next_step(recorded.as_ref(), due, &facts, now);
    match &step {
        RotationStep::Rest => Ok((recorded, RotationProgress::Done)),
        RotationStep::Wait(missing) => Ok((recorded, RotationProgress::Waits(missing.clone()))),
        RotationStep::Begin(_) | RotationStep::Enter(_) => {
            let after = keys::record_rotation(context, tenant, recorded, &step).await?;
            if step == RotationStep::Enter(RotationPhase::Completed) {
                context.rotations.inc();
            }
            Ok((after, RotationProgress::Done))
        }
    }
}

/// What runs, as far as the phase needs it.
async fn observe(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    control_plane: &ControlPlane,
    registration: &ObservedRegistration,
) -> Result<RotationFacts, ReconcileError> {
    let ControlPlane::Started {
        started,
        serving,
        observed: _,
    } = control_plane
    else {
        let missing = || Err("the API server does not run; the condition ControlPlaneReady says why".to_owned());
        return Ok(RotationFacts {
            api_servers: missing(),
            clients: missing(),
        });
    };
    let is_api_server = |component: &&Component| component.name == API_SERVER;
    let (api_servers, clients): (Vec<&Component>, Vec<&Component>) = started.components.iter().partition(is_api_server);
    let mut facts = RotationFacts {
        api_servers: match started.issuers {
            // Everything else was rolled out before they were tried.
            Issuers::Tried => Ok(()),
            Issuers::All | Issuers::Proven => find_outdated(context, prepared, &api_servers).await?,
        },
        clients: match &started.kubeconfig {
            Ok(_) => check_registration(registration),
            Err(_) => {
                Err("the Secret with the kubeconfig cannot be written; the condition ControlPlaneReady says why".into())
            }
        },
    };
    let is_issuing = prepared
        .authorities
        .rotation
        .is_some_and(|rotation| rotation.phase == RotationPhase::Issuing);
    if !is_issuing || facts.clients.is_err() {
        return Ok(facts);
    }
    let serves = serving.as_ref().is_ok_and(super::Serving::is_complete);
    let is_dns_missing = started.dns.is_some() && !clients.iter().any(|component| component.name == COREDNS);
    facts.clients = if !serves || is_dns_missing {
        Err("the control plane is not ready; its other conditions say why".into())
    } else {
        find_outdated(context, prepared, &clients).await?
    };
    Ok(facts)
}

/// The first component of which an instance runs with other files than those that were rendered now.
pub(super) async fn find_outdated(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    components: &[&Component],
) -> Result<Result<(), String>, ReconcileError> {
    for component in components {
        let owner = prepared.accepted.tenant.owner();
        if !context.runtime.is_rolled_out(owner, component).await? {
            return Ok(Err(format!("{} is being replaced", component.name)));
        }
    }
    Ok(Ok(()))
}
