//! Reconciles an object of a kind that is mirrored to the tenant.

use super::{
    Engine, OUTDATED, Outcome,
    api::{CallError, Delete},
    lock,
    recorder::Level,
    status_sync::status_patch,
};
use berth_sync_rules::model::{
    KindId, Mirror,
    mirror::{comparable_content, is_mirrored, with_metadata},
    resource::{Name, Side},
    store::Stored,
};
use kube::api::Patch;
use serde_json::{Value, json};
use std::time::Instant;

/// A kind and its rules.
type MirroredKind = (KindId, &'static dyn Mirror);

pub(super) async fn reconcile(
    engine: &Engine,
    (id, rules): MirroredKind,
    name: &Name,
    observed_at: Instant,
) -> Result<Outcome, CallError> {
    let live = engine.cache.stores.tenant(id).get(name);
    let object = live.as_ref().map(|live| live.object());
    let Some(desired) = rules.mirrored_object(&engine.cache, name) else {
        return match (live, object) {
            (Some(live), Some(object)) if is_mirrored(&object) => {
                remove(engine, (id, rules), name, &live, &object).await
            }
            (Some(_), Some(_)) => Ok(foreign(engine, (id, rules), name).await),
            _ => Ok(Outcome::new("nothing")),
        };
    };
    match (live, object) {
        (None, _) | (_, None) => {
            let made = with_metadata(rules.resource(), name, desired, None);
            match engine.tenant.create(rules.resource(), &name.namespace, &made).await {
                Ok(created) => {
                    engine
                        .metrics
                        .sync_to_tenant
                        .observe(observed_at.elapsed().as_secs_f64());
                    engine.store_written(Side::Tenant, id, name, created.clone());
                    report(engine, (id, rules), name, &made, &created).await?;
                    Ok(Outcome::new("created"))
                }
                // The watch will report the object that exists.
                Err(CallError::Conflict(_)) => Ok(Outcome::new("exists")),
                Err(error) => Err(error),
            }
        }
        // The tenant's own object of that name has precedence.
        (Some(_), Some(object)) if !is_mirrored(&object) => Ok(foreign(engine, (id, rules), name).await),
        (Some(live), Some(object)) => {
            bring_up_to_date(engine, (id, rules), name, &live, &object, desired, observed_at).await
        }
    }
}

async fn bring_up_to_date(
    engine: &Engine,
    (id, rules): MirroredKind,
    name: &Name,
    live: &Stored,
    object: &Value,
    desired: Value,
    observed_at: Instant,
) -> Result<Outcome, CallError> {
    let key = id.key(name.clone());
    let wanted = with_metadata(rules.resource(), name, desired, Some(object));
    let hash = berth_sync_rules::model::json::hash(&comparable_content(&wanted));
    // Defaults of another Kubernetes version may make the two differ for ever: what was written once counts as equal
    // until it is changed.
    let fingerprint = u64::from_str_radix(&hash[..16], 16).unwrap_or_default();
    let settled = lock(&engine.synced_versions).get(&key) == Some(&(live.version, fingerprint));
    let mut result = "nothing";
    let mut current = object.clone();
    if !settled && comparable_content(&wanted) != comparable_content(object) {
        let was_settled = lock(&engine.synced_versions)
            .get(&key)
            .is_some_and(|(_, known)| *known == fingerprint);
        match engine
            .tenant
            .replace(rules.resource(), &name.namespace, &name.name, &wanted)
            .await
        {
            Ok(written) => {
                let version = berth_sync_rules::model::json::text(&written, &["metadata", "resourceVersion"])
                    .and_then(|version| version.parse().ok())
                    .unwrap_or_default();
                lock(&engine.synced_versions).insert(key.clone(), (version, fingerprint));
                engine.store_written(Side::Tenant, id, name, written.clone());
                current = written;
                result = "replaced";
                if was_settled {
                    let message = "This object mirrors what the platform offers: the change was undone.";
                    engine.record_event(&key, Level::Warning, "ReadOnly", message).await;
                }
            }
            // A field that cannot change: recreate the object.
            Err(CallError::Rejected(_)) => return remove(engine, (id, rules), name, live, object).await,
            Err(CallError::Conflict(_)) => return Ok(Outcome::new(OUTDATED)),
            Err(error) => return Err(error),
        }
    } else if !settled {
        lock(&engine.synced_versions).insert(key, (live.version, fingerprint));
    }
    if report(engine, (id, rules), name, &wanted, &current).await? {
        result = "reported";
    }
    if result != "nothing" {
        engine
            .metrics
            .sync_to_tenant
            .observe(observed_at.elapsed().as_secs_f64());
    }
    Ok(Outcome::new(result))
}

/// Writes the status if there is one and it differs. Returns whether it did.
async fn report(
    engine: &Engine,
    (id, rules): MirroredKind,
    name: &Name,
    wanted: &Value,
    live: &Value,
) -> Result<bool, CallError> {
    let status = wanted.get("status").filter(|_| rules.has_status());
    let Some(difference) = status.and_then(|status| status_patch(live, status)) else {
        return Ok(false);
    };
    let patch = Patch::Merge(json!({"metadata": {"uid": live["metadata"]["uid"]}, "status": difference}));
    let written = engine
        .tenant
        .patch(rules.resource(), &name.namespace, &name.name, "status", &patch)
        .await?;
    engine.store_written(Side::Tenant, id, name, written);
    Ok(true)
}

/// Objects of the tenant's own stay as they are; an Event says if they have no effect.
async fn foreign(engine: &Engine, (id, rules): MirroredKind, name: &Name) -> Outcome {
    if let Some(message) = rules.unmanaged_message() {
        let key = id.key(name.clone());
        engine.record_event(&key, Level::Warning, "NotSynced", message).await;
    }
    Outcome::new("foreign")
}

async fn remove(
    engine: &Engine,
    (id, rules): MirroredKind,
    name: &Name,
    live: &Stored,
    object: &Value,
) -> Result<Outcome, CallError> {
    let last = rules.status_before_deletion().map(|status| json!({"status": status}));
    if let Some(mut patch) = last.filter(|patch| !berth_sync_rules::model::json::is_patched(object, patch)) {
        patch["metadata"]["uid"] = (*live.uid).into();
        let (resource, patch) = (rules.resource(), Patch::Merge(patch));
        let written = engine
            .tenant
            .patch(resource, &name.namespace, &name.name, "status", &patch)
            .await;
        if let Some(written) = CallError::found(written)? {
            engine.store_written(Side::Tenant, id, name, written);
        }
    }
    if live.deletion.is_some() {
        return Ok(Outcome::new("nothing"));
    }
    let how = Delete {
        uid: &live.uid,
        version: None,
        grace_seconds: None,
    };
    lock(&engine.synced_versions).remove(&id.key(name.clone()));
    match engine
        .tenant
        .delete(rules.resource(), &name.namespace, &name.name, how)
        .await
    {
        Ok(_) | Err(CallError::Conflict(_)) => Ok(Outcome::new("deleted")),
        Err(error) => Err(error),
    }
}
