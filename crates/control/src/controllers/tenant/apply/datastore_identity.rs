//! A tenant that has run is not started on another database.
//!
//! Its syncer would delete from the host whatever that database lacks, with the volumes of claims. Which database a tenant has is known by the
//! UID of its namespace `kube-system`, and recorded on the host. docs/adr/0053 says why.

use super::{
    super::{
        build::{host_objects, stored_namespace},
        context::TenantContext,
        target::Tenant,
    },
    components::stop_components,
};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use std::sync::PoisonError;

/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "datastore";
/// Its one key.
const KEY: &str = "kubeSystemUID";

/// Creates what the tenant needs in the datastore. If that has lost the database with which the tenant has run, or has another one, its components
/// are stopped instead: without its user in the datastore no API server of it can serve that.
///
/// # Errors
/// The datastore or the host refuses or does not answer, or the database is another one.
pub(super) async fn prepare_datastore(context: &TenantContext, tenant: &Tenant) -> Result<(), ReconcileError> {
    let found = match read(context, tenant).await? {
        Found::Unknown => return Ok(context.datastore.create_tenant(&tenant.id).await?),
        Found::Nothing => None,
        Found::Database(uid) => Some(uid),
    };
    let recorded = match recall(tenant) {
        known if known.is_some() && known == found => known,
        // As it is now: the platform deletes it to go on with what is stored.
        _ => load(context, tenant).await?,
    };
    if recorded.is_some() && recorded != found {
        // What fails here is tried again with the next reconcile, which comes to the same.
        if let Err(error) = stop_components(context, tenant).await {
            tracing::warn!(tenant = tenant.id.slug(), %error, "cannot stop a tenant whose database is another one");
        }
        return Err(describe_replaced(tenant, found.is_some()));
    }
    context.datastore.create_tenant(&tenant.id).await?;
    match found {
        Some(uid) => record(tenant, uid).await,
        // It has not run yet.
        None => Ok(()),
    }
}

/// What the datastore has of a tenant.
enum Found {
    /// No database, or an empty one.
    Nothing,
    /// The one with this UID.
    Database(String),
    /// It cannot be read, and may be the same as before.
    Unknown,
}

async fn read(context: &TenantContext, tenant: &Tenant) -> Result<Found, ReconcileError> {
    match context.datastore.read_key(&tenant.id, stored_namespace::PATH).await {
        Ok(None) => Ok(Found::Nothing),
        Ok(Some(stored)) => Ok(stored_namespace::uid(&stored).map_or(Found::Unknown, Found::Database)),
        // It was the right one a moment ago. While etcd does not answer, the rest goes on.
        Err(_) if recall(tenant).is_some() => Ok(Found::Unknown),
        Err(error) => Err(error.into()),
    }
}

fn recall(tenant: &Tenant) -> Option<String> {
    let known = tenant.memory.database.lock();
    known.unwrap_or_else(PoisonError::into_inner).clone()
}

/// The recorded UID; none if there is none.
async fn load(context: &TenantContext, tenant: &Tenant) -> Result<Option<String>, ReconcileError> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read which database the tenant has"))?;
    Ok(map.and_then(|map| map.data?.remove(KEY)))
}

/// Records the UID, also again if somebody has deleted the record of the same.
async fn record(tenant: &Tenant, uid: String) -> Result<(), ReconcileError> {
    let data = [(KEY.to_owned(), uid.clone())].into();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, data);
    tenant.memory.host.apply(&map).await?;
    *tenant.memory.database.lock().unwrap_or_else(PoisonError::into_inner) = Some(uid);
    Ok(())
}

fn describe_replaced(tenant: &Tenant, is_other: bool) -> ReconcileError {
    let found = if is_other {
        "the datastore has another database of the tenant than the one with which it has run"
    } else {
        "the tenant has run, and the datastore has nothing of it"
    };
    let namespace = tenant.id.control_plane_namespace();
    ReconcileError::Blocked {
        reason: "DatastoreReplaced",
        message: format!(
            "{found}. Its control plane is stopped, so that nothing of it is deleted on the host; its pods run on. Restore the datastore \
             from a backup. To go on with what is stored now, delete ConfigMap {namespace}/{RECORD} of the host: then everything on the \
             host that is not stored is deleted, with the volumes whose reclaim policy is Delete"
        ),
    }
}
