//! Closes host objects that are being deleted: a pod can have a day to end, and policies of the tenant hold for it until then, as in any cluster. Nothing
//! else of such an object is updated.

use super::{api::CallError, controller_requests::Wait, lock, to_host::ObjectSync};
use berth_sync_rules::{
    model::store::{Stored, is_origin},
    translation::sizes::count_bytes,
};
use serde_json::Value;

impl ObjectSync<'_> {
    /// Writes what closes a host object that is being deleted, if it is not there yet. Returns what the rest of that waits for: what isolates the object
    /// does not wait. Nothing is written in the last step of a deletion.
    pub(super) async fn close_ending(
        &self,
        stored: &Stored,
        object: &Value,
        host: &Stored,
    ) -> Result<Option<Wait>, CallError> {
        let Self { engine, kind, name, .. } = self;
        let has_time = host.deletion.is_some_and(|deletion| !deletion.is_in_last_step());
        if !self.compares || !has_time || !is_origin(stored, host) {
            return Ok(None);
        }
        let Some(desired) = kind.closed_while_ending(&engine.cache, name, object, &host.object()) else {
            return Ok(None);
        };
        let hash_of = |object: &Value| engine.cache.tenant.applied_hash(&kind.mutable_part(object));
        let is_applied = |hash: &str| host.applied_hash.as_deref() == Some(hash);
        // Most pods end as they ran, and cost the host no request here.
        let is_as_it_ran = || {
            let translated = kind.translate(&engine.cache, name, object);
            translated.is_ok_and(|translated| is_applied(&hash_of(&translated.object)))
        };
        let compared = (hash_of(&desired), host.version);
        let is_known = lock(&engine.narrowed).get(&self.key()) == Some(&compared);
        if is_known || is_applied(&compared.0) || is_as_it_ran() {
            return Ok(None);
        }
        let found = engine.host.get(kind.resource(), self.namespace(), &host.name).await;
        let Some(live) = CallError::found(found)? else {
            return Ok(None);
        };
        let Some(closing) = kind.closing_patch(&desired, &live) else {
            lock(&engine.narrowed).insert(self.key(), compared);
            return Ok(None);
        };
        let isolating = kind.isolating_patch(&desired, &live);
        let bytes = count_bytes(&live) as u64;
        // Labels that open the network do not return to it, so that taking them away cannot be repeated without end. Others can change all the time.
        let mut wait = if isolating.as_ref() == Some(&closing) {
            engine.turns.take(bytes);
            None
        } else {
            self.ask_to_write(&desired, false, bytes)
        };
        let patch = if wait.is_none() {
            let fitting = self.fit_closing(host, closing, &live);
            // Nothing else says that there is room again.
            let has_room = matches!(fitting, Some((_, Some(_))));
            wait = (!has_room).then_some(Wait::Room);
            fitting
        } else {
            isolating.map(|patch| (patch, None))
        };
        if let Some((patch, _in_flight)) = patch {
            self.write_closing(host, patch).await?;
        }
        Ok(wait)
    }
}

#[cfg(test)]
mod tests;
