//! Takes back what a host object does when the present state of the tenant's object is denied. Left as it was, the host object would go on
//! working with what its neighbours have become meanwhile.

use super::{Outcome, api::CallError, to_host::ObjectSync};
use berth_sync_rules::model::{DeniedField, WhenDenied, json, store::Stored};
use serde_json::Value;

impl ObjectSync<'_> {
    /// Deletes the host object, or reduces it to what is harmless, as the kind says. `content` is the tenant's object in full, `denied` what
    /// to report. Returns the outcome if nothing is left to do: if the host object is deleted.
    pub(super) async fn withdraw(
        &self,
        stored: &Stored,
        (object, content): (&Value, &Value),
        host: &Stored,
        denied: &[DeniedField],
    ) -> Result<Option<Outcome>, CallError> {
        let Self { engine, kind, name, .. } = self;
        match kind.when_denied(&engine.cache, name, content, &host.object()) {
            WhenDenied::Keep => Ok(None),
            WhenDenied::Withdraw => {
                if !denied.is_empty() {
                    self.deny(stored, object, denied).await?;
                }
                self.delete(host, kind.orphan_grace()).await?;
                Ok(Some(Outcome::new("withdrawn")))
            }
            WhenDenied::Reduce(reduced) => {
                let hash = json::hash(&kind.mutable_part(&reduced));
                if host.applied_hash.as_deref() != Some(hash.as_str()) {
                    let reduced = self.with_metadata(stored, reduced, &hash);
                    self.bring_up_to_date(host, &reduced).await?;
                }
                Ok(None)
            }
        }
    }
}
