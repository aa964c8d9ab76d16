//! A step of a host Event: told in the tenant, then forgotten.

use super::{Done, Engine, api::CallError};
use berth_sync_rules::{
    kinds::{self, event::Told},
    resource::{self, KindId, Name},
};
use jiff::Timestamp;
use kube::api::Patch;

pub(super) async fn step(engine: &Engine, name: &Name) -> Result<Done, CallError> {
    let store = engine.world.stores.host(KindId::Event);
    let Some(event) = store.get(name) else {
        return Ok(Done::new("nothing"));
    };
    let told = kinds::event::translate(&engine.world, &event.object(), Timestamp::now());
    let Some(told) = told else {
        store.forget(name);
        return Ok(Done::new("ignored"));
    };
    if !engine.recorder.allows(&told.about) {
        store.forget(name);
        return Ok(Done::new("dropped"));
    }
    write(engine, &told).await?;
    store.forget_version(name, event.version);
    Ok(Done::new("told"))
}

/// Most Events are new, so creating comes first; a repetition changes the one that is there.
async fn write(engine: &Engine, told: &Told) -> Result<(), CallError> {
    let (tenant, namespace) = (&engine.tenant, &told.about.namespace);
    match tenant.create(resource::EVENT, namespace, &told.event).await {
        Err(CallError::Conflict(_)) => {
            let patch = Patch::Merge(told.event.clone());
            tenant.patch(resource::EVENT, namespace, &told.name, "", &patch).await?;
            Ok(())
        }
        result => result.map(drop),
    }
}
