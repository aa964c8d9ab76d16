//! Failures of a pass, so that one does not end it.
//!
//! Nodes do not depend on each other, and neither do the node groups that nodes are reserved for: what cannot be done for one
//! must not hold up the others. If the API server fails each time, the pass ends before it has tried every node of the fleet.

use super::RETRY_PAUSE;
use crate::error::ReconcileError;
use std::time::Duration;

/// Failures of the API server, other than rejections of one object, after which the rest of a pass is given up.
const MAX_FAILURES: usize = 5;

/// What failed in a pass.
#[derive(Default)]
pub(super) struct StepFailures {
    /// An object was rejected, or the API server failed.
    any: bool,
    first: Option<ReconcileError>,
    count: usize,
}

impl StepFailures {
    /// Keeps why a step for a node or a node group failed.
    pub(super) fn record(&mut self, step: &'static str, object: &str, error: ReconcileError) {
        tracing::warn!(step, object, %error, "a step failed; independent steps go on");
        self.any = true;
        // The answer is about this one object: it says nothing of the API server.
        if error.refusal().is_none() {
            self.count += 1;
            self.first.get_or_insert(error);
        }
    }

    /// Whether the rest is given up for now.
    pub(super) fn is_exhausted(&self) -> bool {
        self.count >= MAX_FAILURES
    }

    /// When to try again; none if nothing failed.
    ///
    /// # Errors
    /// The first failure, if the rest was given up.
    pub(super) fn into_pause(self) -> Result<Option<Duration>, ReconcileError> {
        match self.first {
            Some(error) if self.count >= MAX_FAILURES => Err(error),
            _ => Ok(self.any.then_some(RETRY_PAUSE)),
        }
    }
}
