//! Services that Ingresses and routes lead to.

use super::metadata;
use crate::model::{
    Cache, KindId, json,
    resource::{Name, host_name},
};
use berth_api::names;
use serde_json::Value;
use std::collections::BTreeSet;

/// The Service of the host for one of the tenant's.
///
/// # Errors
/// Why traffic must not go there, as a message for the tenant. [`nowhere`] takes its place.
pub fn service(cache: &Cache, name: &Name) -> Result<String, String> {
    let stored = cache.stores.tenant(KindId::Service).get(name);
    let kind = stored.map(|stored| stored.object());
    if kind.and_then(|object| json::text(&object, &["spec", "type"]).map(|kind| kind == "ExternalName")) == Some(true) {
        // The controller at the edge runs on the host and resolves names there: a name could lead it to anything that
        // it can reach.
        return Err(format!(
            "the Service {} stands for an external name: traffic from outside cannot be sent to it, so requests fail",
            name.name
        ));
    }
    Ok(host_name(KindId::Service, name))
}

/// The host object `live`, which leads nowhere in place of the Services of the host that `desired` does not name, if there are any. `paths` are those of the
/// objects in the spec that name Services.
pub fn narrowed(desired: &Value, live: &Value, paths: &[&str]) -> Option<Value> {
    let mut wanted = BTreeSet::from([nowhere_at_all()]);
    for path in paths {
        json::each(desired, path, &mut |service| {
            wanted.extend(json::text(service, &["name"]).map(str::to_owned));
        });
    }
    let mut loses = false;
    let mut spec = json::object([("spec", live.get("spec")?.clone())]);
    for path in paths {
        json::each_mut(&mut spec, path, &mut |service| {
            if json::text(service, &["name"]).is_some_and(|name| !wanted.contains(name)) {
                service["name"] = nowhere_at_all().into();
                loses = true;
            }
        });
    }
    let narrowed = json::object([("metadata", metadata::unchanged(live)), ("spec", spec["spec"].take())]);
    loses.then_some(narrowed)
}

/// [`nowhere`] for Services of which nothing but the host's name is known.
pub fn nowhere_at_all() -> String {
    nowhere(&Name::new("", ""))
}

/// The name of a Service that never exists: requests are answered by an error, as if the Service were missing.
pub fn nowhere(name: &Name) -> String {
    names::host_name("Nowhere", &name.namespace, &name.name)
}
