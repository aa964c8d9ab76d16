//! Status of routes. Each controller of a route writes an entry for each of its parents; the entries of the host's
//! controllers are those for parents on the host.
//!
//! The Gateway API limits parents and entries, but a definition of the tenant's own need not. Further ones are neither read nor written: a status would be a hundred times as
//! large as what the tenant wrote, and each entry would be compared with each parent.

use super::{
    checks::MAX_PARENTS,
    parents::{self, Parent},
};
use crate::{
    model::{Cache, DeniedField, Observation, TenantWrite, denied_field, json, resource::Name},
    translation::{conditions, generation, host_text},
};
use berth_api::text::event_note;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The controller of entries about routes that never reach a controller of the host.
const CONTROLLER: &str = "berth.dev/syncer";

/// The message about a backend that no ReferenceGrant permits.
pub fn not_permitted(service: &Name) -> String {
    // A definition of the tenant's own need not limit names, and each parent on the host has the message.
    event_note(&format!(
        "no ReferenceGrant in the namespace {} permits this route to lead to the Service {}",
        service.namespace, service.name
    ))
}

/// The first items of the list at a path, as many as the Gateway API allows.
fn first<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    let items = json::items(object, path);
    &items[..items.len().min(MAX_PARENTS)]
}

/// What an entry of a status in the tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// Of the syncer, which writes it anew.
    Replaced,
    /// Of a controller in the tenant, for a parent that the route names. It would write again what is taken away, and the syncer would take it away again, without end.
    OfAnother,
    /// For a parent that the route does not name.
    Outdated,
}

/// The entries of a status that stay, beside so many new ones. Outdated ones leave room for these.
fn keep(before: &[Value], new: usize, what: impl Fn(&Value) -> Entry) -> Vec<&Value> {
    let what: Vec<Entry> = before.iter().map(what).collect();
    let of_others = what.iter().filter(|what| **what == Entry::OfAnother).count();
    let mut room = MAX_PARENTS.saturating_sub(of_others + new);
    let mut kept = Vec::new();
    for (entry, what) in before.iter().zip(what) {
        match what {
            Entry::OfAnother => kept.push(entry),
            Entry::Outdated if room > 0 => {
                room -= 1;
                kept.push(entry);
            }
            Entry::Outdated | Entry::Replaced => {}
        }
    }
    kept
}

/// The status in the tenant. `denied` is a Service that the route may not lead to.
pub fn sync_status(
    cache: &Cache,
    name: &Name,
    observation: &Observation<'_>,
    denied: Option<&Name>,
) -> Option<TenantWrite> {
    let complete = |reference: &Value| parents::complete(reference, &name.namespace);
    let from_host = first(observation.host, &["status", "parents"]);
    let before = first(observation.tenant, &["status", "parents"]);
    let mut entries = Vec::new();
    let (mut attached, mut own) = (Vec::new(), Vec::new());
    for reference in first(observation.tenant, &["spec", "parentRefs"]) {
        let Parent::Host(gateway) = parents::parent(cache, &name.namespace, reference) else {
            own.push(complete(reference));
            continue;
        };
        attached.push(complete(reference));
        let there = complete(&parents::on_host(reference, gateway));
        let room = MAX_PARENTS - entries.len();
        let of_parent = from_host.iter().filter(|entry| complete(&entry["parentRef"]) == there);
        for entry in of_parent.take(room) {
            let known = before.iter().find(|known| {
                known["controllerName"] == entry["controllerName"]
                    && complete(&known["parentRef"]) == complete(reference)
            });
            let mut mirrored =
                generation::with_tenant_generation(observation, known.unwrap_or(&Value::Null), entry.clone());
            json::each_mut(&mut mirrored, "conditions[].message", &mut |message| {
                if let Some(text) = message.as_str() {
                    let text = text.replace(&format!("{}/{}", gateway.namespace, gateway.name), &gateway.name);
                    *message = host_text::to_tenant_names(cache, name, &text).into();
                }
            });
            mirrored["parentRef"] = reference.clone();
            if let Some(service) = denied {
                json::each_mut(&mut mirrored, "conditions[]", &mut |condition| deny(condition, service));
            }
            entries.push(mirrored);
        }
    }
    let kept = keep(before, entries.len(), |entry| {
        let parent = complete(&entry["parentRef"]);
        if entry["controllerName"] == CONTROLLER || attached.contains(&parent) {
            Entry::Replaced
        } else if own.contains(&parent) {
            Entry::OfAnother
        } else {
            Entry::Outdated
        }
    });
    entries.truncate(MAX_PARENTS - kept.len());
    let all: Vec<Value> = kept.into_iter().cloned().chain(entries).collect();
    let is_new = json::at(observation.tenant, &["status", "parents"]).is_some();
    (is_new || !all.is_empty()).then(|| TenantWrite::Status(json!({ "parents": all })))
}

/// The status in the tenant of a route that is denied and not on the host: for each Gateway of the host, an entry of the syncer that says
/// why. A Gateway that does not exist has none, as in any cluster: it may become the tenant's own.
pub fn denied_status((cache, name): (&Cache, &Name), route: &Value, denied: &[DeniedField], now: Timestamp) -> Value {
    let before = first(route, &["status", "parents"]);
    let complete = |reference: &Value| parents::complete(reference, &name.namespace);
    let references = first(route, &["spec", "parentRefs"]);
    let (others, own): (Vec<&Value>, Vec<&Value>) = references
        .iter()
        .partition(|reference| matches!(parents::parent(cache, &name.namespace, reference), Parent::Host(_)));
    let own: Vec<Value> = own.into_iter().map(complete).collect();
    let kept = before
        .iter()
        .filter(|entry| entry["controllerName"] != CONTROLLER && own.contains(&complete(&entry["parentRef"])));
    let kept: Vec<Value> = kept.cloned().collect();
    let message = denied_field::message(denied);
    let entry = |reference: &&Value| {
        let known = before
            .iter()
            .find(|entry| entry["parentRef"] == **reference && entry["controllerName"] == CONTROLLER);
        let condition = json!({
            "type": "Accepted", "status": "False", "reason": "UnsupportedValue", "message": message,
            "observedGeneration": route["metadata"].get("generation"),
        });
        let known = known.cloned().unwrap_or_default();
        let condition = conditions::with_time(&known, condition, now);
        json!({"parentRef": reference, "controllerName": CONTROLLER, "conditions": [condition]})
    };
    // As with those of the host: what controllers in the tenant wrote goes first.
    let room = MAX_PARENTS - kept.len();
    let parents: Vec<Value> = kept.into_iter().chain(others.iter().take(room).map(entry)).collect();
    json!({ "parents": parents })
}

/// Corrects the reason: the backend is missing on the host because it is not permitted in the tenant.
fn deny(condition: &mut Value, service: &Name) {
    if condition["type"] == "ResolvedRefs" && condition["status"] == "False" {
        condition["reason"] = "RefNotPermitted".into();
        condition["message"] = not_permitted(service).into();
    }
}
