//! Status sync: writes the host's status to the tenant, and which fields are denied.

use super::to_host::ObjectSync;
use crate::{
    engine::{Outcome, api::CallError, lock, recorder::Level},
    metrics::ReasonLabels,
};
use berth_sync_rules::model::{
    DeniedField, Observation, TenantWrite, denied_field, json, resource::Side, store::Stored,
};
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};

/// In place of the host's version in `Engine::synced_versions`: the pod was bound.
const BOUND: u64 = u64::MAX;

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
        for write in kind.sync_status(&engine.cache, name, &report) {
            match write {
                TenantWrite::Bind { node } => written |= self.bind(stored, &node).await?,
                TenantWrite::Status(status) => written |= self.write_status(stored, object, &status).await?,
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

    /// Writes a status to the tenant if it differs. Returns whether it did.
    pub(super) async fn write_status(
        &self,
        stored: &Stored,
        object: &Value,
        status: &Value,
    ) -> Result<bool, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        lock(&engine.synced_versions).remove(&self.key());
        let Some(difference) = status_patch(object, status) else {
            return Ok(false);
        };
        let patch = json::object([("metadata", json!({"uid": stored.uid})), ("status", difference)]);
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
        if let Some(written) = CallError::found(result)? {
            engine.store_patched(Side::Tenant, *id, name, (object, patch), written);
        }
        Ok(true)
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

    /// Records an Event about fields that are denied.
    pub(super) async fn record_denied(&self, denied: &[DeniedField]) {
        let reason = "FieldDenied";
        self.engine
            .metrics
            .denials
            .get_or_create(&ReasonLabels { reason })
            .inc();
        self.engine
            .record_event(&self.key(), Level::Warning, reason, &denied_field::message(denied))
            .await;
    }
}

/// A merge patch that sets the status of `object`; `None` if it is set.
pub(super) fn status_patch(object: &Value, status: &Value) -> Option<Value> {
    let unset = json!({});
    let before = object.get("status").unwrap_or(&unset);
    json::merge_patch(&json::without_nulls(before), &json::without_nulls(status))
}
