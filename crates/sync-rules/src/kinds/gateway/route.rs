//! Routes: one set of rules for all of them.
//!
//! | field | rule |
//! |---|---|
//! | labels | those that the class lists |
//! | annotations | as those of Ingresses |
//! | `parentRefs` | see `parents`. A route without any parent on the host stays in the tenant |
//! | `useDefaultGateways` | denied: a route has to name its parents |
//! | `hostnames` | names that the tenant's class lists; none at all only if it lists `*` |
//! | `rules[]`: `name`, `matches`, `timeouts`, `retry`, `sessionPersistence` | copied if every gateway can load them: see `checks` |
//! | `rules[].filters` | see `filters` |
//! | backends | Services of the tenant, under the host's name, with port and weight |
//! | a backend in another namespace | only if a ReferenceGrant there permits it; otherwise it leads nowhere, and the status reports that, as the Gateway API requires |
//! | a Service for an external name | leads nowhere, with an Event |
//! | a backend that a change takes away, or to which a route may not lead any more | leads nowhere at once, also if the rest of the change waits for its turn, has no room or is refused: see [`ToHost::narrowed`] |
//! | lists that are longer than the Gateway API allows | denied before anything else: see `checks` |
//! | anything else | denied by name |
//! | `status.parents` | comes back for parents on the host; what the tenant's own controllers wrote stays. It has no more entries than the Gateway API allows |

use super::{
    checks, filters,
    grants::{self, Grants, concerned},
    parents::{self, Parent},
    resource, status,
};
use crate::{
    kinds::ingress,
    model::{
        Cache, DeniedField, Dependency, DesiredState, HostNamespace, Kind, KindId, Observation, Right, TenantWrite,
        ToHost, Translated, WhenDenied, json,
        references::Target,
        resource::{Key, Name, Resource},
        store::WatchSpec,
    },
    translation::{
        backend,
        fields::{self, FieldIssues, Fields, Rule},
        hostnames, metadata,
    },
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Fields of the spec of a host route that are the syncer's alone. API servers set `rules` of a route that has none.
const EXCLUSIVE: &[&str] = &["hostnames", "parentRefs", "useDefaultGateways"];

fn trim_host(route: &mut Value) {
    metadata::with_fields_of_spec(route, EXCLUSIVE, metadata::with_status);
}

const fn route(route: &'static Route, status: &'static [Right], depends_on: &'static [Dependency]) -> Kind {
    Kind::to_host(route.resource, route)
        .watch_host(
            HostNamespace::Workloads,
            WatchSpec::synced(route.resource).trimmed(trim_host),
        )
        .with_tenant_rights(status)
        .extension()
        .acting_without_pods()
        .depends_on(depends_on)
}

/// Routes of HTTP requests.
pub const HTTP: Kind = route(
    &Route {
        resource: resource("v1", "HTTPRoute", "httproutes"),
    },
    &[("httproutes/status", &["patch"])],
    &[
        Dependency::on_tenant(KindId::Gateway, |cache, gateway| {
            cache.keys_that_may_reference(KindId::HttpRoute, &KindId::Gateway.key(gateway.clone()))
        }),
        Dependency::on_tenant(KindId::ReferenceGrant, |cache, grant| {
            concerned(cache, KindId::HttpRoute, grant)
        }),
        Dependency::on_tenant(KindId::Service, |cache, name| {
            cache.keys_that_may_reference(KindId::HttpRoute, &KindId::Service.key(name.clone()))
        }),
    ],
);
/// Routes of gRPC calls.
pub const GRPC: Kind = route(
    &Route {
        resource: resource("v1", "GRPCRoute", "grpcroutes"),
    },
    &[("grpcroutes/status", &["patch"])],
    &[
        Dependency::on_tenant(KindId::Gateway, |cache, gateway| {
            cache.keys_that_may_reference(KindId::GrpcRoute, &KindId::Gateway.key(gateway.clone()))
        }),
        Dependency::on_tenant(KindId::ReferenceGrant, |cache, grant| {
            concerned(cache, KindId::GrpcRoute, grant)
        }),
        Dependency::on_tenant(KindId::Service, |cache, name| {
            cache.keys_that_may_reference(KindId::GrpcRoute, &KindId::Service.key(name.clone()))
        }),
    ],
);
/// Routes of TLS connections.
pub const TLS: Kind = route(
    &Route {
        resource: resource("v1", "TLSRoute", "tlsroutes"),
    },
    &[("tlsroutes/status", &["patch"])],
    &[
        Dependency::on_tenant(KindId::Gateway, |cache, gateway| {
            cache.keys_that_may_reference(KindId::TlsRoute, &KindId::Gateway.key(gateway.clone()))
        }),
        Dependency::on_tenant(KindId::ReferenceGrant, |cache, grant| {
            concerned(cache, KindId::TlsRoute, grant)
        }),
        Dependency::on_tenant(KindId::Service, |cache, name| {
            cache.keys_that_may_reference(KindId::TlsRoute, &KindId::Service.key(name.clone()))
        }),
    ],
);

const SPEC: Fields = &[
    ("hostnames", Rule::Copy),
    ("parentRefs", Rule::Rewrite),
    ("rules", Rule::Rewrite),
    ("useDefaultGateways", Rule::Deny("name the Gateway in parentRefs")),
];

const RULE: Fields = &[
    ("backendRefs", Rule::Rewrite),
    ("filters", Rule::Rewrite),
    ("matches", Rule::Copy),
    ("name", Rule::Copy),
    ("retry", Rule::Copy),
    ("sessionPersistence", Rule::Copy),
    ("timeouts", Rule::Copy),
];

const BACKEND: Fields = &[
    ("filters", Rule::Rewrite),
    ("group", Rule::Rewrite),
    ("kind", Rule::Rewrite),
    ("name", Rule::Rewrite),
    (
        "namespace",
        Rule::Ignore("all namespaces of the tenant are one on the host"),
    ),
    ("port", Rule::Copy),
    ("weight", Rule::Copy),
];

struct Route {
    resource: Resource,
}

/// The backends that routes of one kind and namespace may have.
pub struct Backends<'a> {
    /// Namespace of the route.
    namespace: &'a str,
    services: backend::Services<'a>,
    grants: Grants<'a>,
}

