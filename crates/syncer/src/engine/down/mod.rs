//! A step of a kind that goes from the tenant to the host.

use super::{
    Done, Engine,
    api::{CallError, Delete},
    decide::{Action, HostFacts, TenantFacts, decide},
    lock,
    recorder::Level,
};
use crate::{
    json,
    kinds::{self, Down, HostWrite, Report, TenantWrite, Translated, refusal},
    metrics::ReasonLabels,
    resource::{Key, Name, Side, host_name},
    store::{Detail, Stored},
};
use berth_api::labels;
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Rounds of subresource writes and a fresh read before an update gives up for now.
const UPDATE_ROUNDS: usize = 4;
/// A resource version that no object has: as a precondition of an apply it says that nothing may exist yet.
const NOTHING_YET: &str = "1";
/// How long to wait for something that should be announced by a watch.
const SAFETY: Duration = Duration::from_secs(5);

/// A step on its way.
struct Step<'a> {
    engine: &'a Engine,
    kind: &'static dyn Down,
    name: &'a Name,
    /// When the change that led to this step was seen.
    seen: Instant,
}

/// Decides and acts.
pub(super) async fn step(
    engine: &Engine,
    kind: &'static dyn Down,
    name: &Name,
    seen: Instant,
) -> Result<Done, CallError> {
    let stores = &engine.world.stores;
    let tenant = stores.tenant(kind.id()).get(name);
    let host = stores.host(kind.id()).get(name);
    let departed = stores.host(kind.id()).take_departed(name).map(|stored| stored.object());
    let object = tenant.as_ref().map(|stored| stored.object());
    let tenant = tenant.as_deref().zip(object.as_ref());
    let tenant_facts = tenant.map(|(stored, object)| TenantFacts {
        uid: &stored.uid,
        deletion: stored.deletion,
        want: kind.want(&engine.world, name, object),
    });
    let host_facts = host.as_deref().map(|stored| HostFacts {
        origin_uid: stored.origin_uid.as_deref(),
        deletion: stored.deletion,
    });
    let step = Step {
        engine,
        kind,
        name,
        seen,
    };
    let action = decide(tenant_facts, host_facts, kind.orphan_grace(), kind.finishes_deletion());
    match (action, tenant, host.as_deref()) {
        (Action::Create, Some((stored, object)), _) => step.create(stored, object).await,
        (Action::Update, Some((stored, object)), Some(host)) => step.update(stored, object, host).await,
        (Action::Report, Some((stored, object)), Some(host)) => {
            step.report(stored, object, &host.object(), false, &[]).await
        }
        (Action::Delete { grace_seconds, report }, tenant, Some(host)) => {
            if let Some((stored, object)) = tenant.filter(|_| report) {
                step.report(stored, object, &host.object(), false, &[]).await?;
            }
            step.delete(host, grace_seconds).await
        }
        (Action::Finish, Some((stored, object)), _) => step.finish(stored, object, departed.as_ref()).await,
        (Action::Lost, Some((stored, object)), _) => {
            let lost = kind.lost(&engine.world, name, object, departed.as_ref(), Timestamp::now());
            if let Some(status) = lost {
                step.write_status(stored, object, &status).await?;
            }
            Ok(Done::new("lost"))
        }
        _ => {
            if tenant.is_none() && host.is_none() {
                lock(&engine.agreed).remove(&step.key());
            }
            Ok(Done::new("nothing"))
        }
    }
}

