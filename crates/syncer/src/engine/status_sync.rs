//! Status sync: writes the host's status to the tenant, and which fields are denied.

use super::to_host::ObjectSync;
use crate::{
    engine::{Outcome, api::CallError, lock, queued_key::QueuedKey, recorder::Level},
    metrics::ReasonLabels,
};
use berth_sync_rules::model::{
    DeniedField, DeniedParts, Observation, TenantWrite, denied_field, json, resource::Side, store::Stored,
};
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::Duration;

/// In place of the host's version in `Engine::synced_versions`: the pod was bound.
const BOUND: u64 = u64::MAX;
/// How soon a status is written again whose object others have changed. The watch shows their change in the meantime.
const OUTDATED_PAUSE: Duration = Duration::from_millis(250);

/// The beginning of a message about what is [left out](DeniedParts::left_out).
const LEFT_OUT: &str = "Left out on the host, while the rest is synced: ";
/// The beginning of a message about what is [kept](DeniedParts::kept).
const KEPT: &str = "What exists is kept, and a new object with the same would be denied: ";

/// When a status with conditions is written. Others write conditions, too: `DisruptionTarget` who evicts a pod, and those of readiness gates.
/// A merge patch replaces the whole list.
#[derive(Clone, Copy)]
enum ConditionWrites {
    /// If the object has the version that was read.
    IfUnchanged,
    /// Whatever version it has.
    Always,
}

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusWrite {
    /// It was written, or the object is gone.
    Written,
    /// The object had it already.
    Same,
    /// The object changed meanwhile. It is reconciled again soon.
    Outdated,
}

impl ObjectSync<'_> {
    /// Writes the status of the host object to the tenant, if it differs.
    pub(super) async fn sync_status(
        &self,
        stored: &Stored,
        object: &Value,
        host: &Value,
        in_sync: bool,
        denied: &[DeniedField],
    ) -> Result<Outcome, CallError> {
        let Self { engine, kind, name, .. } = self;
        let report = Observation {
            tenant: object,
            host,
            in_sync,
            denied,
            now: Timestamp::now(),
        };
        let mut written = false;
        let mut requeue_after = None;
        let mut condition_writes = ConditionWrites::IfUnchanged;
        for write in kind.sync_status(&engine.cache, name, &report) {
            match write {
                TenantWrite::Bind { node } => {
                    written |= self.bind(stored, &node).await?;
                    // It has another version now, which the response does not tell.
                    condition_writes = ConditionWrites::Always;
                }
                TenantWrite::Status(status) => {
                    let write = self
                        .write_status_when(stored, object, &status, condition_writes)
                        .await?;
                    written |= write == StatusWrite::Written;
                }
                TenantWrite::Patch(patch) => written |= self.patch(stored, object, patch).await?,
                TenantWrite::Later(after) => requeue_after = Some(after),
            }
        }
        if written {
            engine
                .metrics
                .sync_to_tenant
                .observe(self.observed_at.elapsed().as_secs_f64());
        }
        Ok(Outcome {
            result: if written { "reported" } else { "nothing" },
            requeue_after,
            compares_again: requeue_after.is_some(),
        })
    }

    /// Binds the tenant's pod to a node. Returns whether it did.
    async fn bind(&self, stored: &Stored, node: &str) -> Result<bool, CallError> {
        let Self { engine, kind, name, .. } = self;
        // The response to a Binding is not the pod, so the version that was bound is remembered until the watch shows
        // the binding.
        let bound = (stored.version, BOUND);
        if lock(&engine.synced_versions).get(&self.key()) == Some(&bound) {
            return Ok(false);
        }
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": &*name.name, "namespace": &*name.namespace, "uid": stored.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let (resource, tenant) = (kind.resource(), &engine.tenant);
        tenant
            .create_sub(resource, &name.namespace, &name.name, "binding", &binding)
            .await?;
        lock(&engine.synced_versions).insert(self.key(), bound);
        Ok(true)
    }

    /// Patches the tenant's object itself if that changes something. Returns whether it did.
    async fn patch(&self, stored: &Stored, object: &Value, mut patch: Value) -> Result<bool, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        if json::is_patched(object, &patch) {
            return Ok(false);
        }
        patch["metadata"]["uid"] = (*stored.uid).into();
        let body = Patch::Merge(&patch);
        let result = engine
            .tenant
            .patch(kind.resource(), &name.namespace, &name.name, "", &body)
            .await;
        if let Some(written) = CallError::found(result)? {
            engine.store_patched(Side::Tenant, *id, name, (object, patch), written);
        }
        Ok(true)
    }

    /// Writes a status to the tenant if it differs. If conditions may have changed meanwhile, or the object has too much structure, nothing is written.
    pub(super) async fn write_status(
        &self,
        stored: &Stored,
        object: &Value,
        status: &Value,
    ) -> Result<StatusWrite, CallError> {
        self.write_status_when(stored, object, status, ConditionWrites::IfUnchanged)
            .await
    }

    async fn write_status_when(
        &self,
        stored: &Stored,
        object: &Value,
        status: &Value,
        condition_writes: ConditionWrites,
    ) -> Result<StatusWrite, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        lock(&engine.synced_versions).remove(&self.key());
        // It was made of a part of the object: what others have written would be lost, and nothing would end the writes.
        if stored.is_cut {
            return Ok(StatusWrite::Same);
        }
        let Some(difference) = status_patch(object, status) else {
            return Ok(StatusWrite::Same);
        };
        let patch = status_write(stored, difference, condition_writes);
        let result = engine
            .tenant
            .patch(
                kind.resource(),
                &name.namespace,
                &name.name,
                "status",
                &Patch::Merge(&patch),
            )
            .await;
        match CallError::found(result) {
            Ok(Some(written)) => engine.store_patched(Side::Tenant, *id, name, (object, patch), written),
            Ok(None) => {}
            // No error: a tenant that changes a status all the time must not keep anything else of the object from being done.
            Err(CallError::Conflict(_)) => {
                let key = self.key();
                engine.compare_later(&key);
                engine.queue_of(*id).add_after(QueuedKey(key), OUTDATED_PAUSE);
                return Ok(StatusWrite::Outdated);
            }
            Err(error) => return Err(error),
        }
        Ok(StatusWrite::Written)
    }

    /// Says in the tenant why an object is not on the host, once: by an Event, and in this status. Does nothing if the object has that status already.
    pub(super) async fn report_once(
        &self,
        (stored, object): (&Stored, &Value),
        status: Option<Value>,
        (level, reason, message): (Level, &'static str, &str),
    ) -> Result<(), CallError> {
        if let Some(status) = status.filter(|status| status_patch(object, status).is_some()) {
            self.engine.record_event(&self.key(), level, reason, message).await;
            self.write_status(stored, object, &status).await?;
        }
        Ok(())
    }

    /// Reports denied fields to the tenant, by an Event and in the status.
    pub(super) async fn deny(&self, stored: &Stored, object: &Value, denied: &[DeniedField]) -> Result<(), CallError> {
        self.record_denied(denied).await;
        self.write_denied(stored, object, denied).await
    }

    /// Reports denied fields in the status.
    pub(super) async fn write_denied(
        &self,
        stored: &Stored,
        object: &Value,
        denied: &[DeniedField],
    ) -> Result<(), CallError> {
        let status = self
            .kind
            .denied_status(&self.engine.cache, self.name, object, denied, Timestamp::now());
        if let Some(status) = status {
            self.write_status(stored, object, &status).await?;
        }
        Ok(())
    }

    /// Records an Event about fields that have no effect.
    pub(super) async fn record_ignored(&self, ignored: &[DeniedField]) {
        if !ignored.is_empty() {
            let message = denied_field::message(ignored);
            self.engine
                .record_event(&self.key(), Level::Normal, "FieldIgnored", &message)
                .await;
        }
    }

    /// Records Events about what is denied although the rest of the object is synced.
    pub(super) async fn record_parts(&self, parts: &DeniedParts) {
        let DeniedParts {
            left_out,
            kept,
            in_doubt: _,
        } = parts;
        if !left_out.is_empty() {
            self.record_denial(&format!("{LEFT_OUT}{}", denied_field::message(left_out)))
                .await;
        }
        if !kept.is_empty() {
            let message = format!("{KEPT}{}", denied_field::message(kept));
            self.engine
                .record_event(&self.key(), Level::Warning, "NoLongerAllowed", &message)
                .await;
        }
    }

    /// Records an Event about fields that are denied.
    pub(super) async fn record_denied(&self, denied: &[DeniedField]) {
        self.record_denial(&denied_field::message(denied)).await;
    }

    async fn record_denial(&self, message: &str) {
        let reason = "FieldDenied";
        self.engine
            .metrics
            .denials
            .get_or_create(&ReasonLabels { reason })
            .inc();
        self.engine
            .record_event(&self.key(), Level::Warning, reason, message)
            .await;
    }
}

