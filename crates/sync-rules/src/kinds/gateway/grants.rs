//! ReferenceGrants: which routes may lead to Services in other namespaces.
//!
//! A route can name thousands of Services, and a team may make thousands of grants, each as large as an object may be. So a grant is kept without what decides
//! nothing, those of a namespace are read at most once for a route, if it leads there, and one that changes concerns no routes but those that lead to its
//! namespace. These are found without a look at others: a team may change one grant all the time.

use super::GROUP;
use crate::model::{
    Cache, KindId, json,
    references::Target,
    resource::{Key, Name},
    store::Stored,
};
use serde_json::{Value, json};
use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// What routes of one kind and namespace may lead to.
pub(super) struct Grants<'a> {
    cache: &'a Cache,
    /// Kind and namespace of the route.
    route: (&'static str, &'a str),
    by_namespace: OnceCell<HashMap<Arc<str>, OfNamespace>>,
}

/// The grants of one namespace.
#[derive(Default)]
struct OfNamespace {
    grants: Vec<Arc<Stored>>,
    permitted: OnceCell<Permitted>,
}

/// Services of one namespace.
#[derive(Debug, Default)]
struct Permitted {
    all: bool,
    names: BTreeSet<String>,
}

impl<'a> Grants<'a> {
    pub(super) fn new(cache: &'a Cache, route: (&'static str, &'a str)) -> Self {
        Self {
            cache,
            route,
            by_namespace: OnceCell::new(),
        }
    }

    /// Whether such a route may lead to a Service of the tenant.
    pub(super) fn permit(&self, service: &Name) -> bool {
        if *service.namespace == *self.route.1 {
            return true;
        }
        let by_namespace = self.by_namespace.get_or_init(|| self.list());
        let Some(of_namespace) = by_namespace.get(&service.namespace) else {
            return false;
        };
        let permitted = of_namespace.permitted.get_or_init(|| self.read(&of_namespace.grants));
        permitted.all || permitted.names.contains(&*service.name)
    }

    /// All grants. None of them is read.
    fn list(&self) -> HashMap<Arc<str>, OfNamespace> {
        let mut found: HashMap<Arc<str>, OfNamespace> = HashMap::new();
        for (name, stored) in self.cache.stores.tenant(KindId::ReferenceGrant).all() {
            found.entry(name.namespace).or_default().grants.push(stored);
        }
        found
    }

