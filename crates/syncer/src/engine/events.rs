//! A step of a host Event: told in the tenant, then forgotten.

use super::{Done, Engine, api::CallError};
use crate::{
    kinds,
    resource::{self, KindId, Name},
};
use jiff::Timestamp;

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
    engine
        .tenant
        .apply(resource::EVENT, &told.about.namespace, &told.name, &told.event)
        .await?;
    store.forget_version(name, event.version);
    Ok(Done::new("told"))
}
