//! What every tenant has in its own API before it is called ready.

use super::{
    super::{
        build::{api_server_endpoints, bootstrap, flow_schemas},
        context::TenantContext,
        error::{TenantError, in_step},
    },
    Prepared, Started, definitions, dns,
};
use crate::{apply::Applier, control_plane::has_public_discovery, error::ReconcileError};
use berth_sync_rules::admission::configuration::configuration;

/// Applies what every tenant has before it is called ready.
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
    let applied = async {
        for role in &roles {
            applier.apply(role).await?;
        }
        for binding in &bindings {
            applier.apply(binding).await?;
        }
        applier.apply(&service_account).await?;
        for cidr in &service_cidrs {
            applier.apply(cidr).await?;
        }
        for schema in &flow_schemas {
            applier.apply(schema).await?;
        }
        let address = prepared.service_range.first;
        applier.apply(&api_server_endpoints::endpoints(address)).await?;
        applier.apply(&api_server_endpoints::slice(address)).await?;
        // Last: from here on Services need the host's ranges.
        applier.apply(&webhooks).await
    };
    let writes = async {
        applied.await.inspect_err(|_| applier.forget())?;
        definitions::apply_definitions(applier, &definitions).await?;
        if let Some(dns) = &started.dns {
            dns::apply_tenant_service(applier, dns.address).await?;
        }
        Ok::<_, ReconcileError>(())
    };
    Box::pin(prepared.accepted.tenant.write(writes))
        .await
        .map_err(in_step(TenantError::Bootstrap))
}

/// Whether the tenant may fall asleep because nobody uses it, so that its API server has to count what is use.
fn count_use(prepared: &Prepared<'_>) -> bool {
    let spec = prepared.accepted.tenant.cluster.spec.sleep.as_ref();
    prepared.accepted.settings.sleep.idle_seconds(spec).is_some()
}