impl Step<'_> {
    fn key(&self) -> Key {
        self.kind.id().key(self.name.clone())
    }

    fn host_name(&self) -> String {
        host_name(self.kind.id(), self.name)
    }

    fn namespace(&self) -> &str {
        &self.engine.world.tenant.workload_namespace
    }

    /// The tenant's object in full: from the store, or read if only its metadata is watched.
    async fn content(&self, stored: &Stored, object: &Value) -> Result<Option<Value>, CallError> {
        let watched = kinds::kind(self.kind.id()).tenant.map(|spec| spec.detail);
        if watched != Some(Detail::Metadata) {
            return Ok(Some(object.clone()));
        }
        let Name { namespace, name } = self.name;
        let read = CallError::found(self.engine.tenant.get(self.kind.resource(), namespace, name).await)?;
        // Another object of the same name: the watch is about to say so.
        Ok(read.filter(|read| json::text(read, &["metadata", "uid"]) == Some(&*stored.uid)))
    }

    async fn create(&self, stored: &Stored, object: &Value) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
        let host_has = |key: &Key| engine.world.stores.host(key.kind).contains(&key.name);
        let missing: Vec<Key> = kind
            .needs(&engine.world, name, object)
            .into_iter()
            .filter(|key| !host_has(key))
            .collect();
        if !missing.is_empty() {
            for key in missing {
                engine.queue.add(key);
            }
            return Ok(Done::again("waiting", SAFETY));
        }
        let Some(content) = self.content(stored, object).await? else {
            return Ok(Done::new("vanished"));
        };
        let translated = match kind.translate(&engine.world, name, &content) {
            Ok(translated) => translated,
            Err(refused) => {
                self.refuse(stored, object, &refused).await?;
                return Ok(Done::new("refused"));
            }
        };
        let Translated { object: desired, notes } = translated;
        let desired = kind.at_creation(desired);
        let hash = json::hash(&kind.changeable(&desired));
        let mut desired = self.dressed(stored, desired, &hash);
        desired["metadata"]["resourceVersion"] = NOTHING_YET.into();
        let resource = kind.resource();
        match engine
            .host
            .apply(resource, self.namespace(), &self.host_name(), &desired)
            .await
        {
            Ok(created) => {
                engine.metrics.sync_down.observe(self.seen.elapsed().as_secs_f64());
                engine.remember(Side::Host, kind.id(), name, created);
                if !notes.is_empty() {
                    engine
                        .tell(
                            &self.key(),
                            Level::Normal,
                            "FieldWithoutEffect",
                            &refusal::message(&notes),
                        )
                        .await;
                }
                Ok(Done::new("created"))
            }
            Err(CallError::Conflict(_)) => self.taken(stored).await,
            Err(error) => Err(error),
        }
    }

    /// Something of the host name exists already.
    async fn taken(&self, stored: &Stored) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
        let found = engine
            .host
            .get(kind.resource(), self.namespace(), &self.host_name())
            .await;
        let Some(found) = CallError::found(found)? else {
            return Ok(Done::again("vanished", Duration::ZERO));
        };
        if json::text(&found, &["metadata", "labels", labels::MANAGED_BY]) != Some(labels::MANAGED_BY_SYNCER) {
            return Err(CallError::Refused(
                "an object of that name exists on the host and is not the tenant's".into(),
            ));
        }
        let origin = json::text(&found, &["metadata", "annotations", labels::ORIGIN_UID]);
        if origin == Some(&*stored.uid) {
            engine.remember(Side::Host, kind.id(), name, found);
            return Ok(Done::again("adopted", Duration::ZERO));
        }
        let uid = json::text(&found, &["metadata", "uid"]).unwrap_or_default();
        let how = Delete {
            uid,
            grace_seconds: kind.orphan_grace(),
        };
        engine
            .host
            .delete(kind.resource(), self.namespace(), &self.host_name(), how)
            .await?;
        Ok(Done::again("replacing", Duration::from_millis(200)))
    }

    async fn update(&self, stored: &Stored, object: &Value, host: &Stored) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
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
            Ok(Translated { object: desired, .. }) => {
                let hash = json::hash(&kind.changeable(&desired));
                if host.applied_hash.as_deref() == Some(hash.as_str()) {
                    if kinds::kind(kind.id())
                        .tenant
                        .is_some_and(|spec| spec.detail == Detail::Metadata)
                    {
                        lock(&engine.agreed).insert(self.key(), versions);
                    }
                } else {
                    self.bring_up_to_date(host, &self.dressed(stored, desired, &hash))
                        .await?;
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
            engine.remember(Side::Host, kind.id(), name, written);
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
        let Self { engine, kind, name, .. } = self;
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
                        engine.remember(Side::Host, kind.id(), name, written);
                        return Ok(());
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

    /// Writes the host's state to the tenant, if it differs.
    async fn report(
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
                TenantWrite::Bind { node } => {
                    let binding = json!({
                        "apiVersion": "v1",
                        "kind": "Binding",
                        "metadata": {"name": &*name.name, "namespace": &*name.namespace, "uid": stored.uid},
                        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
                    });
                    let resource = kind.resource();
                    engine
                        .tenant
                        .create_sub(resource, &name.namespace, &name.name, "binding", &binding)
                        .await?;
                    written = true;
                }
                TenantWrite::Status(status) => written |= self.write_status(stored, object, &status).await?,
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

    /// Writes a status to the tenant if it differs. Returns whether it did.
    async fn write_status(&self, stored: &Stored, object: &Value, status: &Value) -> Result<bool, CallError> {
        let Self { engine, kind, name, .. } = self;
        let Some(difference) = status_patch(object, status) else {
            return Ok(false);
        };
        let patch = Patch::Merge(json!({"metadata": {"uid": stored.uid}, "status": difference}));
        let result = engine
            .tenant
            .patch(kind.resource(), &name.namespace, &name.name, "status", &patch)
            .await;
        if let Some(written) = CallError::found(result)? {
            engine.remember(Side::Tenant, kind.id(), name, written);
        }
        Ok(true)
    }

    async fn delete(&self, host: &Stored, grace_seconds: Option<u32>) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
        let how = Delete {
            uid: &host.uid,
            grace_seconds,
        };
        match engine
            .host
            .delete(kind.resource(), self.namespace(), &host.name, how)
            .await
        {
            Ok(object) => {
                if kind.orphan_grace().is_some() && object["metadata"].get("deletionTimestamp").is_some() {
                    engine.remember(Side::Host, kind.id(), name, object);
                }
                engine.metrics.sync_down.observe(self.seen.elapsed().as_secs_f64());
                Ok(Done::new("deleted"))
            }
            // Another object of that name by now: the watch is about to say so.
            Err(CallError::Conflict(_)) => Ok(Done::new("vanished")),
            Err(error) => Err(error),
        }
    }

    /// Ends a deletion that waits for the host: reports how the host object ended, then lets go.
    async fn finish(&self, stored: &Stored, object: &Value, departed: Option<&Value>) -> Result<Done, CallError> {
        let Self { engine, kind, name, .. } = self;
        if let Some(departed) = departed {
            let report = Report {
                tenant: object,
                host: departed,
                in_sync: false,
                refused: &[],
                now: Timestamp::now(),
            };
            for write in kind.back(&engine.world, name, &report) {
                if let TenantWrite::Status(status) = write {
                    self.write_status(stored, object, &status).await?;
                }
            }
        }
        let how = Delete {
            uid: &stored.uid,
            grace_seconds: Some(0),
        };
        match engine
            .tenant
            .delete(kind.resource(), &name.namespace, &name.name, how)
            .await
        {
            Ok(_) | Err(CallError::Conflict(_)) => Ok(Done::new("finished")),
            Err(error) => Err(error),
        }
    }

    async fn refuse(&self, stored: &Stored, object: &Value, refused: &[refusal::Refusal]) -> Result<(), CallError> {
        self.tell_refused(refused).await;
        if let Some(status) = self.kind.refused(object, refused, Timestamp::now()) {
            self.write_status(stored, object, &status).await?;
        }
        Ok(())
    }

    async fn tell_refused(&self, refused: &[refusal::Refusal]) {
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

    /// A host object with everything that says what it is and where it comes from.
    fn dressed(&self, stored: &Stored, mut object: Value, hash: &str) -> Value {
        let Self { engine, kind, name, .. } = self;
        let resource = kind.resource();
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        object["metadata"]["name"] = self.host_name().into();
        object["metadata"]["namespace"] = self.namespace().into();
        for (key, value) in engine.world.tenant.labels(&name.namespace) {
            object["metadata"]["labels"][key] = value.into();
        }
        let annotations = &mut object["metadata"]["annotations"];
        annotations[labels::ORIGIN_NAMESPACE] = (*name.namespace).into();
        annotations[labels::ORIGIN_NAME] = (*name.name).into();
        annotations[labels::ORIGIN_UID] = (*stored.uid).into();
        annotations[labels::APPLIED_HASH] = hash.into();
        object
    }
}

/// A merge patch that makes the status of `object` the one given; `None` if it is.
pub(super) fn status_patch(object: &Value, status: &Value) -> Option<Value> {
    let mut before = object.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut after = status.clone();
    json::drop_nulls(&mut before);
    json::drop_nulls(&mut after);
    json::merge_patch(&before, &after)
}
