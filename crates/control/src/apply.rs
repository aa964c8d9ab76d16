//! Server-side apply that does not repeat itself.

use berth_api::{labels, names};
use berth_runtime::locks::lock;
use futures::{StreamExt, stream};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, Preconditions},
    core::Request,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{collections::HashMap, fmt::Debug, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// Age after which an object is applied again even if it did not change here, so that drift is corrected.
const REFRESH: Duration = Duration::from_secs(300);

/// Why an object could not be applied.
#[derive(Debug, thiserror::Error)]
#[error("cannot apply {object}: {source}{}", size_advice(.source))]
pub struct ApplyError {
    /// Kind, namespace and name.
    pub object: String,
    /// The API server's answer.
    pub source: Box<kube::Error>,
}

/// Applies objects to one API server and remembers what it applied, so that reconciling without a change writes
/// nothing.
pub struct Applier {
    client: Client,
    applied: Mutex<HashMap<String, (String, Instant)>>,
}

impl Applier {
    /// An applier that remembers nothing yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            applied: Mutex::default(),
        }
    }

    /// The client it applies with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Forgets what was applied, so that everything is applied again: after an error, and when an object disappeared.
    pub fn forget(&self) {
        lock(&self.applied).clear();
    }

    /// Forgets what was applied of one kind, such as `Deployment`: something else has changed the objects.
    pub fn forget_kind(&self, kind: &str) {
        let prefix = format!("{kind} ");
        let mut applied = lock(&self.applied);
        applied.retain(|key, _| !key.starts_with(&prefix));
    }

    /// Applies the object, unless exactly this was applied a short while ago. Fields of other managers stay.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn apply<K>(&self, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize + Sync,
    {
        self.apply_and_look(object).await.map(drop)
    }

    /// As [`Applier::apply`]. Returns the metadata that the object has then, with what other managers own as well; none if exactly this was applied a
    /// short while ago.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn apply_and_look<K>(&self, object: &K) -> Result<Option<ObjectMeta>, ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize + Sync,
    {
        self.send(&ApiResource::erase::<K>(&()), object, object.meta(), true)
            .await
    }

    /// Applies the object even if it was applied a short while ago: for an object that is known to have changed since.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn apply_again<K>(&self, object: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Serialize + Sync,
    {
        self.send(&ApiResource::erase::<K>(&()), object, object.meta(), false)
            .await
            .map(drop)
    }

    /// As [`Applier::apply`]. If the API server refuses (422), what exists is deleted and made anew: only for objects with which nothing else is
    /// lost. `is_other(live, wanted)` says whether the two differ in a field that cannot be changed; if not, the live one stays.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn apply_or_replace<K>(
        &self,
        api: &Api<K>,
        object: &K,
        is_other: fn(&K, &K) -> bool,
    ) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Sync,
    {
        let what = match self.apply(object).await {
            Err(ApplyError { object, source }) if is_status(&source, 422) => object,
            applied => return applied,
        };
        let fail = |source| ApplyError {
            object: what.clone(),
            source: Box::new(source),
        };
        let name = object.meta().name.as_deref().unwrap_or_default();
        let live = optional(api.get(name).await).map_err(&fail)?;
        if let Some(live) = live.filter(|live| is_other(live, object)) {
            delete_same(api, live.meta(), None).await.map_err(&fail)?;
        }
        self.apply_again(object).await
    }

    /// As [`Applier::apply`], for a kind without a type.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn apply_dynamic(&self, resource: &ApiResource, object: &DynamicObject) -> Result<(), ApplyError> {
        self.send(resource, object, &object.metadata, true).await.map(drop)
    }

    async fn send(
        &self,
        resource: &ApiResource,
        object: &(impl Serialize + Sync),
        metadata: &ObjectMeta,
        skip_known: bool,
    ) -> Result<Option<ObjectMeta>, ApplyError> {
        let name = metadata.name.clone().unwrap_or_default();
        let namespace = metadata.namespace.clone();
        let key = format!("{} {}/{name}", resource.kind, namespace.as_deref().unwrap_or_default());
        let fail = |source| ApplyError {
            object: key.clone(),
            source: Box::new(source),
        };
        let mut value = serde_json::to_value(object).map_err(|error| fail(kube::Error::SerdeError(error)))?;
        value["apiVersion"] = resource.api_version.clone().into();
        value["kind"] = resource.kind.clone().into();
        let hash = names::hash(&[&value.to_string()]);
        if skip_known {
            let applied = lock(&self.applied);
            if applied
                .get(&key)
                .is_some_and(|(earlier, at)| *earlier == hash && at.elapsed() < REFRESH)
            {
                return Ok(None);
            }
        }
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        };
        let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
        let applied = api.patch(&name, &params, &Patch::Apply(&value)).await.map_err(fail)?;
        lock(&self.applied).insert(key, (hash, Instant::now()));
        Ok(Some(applied.metadata))
    }
}

