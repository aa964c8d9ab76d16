//! A tenant that has run is not started on another database.
//!
//! Its syncer would delete from the host whatever that database lacks, with the volumes of claims. Which database a tenant has is known by the
//! UID of its namespace `kube-system`, and recorded on the host. docs/adr/0053 says why.

use super::{
    super::{
        build::{host_objects, stored_namespace},
        context::TenantContext,
        own_endpoints,
        target::Tenant,
    },
    components::stop_components,
};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use berth_api::NetworkLimits;
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "datastore";
/// Its one key.
const KEY: &str = "kubeSystemUID";

/// Creates what the tenant needs in the datastore. If that has lost the database with which the tenant has run, or has another one, its user there is
/// deleted instead and its components are stopped: without the user no API server of it can serve that. `network` says which endpoints may stay then.
///
/// # Errors
/// The datastore or the host refuses or does not answer, or the database is another one.
pub(super) async fn prepare_datastore(
    context: &TenantContext,
    tenant: &Tenant,
    network: &NetworkLimits,
) -> Result<(), ReconcileError> {
    let found = match read(context, tenant).await? {
        Found::Unreadable => return Ok(context.datastore.create_tenant(&tenant.id).await?),
        // It gets no user before somebody has seen its database: a datastore that has just lost everything may answer to that.
        Found::NoAnswer => return Ok(()),
        Found::Nothing => None,
        Found::Database(uid) => Some(uid),
    };
    let recorded = match recall(tenant) {
        known if known.is_some() && known == found => known,
        _ => {
            // A datastore that does not answer the next time must not pass for the right one.
            remember(tenant, None);
            // As it is now: the platform deletes it to go on with what is stored.
            load(context, tenant).await?
        }
    };
    if recorded.is_some() && recorded != found {
        shut_out(context, tenant, network).await;
        return Err(describe_replaced(tenant, found.is_some()));
    }
    context.datastore.create_tenant(&tenant.id).await?;
    match found {
        Some(uid) => record(tenant, uid).await,
        // It has not run yet.
        None => Ok(()),
    }
}

/// Records the database that a restore gives the tenant, before it has it: `stored` is the namespace as etcd will have it. One that cannot be read stays
/// unrecorded, as always.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn record_restored(tenant: &Tenant, stored: &[u8]) -> Result<(), ReconcileError> {
    match stored_namespace::uid(stored) {
        Some(uid) => record(tenant, uid).await,
        None => Ok(()),
    }
}

/// Whether the datastore has the database that the host has a record of, as after a restore. One that cannot be read may be it.
///
/// # Errors
/// The datastore or the host refuses or does not answer.
pub(super) async fn has_recorded(context: &TenantContext, tenant: &Tenant) -> Result<bool, ReconcileError> {
    let stored = context.datastore.read_key(&tenant.id, stored_namespace::PATH).await?;
    let Some(stored) = stored else { return Ok(false) };
    let Some(uid) = stored_namespace::uid(&stored) else {
        return Ok(true);
    };
    let recorded = load(context, tenant).await?;
    Ok(recorded.is_none_or(|recorded| recorded == uid))
}

/// Keeps the API server of a tenant from what is stored, and ends it. What fails here is tried again with the next reconcile, which comes to the same.
async fn shut_out(context: &TenantContext, tenant: &Tenant, network: &NetworkLimits) {
    let slug = tenant.id.slug();
    // First: the components may take a while to end. The user exists if the database is one that the tenant had before.
    if let Err(error) = context.datastore.delete_user(&tenant.id).await {
        tracing::warn!(tenant = slug, %error, "cannot delete the user of a tenant whose database is another one");
    }
    if let Err(error) = stop_components(context, tenant).await {
        tracing::warn!(tenant = slug, %error, "cannot stop a tenant whose database is another one");
    }
    // Its pods run on, and nobody takes those that end out of its own endpoints any more.
    let closed = own_endpoints::delete_of_pods(&context.client, &tenant.id, network).await;
    if let Err(error) = closed.result {
        tracing::warn!(tenant = slug, %error, "cannot delete the endpoints of a tenant whose database is another one");
    }
}

/// What the datastore has of a tenant.
enum Found {
    /// No database, or an empty one.
    Nothing,
    /// The one with this UID.
    Database(String),
    /// One that cannot be read, and may be the same as before.
    Unreadable,
    /// It does not answer. It had the right one a moment ago.
    NoAnswer,
}

async fn read(context: &TenantContext, tenant: &Tenant) -> Result<Found, ReconcileError> {
    match context.datastore.read_key(&tenant.id, stored_namespace::PATH).await {
        Ok(None) => Ok(Found::Nothing),
        Ok(Some(stored)) => Ok(stored_namespace::uid(&stored).map_or(Found::Unreadable, Found::Database)),
        // Meanwhile the rest goes on.
        Err(_) if recall(tenant).is_some() => Ok(Found::NoAnswer),
        Err(error) => Err(error.into()),
    }
}

fn recall(tenant: &Tenant) -> Option<String> {
    lock(&tenant.memory.database).clone()
}

fn remember(tenant: &Tenant, uid: Option<String>) {
    *lock(&tenant.memory.database) = uid;
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
    remember(tenant, Some(uid));
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
             from a backup, or set the tenant back to one of its snapshots. To go on with what is stored now, delete ConfigMap {namespace}/{RECORD} of the host: then everything on the \
             host that is not stored is deleted, with the volumes whose reclaim policy is Delete"
        ),
    }
}
