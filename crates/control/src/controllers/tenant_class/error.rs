//! Why the reconcile of a class could not finish, by the step that failed.

use crate::error::ReconcileError;

/// The step that failed, and why.
#[derive(Debug, thiserror::Error)]
pub enum TenantClassError {
    /// Creating or deleting PriorityClasses.
    #[error("priority classes: {0}")]
    PriorityClasses(#[source] ReconcileError),
    /// Asking the host for the kinds that a class lists.
    #[error("synced kinds: {0}")]
    SyncedKinds(#[source] ReconcileError),
    /// Writing the status.
    #[error("status: {0}")]
    Status(#[source] ReconcileError),
}

impl TenantClassError {
    /// The result in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::PriorityClasses(_) => "PriorityClassesFailed",
            Self::SyncedKinds(_) => "SyncedKindsFailed",
            Self::Status(_) => "StatusFailed",
        }
    }
}