/// Precondition of a deletion or an eviction: another object that has the name by now is a conflict (409).
pub fn only_this(uid: Option<String>) -> Preconditions {
    Preconditions {
        uid,
        resource_version: None,
    }
}

/// Deletes the object that was read, if it still exists: not another one that has its name by now. With a resource version, only that version of it.
/// Returns whether it did exist.
///
/// # Errors
/// The API server refuses or does not answer, or the object is no longer of that version (409).
pub async fn delete_same<K>(api: &Api<K>, read: &ObjectMeta, version: Option<String>) -> kube::Result<bool>
where
    K: Clone + Debug + DeserializeOwned,
{
    let may_have_changed = version.is_none();
    let same = Preconditions {
        resource_version: version,
        ..only_this(read.uid.clone())
    };
    let params = DeleteParams::default().preconditions(same);
    match api.delete(read.name.as_deref().unwrap_or_default(), &params).await {
        Err(error) if is_status(&error, 404) || (may_have_changed && is_status(&error, 409)) => Ok(false),
        deleted => deleted.map(|_| true),
    }
}

/// Deletes several objects as [`delete_same`], some at the same time. One that cannot be deleted keeps no other one. Returns how many were deleted now, without
/// those that are gone or have been made again, and the error of one that could not be deleted.
pub async fn delete_several<K>(api: &Api<K>, read: impl IntoIterator<Item = ObjectMeta>) -> (usize, kube::Result<()>)
where
    K: Clone + Debug + DeserializeOwned,
{
    const AT_A_TIME: usize = 8;
    let deletions: Vec<_> = { read.into_iter() }
        .map(|read| {
            let api = api.clone();
            async move { delete_same(&api, &read, None).await }
        })
        .collect();
    let answers: Vec<kube::Result<bool>> = stream::iter(deletions).buffer_unordered(AT_A_TIME).collect().await;
    let deleted = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
    (deleted, answers.into_iter().try_for_each(|answer| answer.map(drop)))
}

/// Takes all finalizers off the object that was read, if it is still as it was then. That it is gone or has changed is no error.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn remove_finalizers<K>(api: &Api<K>, read: &ObjectMeta) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let patch = json!({"metadata": {"uid": read.uid, "resourceVersion": read.resource_version, "finalizers": null}});
    let name = read.name.as_deref().unwrap_or_default();
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(error) if [404, 409].iter().any(|code| is_status(&error, *code)) => Ok(()),
        patched => patched.map(drop),
    }
}

/// Deletes all objects of a kind in a namespace. The API server answers with all of them, in one piece and in full: where tenants fill them, that is more
/// than control has memory for, so it is not read.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn delete_all<K: Resource>(client: &Client, api: &Api<K>) -> kube::Result<()> {
    let request = Request::new(api.resource_url());
    let request = request.delete_collection(&DeleteParams::default(), &ListParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    // Of an error all is read before there is a stream.
    client.request_stream(request).await.map(drop)
}