    /// What grants of one namespace permit.
    fn read(&self, grants: &[Arc<Stored>]) -> Permitted {
        let (kind, namespace) = self.route;
        let mut permitted = Permitted::default();
        for grant in grants {
            let grant = grant.object();
            let is_from_here = json::items(&grant, &["spec", "from"]).iter().any(|from| {
                text(from, "group") == GROUP && text(from, "kind") == kind && text(from, "namespace") == namespace
            });
            if !is_from_here {
                continue;
            }
            for to in json::items(&grant, &["spec", "to"]) {
                if !text(to, "group").is_empty() || text(to, "kind") != "Service" {
                    continue;
                }
                match text(to, "name") {
                    "" => permitted.all = true,
                    named => {
                        permitted.names.insert(named.to_owned());
                    }
                }
            }
        }
        permitted
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    json::text(value, &[field]).unwrap_or_default()
}

/// All grants of a namespace, as a route from elsewhere references them that leads there. No object has an empty name.
pub(super) fn all_of(namespace: &str) -> Target {
    Target {
        kind: KindId::ReferenceGrant,
        name: Name::new(namespace, ""),
    }
}

/// The routes of a kind for which a grant matters: those that lead to its namespace from another one.
pub(super) fn concerned(cache: &Cache, routes: KindId, grant: &Name) -> Vec<Key> {
    let Target { kind, name } = all_of(&grant.namespace);
    let mut keys = cache.keys_that_may_reference(routes, &kind.key(name));
    keys.retain(|route| route.name.namespace != grant.namespace);
    keys
}

/// Keeps what a grant permits.
pub(super) fn trim_grant(grant: &mut Value) {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        metadata[field] = grant["metadata"][field].take();
    }
    let spec = grant.get_mut("spec").map(Value::take).unwrap_or_default();
    *grant = json::object([("metadata", metadata), ("spec", spec)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{references::References, resource::Side, tenant::test_tenant},
        registry,
    };

    fn grant(name: &str, to: &Value) -> Value {
        let from = json!([{"group": GROUP, "kind": "HTTPRoute", "namespace": "shop"}]);
        json!({"metadata": {"name": name, "namespace": "lab", "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}},
            "spec": {"from": from, "to": to}})
    }

    fn put(cache: &Cache, grant: &Value) {
        let name = Name::new("lab", json::text(grant, &["metadata", "name"]).unwrap());
        let grants = cache.stores.tenant(KindId::ReferenceGrant);
        grants.written(name, Stored::new(grant));
    }

    #[test]
    fn grants_are_read_once_for_a_route_and_only_if_it_leads_elsewhere() {
        let cache = registry::new_cache(test_tenant());
        put(
            &cache,
            &grant("models", &json!([{"group": "", "kind": "Service", "name": "models"}])),
        );
        let grants = Grants::new(&cache, ("HTTPRoute", "shop"));
        assert!(grants.permit(&Name::new("shop", "web")));
        assert!(grants.by_namespace.get().is_none(), "nothing was read");
        assert!(grants.permit(&Name::new("lab", "models")) && !grants.permit(&Name::new("lab", "data")));
        put(&cache, &grant("all", &json!([{"group": "", "kind": "Service"}])));
        assert!(!grants.permit(&Name::new("lab", "data")), "they are not read again");
        let later = Grants::new(&cache, ("HTTPRoute", "shop"));
        let is_read = |grants: &Grants<'_>| grants.by_namespace.get().unwrap()["lab"].permitted.get().is_some();
        assert!(!later.permit(&Name::new("other", "data")) && !is_read(&later));
        assert!(later.permit(&Name::new("lab", "data")) && is_read(&later));
    }

    /// A route of this namespace that leads to a Service.
    fn put_route(cache: &Cache, name: &Name, service: (&str, &str)) {
        let backend = json!({"namespace": service.0, "name": service.1});
        let object = json!({"metadata": {"name": &*name.name, "namespace": &*name.namespace, "resourceVersion": "1"},
            "spec": {"rules": [{"backendRefs": [backend]}]}});
        let routes = cache.stores.tenant(KindId::HttpRoute);
        routes.written(name.clone(), Stored::new(&object));
        cache.update_dependents(Side::Tenant, KindId::HttpRoute, name);
    }

    #[test]
    fn a_grant_concerns_routes_that_lead_to_its_namespace() {
        let cache = registry::new_cache(test_tenant());
        let concerned = |kind| concerned(&cache, kind, &Name::new("lab", "any"));
        let there = Name::new("shop", "there");
        put_route(&cache, &there, ("lab", "models"));
        put_route(&cache, &Name::new("shop", "elsewhere"), ("shop", "web"));
        put_route(&cache, &Name::new("lab", "inside"), ("lab", "models"));
        let key = KindId::HttpRoute.key(there.clone());
        assert_eq!(concerned(KindId::HttpRoute), std::slice::from_ref(&key));
        assert_eq!(concerned(KindId::GrpcRoute), []);
        cache.stores.tenant(KindId::HttpRoute).forget(&there);
        assert_eq!(concerned(KindId::HttpRoute), [key], "no store is looked through");
        put_route(&cache, &there, ("shop", "web"));
        assert_eq!(concerned(KindId::HttpRoute), []);
    }

    #[test]
    fn a_grant_concerns_routes_without_room_that_are_on_the_host() {
        let cache = registry::new_cache(test_tenant());
        *cache.references() = References::new(0);
        let names =
            [("shop", "new"), ("shop", "old"), ("lab", "old")].map(|(namespace, name)| Name::new(namespace, name));
        for name in &names {
            if &*name.name == "old" {
                let object = json!({"metadata": {"name": "hosts", "resourceVersion": "1"}});
                let routes = cache.stores.host(KindId::HttpRoute);
                routes.written(name.clone(), Stored::new(&object));
            }
            put_route(&cache, name, ("other", "models"));
        }
        let concerned = concerned(&cache, KindId::HttpRoute, &Name::new("lab", "any"));
        assert_eq!(concerned, [KindId::HttpRoute.key(names[1].clone())]);
    }

    #[test]
    fn of_a_grant_what_permits_nothing_is_not_kept() {
        let mut trimmed = grant("models", &json!([]));
        trim_grant(&mut trimmed);
        let metadata = json!({"name": "models", "namespace": "lab", "uid": "u", "resourceVersion": "1"});
        assert_eq!(trimmed["metadata"], metadata);
        assert_eq!(trimmed["spec"], grant("models", &json!([]))["spec"]);
    }
}
