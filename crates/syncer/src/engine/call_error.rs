//! Failures of calls to an API server, sorted by what to do about them.

use berth_sync_rules::{
    model::resource::Side,
    translation::quota::{self, QuotaExceeded},
};
use kube::core::Status;
use serde_json::Value;
use std::time::Duration;

/// Wait after "too many requests" without a time of its own.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Longest wait that the tenant's API server can ask for: a webhook of the tenant can name a hundred years.
const LONGEST_TENANT_WAIT: Duration = Duration::from_secs(15);

/// Reason of the cause of an eviction that is refused: `policyv1.DisruptionBudgetCause` of Kubernetes.
const BUDGET: &str = "DisruptionBudget";
/// Reason of the cause of a creation that is refused in a namespace that is being deleted: `v1.NamespaceTerminatingCause` of Kubernetes.
const TERMINATING: &str = "NamespaceTerminating";

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
    /// The tenant's API server was not asked: what happens on the host comes [first](super::host_first).
    #[error("the tenant's API server is asked later")]
    Deferred,
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
    pub(super) fn of_side(self, side: Side) -> Self {
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

    /// Whether the failure says nothing about the object: others fail in the same way meanwhile, and the API server may have done what it was asked.
    pub(super) fn is_transient(&self) -> bool {
        self.is_unanswered() || matches!(self, Self::Deferred)
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
}
