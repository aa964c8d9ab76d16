//! Why a reconcile could not finish.

use crate::{
    apply::{ApplyError, is_status},
    control_plane::CertificateError,
    datastore::DatastoreError,
    runtime::RuntimeError,
};

/// Why a reconcile failed, by the part that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The host's or the tenant's API server.
    #[error("cannot {what}: {source}")]
    Api {
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Applying an object.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The tenants' datastore.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// Keys and certificates.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The runtime of control planes.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Something that people must resolve; the text says what to do.
    #[error("{message}")]
    Blocked {
        /// CamelCase reason for the condition.
        reason: &'static str,
        /// What the problem is and what to do.
        message: String,
    },
}

impl ReconcileError {
    /// Why the API server rejected one object, for example by an admission policy or webhook. None if it did not answer, is
    /// busy or fails, and if RBAC does not allow control such requests at all.
    pub fn refusal(&self) -> Option<&str> {
        let Self::Api { source, .. } = self else {
            return None;
        };
        let kube::Error::Api(status) = source.as_ref() else {
            return None;
        };
        let is_about_all = match status.code {
            // RBAC's message after the user's name; it has no code of its own.
            403 => status.message.contains("\" cannot "),
            401 | 408 | 429 => true,
            code => !(400..500).contains(&code),
        };
        (!is_about_all).then_some(&*status.message)
    }

    /// Whether the API server answered with this HTTP status.
    pub fn is_status(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if is_status(source, code))
    }

    /// The category, one of few values, for metrics and condition reasons.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Api { .. } | Self::Apply(_) => "HostApiError",
            Self::Datastore(_) => "DatastoreError",
            Self::Certificate(_) => "CertificateError",
            Self::Runtime(_) => "RuntimeError",
            Self::Blocked { reason, .. } => reason,
        }
    }
}

/// The first error of several steps that are all tried.
#[derive(Debug)]
pub struct FirstError<E>(Option<E>);

impl<E> Default for FirstError<E> {
    fn default() -> Self {
        Self(None)
    }
}

impl<E> FirstError<E> {
    /// The value of a step. Its error is kept, unless another step failed before.
    pub fn note<T, F: Into<E>>(&mut self, result: Result<T, F>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.0.is_none() {
                    self.0 = Some(error.into());
                }
                None
            }
        }
    }

    /// Whether no step has failed.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The first error, if a step failed.
    ///
    /// # Errors
    /// That one.
    pub fn into_result(self) -> Result<(), E> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Puts "what was tried" before an API error.
pub fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ReconcileError {
    move |source| ReconcileError::Api {
        what,
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_refusal_of_one_object_differs_from_a_failure_of_all_calls() {
        let refusal = |code: u16, message: &str| {
            let status = Status::failure(message, "").with_code(code);
            let error = api("change a node")(kube::Error::Api(Box::new(status)));
            error.refusal().is_some()
        };
        let policy =
            "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: hands off";
        assert!(refusal(422, policy));
        assert!(refusal(403, "admission webhook \"w\" denied the request: hands off"));
        assert!(refusal(
            403,
            "admission webhook \"w\" denied the request: you cannot have it"
        ));
        assert!(refusal(400, "admission webhook \"w\" denied the request"));
        let rbac = "nodes \"a\" is forbidden: User \"u\" cannot patch resource \"nodes\" in API group \"\" at the cluster scope";
        for (code, message) in [
            (403, rbac),
            (401, "Unauthorized"),
            (429, "too many requests"),
            (500, "etcdserver: request timed out"),
            (503, "unavailable"),
        ] {
            assert!(!refusal(code, message), "{code} {message}");
        }
    }
}
