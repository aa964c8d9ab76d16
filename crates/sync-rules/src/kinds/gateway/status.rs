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
use jiff::Timestamp;
use serde_json::{Value, json};

/// The controller of entries about routes that never reach a controller of the host.
const CONTROLLER: &str = "berth.dev/syncer";

/// The message about a backend that no ReferenceGrant permits.
pub fn not_permitted(service: &Name) -> String {
    format!(
        "no ReferenceGrant in the namespace {} permits this route to lead to the Service {}",
        service.namespace, service.name
    )
}

/// The first items of the list at a path, as many as the Gateway API allows.
fn first<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    let items = json::items(object, path);
    &items[..items.len().min(MAX_PARENTS)]
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
    let mut attached = Vec::new();
    for reference in first(observation.tenant, &["spec", "parentRefs"]) {
        let Parent::Host(gateway) = parents::parent(cache, &name.namespace, reference) else {
            continue;
        };
        attached.push(complete(reference));
        let there = complete(&parents::on_host(reference, gateway));
        for entry in from_host.iter().filter(|entry| complete(&entry["parentRef"]) == there) {
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
    entries.truncate(MAX_PARENTS);
    let kept = before
        .iter()
        .filter(|entry| entry["controllerName"] != CONTROLLER && !attached.contains(&complete(&entry["parentRef"])))
        .take(MAX_PARENTS - entries.len());
    let all: Vec<Value> = kept.cloned().chain(entries).collect();
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
        .filter(|entry| entry["controllerName"] != CONTROLLER && own.contains(&complete(&entry["parentRef"])))
        .take(MAX_PARENTS - others.len());
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
    let parents: Vec<Value> = kept.cloned().chain(others.iter().map(entry)).collect();
    json!({ "parents": parents })
}

/// Corrects the reason: the backend is missing on the host because it is not permitted in the tenant.
fn deny(condition: &mut Value, service: &Name) {
    if condition["type"] == "ResolvedRefs" && condition["status"] == "False" {
        condition["reason"] = "RefNotPermitted".into();
        condition["message"] = not_permitted(service).into();
    }
}
