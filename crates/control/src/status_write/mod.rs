//! Writes statuses of Berth's kinds.
//!
//! Not by server-side apply: that removes and keeps fields by what `metadata.managedFields` says, which anybody may change who may change the object.
//! Each writer has fields of its own, and says of each of them what it is, or that it is gone.

use crate::apply::is_status;
use berth_api::{TenantCluster, crd, labels};
use berth_runtime::watched::Watched;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams},
    core::{Status, object::HasStatus},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::LazyLock};

/// How often a write is tried of which it is not clear yet whether there is a status. The last try of a first status is made whatever else changes in the
/// object: who may change it could keep it without a status otherwise.
const ATTEMPTS: usize = 5;

/// Fields of the status of a `TenantCluster` that are written with the idle GPUs.
pub static IDLE_FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| BTreeSet::from(["idle".to_owned()]));
/// Fields that are written when a record of what the tenant used is written.
pub static USAGE_FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| BTreeSet::from(["monthlyUsage".to_owned()]));
/// All others, which are written when the tenant is reconciled.
pub static TENANT_FIELDS: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| &(&crd::status_fields::<TenantCluster>() - &*IDLE_FIELDS) - &*USAGE_FIELDS);

/// Objects of a kind, of which an answer that nobody can read is no failure: the write was carried out.
type StatusApi = Api<Watched<DynamicObject>>;

/// The object whose status is written, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct StatusTarget<'a> {
    /// Its names and UID, and its resource version if that is known.
    pub metadata: &'a ObjectMeta,
    /// Whether it had a status.
    pub has_status: bool,
    /// The status is written only if the object still has this resource version; none: in any case.
    pub only_version: Option<&'a str>,
}

impl<'a> StatusTarget<'a> {
    /// An object whose status is written in any case.
    pub fn of<K: Resource + HasStatus>(object: &'a K) -> Self {
        Self {
            metadata: object.meta(),
            has_status: object.status().is_some(),
            only_version: None,
        }
    }
}

/// Writes the `fields` of the status of an object: those that `status` does not have are removed. All other fields stay as they are, whatever they
/// are by then.
///
/// # Errors
/// The API server refuses or does not answer; status 404 if the object is gone, 409 if another one has its name or it is of another version.
pub async fn write_status<K>(
    client: &Client,
    target: StatusTarget<'_>,
    fields: &BTreeSet<String>,
    status: &(impl Serialize + Sync),
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let StatusTarget {
        metadata,
        mut has_status,
        only_version,
    } = target;
    let resource = ApiResource::erase::<K>(&());
    let objects: StatusApi = match &metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = metadata.name.as_deref().unwrap_or_default();
    let uid = metadata.uid.as_deref();
    let values = own_values(fields, status)?;
    let mut version = only_version
        .or(metadata.resource_version.as_deref())
        .map(ToOwned::to_owned);
    for attempt in 1..=ATTEMPTS {
        let (written, doubtful) = if has_status {
            let patch = replace_fields(uid, only_version, fields, &values)?;
            (send(&objects, name, &patch).await, 422)
        } else if attempt == ATTEMPTS && only_version.is_none() {
            let patch = add_status(uid, &values)?;
            (send(&objects, name, &patch).await, 422)
        } else {
            let patch = Patch::Merge(first_status(version.as_deref(), &values));
            (send(&objects, name, &patch).await, 409)
        };
        let Err(error) = written else { break };
        // Of a patch that does not fit to the object, API servers do not say why.
        if !is_status(&error, doubtful) || attempt == ATTEMPTS {
            return Err(error);
        }
        let Some(live) = objects.get(name).await?.readable() else {
            return Err(error);
        };
        let is_other = uid.is_some_and(|uid| live.metadata.uid.as_deref() != Some(uid));
        let is_changed = only_version.is_some_and(|version| live.resource_version().as_deref() != Some(version));
        if is_other || is_changed {
            return Err(conflict());
        }
        let had_status = std::mem::replace(&mut has_status, live.data["status"].is_object());
        if had_status && has_status {
            return Err(error);
        }
        version = live.resource_version();
    }
    Ok(())
}

async fn send<P>(objects: &StatusApi, name: &str, patch: &Patch<P>) -> kube::Result<()>
where
    P: Serialize + std::fmt::Debug + Sync,
{
    let params = PatchParams {
        field_manager: Some(labels::CONTROL_MANAGER.into()),
        ..PatchParams::default()
    };
    objects.patch_status(name, &params, patch).await.map(drop)
}

/// What a status says of some fields.
fn own_values(fields: &BTreeSet<String>, status: &impl Serialize) -> kube::Result<Map<String, Value>> {
    let status = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    let Value::Object(mut values) = status else {
        return Ok(Map::new());
    };
    values.retain(|field, value| fields.contains(field) && !value.is_null());
    Ok(values)
}

/// The JSON patch that gives all `fields` their value, and removes those without one. It fails (422) if the object has another UID or no status.
fn replace_fields(
    uid: Option<&str>,
    only_version: Option<&str>,
    fields: &BTreeSet<String>,
    values: &Map<String, Value>,
) -> kube::Result<Patch<()>> {
    let mut operations = Vec::new();
    if let Some(uid) = uid {
        operations.push(json!({"op": "test", "path": "/metadata/uid", "value": uid}));
    }
    // With another one than the object has, the API server answers 409, and not 422 as after a test.
    if let Some(version) = only_version {
        operations.push(json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version}));
    }
    for field in fields {
        let path = format!("/status/{field}");
        if let Some(value) = values.get(field) {
            operations.push(json!({"op": "add", "path": path, "value": value}));
        } else {
            // What is not there cannot be removed.
            operations.push(json!({"op": "add", "path": path, "value": false}));
            operations.push(json!({"op": "remove", "path": path}));
        }
    }
    json_patch_of(operations)
}

fn json_patch_of(operations: Vec<Value>) -> kube::Result<Patch<()>> {
    let operations = serde_json::from_value(Value::Array(operations)).map_err(kube::Error::SerdeError)?;
    Ok(Patch::Json(operations))
}

/// The JSON patch for an object that had no status a moment ago. It also removes what another writer has written meanwhile, who writes it again.
fn add_status(uid: Option<&str>, values: &Map<String, Value>) -> kube::Result<Patch<()>> {
    let mut operations = vec![json!({"op": "add", "path": "/status", "value": values})];
    if let Some(uid) = uid {
        operations.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": uid}));
    }
    json_patch_of(operations)
}

/// The merge patch for an object that has no status. With its version, so that it is not another object of the name.
fn first_status(version: Option<&str>, values: &Map<String, Value>) -> Value {
    let mut patch = json!({"status": values});
    if let Some(version) = version {
        patch["metadata"] = json!({"resourceVersion": version});
    }
    patch
}

fn conflict() -> kube::Error {
    let status = Status::failure("the object was changed, or another one has its name", "Conflict");
    kube::Error::Api(Box::new(status.with_code(409)))
}

#[cfg(test)]
mod tests;
