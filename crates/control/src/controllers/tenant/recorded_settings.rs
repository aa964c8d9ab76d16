//! The settings that a tenant was accepted with last.
//!
//! Settings are recorded in the control-plane namespace as soon as they are accepted. A tenant whose spec can no longer
//! be carried out (its class was deleted, its version is no longer available) keeps running with the settings accepted
//! last: nothing of it is deleted, its certificates and tokens are renewed, and the condition Accepted says what to do.
//!
//! The record also has the kinds of `sync.kinds` that were withdrawn and of which the host may have objects: see [`withdrawn_kinds`](super::withdrawn_kinds).

use super::{
    build::host_objects, context::TenantContext, recorded_kinds::RecordedKinds, settings::Settings, target::Tenant,
};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use berth_api::sync_policy::SyncedKind;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Resource};
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "settings";
/// Its key with the settings.
const KEY: &str = "settings.json";
/// Its key with the kinds that were withdrawn.
const WITHDRAWN_KINDS: &str = "withdrawn-kinds.json";

/// Records what a tenant is accepted with, and which kinds were withdrawn.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn record(
    tenant: &Tenant,
    settings: &Settings,
    withdrawn: &[SyncedKind],
) -> Result<(), ReconcileError> {
    let text = serde_json::to_string(settings).unwrap_or_default();
    let kinds = serde_json::to_string(withdrawn).unwrap_or_default();
    let data = BTreeMap::from([(KEY.to_owned(), text), (WITHDRAWN_KINDS.to_owned(), kinds)]);
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, data);
    Ok(tenant.memory.host.apply(&map).await?)
}

/// The further kinds in the record; none of what cannot be read, which is about to be written anew.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn load_kinds(context: &TenantContext, tenant: &Tenant) -> Result<RecordedKinds, ReconcileError> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read the kinds that the tenant had"))?;
    let data = map.and_then(|map| map.data).unwrap_or_default();
    let read = |key: &str, path: &str| {
        let value = serde_json::from_str::<Value>(data.get(key)?).ok()?;
        serde_json::from_value(value.pointer(path)?.clone()).ok()
    };
    Ok(RecordedKinds {
        listed: read(KEY, "/sync/kinds").unwrap_or_default(),
        withdrawn: read(WITHDRAWN_KINDS, "").unwrap_or_default(),
        is_revoked: false,
    })
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
