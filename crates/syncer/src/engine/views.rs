//! A step of a kind that is shown to the tenant.

use super::{
    Done, Engine,
    api::{CallError, Delete},
    down::status_patch,
    lock,
    recorder::Level,
};
use berth_sync_rules::{
    kinds::{
        View,
        view::{content, dressed, is_shown},
    },
    resource::{KindId, Name, Side},
    store::Stored,
};
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::Instant;

/// A kind and its rules.
type Viewed = (KindId, &'static dyn View);

pub(super) async fn step(engine: &Engine, (id, view): Viewed, name: &Name, seen: Instant) -> Result<Done, CallError> {
    let live = engine.world.stores.tenant(id).get(name);
    let object = live.as_ref().map(|live| live.object());
    let Some(desired) = view.desired(&engine.world, name) else {
        return match (live, object) {
            (Some(live), Some(object)) if is_shown(&object) => remove(engine, (id, view), name, &live, &object).await,
            (Some(_), Some(_)) => Ok(foreign(engine, (id, view), name).await),
            _ => Ok(Done::new("nothing")),
        };
    };
    match (live, object) {
        (None, _) | (_, None) => {
            let made = dressed(view.resource(), name, desired, None);
            match engine.tenant.create(view.resource(), &name.namespace, &made).await {
                Ok(created) => {
                    engine.metrics.sync_up.observe(seen.elapsed().as_secs_f64());
                    engine.remember(Side::Tenant, id, name, created.clone());
                    report(engine, (id, view), name, &made, &created).await?;
                    Ok(Done::new("created"))
                }
                // The watch is about to say what is there.
                Err(CallError::Conflict(_)) => Ok(Done::new("exists")),
                Err(error) => Err(error),
            }
        }
        // The tenant's own object of that name goes first.
        (Some(_), Some(object)) if !is_shown(&object) => Ok(foreign(engine, (id, view), name).await),
        (Some(live), Some(object)) => bring_up_to_date(engine, (id, view), name, &live, &object, desired, seen).await,
    }
}

async fn bring_up_to_date(
    engine: &Engine,
    (id, view): Viewed,
    name: &Name,
    live: &Stored,
    object: &Value,
    desired: Value,
    seen: Instant,
) -> Result<Done, CallError> {
    let key = id.key(name.clone());
    let wanted = dressed(view.resource(), name, desired, Some(object));
    let hash = berth_sync_rules::json::hash(&content(&wanted));
    // Defaults of another Kubernetes version may make the two differ for ever: what was written once is good as long as
    // nobody touches it.
    let fingerprint = u64::from_str_radix(&hash[..16], 16).unwrap_or_default();
    let settled = lock(&engine.agreed).get(&key) == Some(&(live.version, fingerprint));
    let mut result = "nothing";
    let mut current = object.clone();
    if !settled && content(&wanted) != content(object) {
        let was_settled = lock(&engine.agreed)
            .get(&key)
            .is_some_and(|(_, known)| *known == fingerprint);
        match engine
            .tenant
            .replace(view.resource(), &name.namespace, &name.name, &wanted)
            .await
        {
            Ok(written) => {
                let version = berth_sync_rules::json::text(&written, &["metadata", "resourceVersion"])
                    .and_then(|version| version.parse().ok())
                    .unwrap_or_default();
                lock(&engine.agreed).insert(key.clone(), (version, fingerprint));
                engine.remember(Side::Tenant, id, name, written.clone());
                current = written;
                result = "replaced";
                if was_settled {
                    let message = "This object shows what the platform offers: the change was undone.";
                    engine.tell(&key, Level::Warning, "ReadOnly", message).await;
                }
            }
            // A field that cannot change: make it anew.
            Err(CallError::Refused(_)) => return remove(engine, (id, view), name, live, object).await,
            Err(CallError::Conflict(_)) => return Ok(Done::new("outdated")),
            Err(error) => return Err(error),
        }
    } else if !settled {
        lock(&engine.agreed).insert(key, (live.version, fingerprint));
    }
    if report(engine, (id, view), name, &wanted, &current).await? {
        result = "reported";
    }
    if result != "nothing" {
        engine.metrics.sync_up.observe(seen.elapsed().as_secs_f64());
    }
    Ok(Done::new(result))
}

/// Writes the status if there is one and it differs. Returns whether it did.
async fn report(
    engine: &Engine,
    (id, view): Viewed,
    name: &Name,
    wanted: &Value,
    live: &Value,
) -> Result<bool, CallError> {
    let status = wanted.get("status").filter(|_| view.has_status());
    let Some(difference) = status.and_then(|status| status_patch(live, status)) else {
        return Ok(false);
    };
    let patch = Patch::Merge(json!({"metadata": {"uid": live["metadata"]["uid"]}, "status": difference}));
    let written = engine
        .tenant
        .patch(view.resource(), &name.namespace, &name.name, "status", &patch)
        .await?;
    engine.remember(Side::Tenant, id, name, written);
    Ok(true)
}

/// Objects of the tenant's own stay as they are; it is told if they have no effect.
async fn foreign(engine: &Engine, (id, view): Viewed, name: &Name) -> Done {
    if let Some(words) = view.without_effect() {
        let key = id.key(name.clone());
        engine.tell(&key, Level::Warning, "WithoutEffect", words).await;
    }
    Done::new("foreign")
}

async fn remove(
    engine: &Engine,
    (id, view): Viewed,
    name: &Name,
    live: &Stored,
    object: &Value,
) -> Result<Done, CallError> {
    let last = view.last_status().map(|status| json!({"status": status}));
    if let Some(mut patch) = last.filter(|patch| !berth_sync_rules::json::is_patched(object, patch)) {
        patch["metadata"]["uid"] = (*live.uid).into();
        let (resource, patch) = (view.resource(), Patch::Merge(patch));
        let written = engine
            .tenant
            .patch(resource, &name.namespace, &name.name, "status", &patch)
            .await;
        if let Some(written) = CallError::found(written)? {
            engine.remember(Side::Tenant, id, name, written);
        }
    }
    if live.deletion.is_some() {
        return Ok(Done::new("nothing"));
    }
    let how = Delete {
        uid: &live.uid,
        grace_seconds: None,
    };
    lock(&engine.agreed).remove(&id.key(name.clone()));
    match engine
        .tenant
        .delete(view.resource(), &name.namespace, &name.name, how)
        .await
    {
        Ok(_) | Err(CallError::Conflict(_)) => Ok(Done::new("deleted")),
        Err(error) => Err(error),
    }
}
