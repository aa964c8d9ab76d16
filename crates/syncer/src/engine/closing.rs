//! What must reach the host object, or leave it, although the rest of a change waits or is refused.

use super::{api::CallError, lock, queued_key::QueuedKey, to_host::ObjectSync};
use berth_sync_rules::{
    model::{json, resource::Side, store::Stored},
    translation::sizes::count_bytes,
};
use kube::api::Patch;
use serde_json::Value;
use std::time::Duration;

/// Time after which what closes an object is written again if the host's API server did not answer: the rest may wait much longer.
const CLOSE_AGAIN: Duration = Duration::from_secs(15);

/// What is written of a change although the rest is not.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// [`ToHost::closing_patch`](berth_sync_rules::model::ToHost::closing_patch).
    Closing,
    /// The same, as far as there is [room](super::closing_room).
    ClosingWithoutRoom,
    /// [`ToHost::isolating_patch`](berth_sync_rules::model::ToHost::isolating_patch).
    Isolating,
}

impl ObjectSync<'_> {
    /// Writes what must reach the host object although the rest waits or is refused.
    pub(super) async fn close_now(&self, host: &Stored, desired: &Value, part: Part) {
        if self.kind.update_needs_live()
            && let Err(error) = self.close(host, desired, part).await
        {
            tracing::warn!(key = %self.key(), %error, "what closes an object has not reached the host");
            self.close_again_after(&error);
        }
    }

    /// Writes what must not stay on the host although the rest of a change waits or is refused. `desired` is as the kind translates it.
    pub(super) async fn narrow_now(&self, stored: &Stored, host: &Stored, desired: &Value) {
        if self.kind.narrows_at_once()
            && let Err(error) = self.narrow(stored, host, desired).await
        {
            tracing::warn!(key = %self.key(), %error, "what an object has lost is still on the host");
            self.close_again_after(&error);
        }
    }

    /// What has failed because the host's API server did not answer is tried again soon, and not only when the rest has its turn.
    fn close_again_after(&self, error: &CallError) {
        if error.is_unanswered() {
            let key = self.key();
            self.engine.compare_later(&key);
            self.engine.queue_of(self.id).add_after(QueuedKey(key), CLOSE_AGAIN);
        }
    }

    async fn narrow(&self, stored: &Stored, host: &Stored, desired: &Value) -> Result<(), CallError> {
        let Self { engine, kind, .. } = self;
        let resource = kind.resource();
        // What waits is reconciled again and again.
        let compared = (json::hash(&kind.mutable_part(desired)), host.version);
        if lock(&engine.narrowed).get(&self.key()) == Some(&compared) {
            return Ok(());
        }
        let Some(live) = CallError::found(engine.host.get(resource, self.namespace(), &host.name).await)? else {
            return Ok(());
        };
        let Some(narrowed) = kind.narrowed(desired, &live) else {
            lock(&engine.narrowed).insert(self.key(), compared);
            return Ok(());
        };
        let mutable = kind.mutable_part(&narrowed);
        let object = self.with_metadata(stored, narrowed, &engine.cache.tenant.applied_hash(&mutable));
        let bytes = u64::from(host.bytes).max(count_bytes(&object) as u64);
        self.count_service_change();
        self.apply_over(host, object).await?;
        engine.set_applied(self.key(), &mutable);
        engine.turns.take(bytes);
        Ok(())
    }

    async fn close(&self, host: &Stored, desired: &Value, part: Part) -> Result<(), CallError> {
        let Self { engine, kind, .. } = self;
        let resource = kind.resource();
        // What waits is reconciled again and again, such as all pods of a namespace whose labels change.
        let isolated = matches!(part, Part::Isolating).then(|| (json::hash(&kind.isolation(desired)), host.version));
        if isolated.is_some() && lock(&engine.narrowed).get(&self.key()) == isolated.as_ref() {
            return Ok(());
        }
        let Some(live) = CallError::found(engine.host.get(resource, self.namespace(), &host.name).await)? else {
            return Ok(());
        };
        let closing = || kind.closing_patch(desired, &live);
        let fitting = match part {
            Part::Closing => closing().map(|patch| (patch, None)),
            Part::ClosingWithoutRoom => closing().and_then(|patch| self.fit_closing(host, patch, &live)),
            Part::Isolating => kind.isolating_patch(desired, &live).map(|patch| (patch, None)),
        };
        if let Some((patch, _in_flight)) = fitting {
            return self.write_closing(host, patch).await;
        }
        if let Some(isolated) = isolated {
            lock(&engine.narrowed).insert(self.key(), isolated);
        }
        Ok(())
    }

    /// Writes a merge patch of the host object that closes it, and stores the answer.
    pub(super) async fn write_closing(&self, host: &Stored, mut patch: Value) -> Result<(), CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let resource = kind.resource();
        patch["metadata"]["uid"] = (*host.uid).into();
        let patch = Patch::Merge(patch);
        let written = engine
            .host
            .patch(resource, self.namespace(), &host.name, "", &patch)
            .await?;
        engine.store_written(Side::Host, *id, name, written);
        Ok(())
    }
}
