//! The reconciliation of a key of a queue, and what follows from its result: when it is tried again, and the Events for the tenant.

use super::{
    Engine, Outcome, QUOTA_EXCEEDED, admit,
    api::CallError,
    first_comparison, host_first, lock,
    queued_key::QueuedKey,
    recorder::Level,
    schedule,
    turns::{self, Keeps},
    update::REFUSED,
};
use crate::metrics::QueueLabels;
use berth_runtime::{hashes::hash_of, queue::Taken};
use berth_sync_rules::{model::resource::Key, translation::host_text};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// First and longest wait after failures.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_mins(1));
/// Longest wait while an API server does not answer, or fails: what it missed must not wait for long once it is back.
const UNAVAILABLE: Duration = Duration::from_secs(15);
/// Shortest wait for an object beyond a limit of the tenant.
const QUOTA_WAIT: Duration = Duration::from_secs(5);
/// After this many failures in a row, which take at least half a minute, the failure is logged, and again after as many
/// more.
const PERSISTENT: u32 = 10;

/// Failures of a key in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    /// How many.
    pub(super) count: u32,
    /// Whether the last one was that a limit of the tenant is reached: its objects then say so.
    is_limit: bool,
}

impl Failures {
    fn note(&mut self, error: &CallError) {
        self.count = self.count.saturating_add(1);
        self.is_limit = matches!(error, CallError::QuotaExceeded(_));
    }

    /// Whether something is wrong that does not pass.
    pub(super) fn are_persistent(self) -> bool {
        self.count >= PERSISTENT && !self.is_limit
    }
}

impl Engine {
    /// Reconciles one key, and handles the result.
    pub(super) async fn work(self: Arc<Self>, taken: Taken<QueuedKey>) {
        let Taken {
            key: QueuedKey(key),
            queued_for,
        } = taken;
        let queue = self.queue_of(key.kind);
        self.metrics
            .queue_depth
            .set(i64::try_from(self.waiting()).unwrap_or(i64::MAX));
        let observed_at = Instant::now().checked_sub(queued_for).unwrap_or_else(Instant::now);
        // Before anything is read: what changes from now on is compared by the next reconciliation.
        let compares = lock(&self.to_compare).remove(&key);
        let begun = self.turns.begin(&key);
        let (result, is_left) = {
            // In its place: it is large, and would be there twice if it moved.
            let reconciling = std::pin::pin!(self.reconcile(&key, observed_at, compares));
            first_comparison::with_what_is_left(reconciling).await
        };
        if !host_first::has_deferred() {
            self.turns.end(&key, begun, keeps(&result));
        }
        if compares {
            self.note_comparison(&key, &result, is_left);
        }
        let labels = QueueLabels {
            priority: self.cache.kind(key.kind).priority.label(),
            result: match &result {
                Ok(outcome) => outcome.result,
                Err(CallError::Deferred) => "deferred",
                Err(_) => "error",
            },
        };
        self.metrics.reconciled(key.kind.label(), &labels, queued_for);
        match result {
            Ok(outcome) => {
                // What waits for its next place or turn has not succeeded: it keeps its back-off.
                if !outcome.waits_for_turn() {
                    lock(&self.failures).remove(&key);
                }
                tracing::debug!(%key, result = outcome.result, "reconciled");
                if outcome.compares_again {
                    self.compare_later(&key);
                }
                if let Some(after) = outcome.requeue_after {
                    queue.add_after(QueuedKey(key.clone()), after);
                }
            }
            // It has neither failed nor succeeded.
            Err(CallError::Deferred) => {
                if let Some(wait) = schedule::longest_wait(&self, &key) {
                    queue.add_after(QueuedKey(key.clone()), wait);
                }
            }
            Err(error) => {
                let wait = self.wait_after(&key, &error);
                tracing::debug!(%key, %error, ?wait, "reconciling failed");
                self.record_failure(&key, &error).await;
                self.compare_later(&key);
                queue.add_after(QueuedKey(key.clone()), wait);
            }
        }
        // Also if nothing is left but to say in the tenant why it has failed.
        let is_deferred = host_first::has_deferred();
        if is_deferred && compares {
            self.compare_later(&key);
        }
        // Before it can be taken again.
        self.slow_keys.note(&key);
        queue.done(&QueuedKey(key.clone()));
        // After that: the second queue leaves keys that have a place here to this one.
        if is_deferred {
            self.slow_queue_of(key.kind).add(key);
        }
    }

    /// Says in the tenant why an object is not synced, if that does not pass by itself.
    async fn record_failure(&self, key: &Key, error: &CallError) {
        match error {
            CallError::Rejected(message) => {
                tracing::info!(%key, message, "an API server denied a write");
                let message = host_text::sanitize_error(&self.cache, &key.name, message);
                self.record_event(key, Level::Warning, "SyncFailed", &message).await;
            }
            CallError::QuotaExceeded(exceeded) => {
                let message = exceeded.to_string();
                self.record_event(key, Level::Warning, QUOTA_EXCEEDED, &message).await;
            }
            _ => {}
        }
    }

    /// How long a failed key waits: longer each time, and differently for each key.
    pub(super) fn wait_after(&self, key: &Key, error: &CallError) -> Duration {
        let count = {
            let mut failures = lock(&self.failures);
            let of_key = failures.entry(key.clone()).or_default();
            of_key.note(error);
            of_key.count
        };
        if count.is_multiple_of(PERSISTENT) {
            tracing::warn!(%key, %error, "reconciling keeps failing");
        }
        let wait = BACKOFF.0.saturating_mul(1 << (count - 1).min(11)).min(BACKOFF.1);
        let wait = match error {
            CallError::Busy(at_least) => wait.max(*at_least),
            CallError::QuotaExceeded(_) => wait.max(QUOTA_WAIT),
            CallError::Unavailable(_) => wait.min(UNAVAILABLE),
            _ => wait,
        };
        let wait = wait + wait.mul_f64(jitter(key));
        schedule::longest_wait(self, key).map_or(wait, |longest| wait.min(longest))
    }
}

/// What a key keeps of its turns after a reconciliation with this result.
fn keeps(result: &Result<Outcome, CallError>) -> Keeps {
    match result {
        // Also a Service whose turn for its bytes has come while too many endpoints change: it would wait for its bytes again, and others would change
        // their Services meanwhile, so that it may never have both.
        Ok(outcome) if [admit::NO_PLACE, turns::WAITS].contains(&outcome.result) => Keeps::All,
        // Nothing was written, and it is tried again.
        Ok(outcome) if [REFUSED, schedule::HELD].contains(&outcome.result) => Keeps::Requests,
        Ok(outcome) if !outcome.waits_for_turn() => Keeps::Nothing,
        Ok(_) | Err(_) => Keeps::Requests,
    }
}

/// A fraction between 0 and 0.25 that differs between keys.
fn jitter(key: &Key) -> f64 {
    let [byte, ..] = hash_of(key).to_le_bytes();
    f64::from(byte) / 1024.0
}
