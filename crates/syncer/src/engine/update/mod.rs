//! Updates the host object.

use super::to_host::ObjectSync;
use super::{
    DENIED, Outcome, QUOTA_EXCEEDED, api::CallError, closing::Part, first_comparison, lock, pending::Pending,
    recorder::Level,
};
use berth_runtime::hashes::hash_of;
use berth_sync_rules::{
    model::{
        DeniedField, HostWrite, Translated, WhenDenied, json,
        resource::Side,
        store::{Detail, Stored, is_origin},
    },
    translation::sizes::count_bytes,
};
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::Duration;

/// Wait of an object that may not grow because the tenant has as many bytes on the host as it may have.
pub(super) const FULL_WAIT: Duration = Duration::from_mins(1);
/// The result of a change for which the host has no room.
pub(super) const REFUSED: &str = "refused";
/// Most characters of a patch in the log: somebody else chooses the names of what it removes.
const LONGEST_LOGGED: usize = 1000;
/// Rounds of subresource writes and a fresh read before an update gives up for now.
const UPDATE_ROUNDS: usize = 4;

/// What comparing a host object with the tenant's has led to.
enum Compared {
    /// They agree.
    Same,
    /// The host object was changed.
    Updated,
    /// The tenant's object is denied, and the host object stays.
    Denied(Vec<DeniedField>),
    /// The host object is changed later; its status is synced now.
    Later(Outcome),
    /// The host does not take the change, and its object stays.
    Refused(CallError),
    /// Nothing is left to do.
    Done(Outcome),
}

/// Whether the host does not take a write as it is.
pub(super) fn is_refusal(error: &CallError) -> bool {
    matches!(error, CallError::Rejected(_) | CallError::QuotaExceeded(_))
}

