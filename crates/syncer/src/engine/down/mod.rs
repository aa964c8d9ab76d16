//! A step of a kind that goes from the tenant to the host.

mod create;
mod delete;
mod report;
mod update;

pub(super) use {create::NOTHING_YET, report::status_patch};

use super::{
    Done, Engine,
    api::CallError,
    decide::{Action, HostFacts, TenantFacts, decide},
    lock, reserve,
};
use berth_api::labels;
use berth_sync_rules::{
    json,
    kinds::{self, Down, is_origin},
    resource::{Key, KindId, Name, host_name},
    store::{Detail, Stored},
    world::World,
};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Instant;

/// A step on its way.
struct Step<'a> {
    engine: &'a Engine,
    id: KindId,
    kind: &'static dyn Down,
    name: &'a Name,
    /// When the change that led to this step was seen.
    seen: Instant,
}

/// Decides and acts.
pub(super) async fn step(
    engine: &Engine,
    (id, kind): (KindId, &'static dyn Down),
    name: &Name,
    seen: Instant,
) -> Result<Done, CallError> {
    let stores = &engine.world.stores;
    let tenant = stores.tenant(id).get(name);
    let host = stores.host(id).get(name);
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
        reserved: stored
            .reserved_at
            .filter(|_| stored.origin_uid.is_none())
            .map(|at| reserve::grace_left(at, Timestamp::now())),
    });
    let step = Step {
        engine,
        id,
        kind,
        name,
        seen,
    };
    let action = decide(tenant_facts, host_facts, kind.orphan_grace(), kind.finishes_deletion());
    let departed = stores.host(id).take_departed(name);
    let result = step.act(action, tenant, host.as_deref(), departed.as_deref()).await;
    if let (Err(_), Some(departed)) = (&result, departed) {
        stores.host(id).put_departed(name, departed);
    }
    result
}

impl Step<'_> {
    async fn act(
        &self,
        action: Action,
        tenant: Option<(&Stored, &Value)>,
        host: Option<&Stored>,
        departed: Option<&Stored>,
    ) -> Result<Done, CallError> {
        // The last state of a host object says something about the tenant's object that it was made for only.
        let departed = departed
            .filter(|departed| tenant.is_some_and(|(stored, _)| is_origin(stored, departed)))
            .map(Stored::object);
        match (action, tenant, host) {
            (Action::Create, Some((stored, object)), _) => self.create(stored, object).await,
            (Action::Update, Some((stored, object)), Some(host)) => self.update(stored, object, host).await,
            (Action::Report, Some((stored, object)), Some(host)) => {
                self.report(stored, object, &host.object(), false, &[]).await
            }
            (Action::Delete { grace_seconds, report }, tenant, Some(host)) => {
                if let Some((stored, object)) = tenant.filter(|_| report) {
                    self.report(stored, object, &host.object(), false, &[]).await?;
                }
                self.delete(host, grace_seconds).await
            }
            (Action::Wait(left), ..) => Ok(Done::again("reserved", left)),
            (Action::Sweep, _, Some(host)) => self.sweep(host).await,
            (Action::Finish, Some((stored, object)), _) => self.finish(stored, object, departed.as_ref()).await,
            (Action::Lost, Some((stored, object)), _) => {
                let Self { engine, kind, name, .. } = self;
                let lost = kind.lost(&engine.world, name, object, departed.as_ref(), Timestamp::now());
                if let Some(status) = lost {
                    self.write_status(stored, object, &status).await?;
                }
                Ok(Done::new("lost"))
            }
            _ => {
                if tenant.is_none() && host.is_none() {
                    lock(&self.engine.agreed).remove(&self.key());
                }
                Ok(Done::new("nothing"))
            }
        }
    }

    fn key(&self) -> Key {
        self.id.key(self.name.clone())
    }

    fn host_name(&self) -> String {
        host_name(self.id, self.name)
    }

    fn namespace(&self) -> &str {
        &self.engine.world.tenant.workload_namespace
    }

    /// The tenant's object in full: from the store, or read if only its metadata is watched.
    async fn content(&self, stored: &Stored, object: &Value) -> Result<Option<Value>, CallError> {
        let watched = kinds::kind(self.id).tenant.map(|spec| spec.detail);
        if watched != Some(Detail::Metadata) {
            return Ok(Some(object.clone()));
        }
        let Name { namespace, name } = self.name;
        let read = CallError::found(self.engine.tenant.get(self.kind.resource(), namespace, name).await)?;
        // Another object of the same name: the watch is about to say so.
        Ok(read.filter(|read| json::text(read, &["metadata", "uid"]) == Some(&*stored.uid)))
    }

    /// A host object with everything that says what it is and where it comes from.
    fn dressed(&self, stored: &Stored, object: Value, hash: &str) -> Value {
        dressed(
            &self.engine.world,
            (self.id, self.kind),
            self.name,
            Some(&stored.uid),
            object,
            hash,
        )
    }
}

/// A host object with everything that says what it is and where it comes from. Without the UID of a tenant object it is a
/// [reservation](reserve).
pub(super) fn dressed(
    world: &World,
    (id, kind): (KindId, &dyn Down),
    name: &Name,
    origin: Option<&str>,
    mut object: Value,
    hash: &str,
) -> Value {
    let resource = kind.resource();
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.into();
    object["metadata"]["name"] = host_name(id, name).into();
    object["metadata"]["namespace"] = world.tenant.workload_namespace.as_str().into();
    for (key, value) in world.tenant.labels(&name.namespace) {
        object["metadata"]["labels"][key] = value.into();
    }
    let annotations = &mut object["metadata"]["annotations"];
    annotations[labels::ORIGIN_NAMESPACE] = (*name.namespace).into();
    annotations[labels::ORIGIN_NAME] = (*name.name).into();
    match origin {
        Some(uid) => annotations[labels::ORIGIN_UID] = uid.into(),
        None => annotations[labels::RESERVED_AT] = Timestamp::now().as_second().to_string().into(),
    }
    annotations[labels::APPLIED_HASH] = hash.into();
    object
}
