//! Calls to one API server: every call has a time limit and is measured, and every failure is sorted by what to do
//! about it.

pub use super::call_error::CallError;

use super::{
    contents::{ContentRoom, Read},
    first_comparison, host_first, tenant_waits,
};
use crate::{
    metrics::{CallLabels, Metrics},
    store::Content,
};
use berth_api::labels::SYNCER_MANAGER;
use berth_sync_rules::model::{
    json,
    resource::{self, Name, Resource, Side},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Client,
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{fmt::Debug, time::Duration};
use tokio::time::Instant;

const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Time within which an API server answers at all. One that is busy lets a request wait for 15 s by default, a quarter of its `--request-timeout`, before it
/// says so.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A part of a list.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// Says whether there is more.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<T>,
}

/// Writes under the syncer's name as field manager.
fn as_syncer() -> PostParams {
    PostParams {
        field_manager: Some(SYNCER_MANAGER.into()),
        ..PostParams::default()
    }
}

/// Asks the API server to reject fields that it does not know, instead of dropping them silently. (kube has this for
/// patches only.)
fn strict(mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let text = request.uri().to_string();
    let separator = if text.contains('?') { '&' } else { '?' };
    if let Ok(uri) = format!("{text}{separator}fieldValidation=Strict").parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// Options of a deletion.
#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    /// Only this very object.
    pub uid: &'a str,
    /// Only if it still has this resource version.
    pub version: Option<u64>,
    /// Seconds of grace, for kinds that have it; `None` leaves it to the server.
    pub grace_seconds: Option<u32>,
}

/// One API server.
#[derive(Clone)]
pub struct Api {
    client: Client,
    side: Side,
    metrics: Metrics,
}

impl Api {
    /// Calls through `client`, counted as `side`.
    pub fn new(client: Client, side: Side, metrics: Metrics) -> Self {
        Self { client, side, metrics }
    }

    /// The client, for watches.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether the API server answers: it can be reached, accepts the credential, and does not fail. One that is busy does. It is not measured as calls for
    /// objects are.
    pub(super) async fn answers(&self) -> bool {
        let Ok(request) = http::Request::get("/version").body(Vec::new()) else {
            return false;
        };
        let answer = tokio::time::timeout(ANSWER_LIMIT, self.client.request_text(request)).await;
        match answer {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => !matches!(CallError::from(error), CallError::Unavailable(_)),
            Err(_) => false,
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn get(&self, resource: Resource, namespace: &str, name: &str) -> Result<Value, CallError> {
        let request = Request::new(resource.path(namespace)).get(name, &GetParams::default());
        self.call("get", resource.plural, request).await
    }

    /// Reads an object whose content may be large, as far as there is room for it.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub(super) async fn read(&self, resource: Resource, name: &Name, room: &ContentRoom) -> Result<Read, CallError> {
        let request = Request::new(resource.path(&name.namespace)).get(&name.name, &GetParams::default());
        let request = request.map_err(|error| CallError::Rejected(error.to_string()))?;
        let reading = async { room.read(self.client.request_stream(request).await?).await };
        self.measure("get", resource.plural, reading).await
    }

    /// Whether there are any objects with these labels.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn has_any(&self, resource: Resource, namespace: &str, labels: &str) -> Result<bool, CallError> {
        let parameters = ListParams::default().labels(labels).limit(1);
        let request = Request::new(resource.path(namespace)).list_metadata(&parameters);
        let list = self.call("list", resource.plural, request).await?;
        Ok(!json::items(&list, &["items"]).is_empty())
    }

