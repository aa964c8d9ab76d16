//! Status of routes. Each controller that has something to do with a route writes an entry for each parent of its own;
//! the entries of the host's controllers are those for parents on the host.

use super::parents::{self, Parent};
use crate::{
    json,
    kinds::{Report, TenantWrite, text},
    resource::Name,
    world::World,
};
use serde_json::{Value, json};

/// Why a backend leads nowhere.
pub fn not_permitted(service: &Name) -> String {
    format!(
        "no ReferenceGrant in the namespace {} permits this route to lead to the Service {}",
        service.namespace, service.name
    )
}

/// The status in the tenant. `denied` is a Service that the route may not lead to.
pub fn back(world: &World, name: &Name, report: &Report<'_>, denied: Option<&Name>) -> Option<TenantWrite> {
    let complete = |reference: &Value| parents::complete(reference, &name.namespace);
    let from_host = json::items(report.host, &["status", "parents"]);
    let mut entries = Vec::new();
    let mut attached = Vec::new();
    for reference in json::items(report.tenant, &["spec", "parentRefs"]) {
        let Parent::Host(gateway) = parents::parent(world, &name.namespace, reference) else {
            continue;
        };
        attached.push(complete(reference));
        let there = complete(&parents::on_host(reference, gateway));
        for entry in from_host.iter().filter(|entry| complete(&entry["parentRef"]) == there) {
            let mut shown = text::observed(report, entry.clone());
            json::each_mut(&mut shown, "conditions[].message", &mut |message| {
                if let Some(words) = message.as_str() {
                    let words = words.replace(&format!("{}/{}", gateway.namespace, gateway.name), &gateway.name);
                    *message = text::back(world, name, &words).into();
                }
            });
            shown["parentRef"] = reference.clone();
            if let Some(service) = denied {
                json::each_mut(&mut shown, "conditions[]", &mut |condition| deny(condition, service));
            }
            entries.push(shown);
        }
    }
    let own = json::items(report.tenant, &["status", "parents"]).iter();
    let kept = own.filter(|entry| !attached.contains(&complete(&entry["parentRef"])));
    let all: Vec<Value> = kept.cloned().chain(entries).collect();
    let is_new = json::at(report.tenant, &["status", "parents"]).is_some();
    (is_new || !all.is_empty()).then(|| TenantWrite::Status(json!({ "parents": all })))
}

/// On the host the reference is missing; in the tenant it is not permitted.
fn deny(condition: &mut Value, service: &Name) {
    if condition["type"] == "ResolvedRefs" && condition["status"] == "False" {
        condition["reason"] = "RefNotPermitted".into();
        condition["message"] = not_permitted(service).into();
    }
}
