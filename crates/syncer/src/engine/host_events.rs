//! Reconciles an Event of the host: it is copied to the tenant, then forgotten.

use std::collections::HashMap;

use super::{Engine, Outcome, api::CallError};
use berth_sync_rules::{
    kinds::{self, event::TenantEvent},
    model::{
        KindId, json,
        resource::{self, Name},
    },
};
use jiff::Timestamp;
use kube::api::Patch;

/// Fewer recent Events than this are written again after a start: that costs less than a list.
const FEW: usize = 20;
/// Events of the tenant that are read at a time, some 200 KB.
const PAGE: u32 = 200;
/// Most pages that are read. What is not among them is written again, which changes nothing.
const PAGES: usize = 50;

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

impl Engine {
    /// After a start: forgets the recent Events of the host whose copies are in the tenant already. To write each of them again would take
    /// two requests, and with many pods seconds.
    pub(super) async fn forget_copied_events(&self) {
        let now = Timestamp::now();
        let store = self.cache.stores.host(KindId::Event);
        let mut recent: HashMap<(String, String), (Name, u64, TenantEvent)> = HashMap::new();
        for (name, event) in store.all() {
            if let Some(copy) = kinds::event::translate(&self.cache, &event.object(), now) {
                let own = (copy.about.namespace.to_string(), copy.name.clone());
                recent.insert(own, (name, event.version, copy));
            }
        }
        let mut after: Option<String> = None;
        for _ in 0..PAGES {
            if recent.len() < FEW {
                return;
            }
            let page = match self.tenant.list_page(resource::EVENT, PAGE, after.as_deref()).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::info!(%error, "cannot list the tenant's Events: recent ones are written again");
                    return;
                }
            };
            for existing in json::items(&page, &["items"]) {
                let text = |field| {
                    json::text(existing, &["metadata", field])
                        .unwrap_or_default()
                        .to_owned()
                };
                if let Some((name, version, copy)) = recent.remove(&(text("namespace"), text("name")))
                    && copy.is_repeated_by(existing)
                {
                    store.forget_version(&name, version);
                }
            }
            after = json::text(&page, &["metadata", "continue"])
                .filter(|token| !token.is_empty())
                .map(str::to_owned);
            if after.is_none() {
                return;
            }
        }
    }
}