    /// A page of a list over all namespaces, of at most `most` objects: the first one, or the one that `after`, the token of the page
    /// before, points to.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn list_page<T: DeserializeOwned>(
        &self,
        resource: Resource,
        most: u32,
        after: Option<&str>,
    ) -> Result<Page<T>, CallError> {
        let mut parameters = ListParams::default().limit(most);
        parameters.continue_token = after.map(str::to_owned);
        let request = Request::new(resource.path("")).list(&parameters);
        self.call_for("list", resource.plural, request).await
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As [`CallError`] says; [`CallError::Conflict`] if the name is taken.
    pub async fn create(&self, resource: Resource, namespace: &str, object: &Value) -> Result<Value, CallError> {
        let body = json::to_text(object).into_bytes();
        let request = Request::new(resource.path(namespace)).create(&as_syncer(), body);
        let request = request.map(|request| {
            if self.side == Side::Host {
                strict(request)
            } else {
                request
            }
        });
        self.call("create", resource.plural, request).await
    }

    /// Creates an object under a subresource of another, for example a Binding of a Pod or a token of an account.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn create_sub(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        subresource: &'static str,
        object: &Value,
    ) -> Result<Value, CallError> {
        let body = json::to_text(object).into_bytes();
        let request =
            Request::new(resource.path(namespace)).create_subresource(subresource, name, &PostParams::default(), body);
        self.call("create", subresource, request).await
    }

    /// Evicts a pod with its own grace period, within its budgets.
    ///
    /// # Errors
    /// As [`CallError`] says; [`CallError::Protected`] if a budget keeps the pod, [`CallError::Conflict`] if it is another pod than `uid`.
    pub async fn evict(&self, namespace: &str, name: &str, uid: &str) -> Result<Value, CallError> {
        let eviction = serde_json::json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        self.create_sub(resource::POD, namespace, name, "eviction", &eviction)
            .await
    }

    /// Replaces an object whose `metadata.resourceVersion` is a precondition.
    ///
    /// # Errors
    /// As [`CallError`] says; [`CallError::Conflict`] if the object has changed.
    pub async fn replace(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, CallError> {
        let body = json::to_text(object).into_bytes();
        let request = Request::new(resource.path(namespace)).replace(name, &as_syncer(), body);
        self.call("replace", resource.plural, request).await
    }

    /// What [`Api::apply`] would return. Nothing is stored.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn apply_dry_run(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, CallError> {
        let mut parameters = PatchParams::apply(SYNCER_MANAGER).force();
        parameters.dry_run = true;
        let request = Request::new(resource.path(namespace)).patch(name, &parameters, &Patch::Apply(object));
        self.call("dry-run", resource.plural, request).await
    }

    /// Server-side apply with the syncer's field manager. `metadata.uid` or `metadata.resourceVersion` in `object` are
    /// preconditions.
    ///
    /// # Errors
    /// As [`CallError`] says; [`CallError::Conflict`] if a precondition does not hold.
    pub async fn apply(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, CallError> {
        let mut parameters = PatchParams::apply(SYNCER_MANAGER).force();
        if self.side == Side::Host {
            parameters = parameters.validation_strict();
        }
        let request = Request::new(resource.path(namespace)).patch(name, &parameters, &Patch::Apply(object));
        self.call("apply", resource.plural, request).await
    }

    /// Patches a subresource, or the object itself if `subresource` is empty. `metadata.uid` in a merge patch is a
    /// precondition.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        subresource: &'static str,
        patch: &Patch<impl Serialize + Debug>,
    ) -> Result<Value, CallError> {
        let parameters = PatchParams {
            field_manager: Some(SYNCER_MANAGER.into()),
            ..PatchParams::default()
        };
        let request = Request::new(resource.path(namespace));
        if subresource.is_empty() {
            self.call("patch", resource.plural, request.patch(name, &parameters, patch))
                .await
        } else {
            let request = request.patch_subresource(subresource, name, &parameters, patch);
            self.call("patch", subresource, request).await
        }
    }

    /// Deletes an object. It may go on existing until its grace period and finalizers end; then the answer is the object
    /// as it is now. An object that is gone already is no error.
    ///
    /// # Errors
    /// As [`CallError`] says; [`CallError::Conflict`] if the object of that name is another one.
    pub async fn delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        how: Delete<'_>,
    ) -> Result<Value, CallError> {
        let parameters = DeleteParams {
            grace_period_seconds: how.grace_seconds,
            preconditions: Some(Preconditions {
                uid: Some(how.uid.to_owned()),
                resource_version: how.version.map(|version| version.to_string()),
            }),
            ..DeleteParams::default()
        };
        let request = Request::new(resource.path(namespace)).delete(name, &parameters);
        match self.call("delete", resource.plural, request).await {
            Err(CallError::NotFound) => Ok(Value::Null),
            result => result,
        }
    }

    async fn call<E: std::fmt::Display>(
        &self,
        verb: &'static str,
        resource: &'static str,
        request: Result<http::Request<Vec<u8>>, E>,
    ) -> Result<Value, CallError> {
        let Content(object) = self.call_for(verb, resource, request).await?;
        Ok(object)
    }

    async fn call_for<T: DeserializeOwned, E: std::fmt::Display>(
        &self,
        verb: &'static str,
        resource: &'static str,
        request: Result<http::Request<Vec<u8>>, E>,
    ) -> Result<T, CallError> {
        let request = request.map_err(|error| CallError::Rejected(error.to_string()))?;
        self.measure(verb, resource, self.client.request::<T>(request)).await
    }

    /// Waits for what an API server answers, and measures that.
    async fn measure<T>(
        &self,
        verb: &'static str,
        resource: &'static str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        if self.side == Side::Tenant && host_first::defers() {
            return Err(CallError::Deferred);
        }
        let start = Instant::now();
        let result = tokio::time::timeout(TIME_LIMIT, answer).await;
        if self.side == Side::Tenant {
            tenant_waits::count(start.elapsed());
        }
        self.metrics.api_call(
            &CallLabels {
                side: self.side.name(),
                verb,
                resource,
            },
            start.elapsed(),
        );
        let result = match result {
            Ok(answer) => answer.map_err(|error| CallError::from(error).of_side(self.side)),
            Err(_) => Err(CallError::Unavailable("time limit exceeded".into())),
        };
        if let (Side::Host, Err(error)) = (self.side, &result) {
            first_comparison::note_host_failure(error);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_validation_is_added_to_any_url() {
        let ask = |uri: &str| {
            let request = http::Request::builder().uri(uri).body(Vec::new()).unwrap();
            strict(request).uri().to_string()
        };
        assert_eq!(ask("/api/v1/pods"), "/api/v1/pods?fieldValidation=Strict");
        assert_eq!(ask("/api/v1/pods?a=b"), "/api/v1/pods?a=b&fieldValidation=Strict");
    }
}
