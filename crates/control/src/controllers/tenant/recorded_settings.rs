//! The settings that a tenant was accepted with last.
//!
//! Settings are recorded in the control-plane namespace as soon as they are accepted. A tenant whose spec can no longer
//! be carried out (its class was deleted, its version is no longer available) keeps running with the settings accepted
//! last: nothing of it is deleted, its certificates and tokens are renewed, and the condition Accepted says what to do.

use super::{build::host_objects, context::TenantContext, settings::Settings, target::Tenant};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Resource};

/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "settings";
/// Its one key.
const KEY: &str = "settings.json";

/// Records what a tenant is accepted with.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn record(tenant: &Tenant, settings: &Settings) -> Result<(), ReconcileError> {
    let text = serde_json::to_string(settings).unwrap_or_default();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, [(KEY.into(), text)].into());
    Ok(tenant.memory.host.apply(&map).await?)
}

/// What a tenant was accepted with last; none if it never was.
///
/// # Errors
/// The host refuses or does not answer, or the record cannot be read: such a tenant was accepted, and must not look new.
pub(super) async fn load(context: &TenantContext, tenant: &Tenant) -> Result<Option<Settings>, ReconcileError> {
    if tenant.cluster.meta().finalizers.is_none() {
        return Ok(None);
    }
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read the tenant's settings"))?;
    let Some(map) = map else { return Ok(None) };
    let text = map.data.and_then(|mut data| data.remove(KEY)).unwrap_or_default();
    serde_json::from_str(&text).map(Some).map_err(|error| ReconcileError::Blocked {
        reason: "SettingsUnreadable",
        message: format!(
            "ConfigMap {}/{RECORD} of the host, which says what the tenant was accepted with last, cannot be read: {error}. The tenant \
             runs on as it is, and nothing of it is renewed. Restore the ConfigMap, or correct the spec so that it is accepted, with \
             spec.version as it runs: that writes the ConfigMap again",
            tenant.id.control_plane_namespace()
        ),
    })
}