/// The Service that a backend names; `None` if it names something else.
fn service(namespace: &str, backend: &Value) -> Option<Name> {
    let text = |field: &str, default| json::text(backend, &[field]).unwrap_or(default);
    let is_service = text("group", "").is_empty() && text("kind", "Service") == "Service";
    is_service.then(|| Name::new(text("namespace", namespace), text("name", "")))
}

impl Backends<'_> {
    /// The backend on the host.
    pub fn translate(&self, source: &Value, path: &str, issues: &mut FieldIssues) -> serde_json::Map<String, Value> {
        let mut backend = fields::copy(source, path, BACKEND, issues);
        if let Some(filters) = filters::translate(self, source, path, issues) {
            backend.insert("filters".into(), filters);
        }
        let Some(service) = service(self.namespace, source) else {
            issues.deny(format!("{path}.kind"), "only Services can be backends");
            return backend;
        };
        let host = if self.grants.permit(&service) {
            self.services.on_host(&service)
        } else {
            Err(status::not_permitted(&service))
        };
        let host = host.unwrap_or_else(|why| {
            issues.ignore(path, why);
            backend::nowhere(&service)
        });
        backend.insert("name".into(), host.into());
        backend
    }
}

/// Where a route names Services.
const BACKENDS: [&str; 3] = [
    "spec.rules[].backendRefs[]",
    "spec.rules[].filters[].requestMirror.backendRef",
    "spec.rules[].backendRefs[].filters[].requestMirror.backendRef",
];

impl Route {
    /// Services that a route of `namespace` names.
    fn services(namespace: &str, route: &Value) -> BTreeSet<Name> {
        let mut services = BTreeSet::new();
        for path in BACKENDS {
            json::each(route, path, &mut |backend| services.extend(service(namespace, backend)));
        }
        services
    }
}

impl ToHost for Route {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn desired_state(&self, cache: &Cache, name: &Name, route: &Value) -> DesiredState {
        let references = json::items(route, &["spec", "parentRefs"]);
        let is_own = |reference| matches!(parents::parent(cache, &name.namespace, reference), Parent::Own);
        let anywhere = json::at(route, &["spec", "useDefaultGateways"]).is_some_and(|value| !json::is_unset(value));
        if references.iter().all(is_own) && !anywhere {
            DesiredState::Absent
        } else {
            DesiredState::Sync
        }
    }

    fn references(&self, _cache: &Cache, name: &Name, route: &Value) -> BTreeSet<Target> {
        // It is denied, wherever it leads.
        if checks::check_lists(&route["spec"]).is_err() {
            return BTreeSet::new();
        }
        let parents = json::items(route, &["spec", "parentRefs"]).iter();
        let gateways = parents.filter_map(|reference| parents::own_gateway(&name.namespace, reference));
        let kind = KindId::Gateway;
        let mut targets: BTreeSet<Target> = gateways.map(|name| Target { kind, name }).collect();
        let kind = KindId::Service;
        for service in Self::services(&name.namespace, route) {
            if service.namespace != name.namespace {
                targets.insert(grants::all_of(&service.namespace));
            }
            targets.insert(Target { kind, name: service });
        }
        targets
    }

