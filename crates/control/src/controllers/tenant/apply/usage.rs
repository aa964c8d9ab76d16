//! What a tenant stores, and what it has on the host: read if that is due.

use super::{
    super::{
        context::TenantContext,
        datastore_usage::{self, ObservedUsage},
        host_usage,
        target::Tenant,
    },
    Prepared, Started,
    control_plane::is_started_again,
};
use crate::apply::Applier;
use berth_api::{DatastoreUsage, HostUsage};
use berth_runtime::locks::lock;
use std::time::Duration;

/// Pause before the API server of a new tenant is rendered again, once what the tenant stores is known.
const RENDER_AGAIN: Duration = Duration::from_millis(200);

/// Measures what a new tenant stores, after its components were started.
pub(super) async fn measure_new(context: &TenantContext, prepared: &Prepared<'_>, started: &mut Started) {
    let Some(applier) = started.api_server.applier().filter(|_| started.is_unmeasured) else {
        return;
    };
    started.datastore = observe_usage(context, prepared, Some(applier)).await;
    // The API server was rendered without knowing it.
    context.queue.add_after(prepared.accepted.tenant.key(), RENDER_AGAIN);
}

/// What the tenant stores: measured if that is due.
pub(super) async fn observe_usage(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    api_server: Option<&Applier>,
) -> ObservedUsage {
    let (tenant, settings) = (&prepared.accepted.tenant, &prepared.accepted.settings);
    let limits = &settings.limits;
    let source = datastore_usage::Source {
        tenant: &tenant.id,
        datastore: context.datastore.as_ref(),
        api_server,
        slot: &tenant.slot,
        size_reading: &context.tenants.size_reading,
        activity: &tenant.memory.activity,
        audit_errors: settings.audit.as_ref().map(|_| &tenant.memory.audit_errors),
        clock: &context.clock,
        is_waking: is_started_again(tenant),
    };
    let memory = &tenant.memory.datastore_usage;
    let observed = datastore_usage::observe(&source, memory, published_usage(tenant), limits).await;
    if observed.is_reading {
        context.queue.add_after(tenant.key(), datastore_usage::INTERVAL);
    }
    observed
}

/// What the status says that the tenant stores.
pub(super) fn published_usage(tenant: &Tenant) -> Option<DatastoreUsage> {
    tenant.cluster.status.as_ref().and_then(|status| status.datastore)
}

/// Whether this process has never measured what the tenant stores.
pub(super) fn is_unknown(tenant: &Tenant) -> bool {
    lock(&tenant.memory.datastore_usage).is_unknown()
}

/// What the tenant has on the host: read if that is due.
pub(super) async fn observe_host_usage(context: &TenantContext, prepared: &Prepared<'_>) -> Option<HostUsage> {
    let (tenant, limits) = (&prepared.accepted.tenant, &prepared.accepted.settings.limits);
    let published = tenant.cluster.status.as_ref().and_then(|status| status.host_usage);
    host_usage::observe(
        context.remote.as_ref(),
        &tenant.slot,
        &prepared.endpoints.syncer_admin,
        &tenant.memory,
        published,
        limits,
    )
    .await
}
