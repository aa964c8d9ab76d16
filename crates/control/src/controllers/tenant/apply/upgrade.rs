//! When an upgrade of a tenant's control plane is over.

use super::{
    super::{context::TenantContext, target::Tenant},
    issuers::Issuers,
};
use crate::{
    control_plane::{API_SERVER, Component},
    error::ReconcileError,
};
use std::time::Duration;

/// Pause before an upgrade under way is looked at again: a server that was replaced quickly wakes nobody.
const POLL: Duration = Duration::from_secs(5);

/// Whether an upgrade that is recorded is over: every API server runs as it was rendered.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn has_rolled_out(
    context: &TenantContext,
    tenant: &Tenant,
    components: &[Component],
    issuers: Issuers,
) -> Result<bool, ReconcileError> {
    let status = tenant.cluster.status.as_ref();
    // The first version follows no other.
    let is_upgraded = status.is_some_and(|status| status.version.is_some() && status.upgrading_to.is_some());
    let api_server = components.iter().find(|component| component.name == API_SERVER);
    let Some(api_server) = api_server.filter(|_| is_upgraded) else {
        return Ok(false);
    };
    // Everything else was rolled out before they were tried.
    if issuers == Issuers::Tried {
        return Ok(true);
    }
    let is_over = context.runtime.is_rolled_out(tenant.owner(), api_server).await?;
    if !is_over {
        context.queue.add_after(tenant.key(), POLL);
    }
    Ok(is_over)
}