    fn prerequisites(&self, _cache: &Cache, _name: &Name, _route: &Value) -> Vec<Key> {
        // A Service may be denied on the host: the route's status then says that it is missing.
        Vec::new()
    }

    fn translate(&self, cache: &Cache, name: &Name, route: &Value) -> Result<Translated, Vec<DeniedField>> {
        let source = &route["spec"];
        checks::check_lists(source)?;
        let mut issues = FieldIssues::default();
        let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
        let mut attached = Vec::new();
        for (index, reference) in json::items(source, &["parentRefs"]).iter().enumerate() {
            match parents::parent(cache, &name.namespace, reference) {
                Parent::Own => {}
                Parent::Host(gateway) => attached.push(parents::on_host(reference, gateway)),
                Parent::Unknown(gateway) => {
                    let listed = cache.tenant.policy.ingress.gateways.iter();
                    let listed: BTreeSet<_> = listed.map(|gateway| gateway.name.as_str()).collect();
                    let offered = hostnames::offered(&listed.into_iter().collect::<Vec<_>>());
                    let why = format!("there is no Gateway {gateway}; {offered}");
                    issues.deny(format!("spec.parentRefs[{index}].name"), why);
                }
            }
        }
        spec.insert("parentRefs".into(), attached.into());
        let wanted = json::items(source, &["hostnames"]);
        if wanted.is_empty() {
            hostnames::check(cache, "", "spec.hostnames", &mut issues);
        }
        for (index, host) in wanted.iter().enumerate() {
            let host = host.as_str().unwrap_or_default();
            hostnames::check(cache, host, &format!("spec.hostnames[{index}]"), &mut issues);
        }
        let backends = Backends {
            namespace: &name.namespace,
            services: backend::Services::new(cache),
            grants: Grants::new(cache, (self.resource.kind, &name.namespace)),
        };
        let rules: Vec<Value> = json::items(source, &["rules"])
            .iter()
            .enumerate()
            .map(|(index, source)| {
                let path = format!("spec.rules[{index}]");
                let mut rule = fields::copy(source, &path, RULE, &mut issues);
                if let Some(filters) = filters::translate(&backends, source, &path, &mut issues) {
                    rule.insert("filters".into(), filters);
                }
                let refs: Vec<Value> = json::items(source, &["backendRefs"])
                    .iter()
                    .enumerate()
                    .map(|(index, source)| {
                        let path = format!("{path}.backendRefs[{index}]");
                        backends.translate(source, &path, &mut issues).into()
                    })
                    .collect();
                if !refs.is_empty() {
                    rule.insert("backendRefs".into(), refs.into());
                }
                rule.into()
            })
            .collect();
        if !rules.is_empty() {
            spec.insert("rules".into(), rules.into());
        }
        checks::check(self.resource.kind, source, &mut issues);
        let annotations = ingress::annotations::translate(cache, route, &mut issues);
        let metadata = json!({"labels": metadata::labels(route, &[], &cache.tenant.policy.ingress.labels), "annotations": annotations});
        issues.into_result(json!({"metadata": metadata, "spec": spec}))
    }

    fn exclusive_fields(&self) -> &'static [&'static str] {
        EXCLUSIVE
    }

    fn narrows_at_once(&self) -> bool {
        true
    }

    fn narrowed(&self, desired: &Value, live: &Value) -> Option<Value> {
        backend::narrowed(desired, live, &BACKENDS)
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _route: &Value, _host: &Value) -> WhenDenied {
        WhenDenied::Withdraw
    }

    fn denied_status(
        &self,
        cache: &Cache,
        name: &Name,
        route: &Value,
        denied: &[DeniedField],
        now: Timestamp,
    ) -> Option<Value> {
        Some(status::denied_status((cache, name), route, denied, now))
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        // One whose lists are too long is about to leave the host, wherever it leads.
        let services = match checks::check_lists(&observation.tenant["spec"]) {
            Ok(()) => Self::services(&name.namespace, observation.tenant),
            Err(_) => BTreeSet::new(),
        };
        let grants = Grants::new(cache, (self.resource.kind, &name.namespace));
        let denied = services.into_iter().find(|service| !grants.permit(service));
        status::sync_status(cache, name, observation, denied.as_ref())
            .into_iter()
            .collect()
    }
}
