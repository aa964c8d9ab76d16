//! Finalizers: which an object has, and how one is added and removed.

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;

/// Whether an object has a finalizer.
pub fn is_set(object: &impl ResourceExt, name: &str) -> bool {
    object.finalizers().iter().any(|known| known == name)
}

/// Adds a finalizer.
///
/// # Errors
/// The API server refuses or does not answer; status 409 if the object was changed since it was read.
pub async fn add<K>(api: &Api<K>, object: &impl ResourceExt, name: &str) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut finalizers = object.finalizers().to_vec();
    finalizers.push(name.into());
    patch(api, object, &finalizers).await
}

/// Removes a finalizer.
///
/// # Errors
/// The API server refuses or does not answer; status 404 if the object is gone, 409 if it was changed since it was read.
pub async fn remove<K>(api: &Api<K>, object: &impl ResourceExt, name: &str) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut finalizers = object.finalizers().to_vec();
    finalizers.retain(|known| known != name);
    patch(api, object, &finalizers).await
}

/// The UID protects another object of the same name, the resource version protects other finalizers.
async fn patch<K>(api: &Api<K>, object: &impl ResourceExt, finalizers: &[String]) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let body = json!({"metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
    }});
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&body))
        .await
        .map(drop)
}
