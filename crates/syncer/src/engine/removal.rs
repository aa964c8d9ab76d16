//! Deletes tenants' objects that the host removes, as an API server of their own would: their controllers replace them at once.
//!
//! First the [status](super::status_sync) says so, then the object is deleted. A syncer that was killed in between finds both, and goes on.

use super::{Outcome, api::CallError, recorder::Level, to_host::ObjectSync};
use berth_sync_rules::model::{
    resource::Side,
    store::{Stored, is_origin},
};
use serde_json::Value;

impl ObjectSync<'_> {
    /// Deletes the tenant's object if the host deletes its own and the status in the tenant says so. `host` is the host object, `tombstone` the last
    /// state of one that is gone, and `outcome` that of the reconciliation.
    pub(super) async fn follow_removal(
        &self,
        tenant: Option<(&Stored, &Value)>,
        (host, tombstone): (Option<&Stored>, Option<&Stored>),
        outcome: Outcome,
    ) -> Result<Outcome, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let Some((stored, _)) = tenant else {
            return Ok(outcome);
        };
        let last = host.or(tombstone).filter(|last| is_origin(stored, last));
        let Some(deletion) = last.and_then(|last| last.deletion) else {
            return Ok(outcome);
        };
        // As it is now: its status was written a moment ago, or could not be.
        let current = engine.cache.stores.tenant(*id).get(name);
        let current = current.filter(|current| current.uid == stored.uid && current.deletion.is_none());
        let Some(removal) = current.and_then(|current| kind.removal(&current.object())) else {
            return Ok(outcome);
        };
        if let Some((reason, message)) = removal.event {
            engine.record_event(&self.key(), Level::Warning, reason, &message).await;
        }
        // Not less than on the host, where the deletion in the tenant would shorten it. Not 0 as long as the host object exists: it is reported how
        // that ends.
        let grace = u32::try_from(deletion.grace_seconds.unwrap_or_default()).unwrap_or(u32::MAX);
        let grace = if host.is_some() { grace.max(1) } else { 0 };
        match self.delete_in_tenant(stored, Some(grace)).await {
            Ok(object) => {
                if host.is_some() && object["metadata"].get("deletionTimestamp").is_some() {
                    engine.store_written(Side::Tenant, *id, name, object);
                }
                Ok(Outcome {
                    result: "removed",
                    ..outcome
                })
            }
            Err(CallError::Conflict(_)) => Ok(Outcome::new("vanished").comparing_again()),
            // A policy of the tenant keeps it, and its status says how it ends. It is tried again when something changes.
            Err(CallError::Rejected(message)) => {
                tracing::info!(%name, message, "the tenant does not let an object be deleted that the host removes");
                Ok(outcome)
            }
            Err(error) => Err(error),
        }
    }
}
