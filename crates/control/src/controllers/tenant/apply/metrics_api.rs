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
    failed.note(
        tenant
            .apply_or_replace(&apis, &api_service(authority), is_reached_otherwise)
            .await,
    );
    failed.into_result()
}

/// Whether an API server reaches the API elsewhere, or without checking who answers. Not every field of that can be changed alone.
fn is_reached_otherwise(live: &APIService, wanted: &APIService) -> bool {
    let reached = |api: &APIService| {
        api.spec.as_ref().map(|spec| {
            let service = spec.service.as_ref();
            let service = service.map(|service| (service.namespace.clone(), service.name.clone()));
            (
                service,
                spec.insecure_skip_tls_verify.unwrap_or_default(),
                spec.ca_bundle.clone(),
            )
        })
    };
    reached(live) != reached(wanted)
}
