//! Writing to the tenant: the host's state, and what is refused.

use super::Step;
use crate::{
    engine::{Done, api::CallError, lock, recorder::Level},
    metrics::ReasonLabels,
};
use berth_sync_rules::{
    json,
    kinds::{Report, TenantWrite, refusal},
    resource::Side,
    store::Stored,
};
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};

/// In place of the host's version in [`Engine::agreed`](crate::engine::Engine): the pod was bound.
const BOUND: u64 = u64::MAX;

impl Step<'_> {
    /// Writes the host's state to the tenant, if it differs.
    pub(super) async fn report(
        &self,
        stored: &Stored,
        object: &Value,
        host: &Value,
        in_sync: bool,
        refused: &[refusal::Refusal],
    ) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
        let report = Report {
            tenant: object,
            host,
            in_sync,
            refused,
            now: Timestamp::now(),
        };
        let mut written = false;
        let mut again = None;
        for write in kind.back(&engine.world, name, &report) {
            match write {
                TenantWrite::Bind { node } => written |= self.bind(stored, &node).await?,
                TenantWrite::Status(status) => written |= self.write_status(stored, object, &status).await?,
                TenantWrite::Patch(patch) => written |= self.patch(stored, object, patch).await?,
                TenantWrite::Later(after) => again = Some(after),
            }
        }
        if written {
            engine.metrics.sync_up.observe(self.seen.elapsed().as_secs_f64());
        }
        Ok(Done {
            result: if written { "reported" } else { "nothing" },
            again,
        })
    }

    /// Binds the tenant's pod to a node. Returns whether that was still to be done.
    async fn bind(&self, stored: &Stored, node: &str) -> Result<bool, CallError> {
        let Self { engine, kind, name, .. } = self;
        // The answer to a Binding is not the pod, so until the watch shows it, the state it was bound in is remembered.
        let bound = (stored.version, BOUND);
        if lock(&engine.agreed).get(&self.key()) == Some(&bound) {
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
        lock(&engine.agreed).insert(self.key(), bound);
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
        let patch = Patch::Merge(patch);
        let result = engine
            .tenant
            .patch(kind.resource(), &name.namespace, &name.name, "", &patch)
            .await;
        if let Some(written) = CallError::found(result)? {
            engine.remember(Side::Tenant, *id, name, written);
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
        lock(&engine.agreed).remove(&self.key());
        let Some(difference) = status_patch(object, status) else {
            return Ok(false);
        };
        let patch = Patch::Merge(json!({"metadata": {"uid": stored.uid}, "status": difference}));
        let result = engine
            .tenant
            .patch(kind.resource(), &name.namespace, &name.name, "status", &patch)
            .await;
        if let Some(written) = CallError::found(result)? {
            engine.remember(Side::Tenant, *id, name, written);
        }
        Ok(true)
    }

    pub(super) async fn refuse(
        &self,
        stored: &Stored,
        object: &Value,
        refused: &[refusal::Refusal],
    ) -> Result<(), CallError> {
        self.tell_refused(refused).await;
        if let Some(status) = self.kind.refused(object, refused, Timestamp::now()) {
            self.write_status(stored, object, &status).await?;
        }
        Ok(())
    }

    /// Says what of an object has no effect.
    pub(super) async fn tell_notes(&self, notes: &[refusal::Refusal]) {
        if !notes.is_empty() {
            let message = refusal::message(notes);
            self.engine
                .tell(&self.key(), Level::Normal, "FieldWithoutEffect", &message)
                .await;
        }
    }

    pub(super) async fn tell_refused(&self, refused: &[refusal::Refusal]) {
        let reason = "FieldRefused";
        self.engine
            .metrics
            .refusals
            .get_or_create(&ReasonLabels { reason })
            .inc();
        self.engine
            .tell(&self.key(), Level::Warning, reason, &refusal::message(refused))
            .await;
    }
}

/// A merge patch that makes the status of `object` the one given; `None` if it is.
pub(in crate::engine) fn status_patch(object: &Value, status: &Value) -> Option<Value> {
    let mut before = object.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut after = status.clone();
    json::drop_nulls(&mut before);
    json::drop_nulls(&mut after);
    json::merge_patch(&before, &after)
}
