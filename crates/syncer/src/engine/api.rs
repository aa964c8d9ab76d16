//! Calls to one API server: every call has a time limit and is measured, and every failure is sorted by what to do
//! about it.

use super::tenant_waits;
use crate::{
    metrics::{CallLabels, Metrics},
    store::Content,
};
use berth_api::labels::SYNCER_MANAGER;
use berth_sync_rules::{
    model::{
        json,
        resource::{self, Resource, Side},
    },
    translation::quota::{self, QuotaExceeded},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Client,
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, Status},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{fmt::Debug, time::Duration};
use tokio::time::Instant;

const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Wait after "too many requests" without a time of its own.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Longest wait that the tenant's API server can ask for: a webhook of the tenant can name a hundred years.
const LONGEST_TENANT_WAIT: Duration = Duration::from_secs(15);

/// Reason of the cause of an eviction that is refused: `policyv1.DisruptionBudgetCause` of Kubernetes.
const BUDGET: &str = "DisruptionBudget";
/// Reason of the cause of a creation that is refused in a namespace that is being deleted: `v1.NamespaceTerminatingCause` of Kubernetes.
const TERMINATING: &str = "NamespaceTerminating";

/// A part of a list.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// Says whether there is more.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<T>,
}

/// Why a call failed, sorted by what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no such object.
    #[error("not found")]
    NotFound,
    /// The object was changed meanwhile, or another object has its name.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The API server rejects the request; trying again changes nothing until something else changes.
    #[error("rejected: {0}")]
    Rejected(String),
    /// The tenant's namespace is being deleted: nothing can be created in it any more.
    #[error("the namespace is being deleted: {0}")]
    Terminating(String),
    /// A limit of the tenant on the host is reached.
    #[error("quota exceeded: {0}")]
    QuotaExceeded(QuotaExceeded),
    /// A PodDisruptionBudget does not let the pod be evicted now.
    #[error("a budget protects the pod: {0}")]
    Protected(String),
    /// The API server is busy and says when to come back.
    #[error("the API server is busy")]
    Busy(Duration),
    /// The API server could not be reached, did not answer in time, or failed.
    #[error("no answer: {0}")]
    Unavailable(String),
}

impl CallError {
    fn from_status(status: &Status) -> Self {
        let message = || status.message.clone();
        let after = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
        match status.code {
            404 => Self::NotFound,
            409 => Self::Conflict(message()),
            // How an API server says that the UID of a precondition is not that of the object.
            422 if causes.iter().any(|cause| cause.field == "metadata.uid") => Self::Conflict(message()),
            429 if causes.iter().any(|cause| cause.reason == BUDGET) => Self::Protected(message()),
            429 | 503 | 504 | 500 if after > 0 => Self::Busy(Duration::from_secs(u64::from(after))),
            429 => Self::Busy(BUSY_WAIT),
            403 if causes.iter().any(|cause| cause.reason == TERMINATING) => Self::Terminating(message()),
            // As from an API server that starts.
            401 => Self::Unavailable(message()),
            400..=499 => Self::Rejected(message()),
            _ => Self::Unavailable(message()),
        }
    }

    /// What a failure means on a side. The host's quotas are limits of the tenant; those in the tenant are its own. The host says itself when to come
    /// back; the tenant only within limits. The host's namespace is control's, and what ends with it is not decided here.
    fn of_side(self, side: Side) -> Self {
        match (self, side) {
            (Self::Busy(wait), Side::Tenant) => Self::Busy(wait.min(LONGEST_TENANT_WAIT)),
            (Self::Terminating(message), Side::Host) => Self::Rejected(message),
            (Self::Rejected(message), Side::Host) if quota::is_unknown(&message) => Self::Busy(BUSY_WAIT),
            (Self::Rejected(message), Side::Host) => match QuotaExceeded::parse(&message) {
                Some(exceeded) => Self::QuotaExceeded(exceeded),
                None => Self::Rejected(message),
            },
            (error, _) => error,
        }
    }

