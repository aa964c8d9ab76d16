//! The metrics API of the tenant.

use super::super::build::metrics_api::{NAME, OURS, api_service, reader, service};
use crate::{
    apply::{Applier, optional},
    error::{FirstError, ReconcileError, api},
};
use berth_api::labels;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, ResourceExt};

/// Registers the metrics API in the tenant, unless a team serves one of its own. `authority` signed the syncer's certificate.
///
/// # Errors
/// The tenant's API server refuses or does not answer.
pub(super) async fn apply_metrics_api(tenant: &Applier, authority: &str) -> Result<(), ReconcileError> {
    let apis: Api<APIService> = Api::all(tenant.client().clone());
    let live = optional(apis.get_metadata(NAME).await).map_err(api("get the tenant's metrics API"))?;
    if live.is_some_and(|live| live.labels().get(labels::MANAGED_BY).map(String::as_str) != Some(OURS)) {
        return Ok(());
    }
    let mut failed = FirstError::default();
    failed.note(tenant.apply(&reader()).await);
    failed.note(tenant.apply(&service()).await);
    // Whatever in it is refused is the team's.
    failed.note(
        tenant
            .apply_or_replace(&apis, &api_service(authority), |_, _| true)
            .await,
    );
    failed.into_result()
}