impl ObjectSync<'_> {
    pub(super) async fn update(&self, stored: &Stored, object: &Value, host: &Stored) -> Result<Outcome, CallError> {
        let Self { engine, kind, .. } = self;
        let versions = (stored.version, host.version);
        if lock(&engine.synced_versions).get(&self.key()) == Some(&versions) {
            return Ok(Outcome::new("nothing"));
        }
        let is_same = !self.compares && !kind.follows_own_status() && is_origin(stored, host);
        let compared = if is_same {
            Compared::Same
        } else {
            self.compare(stored, object, host).await?
        };
        let mut later = None;
        let (result, denied) = match compared {
            Compared::Same => ("nothing", Vec::new()),
            Compared::Updated => ("updated", Vec::new()),
            Compared::Denied(denied) => (DENIED, denied),
            Compared::Later(outcome) => {
                // The tenant's API server may refuse the status, or be asked later.
                first_comparison::note_later();
                later = Some(outcome);
                (outcome.result, Vec::new())
            }
            Compared::Refused(error) => {
                self.report_although_refused(stored, object, host).await;
                return Err(error);
            }
            Compared::Done(outcome) => return Ok(outcome),
        };
        let host_object = host.object();
        let status = kind.host_status(object, &host_object);
        if status.is_some() && later.is_none() {
            later = self.wait_for_turn(host.bytes.into()).await;
        }
        if let Some(status) = status.filter(|_| later.is_none()) {
            self.write_host_status(host, &status).await?;
        }
        // The status of a host object that was just written is synced when its next state arrives.
        if result == "updated" {
            return Ok(Outcome::new(result));
        }
        let mut outcome = self
            .sync_status(stored, object, &host_object, result == "nothing", &denied)
            .await?;
        outcome.compares_again |= result == DENIED;
        if outcome.result == "nothing" {
            outcome.result = result;
        }
        Ok(match later {
            Some(later) => outcome.with_later(later),
            None => outcome,
        })
    }

    /// Writes the statuses of both objects although the host refuses a change: whatever becomes of that, each side has to see what becomes of the other. The
    /// error of the change comes before those of these writes.
    async fn report_although_refused(&self, stored: &Stored, object: &Value, host: &Stored) {
        let host_object = host.object();
        let written = match self.kind.host_status(object, &host_object) {
            Some(status) => {
                // The change has had its turn. One of its own would make the change be tried at that turn instead.
                self.engine.turns.take(host.bytes.into());
                self.write_host_status(host, &status).await
            }
            None => Ok(()),
        };
        let reported = self.sync_status(stored, object, &host_object, false, &[]).await;
        for error in [written.err(), reported.err()].into_iter().flatten() {
            tracing::debug!(key = %self.key(), %error, "a status of an object whose change is refused is written later");
        }
    }

    /// Writes what the tenant decides of the status of the host object.
    async fn write_host_status(&self, host: &Stored, status: &Value) -> Result<(), CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let patch = Patch::Strategic(json!({"metadata": {"uid": host.uid}, "status": status}));
        let written = engine
            .host
            .patch(kind.resource(), self.namespace(), &host.name, "status", &patch)
            .await?;
        engine.store_written(Side::Host, *id, name, written);
        Ok(())
    }

    /// Compares the host object with what the tenant's object becomes now, and writes the difference.
    async fn compare(&self, stored: &Stored, object: &Value, host: &Stored) -> Result<Compared, CallError> {
        let Self { engine, id, kind, .. } = self;
        let contents = match self.content(stored, object).await? {
            Ok(contents) => contents,
            Err(outcome) => return Ok(Compared::Done(outcome)),
        };
        let content = &*contents;
        let translated = match self.translated(stored, content, host).await? {
            Ok(translated) => translated,
            Err(denied) => {
                if let Pending::Wait(left) = self.pending(stored, object, host).await {
                    return Ok(Compared::Done(Outcome::requeue("reserved", left)));
                }
                let withdrawn = self.withdraw(stored, (object, content), host, &denied).await;
                // After what happens on the host: the tenant's API server may not answer.
                self.record_denied(&denied).await;
                return Ok(withdrawn?.map_or(Compared::Denied(denied), Compared::Done));
            }
        };
        let Translated {
            object: desired,
            ignored,
            parts,
        } = translated;
        let mutable = kind.mutable_part(&desired);
        let hash = engine.cache.tenant.applied_hash(&mutable);
        let is_ours = is_origin(stored, host);
        let is_applied = is_ours && host.applied_hash.as_deref() == Some(hash.as_str());
        if is_applied && !self.has_foreign_fields(&desired, host) {
            engine.learn_applied(self.key(), &mutable);
            let later = { ignored.into_iter() }.filter(|ignored| kind.is_decided_later(&ignored.field));
            self.record_ignored(&later.collect::<Vec<_>>()).await;
            self.record_parts(&parts).await;
            let watched = engine.cache.kind(*id).tenant;
            if watched.is_some_and(|spec| spec.detail == Detail::Metadata) {
                let versions = (stored.version, host.version);
                lock(&engine.synced_versions).insert(self.key(), versions);
            }
            return Ok(Compared::Same);
        }
        let pending = self.pending(stored, object, host).await;
        if let Pending::Wait(left) = pending {
            return Ok(Compared::Done(Outcome::requeue("reserved", left)));
        }
        let bytes = u64::from(host.bytes).max(count_bytes(&desired) as u64);
        if host.origin_uid.is_none() || kind.is_inert(host) || pending == Pending::Dropped {
            // It had its turn when it was reserved, and is opened seldom. What was reserved in vain is closed at once.
            engine.turns.take(bytes);
        } else if let Some(wait) = self.ask_to_write(&desired, false, bytes) {
            self.close_now(host, &desired, Part::Isolating).await;
            self.narrow_now(stored, host, &desired).await;
            return Ok(Compared::Later(self.report_wait(wait).await));
        }
        let growth = engine.growth(&self.key(), host.bytes.into(), &desired, &mutable);
        let _in_flight = match engine.reserve_growth(host.bytes.into(), growth) {
            Ok(in_flight) => in_flight,
            Err(exceeded) => {
                self.close_now(host, &desired, Part::ClosingWithoutRoom).await;
                self.narrow_now(stored, host, &desired).await;
                let message = exceeded.to_string();
                engine
                    .record_event(&self.key(), Level::Warning, QUOTA_EXCEEDED, &message)
                    .await;
                return Ok(Compared::Later(Outcome::requeue(REFUSED, FULL_WAIT)));
            }
        };
        engine.pending.end(&self.key());
        let narrows = kind.narrows_at_once().then(|| desired.clone());
        let desired = self.with_metadata(stored, desired, &hash);
        if kind.must_replace(&desired, &host.object()) {
            return Ok(Compared::Done(self.delete(host, kind.orphan_grace()).await?));
        }
        if let Err(error) = self.bring_up_to_date(host, &desired).await {
            if let Some(desired) = narrows.filter(|_| is_refusal(&error)) {
                self.narrow_now(stored, host, &desired).await;
            }
            return self.refused(stored, (object, content), host, error).await;
        }
        self.count_requests();
        engine.set_applied(self.key(), &mutable);
        lock(&engine.narrowed).remove(&self.key());
        engine.refusals.forget(&self.key());
        // The tenant's API server may take long for what follows.
        drop((contents, desired, mutable));
        self.record_ignored(&ignored).await;
        self.record_parts(&parts).await;
        Ok(Compared::Updated)
    }

    /// What follows from an update that has failed.
    async fn refused(
        &self,
        stored: &Stored,
        of_tenant: (&Value, &Value),
        host: &Stored,
        error: CallError,
    ) -> Result<Compared, CallError> {
        if let CallError::Rejected(refusal) = &error {
            if self.kind.must_replace_after(refusal) {
                return Ok(Compared::Done(self.delete(host, self.kind.orphan_grace()).await?));
            }
            // The host's admission denies what the rules here allow.
            if self.keeps_failing() {
                let withdrawn = self.withdraw(stored, of_tenant, host, &[]).await?;
                if withdrawn.is_some() {
                    return Err(error);
                }
            }
        }
        // A webhook of the host may change what was written, again and again.
        if is_refusal(&error) || matches!(error, CallError::Conflict(_)) {
            Ok(Compared::Refused(error))
        } else {
            Err(error)
        }
    }

    /// What the tenant's object becomes on the host, or what is denied of it. Whether what is in doubt is denied, the live host object says.
    async fn translated(
        &self,
        stored: &Stored,
        content: &Value,
        host: &Stored,
    ) -> Result<Result<Translated, Vec<DeniedField>>, CallError> {
        let Self { engine, kind, name, .. } = self;
        let mut translated = match kind.translate(&engine.cache, name, content) {
            Ok(translated) if !translated.parts.in_doubt.is_empty() => translated,
            result => return Ok(result),
        };
        let doubts = std::mem::take(&mut translated.parts.in_doubt);
        let is_written = |object: &Value| {
            let hash = engine.cache.tenant.applied_hash(&kind.mutable_part(object));
            is_origin(stored, host) && host.applied_hash.as_deref() == Some(hash.as_str())
        };
        if is_written(&translated.object) {
            translated.parts.kept.extend(doubts);
            return Ok(Ok(translated));
        }
        // It was found to have something else, and nothing has changed since.
        let when_denied = kind.when_denied(&engine.cache, name, content, &host.object());
        if let WhenDenied::Reduce(reduced) = &when_denied
            && is_written(reduced)
        {
            return Ok(Err(doubts));
        }
        let found = engine.host.get(kind.resource(), self.namespace(), &host.name).await;
        let live = CallError::found(found)?;
        let has = |doubt: &DeniedField| {
            let live = live.as_ref();
            live.is_none_or(|live| kind.is_on_host(&doubt.field, &translated.object, live))
        };
        if doubts.iter().all(has) {
            translated.parts.kept.extend(doubts);
            Ok(Ok(translated))
        } else {
            Ok(Err(doubts))
        }
    }

    /// Brings the host object up to date. If the host refuses that, what must reach it in any case is written alone.
    pub(super) async fn bring_up_to_date(&self, host: &Stored, desired: &Value) -> Result<(), CallError> {
        if self.kind.update_needs_live() {
            // The answers to some of its writes are not stored.
            lock(&self.engine.narrowed).remove(&self.key());
        }
        let result = self.write_difference(host, desired).await;
        if result.as_ref().is_err_and(is_refusal) {
            self.close_now(host, desired, Part::Closing).await;
        }
        result
    }

    /// Applies `object` to the host object, and stores the answer. What somebody else has set of fields that are the syncer's alone stays in an apply, so it is
    /// removed after that. It would lead traffic elsewhere, or let some in.
    pub(super) async fn apply_over(&self, host: &Stored, mut object: Value) -> Result<(), CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        // So that an object that is gone by now does not come back.
        object["metadata"]["uid"] = (*host.uid).into();
        let written = engine
            .host
            .apply(kind.resource(), self.namespace(), &host.name, &object)
            .await?;
        let foreign = kind.without_foreign_fields(&object, &written);
        engine.store_written(Side::Host, *id, name, written);
        if let Some(patch) = foreign {
            let patch_text: String = patch.to_string().chars().take(LONGEST_LOGGED).collect();
            tracing::warn!(key = %self.key(), patch = patch_text, "removing fields of a host object that somebody else has set");
            // The hash says that it is what it should be. Until it is, that does not count.
            lock(&engine.foreign_fields).insert(self.key(), true);
            engine.turns.take(host.bytes.into());
            self.write_closing(host, patch).await?;
        }
        if kind.exclusive_fields().is_empty() {
            lock(&engine.foreign_fields).remove(&self.key());
        } else {
            lock(&engine.foreign_fields).insert(self.key(), false);
        }
        Ok(())
    }

    /// Whether the host object has fields that somebody else has set, although its hash says that it is what it should be: between the two writes of
    /// [`Self::apply_over`] the process may have ended, or the second one has failed. So each object is looked at once after a start, and again after such a
    /// failure. Not always: a webhook of the host may set a field again whenever it is removed.
    pub(super) fn has_foreign_fields(&self, desired: &Value, host: &Stored) -> bool {
        let Self { engine, kind, .. } = self;
        if let Some(has_some) = lock(&engine.foreign_fields).get(&self.key()) {
            return *has_some;
        }
        // Of other kinds the store does not have the content.
        if kind.exclusive_fields().is_empty() {
            return false;
        }
        let has_some = kind.without_foreign_fields(desired, &host.object()).is_some();
        if !has_some {
            lock(&engine.foreign_fields).insert(self.key(), false);
        }
        has_some
    }

    async fn write_difference(&self, host: &Stored, desired: &Value) -> Result<(), CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let resource = kind.resource();
        for _ in 0..UPDATE_ROUNDS {
            let live = if kind.update_needs_live() {
                match CallError::found(engine.host.get(resource, self.namespace(), &host.name).await)? {
                    Some(live) => live,
                    None => return Ok(()),
                }
            } else {
                Value::Null
            };
            let mut refused = None;
            for write in kind.update(desired.clone(), &live) {
                match write {
                    HostWrite::Apply(object) => {
                        self.apply_over(host, object).await?;
                        engine
                            .metrics
                            .sync_to_host
                            .observe(self.observed_at.elapsed().as_secs_f64());
                        return Ok(());
                    }
                    HostWrite::Merge(mut patch) => {
                        patch["metadata"]["uid"] = (*host.uid).into();
                        patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                        let patch = Patch::Merge(patch);
                        match engine
                            .host
                            .patch(resource, self.namespace(), &host.name, "", &patch)
                            .await
                        {
                            Ok(written) => {
                                engine
                                    .metrics
                                    .sync_to_host
                                    .observe(self.observed_at.elapsed().as_secs_f64());
                                engine.store_written(Side::Host, *id, name, written);
                                return Ok(());
                            }
                            // It was changed meanwhile: read it again.
                            Err(CallError::Conflict(_)) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    HostWrite::Patch { subresource, patch } => {
                        let refusal = self.write_part(host, subresource, patch).await?;
                        refused = refused.or(refusal);
                    }
                }
            }
            if let Some(error) = refused {
                self.write_rest(host, desired, &live).await?;
                return Err(error);
            }
        }
        Err(CallError::Conflict("the host object keeps changing".into()))
    }

    /// Writes a part of a change that comes alone. Returns why the host refuses it, if what follows does not depend on it.
    async fn write_part(
        &self,
        host: &Stored,
        subresource: &'static str,
        mut patch: Value,
    ) -> Result<Option<CallError>, CallError> {
        let Self { engine, kind, .. } = self;
        patch["metadata"]["uid"] = (*host.uid).into();
        let (key, part) = (self.key(), hash_of(&(subresource, json::to_text(&patch))));
        if let Some(message) = engine.refusals.refusal(&key, part) {
            first_comparison::note_later();
            return Ok(Some(CallError::Rejected(message)));
        }
        let patch = Patch::Strategic(patch);
        let written = engine
            .host
            .patch(kind.resource(), self.namespace(), &host.name, subresource, &patch)
            .await;
        match written {
            Ok(_) => Ok(None),
            Err(error) if !subresource.is_empty() && is_refusal(&error) => {
                // Room comes back by itself.
                if let CallError::Rejected(message) = &error {
                    engine.refusals.note(&key, part, message);
                }
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes what needs no subresource, after the host has refused one. If the object was changed meanwhile, that is left to the next try.
    async fn write_rest(&self, host: &Stored, desired: &Value, live: &Value) -> Result<(), CallError> {
        let Self { engine, kind, .. } = self;
        let Some(mut patch) = kind.rest_of_update(desired, live) else {
            return Ok(());
        };
        patch["metadata"]["uid"] = (*host.uid).into();
        patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        let patch = Patch::Merge(patch);
        let written = engine
            .host
            .patch(kind.resource(), self.namespace(), &host.name, "", &patch)
            .await;
        match written {
            Ok(_) | Err(CallError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