    /// Whether the API server has not said what it does with the request: it is silent, fails, or has no time.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Unavailable(_))
    }

    /// The object, or `None` if there is none.
    ///
    /// # Errors
    /// Every other failure.
    pub fn found(result: Result<Value, Self>) -> Result<Option<Value>, Self> {
        match result {
            Ok(object) => Ok(Some(object)),
            Err(Self::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(&status),
            other => Self::Unavailable(other.to_string()),
        }
    }
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

    /// Reads an object.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn get(&self, resource: Resource, namespace: &str, name: &str) -> Result<Value, CallError> {
        let request = Request::new(resource.path(namespace)).get(name, &GetParams::default());
        self.call("get", resource.plural, request).await
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
        let start = Instant::now();
        let result = tokio::time::timeout(TIME_LIMIT, self.client.request::<T>(request)).await;
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
        result
            .map_err(|_| CallError::Unavailable("time limit exceeded".into()))?
            .map_err(|error| CallError::from(error).of_side(self.side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::response::{StatusCause, StatusDetails};

    fn error(code: u16, retry_after_seconds: u32, field: &str) -> CallError {
        error_with(code, retry_after_seconds, field, "")
    }

    fn error_with(code: u16, retry_after_seconds: u32, field: &str, reason: &str) -> CallError {
        let status = Status {
            code,
            details: Some(StatusDetails {
                retry_after_seconds,
                causes: vec![StatusCause {
                    field: field.into(),
                    message: String::new(),
                    reason: reason.into(),
                }],
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
            }),
            ..Status::default()
        };
        CallError::from_status(&status)
    }

    #[test]
    fn a_busy_server_sets_the_time_of_the_next_call() {
        let wait = |error| match error {
            CallError::Busy(wait) => Some(wait.as_secs()),
            _ => None,
        };
        assert_eq!(wait(error(429, 7, "")), Some(7));
        assert_eq!(wait(error(429, 0, "")), Some(BUSY_WAIT.as_secs()));
        assert_eq!(wait(error(503, 3, "")), Some(3));
        assert_eq!(wait(error(503, 0, "")), None);
    }

    #[test]
    fn the_tenant_cannot_put_a_call_off_for_long() {
        let wait = |side| match error(429, u32::MAX, "").of_side(side) {
            CallError::Busy(wait) => wait,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(Side::Tenant), LONGEST_TENANT_WAIT);
        assert_eq!(wait(Side::Host), Duration::from_secs(u64::from(u32::MAX)));
        let short = error(503, 3, "").of_side(Side::Tenant);
        assert!(
            matches!(short, CallError::Busy(wait) if wait == Duration::from_secs(3)),
            "{short:?}"
        );
    }

    #[test]
    fn an_eviction_that_a_budget_refuses_is_not_a_busy_server() {
        for retry_after in [0, 10] {
            let refused = error_with(429, retry_after, "", "DisruptionBudget");
            assert!(matches!(refused, CallError::Protected(_)), "{refused:?}");
        }
    }

    #[test]
    fn failures_are_sorted_by_what_to_do_about_them() {
        assert!(matches!(error(404, 0, ""), CallError::NotFound));
        assert!(matches!(error(409, 0, ""), CallError::Conflict(_)));
        assert!(matches!(error(422, 0, "metadata.uid"), CallError::Conflict(_)));
        assert!(matches!(error(422, 0, "spec"), CallError::Rejected(_)));
        assert!(matches!(error(403, 0, ""), CallError::Rejected(_)));
        let terminating = || error_with(403, 0, "metadata.namespace", "NamespaceTerminating");
        assert!(matches!(terminating().of_side(Side::Tenant), CallError::Terminating(_)));
        assert!(matches!(terminating().of_side(Side::Host), CallError::Rejected(_)));
        assert!(matches!(error(500, 0, ""), CallError::Unavailable(_)));
    }

    #[test]
    fn quotas_of_the_host_are_limits_of_the_tenant_and_its_own_are_not() {
        let message = "pods \"a\" is forbidden: exceeded quota: a, requested: count/pods=1, used: count/pods=1, limited: count/pods=1";
        let rejected = |message: &str| CallError::Rejected(message.into());
        assert!(matches!(
            rejected(message).of_side(Side::Host),
            CallError::QuotaExceeded(_)
        ));
        assert!(matches!(
            rejected(message).of_side(Side::Tenant),
            CallError::Rejected(_)
        ));
        assert!(matches!(rejected("no").of_side(Side::Host), CallError::Rejected(_)));
        let unknown = rejected("pods \"a\" is forbidden: status unknown for quota: a, resources: count/pods");
        assert!(matches!(unknown.of_side(Side::Host), CallError::Busy(_)));
    }

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
