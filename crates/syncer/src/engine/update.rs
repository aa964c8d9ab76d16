//! Updates the host object.

use super::to_host::ObjectSync;
use super::{Outcome, api::CallError, lock};
use berth_sync_rules::model::{
    HostWrite, Translated, json,
    resource::Side,
    store::{Detail, Stored},
};
use kube::api::Patch;
use serde_json::{Value, json};

/// Rounds of subresource writes and a fresh read before an update gives up for now.
const UPDATE_ROUNDS: usize = 4;

impl ObjectSync<'_> {
    pub(super) async fn update(&self, stored: &Stored, object: &Value, host: &Stored) -> Result<Outcome, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let versions = (stored.version, host.version);
        if lock(&engine.synced_versions).get(&self.key()) == Some(&versions) {
            return Ok(Outcome::new("nothing"));
        }
        let Some(content) = self.content(stored, object).await? else {
            return Ok(Outcome::new("vanished"));
        };
        let mut result = "nothing";
        let mut denied = Vec::new();
        match kind.translate(&engine.cache, name, &content) {
            Ok(Translated {
                object: desired,
                ignored,
            }) => {
                let hash = json::hash(&kind.mutable_part(&desired));
                let is_ours = host.origin_uid.as_deref() == Some(&*stored.uid);
                if is_ours && host.applied_hash.as_deref() == Some(hash.as_str()) {
                    if engine
                        .cache
                        .kind(*id)
                        .tenant
                        .is_some_and(|spec| spec.detail == Detail::Metadata)
                    {
                        lock(&engine.synced_versions).insert(self.key(), versions);
                    }
                } else if let Some(left) = self.pending(stored, object, host) {
                    return Ok(Outcome::requeue("reserved", left));
                } else if let Some(waits) = self.wait_to_open_gates(object, host).await {
                    return Ok(waits);
                } else {
                    engine.pending.end(&self.key());
                    let desired = self.with_metadata(stored, desired, &hash);
                    if kind.must_replace(&desired, &host.object()) {
                        return self.delete(host, kind.orphan_grace()).await;
                    }
                    if let Err(error) = self.bring_up_to_date(host, &desired).await {
                        // The host's admission denies what the rules here allow.
                        if matches!(error, CallError::Rejected(_)) && self.keeps_failing() {
                            self.withdraw(stored, (object, &content), host, &[]).await?;
                        }
                        return Err(error);
                    }
                    self.record_ignored(&ignored).await;
                    result = "updated";
                }
            }
            Err(reasons) => {
                if let Some(left) = self.pending(stored, object, host) {
                    return Ok(Outcome::requeue("reserved", left));
                }
                denied = reasons;
                self.record_denied(&denied).await;
                if let Some(outcome) = self.withdraw(stored, (object, &content), host, &denied).await? {
                    return Ok(outcome);
                }
                result = "denied";
            }
        }
        let host_object = host.object();
        if let Some(status) = kind.host_status(object, &host_object) {
            let patch = Patch::Strategic(json!({"metadata": {"uid": host.uid}, "status": status}));
            let written = engine
                .host
                .patch(kind.resource(), self.namespace(), &host.name, "status", &patch)
                .await?;
            engine.store_written(Side::Host, *id, name, written);
        }
        // The status of a host object that was just written is synced when its next state arrives.
        if result == "updated" {
            return Ok(Outcome::new(result));
        }
        let mut outcome = self
            .sync_status(stored, object, &host_object, result == "nothing", &denied)
            .await?;
        if outcome.result == "nothing" {
            outcome.result = result;
        }
        Ok(outcome)
    }

    pub(super) async fn bring_up_to_date(&self, host: &Stored, desired: &Value) -> Result<(), CallError> {
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
            for write in kind.update(desired.clone(), &live) {
                match write {
                    HostWrite::Apply(mut object) => {
                        // So that an object that is gone by now does not come back.
                        object["metadata"]["uid"] = (*host.uid).into();
                        let written = engine
                            .host
                            .apply(resource, self.namespace(), &host.name, &object)
                            .await?;
                        engine
                            .metrics
                            .sync_to_host
                            .observe(self.observed_at.elapsed().as_secs_f64());
                        engine.store_written(Side::Host, *id, name, written);
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
                    HostWrite::Patch { subresource, mut patch } => {
                        patch["metadata"] = json!({"uid": host.uid});
                        let patch = Patch::Strategic(patch);
                        engine
                            .host
                            .patch(resource, self.namespace(), &host.name, subresource, &patch)
                            .await?;
                    }
                }
            }
        }
        Err(CallError::Conflict("the host object keeps changing".into()))
    }
}
