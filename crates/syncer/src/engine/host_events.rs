//! Reconciles an Event of the host: it is copied to the tenant, then forgotten.

use super::{Engine, Outcome, api::CallError};
use berth_sync_rules::{
    kinds::{self, event::TenantEvent},
    model::{
        KindId,
        resource::{self, Name},
    },
};
use jiff::Timestamp;
use kube::api::Patch;

pub(super) async fn reconcile(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    let store = engine.cache.stores.host(KindId::Event);
    let Some(event) = store.get(name) else {
        return Ok(Outcome::new("nothing"));
    };
    let copy = kinds::event::translate(&engine.cache, &event.object(), Timestamp::now());
    let Some(copy) = copy else {
        store.forget(name);
        return Ok(Outcome::new("ignored"));
    };
    if !engine.recorder.take_from_budget(&copy.about) {
        store.forget(name);
        return Ok(Outcome::new("dropped"));
    }
    write(engine, &copy).await?;
    store.forget_version(name, event.version);
    Ok(Outcome::new("copied"))
}

/// Most Events are new, so creating comes first; a repetition updates the existing one.
async fn write(engine: &Engine, copy: &TenantEvent) -> Result<(), CallError> {
    let (tenant, namespace) = (&engine.tenant, &copy.about.namespace);
    match tenant.create(resource::EVENT, namespace, &copy.event).await {
        Err(CallError::Conflict(_)) => {
            let patch = Patch::Merge(copy.event.clone());
            tenant.patch(resource::EVENT, namespace, &copy.name, "", &patch).await?;
            Ok(())
        }
        result => result.map(drop),
    }
}
