//! Why a reconcile could not finish.

use crate::{apply::ApplyError, control_plane::CertificateError, datastore::DatastoreError, runtime::RuntimeError};

/// What went wrong, by the step that it went wrong in.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The host's or the tenant's API server.
    #[error("{what}: {source}")]
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
        /// What is the matter and what to do.
        message: String,
    },
}

impl ReconcileError {
    /// What an API server said that understood what was asked and did not want it; none if it did not answer, or is busy.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if !matches!(status.code, 429 | 502..=504) => Some(&status.message),
                _ => None,
            },
            _ => None,
        }
    }

    /// A short word of few kinds, for metrics and condition reasons.
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

/// Puts "what was tried" before an API error.
pub fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ReconcileError {
    move |source| ReconcileError::Api {
        what,
        source: Box::new(source),
    }
}