/// A merge patch that sets the status of `object`; `None` if it is set.
pub(super) fn status_patch(object: &Value, status: &Value) -> Option<Value> {
    let unset = json!({});
    let before = object.get("status").unwrap_or(&unset);
    json::merge_patch(&json::without_nulls(before), &json::without_nulls(status))
}

/// The patch of an object whose status differs.
fn status_write(stored: &Stored, difference: Value, condition_writes: ConditionWrites) -> Value {
    let mut metadata = json!({"uid": stored.uid});
    if matches!(condition_writes, ConditionWrites::IfUnchanged) && difference.get("conditions").is_some() {
        metadata["resourceVersion"] = stored.version.to_string().into();
    }
    json::object([("metadata", metadata), ("status", difference)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_replaced_only_in_the_version_that_was_read() {
        let pod = json!({"metadata": {"name": "web-0", "uid": "u", "resourceVersion": "7"}});
        let stored = Stored::new(&pod);
        let phase = json!({"phase": "Running"});
        assert_eq!(
            status_write(&stored, phase.clone(), ConditionWrites::IfUnchanged),
            json!({"metadata": {"uid": "u"}, "status": phase}),
            "maps are merged"
        );
        for conditions in [json!([{"type": "Ready", "status": "True"}]), Value::Null] {
            let difference = json!({"conditions": conditions});
            let write = status_write(&stored, difference.clone(), ConditionWrites::IfUnchanged);
            assert_eq!(write["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
            let write = status_write(&stored, difference, ConditionWrites::Always);
            assert_eq!(write["metadata"], json!({"uid": "u"}));
        }
    }
}
