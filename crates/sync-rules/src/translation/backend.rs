//! Services that Ingresses and routes lead to.

use super::metadata;
use crate::model::{
    Cache, KindId, json,
    resource::{Name, host_name},
};
use berth_api::names;
use serde_json::Value;
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
};

/// The tenant's Services to which one object leads. Each is read once, however often the object names it: an object has room for thousands of names, and to
/// read a Service can take milliseconds.
pub struct Services<'a> {
    cache: &'a Cache,
    /// Whether they stand for external names.
    are_external: RefCell<HashMap<Name, bool>>,
}

impl<'a> Services<'a> {
    /// None is read yet.
    pub fn new(cache: &'a Cache) -> Self {
        Self {
            cache,
            are_external: RefCell::default(),
        }
    }

    /// The Service of the host for one of the tenant's.
    ///
    /// # Errors
    /// Why traffic must not go there, as a message for the tenant. [`nowhere`] takes its place.
    pub fn on_host(&self, name: &Name) -> Result<String, String> {
        if self.is_external(name) {
            // The controller at the edge runs on the host and resolves names there: a name could lead it to anything that
            // it can reach.
            return Err(format!(
                "the Service {} stands for an external name: traffic from outside cannot be sent to it, so requests fail",
                name.name
            ));
        }
        Ok(host_name(KindId::Service, name))
    }

    fn is_external(&self, name: &Name) -> bool {
        let mut known = self.are_external.borrow_mut();
        *known.entry(name.clone()).or_insert_with(|| {
            let service = self.cache.stores.tenant(KindId::Service).get(name);
            let service = service.map(|service| service.object()).unwrap_or_default();
            json::text(&service, &["spec", "type"]) == Some("ExternalName")
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{store::Stored, tenant::test_tenant},
        registry,
    };
    use serde_json::json;

    #[test]
    fn a_service_is_read_once_for_an_object_that_names_it_often() {
        let cache = registry::new_cache(test_tenant());
        let name = Name::new("team", "web");
        let put = |version: &str, kind: &str| {
            let service = json!({"metadata": {"name": "web", "resourceVersion": version}, "spec": {"type": kind}});
            let services = cache.stores.tenant(KindId::Service);
            services.written(name.clone(), Stored::new(&service));
        };
        put("1", "ClusterIP");
        let of_one_object = Services::new(&cache);
        let host = Ok(host_name(KindId::Service, &name));
        assert_eq!(of_one_object.on_host(&name), host);
        put("2", "ExternalName");
        assert_eq!(of_one_object.on_host(&name), host, "it is not read again");
        let why = Services::new(&cache).on_host(&name).unwrap_err();
        assert!(why.contains("external name"), "{why}");
        let missing = Name::new("team", "missing");
        assert!(of_one_object.on_host(&missing).is_ok());
    }
}
