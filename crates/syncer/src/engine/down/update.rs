//! Bringing the host object up to date.

use super::Step;
use crate::engine::{Done, api::CallError, lock};
use berth_sync_rules::{
    json,
    kinds::{self, HostWrite, Translated},
    resource::Side,
    store::{Detail, Stored},
};
use kube::api::Patch;
use serde_json::{Value, json};

/// Rounds of subresource writes and a fresh read before an update gives up for now.
const UPDATE_ROUNDS: usize = 4;

impl Step<'_> {
    pub(super) async fn update(&self, stored: &Stored, object: &Value, host: &Stored) -> Result<Done, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let versions = (stored.version, host.version);
        if lock(&engine.agreed).get(&self.key()) == Some(&versions) {
            return Ok(Done::new("nothing"));
        }
        let Some(content) = self.content(stored, object).await? else {
            return Ok(Done::new("vanished"));
        };
        let mut result = "nothing";
        let mut refused = Vec::new();
        match kind.translate(&engine.world, name, &content) {
            Ok(Translated { object: desired, notes }) => {
                let hash = json::hash(&kind.changeable(&desired));
                let is_ours = host.origin_uid.as_deref() == Some(&*stored.uid);
                if is_ours && host.applied_hash.as_deref() == Some(hash.as_str()) {
                    if kinds::kind(*id)
                        .tenant
                        .is_some_and(|spec| spec.detail == Detail::Metadata)
                    {
                        lock(&engine.agreed).insert(self.key(), versions);
                    }
                } else if let Some(left) = is_ours.then(|| engine.holds.left(name, &kind.given(object))).flatten() {
                    return Ok(Done::again("held", left));
                } else {
                    engine.holds.end(name);
                    let desired = self.dressed(stored, desired, &hash);
                    if kind.must_replace(&desired, &host.object()) {
                        return self.delete(host, kind.orphan_grace()).await;
                    }
                    self.bring_up_to_date(host, &desired).await?;
                    self.tell_notes(&notes).await;
                    result = "updated";
                }
            }
            Err(reasons) => {
                refused = reasons;
                self.tell_refused(&refused).await;
                result = "refused";
            }
        }
        let host_object = host.object();
        if let Some(status) = kind.host_status(object, &host_object) {
            let patch = Patch::Strategic(json!({"metadata": {"uid": host.uid}, "status": status}));
            let written = engine
                .host
                .patch(kind.resource(), self.namespace(), &host.name, "status", &patch)
                .await?;
            engine.remember(Side::Host, *id, name, written);
        }
        // A host object that was just written is reported when its next state comes.
        if result == "updated" {
            return Ok(Done::new(result));
        }
        let mut done = self
            .report(stored, object, &host_object, result == "nothing", &refused)
            .await?;
        if done.result == "nothing" {
            done.result = result;
        }
        Ok(done)
    }

    async fn bring_up_to_date(&self, host: &Stored, desired: &Value) -> Result<(), CallError> {
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
                        engine.metrics.sync_down.observe(self.seen.elapsed().as_secs_f64());
                        engine.remember(Side::Host, *id, name, written);
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
                                engine.metrics.sync_down.observe(self.seen.elapsed().as_secs_f64());
                                engine.remember(Side::Host, *id, name, written);
                                return Ok(());
                            }
                            // Somebody was faster: read again.
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
