//! Ingresses of classes of the host.
//!
//! | field | rule |
//! |---|---|
//! | labels | those that the class lists |
//! | annotations | see `annotations`: instructions to the controller only from an allow-list |
//! | `ingressClassName`, or the annotation `kubernetes.io/ingress.class` | one that the tenant's class lists. An Ingress of a class that the tenant made itself stays in the tenant, for the tenant's own controller |
//! | `rules[].host`, `tls[].hosts` | host names that the tenant's class lists; without one, or with `defaultBackend`, only if it lists `*` |
//! | `rules[].http.paths[]` | copied if no controller can take them for configuration: see `paths` |
//! | backends: `service` | the host's; a Service for an external name leads nowhere, with an Event |
//! | a Service to which a change no longer leads, and networks that may no longer connect | are lost at once, also if the rest of the change waits for its turn, has no room or is refused: see `narrow` |
//! | backends: `resource` | denied |
//! | `tls[].secretName` | the host's; the Secret is synced as well |
//! | anything else | denied by name |
//! | status | comes back |

pub mod annotations;
pub mod class;
mod narrow;
pub mod paths;
pub mod settings;

#[cfg(test)]
mod tests;

use crate::{
    model::{
        Cache, DeniedField, Dependency, DesiredState, HostNamespace, Kind, KindId, Observation, TenantWrite, ToHost,
        Translated, WhenDenied, json,
        mirror::is_mirrored,
        references::Target,
        resource::{Key, Name, Resource, host_name},
        store::WatchSpec,
    },
    translation::{
        backend, field_checks,
        fields::{self, FieldIssues, Fields, Rule},
        host_text, hostnames, metadata,
    },
};
use berth_api::sync_policy::allows;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const RESOURCE: Resource = Resource::new("networking.k8s.io", "v1", "Ingress", "ingresses");

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Ingresses)
    .watch_host(HostNamespace::Workloads, WatchSpec::synced(RESOURCE).trimmed(trim_host))
    .with_tenant_rights(&[("ingresses/status", &["patch"])])
    .acting_without_pods()
    .depends_on(&[
        // Whether an Ingress is of a class of the host. One without a class has none by default: API servers fill it in when it is made.
        Dependency::on_tenant(KindId::IngressClass, of_class),
        Dependency::on_host(KindId::IngressClass, of_class),
        // Some Services must not get traffic from outside.
        Dependency::on_tenant(KindId::Service, |cache, service| {
            cache.keys_that_may_reference(KindId::Ingress, &KindId::Service.key(service.clone()))
        }),
    ]);

/// Fields of the spec of a host Ingress that are the syncer's alone.
const EXCLUSIVE: &[&str] = &["defaultBackend", "rules", "tls"];

fn trim_host(ingress: &mut Value) {
    metadata::with_fields_of_spec(ingress, EXCLUSIVE, metadata::with_status);
}

const SPEC: Fields = &[
    ("defaultBackend", Rule::Rewrite),
    ("ingressClassName", Rule::Rewrite),
    ("rules", Rule::Rewrite),
    ("tls", Rule::Rewrite),
];
const RULE: Fields = &[("host", Rule::Copy), ("http", Rule::Rewrite)];
const HTTP: Fields = &[("paths", Rule::Rewrite)];
const PATH: Fields = &[
    ("backend", Rule::Rewrite),
    ("path", Rule::Copy),
    ("pathType", Rule::Copy),
];
const BACKEND: Fields = &[
    ("resource", Rule::Deny("only Services can be backends")),
    ("service", Rule::Rewrite),
];
const SERVICE: Fields = &[("name", Rule::Rewrite), ("port", Rule::Within(PORT))];
const PORT: Fields = &[("name", Rule::Copy), ("number", Rule::Copy)];
const TLS: Fields = &[("hosts", Rule::Copy), ("secretName", Rule::Rewrite)];

/// Where an Ingress names Services.
const SERVICES: [&str; 2] = [
    "spec.defaultBackend.service",
    "spec.rules[].http.paths[].backend.service",
];

struct Ingresses;

/// The Ingresses of a class.
fn of_class(cache: &Cache, class: &Name) -> Vec<Key> {
    cache.keys_that_may_reference(KindId::Ingress, &KindId::IngressClass.key(class.clone()))
}

/// The class that an Ingress names.
fn class_name(ingress: &Value) -> Option<&str> {
    json::text(ingress, &["spec", "ingressClassName"])
        .or_else(|| json::text(ingress, &["metadata", "annotations", annotations::CLASS]))
        .filter(|class| !class.is_empty())
}

