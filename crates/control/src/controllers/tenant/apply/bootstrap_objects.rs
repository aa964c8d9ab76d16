//! What every tenant has in its own API before it is called ready.

use super::{
    super::{
        build::{api_server_endpoints, bootstrap, flow_schemas},
        context::TenantContext,
        error::{TenantError, in_step},
    },
    Prepared, Started,
    control_plane::have_run,
    definitions, dns,
};
use crate::{
    apply::{Applier, ApplyError},
    control_plane::has_public_discovery,
    error::{FirstError, ReconcileError},
};
use berth_sync_rules::admission::configuration::configuration;
use k8s_openapi::api::{discovery::v1::EndpointSlice, rbac::v1::ClusterRoleBinding};
use kube::Api;

/// Applies what every tenant has before it is called ready. An object that the tenant refuses, which an admin of it may have made so, keeps no other
/// back; the first error is the result.
pub(super) async fn apply_bootstrap_objects(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
    applier: &Applier,
) -> Result<(), TenantError> {
    let policy = &prepared.accepted.settings.sync;
    let kinds = &context.kinds;
    let rules = kinds.syncer_rules(policy).await.map_err(in_step(TenantError::Kinds))?;
    let definitions = definitions::find_definitions(kinds, &policy.kinds)
        .await
        .map_err(in_step(TenantError::Kinds))?;
    let bootstrap::BootstrapObjects {
        roles,
        bindings,
        service_account,
        service_cidrs,
    } = bootstrap::bootstrap_objects(
        &rules,
        &prepared.host_ranges,
        &prepared.accepted.settings.access,
        has_public_discovery(&prepared.accepted.settings.authentication.rules, &prepared.endpoints),
    );
    let no_use_schemas = count_use(prepared).then(flow_schemas::no_use_schemas);
    let flow_schemas: Vec<_> = std::iter::once(flow_schemas::platform_schema())
        .chain(no_use_schemas.into_iter().flatten())
        .collect();
    let authority = prepared.authorities.admission.cert_pem();
    let webhooks = configuration(&prepared.endpoints.admission.authority(), authority);
    let tenant = &prepared.accepted.tenant;
    let writes = async {
        let mut failed = FirstError::<ReconcileError>::default();
        for role in &roles {
            failed.note(applier.apply(role).await);
        }
        for binding in &bindings {
            failed.note(apply_binding(applier, binding).await);
        }
        failed.note(applier.apply(&service_account).await);
        for cidr in &service_cidrs {
            failed.note(applier.apply(cidr).await);
        }
        for schema in &flow_schemas {
            failed.note(applier.apply(schema).await);
        }
        let address = prepared.service_range.first;
        failed.note(applier.apply(&api_server_endpoints::endpoints(address)).await);
        failed.note(apply_slice(applier, &api_server_endpoints::slice(address)).await);
        // Last: from here on Services need the host's ranges. A new API server may lack its own Service when it refuses the objects above.
        if failed.is_none() || have_run(tenant) {
            failed.note(applier.apply(&webhooks).await);
        }
        if !failed.is_none() {
            applier.forget();
        }
        failed.note(definitions::apply_definitions(applier, &definitions).await);
        if let Some(dns) = &started.dns {
            failed.note(dns::apply_tenant_service(applier, dns.address).await);
        }
        failed.into_result()
    };
    Box::pin(tenant.write(writes))
        .await
        .map_err(in_step(TenantError::Bootstrap))
}

/// Applies a ClusterRoleBinding whose name is Berth's. Nobody can change the role of one that exists.
///
/// # Errors
/// The tenant's API server refuses or does not answer.
pub(super) async fn apply_binding(tenant: &Applier, binding: &ClusterRoleBinding) -> Result<(), ApplyError> {
    let bindings: Api<ClusterRoleBinding> = Api::all(tenant.client().clone());
    let has_other_role = |live: &ClusterRoleBinding, wanted: &ClusterRoleBinding| live.role_ref != wanted.role_ref;
    tenant.apply_or_replace(&bindings, binding, has_other_role).await
}

/// Applies the slice of the API server. Nobody can change the type of its addresses.
async fn apply_slice(tenant: &Applier, slice: &EndpointSlice) -> Result<(), ApplyError> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let slices: Api<EndpointSlice> = Api::namespaced(tenant.client().clone(), namespace);
    let has_other_type = |live: &EndpointSlice, wanted: &EndpointSlice| live.address_type != wanted.address_type;
    tenant.apply_or_replace(&slices, slice, has_other_type).await
}

/// Whether the tenant may fall asleep because nobody uses it, so that its API server has to count what is use.
fn count_use(prepared: &Prepared<'_>) -> bool {
    let spec = prepared.accepted.tenant.cluster.spec.sleep.as_ref();
    prepared.accepted.settings.sleep.idle_seconds(spec).is_some()
}