/// `None` when the object does not exist, instead of an error.
///
/// # Errors
/// Any other answer than 404.
pub fn optional<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the API server answered with this HTTP status.
pub fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether an API server has not stored an object because it is too large: as a request (3 MiB), in etcd (1.5 MiB), or for its kind, as with the
/// 1 MiB of a ConfigMap and the 256 KiB of annotations. To try again changes nothing.
pub fn is_too_large(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let says = |text: &str| status.message.contains(text);
    match status.code {
        413 => true,
        // By the validation of Kubernetes, and before 1.32.
        422 => says("Too long: may not be more than") || says("Too long: must have at most"),
        // By etcd, and by its client if it is even larger.
        500.. => says("etcdserver: request is too large") || says("trying to send message larger than max"),
        _ => false,
    }
}

/// What to do about an object that is too large; empty for other errors.
fn size_advice(error: &kube::Error) -> &'static str {
    if is_too_large(error) {
        "; it is larger than an API server stores: shorten what it is made from, such as lists of the class"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi, client_of};
    use http::{Method, Request, Response, StatusCode};
    use k8s_openapi::api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Pod},
    };
    use kube::{client::Body, core::Status};
    use std::convert::Infallible;

    #[tokio::test]
    async fn what_is_deleted_together_is_not_read() {
        for (code, text) in [
            (200, "all pods of a tenant"),
            (403, r#"{"message": "no", "code": 403}"#),
        ] {
            let client = client_of(tower::service_fn(move |request: Request<Body>| {
                assert_eq!(
                    (request.method(), request.uri().path()),
                    (&Method::DELETE, "/api/v1/namespaces/team/pods")
                );
                let mut answer = Response::new(Body::from(text.as_bytes().to_vec()));
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                async move { Ok::<_, Infallible>(answer) }
            }));
            let pods: Api<Pod> = Api::namespaced(client.clone(), "team");
            let deleted = delete_all(&client, &pods).await;
            assert_eq!(deleted.is_err_and(|error| is_status(&error, 403)), code == 403);
        }
    }

    #[test]
    fn objects_that_are_too_large_are_recognised() {
        let error = |code: u16, message: &str| {
            let status = Status::failure(message, "").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        for (code, message) in [
            (413, "Request entity too large: limit is 3145728"),
            (500, "etcdserver: request is too large"),
            (
                500,
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2200000 vs. 2097152)",
            ),
            (
                422,
                "Namespace \"a\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes",
            ),
            (
                422,
                "ConfigMap \"a\" is invalid: []: Too long: must have at most 1048576 bytes",
            ),
        ] {
            let source = Box::new(error(code, message));
            assert!(is_too_large(&source), "{message}");
            let object = "ConfigMap a/b".to_owned();
            let text = ApplyError { object, source }.to_string();
            assert!(text.contains("shorten"), "{text}");
        }
        for (code, message) in [
            (500, "etcdserver: request timed out"),
            (422, "spec.replicas: Invalid value: 1 is too large"),
            (
                403,
                "admission webhook \"w\" denied the request: etcdserver: request is too large",
            ),
        ] {
            assert!(!is_too_large(&error(code, message)), "{message}");
        }
    }

    #[tokio::test]
    async fn only_what_was_forgotten_is_applied_again() {
        let script = Script::default();
        let applier = Applier::new(ScriptedApi::new("host", &script).client());
        let metadata = ObjectMeta {
            name: Some("a".into()),
            namespace: Some("team".into()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap {
            metadata: metadata.clone(),
            ..ConfigMap::default()
        };
        let deployment = Deployment {
            metadata,
            ..Deployment::default()
        };
        for forgets in [false, false, true] {
            if forgets {
                applier.forget_kind("Deployment");
            }
            applier.apply(&map).await.unwrap();
            applier.apply(&deployment).await.unwrap();
        }
        let calls: Vec<String> = script.calls().into_iter().map(|call| call.text).collect();
        let (of_map, of_deployment) = (
            "host PATCH /api/v1/namespaces/team/configmaps/a",
            "host PATCH /apis/apps/v1/namespaces/team/deployments/a",
        );
        assert_eq!(calls, [of_map, of_deployment, of_deployment]);
    }
}
