//! What is done for a new tenant while its API server still writes its default roles and priority classes: all that needs none of them.

use super::{
    super::{
        context::TenantContext,
        error::{TenantError, in_step},
    },
    Prepared, Serving, Started, SyncerState,
    bootstrap_objects::apply_bootstrap_objects,
    components::run_own_components,
};
use crate::apply::Applier;
use std::time::Duration;

/// Pause before a new API server is asked again to accept the objects that every tenant has.
const RETRY: Duration = Duration::from_millis(100);

/// Applies the objects of a new tenant whose API server still writes its default roles, and runs the components that need no default role.
/// Control is of `system:masters`, which needs none either and may bind one that does not exist yet. The other components would be refused,
/// and would try again late. The tenant is reconciled again when the roles exist.
pub(super) async fn begin(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
    applier: &Applier,
) -> Result<Serving, TenantError> {
    let tenant = &prepared.accepted.tenant;
    match apply_bootstrap_objects(context, prepared, started, applier).await {
        Ok(()) => {
            run_own_components(context, prepared, started)
                .await
                .map_err(in_step(TenantError::Components))?;
        }
        // The server may lack even its namespaces. What it refuses once it is complete is an error.
        Err(error) if error.is_of_tenant() => {
            tracing::debug!(%error, tenant = tenant.id.slug(), "a new API server does not accept the objects yet");
            context.queue.add_after(tenant.key(), RETRY);
        }
        Err(error) => return Err(error),
    }
    Ok(Serving {
        running: None,
        syncer: SyncerState::Starting("the API server has not written its default roles yet".into()),
    })
}
