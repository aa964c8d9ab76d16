//! Deletes objects on the host, and finally in the tenant.

use super::to_host::ObjectSync;
use crate::{
    engine::{
        OUTDATED, Outcome,
        api::{CallError, Delete},
        status_sync::StatusWrite,
    },
    metrics::KindLabels,
};
use berth_sync_rules::model::{Observation, TenantWrite, resource::Side, store::Stored};
use jiff::Timestamp;
use serde_json::Value;

impl ObjectSync<'_> {
    pub(super) async fn delete(&self, host: &Stored, grace_seconds: Option<u32>) -> Result<Outcome, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let how = Delete {
            uid: &host.uid,
            version: kind.deletes_only_this_version(host).then_some(host.version),
            grace_seconds,
        };
        match engine
            .host
            .delete(kind.resource(), self.namespace(), &host.name, how)
            .await
        {
            Ok(object) => {
                if kind.orphan_grace().is_some() && object["metadata"].get("deletionTimestamp").is_some() {
                    engine.store_written(Side::Host, *id, name, object);
                }
                engine
                    .metrics
                    .sync_to_host
                    .observe(self.observed_at.elapsed().as_secs_f64());
                let is_given_time = kind.orphan_grace().is_some();
                Ok(Outcome {
                    // What it may still do until it has ended is compared once it is known to be ending.
                    compares_again: is_given_time,
                    ..Outcome::new("deleted")
                })
            }
            // Another object has that name now, or it changed: the watch will report that.
            Err(CallError::Conflict(_)) => Ok(Outcome::new("vanished").comparing_again()),
            Err(error) => Err(error),
        }
    }

    /// Removes a reservation whose tenant object did not arrive.
    pub(super) async fn sweep(&self, host: &Stored) -> Result<Outcome, CallError> {
        let kind = self.id.label();
        tracing::info!(kind, name = %self.name, "sweeping a reservation");
        let outcome = self.delete(host, self.kind.orphan_grace()).await?;
        self.engine.pending.end(&self.key());
        self.engine
            .metrics
            .reservations_swept
            .get_or_create(&KindLabels { kind })
            .inc();
        Ok(Outcome {
            result: "swept",
            ..outcome
        })
    }

    /// Ends a deletion that waits for the host: reports how the host object ended, then deletes the tenant's.
    pub(super) async fn finish(
        &self,
        stored: &Stored,
        object: &Value,
        tombstone: Option<&Value>,
    ) -> Result<Outcome, CallError> {
        let Self { engine, kind, name, .. } = self;
        if let Some(tombstone) = tombstone {
            let report = Observation {
                tenant: object,
                host: tombstone,
                in_sync: false,
                denied: &[],
                now: Timestamp::now(),
            };
            for write in kind.sync_status(&engine.cache, name, &report) {
                // Without it, a Job that looks at pods when they have ended would wait for this one for ever.
                if let TenantWrite::Status(status) = write
                    && self.write_status(stored, object, &status).await? == StatusWrite::Outdated
                {
                    return Ok(Outcome::new(OUTDATED));
                }
            }
        }
        match self.delete_in_tenant(stored, Some(0)).await {
            Ok(_) | Err(CallError::Conflict(_)) => Ok(Outcome::new("finished")),
            Err(error) => Err(error),
        }
    }

    /// Deletes this very object in the tenant. Returns it as it is now, if its grace period or finalizers keep it.
    pub(super) async fn delete_in_tenant(
        &self,
        stored: &Stored,
        grace_seconds: Option<u32>,
    ) -> Result<Value, CallError> {
        let Self { engine, kind, name, .. } = self;
        let how = Delete {
            uid: &stored.uid,
            version: None,
            grace_seconds,
        };
        let (tenant, resource) = (&engine.tenant, kind.resource());
        tenant.delete(resource, &name.namespace, &name.name, how).await
    }
}
