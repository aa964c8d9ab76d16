//! What a reconciliation did, and when there is another one.

use super::{admit, room_waits, turns, user_waits};
use std::time::Duration;

/// What a reconciliation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// For metrics and logs.
    pub(super) result: &'static str,
    /// When to reconcile again, if not when something changes.
    pub(super) requeue_after: Option<Duration>,
    /// Whether the next reconciliation has to compare both objects as a whole, whatever it is for: this one has not ended with what should
    /// be.
    pub(super) compares_again: bool,
}

impl Outcome {
    pub(super) const fn new(result: &'static str) -> Self {
        Self {
            result,
            requeue_after: None,
            compares_again: false,
        }
    }

    pub(super) const fn requeue(result: &'static str, after: Duration) -> Self {
        Self {
            requeue_after: Some(after),
            ..Self::new(result).comparing_again()
        }
    }

    pub(super) const fn comparing_again(self) -> Self {
        Self {
            compares_again: true,
            ..self
        }
    }

    /// The outcome of a reconciliation in which a part of the writes is left for later.
    pub(super) fn with_later(self, later: Self) -> Self {
        Self {
            requeue_after: self.requeue_after.into_iter().chain(later.requeue_after).min(),
            ..later
        }
    }

    /// Whether the object waits for its place or turn, and is reconciled again when it has come.
    pub(super) fn waits_for_turn(&self) -> bool {
        let waits = [
            admit::NO_PLACE,
            room_waits::NO_PLACE,
            user_waits::NO_PLACE,
            turns::WAITS,
        ];
        waits.contains(&self.result)
    }
}
