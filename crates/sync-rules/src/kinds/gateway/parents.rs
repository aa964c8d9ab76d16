//! The parents that routes are attached to.
//!
//! | `parentRefs[]` | rule |
//! |---|---|
//! | a Gateway that exists in the tenant | left to the tenant's own controller; not passed on |
//! | anything but a Gateway (a Service, for a mesh) | the same |
//! | the name of a Gateway that the tenant's class lists | becomes that Gateway of the host; if several have the name, the one of the namespace that is named too |
//! | any other Gateway | denied |
//! | `sectionName`, `port` | copied |

use super::GROUP;
use crate::model::{Cache, KindId, json, resource::Name};
use berth_api::sync_policy::GatewayReference;
use serde_json::{Value, json};

/// What a reference to a parent means.
pub enum Parent<'a> {
    /// Something in the tenant.
    Own,
    /// A Gateway of the host.
    Host(&'a GatewayReference),
    /// No Gateway that is offered.
    Unknown(&'a str),
}

/// The Gateway of the tenant that a reference in a route of `namespace` means, if there is one of this name; none if it names something else.
pub fn own_gateway(namespace: &str, reference: &Value) -> Option<Name> {
    let text = |field: &str| json::text(reference, &[field]);
    if text("group").unwrap_or(GROUP) != GROUP || text("kind").unwrap_or("Gateway") != "Gateway" {
        return None;
    }
    let (namespace, name) = (text("namespace").unwrap_or(namespace), text("name").unwrap_or_default());
    Some(Name::new(namespace, name))
}

/// What a reference in a route of `namespace` means.
pub fn parent<'a>(cache: &'a Cache, namespace: &str, reference: &'a Value) -> Parent<'a> {
    let Some(own) = own_gateway(namespace, reference) else {
        return Parent::Own;
    };
    if cache.stores.tenant(KindId::Gateway).contains(&own) {
        return Parent::Own;
    }
    let name = json::text(reference, &["name"]).unwrap_or_default();
    let listed = || {
        let gateways = cache.tenant.policy.ingress.gateways.iter();
        gateways.filter(|gateway| gateway.name == name)
    };
    let found = listed()
        .find(|gateway| gateway.namespace == *own.namespace)
        .or_else(|| listed().next());
    found.map_or(Parent::Unknown(name), Parent::Host)
}

/// The reference on the host to a Gateway there.
pub fn on_host(reference: &Value, gateway: &GatewayReference) -> Value {
    let mut translated =
        json!({"group": GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name});
    for field in ["sectionName", "port"] {
        if let Some(value) = reference.get(field).filter(|value| !json::is_unset(value)) {
            translated[field] = value.clone();
        }
    }
    translated
}

/// A reference with everything that may be left out filled in, to compare.
pub fn complete(reference: &Value, namespace: &str) -> Value {
    let or = |field: &str, default: &str| json::text(reference, &[field]).unwrap_or(default).to_owned();
    json!({
        "group": or("group", GROUP),
        "kind": or("kind", "Gateway"),
        "namespace": or("namespace", namespace),
        "name": or("name", ""),
        "sectionName": reference.get("sectionName").cloned().unwrap_or_default(),
        "port": reference.get("port").cloned().unwrap_or_default(),
    })
}
