//! The endpoints that a tenant has made itself go from the host while its syncer does not work, although nobody has stopped it: it ends again and again, its
//! node is lost, its image cannot be pulled, or it waits for an API server of the tenant that does not list. docs/adr/0060 says why.
//!
//! It is part of what a reconcile does for the host alone: neither etcd nor the tenant can keep it from that.

use super::super::{
    context::TenantContext,
    own_endpoints::{self, Deletion},
    syncer_absence::CHECK,
    target::Tenant,
};
use crate::{
    control_plane::{Endpoint, SYNCER},
    tenant_state::is_created,
};
use berth_api::{NetworkLimits, conditions::SYNCER_READY};
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};
use std::time::Duration;
use tokio::time::Instant;

/// Reason of the Event if endpoints were deleted.
const OWN_ENDPOINTS_DELETED: &str = "OwnEndpointsDeleted";
/// Reason of the Event if some could not be.
const OWN_ENDPOINTS_LEFT: &str = "OwnEndpointsLeft";
/// Time for an answer of the syncer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// How control finds a syncer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It has listed both sides, and the host's API server answers it.
    Working,
    /// It says itself that one of these is not so.
    NotWorking,
    /// It does not answer control, or does not say any more whether the host answers it.
    Silent,
}

/// Deletes the own endpoints with addresses of pods of a tenant whose syncer has not worked for too long. Looks for the syncer only if nobody has seen it
/// working a short while ago. One that does not answer control works if the host says so: then it is control that reaches nothing. What fails is tried again
/// with the next look.
pub(super) async fn delete_own_endpoints(
    context: &TenantContext,
    tenant: &Tenant,
    syncer: &Endpoint,
    network: &NetworkLimits,
) {
    let memory = &tenant.memory;
    // When it fell asleep all were deleted, and pods whose addresses could become free do not run.
    if !is_created(&tenant.cluster) || tenant.cluster.sleep_state().is_asleep() {
        memory.syncer_absence().forget();
        return;
    }
    if !memory.syncer_absence().is_check_due(Instant::now()) {
        return;
    }
    let found = find_syncer(context, tenant, syncer).await;
    if found == Found::Working {
        memory.syncer_absence().note_working(Instant::now());
        return;
    }
    // However this reconcile ends.
    context.queue.add_after(tenant.key(), CHECK);
    if found == Found::Silent {
        // Each time: a syncer that control never reaches is restarted as well, and must not be looked for in these seconds alone.
        match context.runtime.is_available(&tenant.id, SYNCER).await {
            Ok(false) => {}
            Ok(true) => {
                memory.syncer_absence().note_hidden(Instant::now());
                return;
            }
            Err(error) => {
                tracing::warn!(tenant = tenant.id.slug(), %error, "cannot find out whether the syncer of a tenant runs");
                memory.syncer_absence().postpone(Instant::now());
                return;
            }
        }
    }
    if !memory.syncer_absence().note_missing(Instant::now()) {
        return;
    }
    delete(context, tenant, network).await;
}

async fn find_syncer(context: &TenantContext, tenant: &Tenant, syncer: &Endpoint) -> Found {
    let probe = context.remote.probe_syncer(syncer);
    match tenant.slot.lend(ANSWER_LIMIT, probe).await {
        Some(Ok(answer)) if answer.is_ready => {}
        Some(Ok(_)) => return Found::NotWorking,
        Some(Err(_)) | None => return Found::Silent,
    }
    let metrics = context.remote.read_syncer_metrics(syncer);
    let read = tenant.slot.lend(ANSWER_LIMIT, metrics).await;
    if let Some(Ok(metrics)) = &read {
        tenant.memory.note_syncer_metrics(metrics);
    }
    match (tenant.memory.is_host_silent(), read) {
        (false, _) => Found::Working,
        (true, Some(Ok(_))) => Found::NotWorking,
        // It has said so before. Whether that is still so is not known.
        (true, Some(Err(_)) | None) => Found::Silent,
    }
}

/// Deletes them, and says what was deleted and what could not be: some may be although others are not.
async fn delete(context: &TenantContext, tenant: &Tenant, network: &NetworkLimits) {
    let Deletion { deleted, result } = own_endpoints::delete_of_pods(&context.client, &tenant.id, network).await;
    let is_complete = result.is_ok();
    tenant.memory.syncer_absence().note_deletion(deleted > 0, is_complete);
    if deleted > 0 {
        tracing::warn!(
            tenant = tenant.id.slug(),
            deleted,
            "the syncer of a tenant does not work: its own endpoints of pods are deleted"
        );
        context
            .own_slices_deleted
            .inc_by(u64::try_from(deleted).unwrap_or(u64::MAX));
        let message = "the syncer of the tenant has not worked for two minutes, so the EndpointSlices with addresses of pods that the tenant has made \
                       itself were deleted on the host: such an address may be that of another pod by now. They are made again when the syncer works";
        publish(context, tenant, OWN_ENDPOINTS_DELETED, message.into()).await;
    }
    if let Err(error) = result {
        tracing::warn!(tenant = tenant.id.slug(), %error, "cannot delete the endpoints of a tenant whose syncer does not work");
        if !tenant.memory.syncer_absence().note_left(Instant::now()) {
            return;
        }
        let message = format!(
            "the syncer of the tenant has not worked for two minutes, and EndpointSlices with addresses of pods that the tenant has made itself are left on \
             the host: such an address may be that of another pod by now. Berth tries again to delete them: {error}"
        );
        publish(context, tenant, OWN_ENDPOINTS_LEFT, message).await;
    }
}

async fn publish(context: &TenantContext, tenant: &Tenant, reason: &str, message: String) {
    let event = Event {
        type_: EventType::Warning,
        reason: reason.into(),
        note: Some(message),
        action: SYNCER_READY.into(),
        secondary: None,
    };
    context.recorder.publish(&event, &tenant.cluster.object_ref(&())).await;
}