impl ToHost for Ingresses {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, cache: &Cache, _name: &Name, ingress: &Value) -> DesiredState {
        let class = class_name(ingress).map(|class| Name::new("", class));
        let known = class.and_then(|class| cache.stores.tenant(KindId::IngressClass).get(&class));
        if known.is_some_and(|class| !is_mirrored(&class.object())) {
            DesiredState::Absent
        } else {
            DesiredState::Sync
        }
    }

    fn references(&self, _cache: &Cache, name: &Name, ingress: &Value) -> BTreeSet<Target> {
        let class = class_name(ingress).map(|class| Target {
            kind: KindId::IngressClass,
            name: Name::new("", class),
        });
        let mut targets: BTreeSet<Target> = class.into_iter().collect();
        for (kind, path) in [
            (KindId::Secret, "spec.tls[].secretName"),
            (KindId::Service, "spec.defaultBackend.service.name"),
            (KindId::Service, "spec.rules[].http.paths[].backend.service.name"),
        ] {
            json::each(ingress, path, &mut |value| {
                if let Some(target) = value.as_str().filter(|text| !text.is_empty()) {
                    let name = Name::new(&name.namespace, target);
                    targets.insert(Target { kind, name });
                }
            });
        }
        targets
    }

    fn is_prerequisite(&self, target: &Target) -> bool {
        // A Service may be denied on the host: requests to the Ingress then fail.
        target.kind == KindId::Secret
    }

    fn translate(&self, cache: &Cache, name: &Name, ingress: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let source = &ingress["spec"];
        let services = backend::Services::new(cache);
        let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
        if let Some(class) = class::chosen(cache, class_name(ingress), &mut issues) {
            spec.insert("ingressClassName".into(), class.into());
        }
        if let Some(default) = source.get("defaultBackend").filter(|backend| !backend.is_null()) {
            hostnames::check(cache, "", "spec.defaultBackend", &mut issues);
            let backend = self::backend(&services, name, default, "spec.defaultBackend", &mut issues);
            spec.insert("defaultBackend".into(), backend);
        }
        let mut list = |field: &'static str, one: &mut dyn FnMut(&Value, &str) -> Value| {
            let items: Vec<Value> = json::items(source, &[field])
                .iter()
                // More are denied.
                .take(paths::MAX_ENTRIES)
                .enumerate()
                .map(|(index, item)| one(item, &format!("spec.{field}[{index}]")))
                .collect();
            if !items.is_empty() {
                spec.insert(field.into(), items.into());
            }
        };
        let has_expressions = paths::has_expressions(ingress);
        list("rules", &mut |source, path| {
            rule((cache, &services), name, (source, path), has_expressions, &mut issues)
        });
        list("tls", &mut |source, path| tls(cache, name, source, path, &mut issues));
        field_checks::check(source, "spec", "", paths::CHECKS, &mut issues);
        paths::check_count(source, &mut issues);
        let annotations = annotations::translate(cache, ingress, &mut issues);
        let metadata = json!({"labels": metadata::labels(ingress, &[], &cache.tenant.policy.ingress.labels), "annotations": annotations});
        issues.into_result(json!({"metadata": metadata, "spec": spec}))
    }

    fn exclusive_fields(&self) -> &'static [&'static str] {
        EXCLUSIVE
    }

    fn narrows_at_once(&self) -> bool {
        true
    }

    fn narrowed(&self, desired: &Value, live: &Value) -> Option<Value> {
        narrow::narrowed(desired, live)
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _ingress: &Value, _host: &Value) -> WhenDenied {
        WhenDenied::Withdraw
    }

    fn denied_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        _ingress: &Value,
        _denied: &[DeniedField],
        _now: Timestamp,
    ) -> Option<Value> {
        // No controller serves it.
        Some(json!({"loadBalancer": {}}))
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        let status = observation.host.get("status").filter(|status| status.is_object());
        let mut status = status.cloned().unwrap_or_else(|| json!({}));
        host_text::translate_texts(cache, name, &mut status);
        vec![TenantWrite::Status(status)]
    }
}

fn rule(
    (cache, services): (&Cache, &backend::Services<'_>),
    name: &Name,
    (source, path): (&Value, &str),
    has_expressions: bool,
    issues: &mut FieldIssues,
) -> Value {
    let mut rule = fields::copy(source, path, RULE, issues);
    let host = json::text(source, &["host"]).unwrap_or_default();
    hostnames::check(cache, host, &format!("{path}.host"), issues);
    let Some(http) = source.get("http").filter(|http| !http.is_null()) else {
        return rule.into();
    };
    fields::copy(http, &format!("{path}.http"), HTTP, issues);
    let paths: Vec<Value> = json::items(http, &["paths"])
        .iter()
        .take(paths::MAX_ENTRIES)
        .enumerate()
        .map(|(index, source)| {
            let path = format!("{path}.http.paths[{index}]");
            let mut copied = fields::copy(source, &path, PATH, issues);
            paths::check(source, &path, has_expressions, issues);
            let backend = backend(services, name, &source["backend"], &format!("{path}.backend"), issues);
            copied.insert("backend".into(), backend);
            copied.into()
        })
        .collect();
    rule.insert("http".into(), json!({ "paths": paths }));
    rule.into()
}

fn backend(
    services: &backend::Services<'_>,
    name: &Name,
    source: &Value,
    path: &str,
    issues: &mut FieldIssues,
) -> Value {
    let mut backend = fields::copy(source, path, BACKEND, issues);
    if let Some(service) = source.get("service").filter(|service| !service.is_null()) {
        let path = format!("{path}.service");
        let mut copied: Map<String, Value> = fields::copy(service, &path, SERVICE, issues);
        let target = Name::new(&name.namespace, json::text(service, &["name"]).unwrap_or_default());
        let host = services.on_host(&target).unwrap_or_else(|why| {
            issues.ignore(&path, why);
            backend::nowhere(&target)
        });
        copied.insert("name".into(), host.into());
        backend.insert("service".into(), copied.into());
    }
    backend.into()
}

fn tls(cache: &Cache, name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut tls = fields::copy(source, path, TLS, issues);
    let hosts = json::items(source, &["hosts"]);
    if hosts.is_empty() {
        hostnames::check(cache, "", &format!("{path}.hosts"), issues);
    }
    for (index, host) in hosts.iter().take(paths::MAX_ENTRIES).enumerate() {
        let host = host.as_str().unwrap_or_default();
        hostnames::check(cache, host, &format!("{path}.hosts[{index}]"), issues);
    }
    if let Some(secret) = json::filled(source, &["secretName"]) {
        let secret = host_name(KindId::Secret, &Name::new(&name.namespace, secret));
        tls.insert("secretName".into(), secret.into());
    }
    tls.into()
}

/// Whether a list of the class has this name.
fn is_listed(cache: &Cache, class: &str) -> bool {
    allows(&cache.tenant.policy.ingress.classes, class)
}
