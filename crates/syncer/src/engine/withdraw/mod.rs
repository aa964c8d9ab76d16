//! Takes back what a host object does when the present state of the tenant's object is denied. Left as it was, the host object would go on
//! working with what its neighbours have become meanwhile.
//!
//! What happens on the host depends on nothing that the tenant's API server answers: an administrator of the tenant can have every write of a status
//! refused, by a policy or a full datastore, or never answered, by a webhook. Such a write is tried again later.

use super::{
    Outcome, QUOTA_EXCEEDED,
    api::CallError,
    closing::Part,
    first_comparison, lock,
    queued_key::QueuedKey,
    recorder::Level,
    to_host::ObjectSync,
    turns::Turn,
    update::{FULL_WAIT, is_refusal},
};
use berth_sync_rules::{
    kinds::pod::status::disrupted_status,
    model::{DeniedField, WhenDenied, store::Stored},
    translation::sizes::count_bytes,
};
use jiff::Timestamp;
use serde_json::Value;

/// Failures in a row, about ten seconds of them, after which a rejection by the host is no passing one, as of an API server that starts.
const LASTING: u32 = 8;
/// Failures in a row after which a pod ends although its status does not say why. Each takes ten seconds at most, and fifteen if the API server says
/// that it is busy: within a minute the pod ends.
const TRIES: u32 = 3;

impl ObjectSync<'_> {
    /// Whether the object has failed so often that the host's rejection is taken for its answer.
    pub(super) fn keeps_failing(&self) -> bool {
        self.failures() >= LASTING
    }

    /// How often the object has failed in a row.
    fn failures(&self) -> u32 {
        let failures = lock(&self.engine.failures).get(&self.key()).copied();
        failures.unwrap_or_default().count
    }

    /// Deletes or ends the host object, or reduces it to what is harmless, as the kind says. `content` is the tenant's object in full, `denied` what
    /// to report in its status; nothing if the host has refused it. Returns the outcome if nothing is left to do: if the host object is deleted.
    pub(super) async fn withdraw(
        &self,
        stored: &Stored,
        (object, content): (&Value, &Value),
        host: &Stored,
        denied: &[DeniedField],
    ) -> Result<Option<Outcome>, CallError> {
        let Self { engine, kind, name, .. } = self;
        let what = if denied.is_empty() {
            kind.when_refused(&engine.cache, name, content, &host.object())
        } else {
            kind.when_denied(&engine.cache, name, content, &host.object())
        };
        match what {
            WhenDenied::Keep => Ok(None),
            WhenDenied::Withdraw => {
                let withdrawn = self.withdrawn(host, kind.orphan_grace()).await;
                let reported = if denied.is_empty() {
                    Ok(())
                } else {
                    self.write_denied(stored, object, denied).await
                };
                let withdrawn = withdrawn?;
                reported.map(|()| withdrawn)
            }
            WhenDenied::End { reason, message } => {
                // First, so that the pod's end has this reason whatever happens next.
                let status = disrupted_status(object, reason, &message, Timestamp::now());
                match self.write_status(stored, object, &status).await {
                    // It may be about to start. A refusal stays one. One that takes long was not asked, and the pod does not wait for it.
                    Err(error) if error.is_unanswered() && self.failures() < TRIES => Err(error),
                    reported => {
                        // Without a grace period of Berth's, the pod has its own.
                        let ended = self.withdrawn(host, None).await?;
                        reported.map(|_| ended)
                    }
                }
            }
            WhenDenied::Reduce(reduced) => self.reduce(stored, host, reduced).await.map(|()| None),
        }
    }

    /// Reduces the host object, if there is room for that and it is its turn. What it must not keep goes at once. `reduced` can be larger than what the host
    /// has: only what is denied is left out, and the tenant decides how long the rest is.
    async fn reduce(&self, stored: &Stored, host: &Stored, reduced: Value) -> Result<(), CallError> {
        let Self { engine, kind, name, .. } = self;
        let key = self.key();
        let mutable = kind.mutable_part(&reduced);
        let hash = engine.cache.tenant.applied_hash(&mutable);
        let is_applied = host.applied_hash.as_deref() == Some(hash.as_str());
        if is_applied && !self.has_foreign_fields(&reduced, host) {
            engine.learn_applied(key, &mutable);
            first_comparison::note_reduced();
            return Ok(());
        }
        let known = u64::from(host.bytes);
        let growth = if kind.update_needs_live() {
            engine.growth_of_part(&key, &mutable)
        } else {
            engine.growth(&key, known, &reduced, &mutable)
        };
        let in_flight = match engine.reserve_growth(known, growth) {
            Ok(in_flight) => in_flight,
            Err(exceeded) => {
                first_comparison::note_later();
                self.close_now(host, &reduced, Part::ClosingWithoutRoom).await;
                self.narrow_now(stored, host, &reduced).await;
                engine.compare_later(&key);
                engine.queue_of(self.id).add_after(QueuedKey(key.clone()), FULL_WAIT);
                let message = exceeded.to_string();
                engine
                    .record_event(&key, Level::Warning, QUOTA_EXCEEDED, &message)
                    .await;
                return Ok(());
            }
        };
        let narrows = kind.narrows_at_once().then(|| reduced.clone());
        let bytes = known.max(count_bytes(&reduced) as u64);
        let turn = if kind.reduces_at_once(&engine.cache, name, &reduced) {
            engine.turns.take(bytes);
            Turn::Now
        } else {
            engine.ask_to_write(&key, bytes)
        };
        let reduced = self.with_metadata(stored, reduced, &hash);
        if turn != Turn::Now {
            // Others may have the room meanwhile.
            drop(in_flight);
            self.close_now(host, &reduced, Part::Isolating).await;
            if let Some(reduced) = narrows {
                self.narrow_now(stored, host, &reduced).await;
            }
            engine.report_wait(&key, turn).await;
            return Ok(());
        }
        if let Err(error) = self.bring_up_to_date(host, &reduced).await {
            if let Some(reduced) = narrows.filter(|_| is_refusal(&error)) {
                self.narrow_now(stored, host, &reduced).await;
            }
            return Err(error);
        }
        engine.set_applied(key, &mutable);
        first_comparison::note_reduced();
        Ok(())
    }

    /// Deletes the host object. If it has changed meanwhile, the next reconciliation decides again.
    async fn withdrawn(&self, host: &Stored, grace_seconds: Option<u32>) -> Result<Option<Outcome>, CallError> {
        let deleted = self.delete(host, grace_seconds).await?;
        Ok(Some(Outcome {
            result: "withdrawn",
            ..deleted
        }))
    }
}

#[cfg(test)]
mod tests;
