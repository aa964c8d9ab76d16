//! Endpoints that a tenant makes itself, for Services without selector.
//!
//! | field | rule |
//! |---|---|
//! | which | those of a Service of the tenant that has no selector; the host makes the slices of other Services itself |
//! | labels, annotations | not passed on: see `metadata`. The host's name the host's Service and the syncer as the manager, so that no controller of the host takes the slice for its own |
//! | `addressType` | IPv4 and IPv6 |
//! | `endpoints[].addresses` | what [`EndpointAddresses`] allows: the tenant's own pods, and networks that the tenant's class lists without those that are closed; an endpoint with any other is left out, with an Event |
//! | `endpoints[]`: `conditions`, `hostname`, `zone`, `hints` | copied |
//! | `endpoints[].nodeName` | copied if it is a node of the tenant |
//! | `endpoints[]`: `targetRef`, `deprecatedTopology` | stay: nothing on the host reads them |
//! | `ports` | copied; numbers from 1 to 65535, which the API server does not check, and at most 100 |
//! | all addresses together | at most 500: the host's admission policy compares each with every closed network, and an API server bounds what that may cost |
//! | anything else | denied by name |
//!
//! Such an endpoint is left out and the slice is not denied, because an address of a pod may be another tenant's later.
//! It must be gone from the host then, whatever else the slice contains, and also if the rest of the change waits for its turn or is refused:
//! see [`ToHost::narrowed`].
//!
//! `Endpoints`, the older kind, never go to the host. The tenant's controller manager mirrors them into EndpointSlices,
//! and those go. Were the Endpoints on the host as well, its controller manager would mirror them a second time.

#[cfg(test)]
mod tests;

use crate::{
    model::{
        Cache, DeniedField, Dependency, DesiredState, HostNamespace, Kind, KindId, ToHost, Translated, WhenDenied,
        json, pod_addresses,
        references::Target,
        resource::{Key, Name, Resource, host_name},
        store::WatchSpec,
    },
    translation::{
        edge_text::PORTS,
        endpoint_address::EndpointAddresses,
        field_checks::{self, Check, FieldChecks},
        fields::{self, FieldIssues, Fields, Rule},
        metadata::{self, AnnotationRules},
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::IpAddr};

const RESOURCE: Resource = Resource::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
/// Label: the Service of a slice.
pub const SERVICE: &str = "kubernetes.io/service-name";
/// Label: who manages a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Manager of the slices on the host.
pub const SYNCER: &str = "syncer.berth.dev";

/// Most addresses of all endpoints together.
pub const MAX_ADDRESSES: usize = 500;
/// Checks of numbers.
pub static CHECKS: FieldChecks = &[
    ("ports", Check::Items(100)),
    ("ports[].port", Check::Number(PORTS.0, PORTS.1)),
];

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Slices)
    .watch_tenant(
        // Nearly all slices are made from selectors, and are not synced.
        WatchSpec::own(RESOURCE).labelled("endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io"),
    )
    .watch_host(
        HostNamespace::Workloads,
        WatchSpec::synced(RESOURCE).trimmed(metadata::only),
    )
    // Addresses of pods that have ended would stay on the host.
    .essential()
    // Slices change with the selector of their Service and with the addresses of the tenant's pods.
    .depends_on(&[
        Dependency::on_tenant(KindId::Service, |cache, service| {
            cache.keys_that_reference(KindId::EndpointSlice, &KindId::Service.key(service.clone()))
        }),
        Dependency::on_host(KindId::Pod, |cache, name| {
            let pod = cache.stores.host(KindId::Pod).get(name).map(|stored| stored.object());
            let addresses = pod.as_deref().map(pod_addresses::of).unwrap_or_default();
            let changed = cache.pod_addresses().set(name, addresses);
            if changed.is_empty() {
                return Vec::new();
            }
            let named = cache.slice_addresses();
            let slices: BTreeSet<&Name> = changed.iter().flat_map(|address| named.objects(address)).collect();
            let keys = slices.into_iter().map(|slice| KindId::EndpointSlice.key(slice.clone()));
            keys.collect()
        }),
        Dependency::on_tenant(KindId::EndpointSlice, |cache, name| {
            let slice = cache.stores.tenant(KindId::EndpointSlice).get(name);
            let slice = slice.map(|slice| slice.object());
            let service = slice.as_deref().and_then(|slice| service(name, slice));
            cache.egress_index().slices.set(name, service.into_iter().collect());
            let addresses = slice.as_deref().map(followed_addresses);
            cache.slice_addresses().set(name, addresses.unwrap_or_default());
            Vec::new()
        }),
    ]);

const SLICE: Fields = &[
    ("addressType", Rule::Copy),
    ("apiVersion", Rule::Ignore("the engine sets it")),
    ("endpoints", Rule::Rewrite),
    ("kind", Rule::Ignore("the engine sets it")),
    ("metadata", Rule::Rewrite),
    ("ports", Rule::Rewrite),
];

const ENDPOINT: Fields = &[
    ("addresses", Rule::Copy),
    ("conditions", Rule::Within(CONDITIONS)),
    ("deprecatedTopology", Rule::Ignore("nothing reads it")),
    ("hints", Rule::Within(HINTS)),
    ("hostname", Rule::Copy),
    ("nodeName", Rule::Rewrite),
    ("targetRef", Rule::Ignore("nothing on the host reads it")),
    ("zone", Rule::Copy),
];

const PORT: Fields = &[
    ("appProtocol", Rule::Copy),
    ("name", Rule::Copy),
    ("port", Rule::Copy),
    ("protocol", Rule::Copy),
];

const CONDITIONS: Fields = &[
    ("ready", Rule::Copy),
    ("serving", Rule::Copy),
    ("terminating", Rule::Copy),
];

const HINTS: Fields = &[("forNodes", Rule::Within(HINT)), ("forZones", Rule::Within(HINT))];

const HINT: Fields = &[("name", Rule::Copy)];

struct Slices;

/// The Service of the tenant's API server, whose slice never goes to the host.
fn api_server() -> Name {
    Name::new("default", "kubernetes")
}

/// The Service that a slice is for.
pub(crate) fn service(name: &Name, slice: &Value) -> Option<Name> {
    let service = json::filled(slice, &["metadata", "labels", SERVICE])?;
    Some(Name::new(&name.namespace, service))
}

/// Why an address is denied as an endpoint; `None` if it is allowed.
pub(crate) fn denied(allowed: &EndpointAddresses<'_>, address: &Value) -> Option<String> {
    let text = address.as_str().unwrap_or_default();
    let Ok(address) = text.parse::<IpAddr>() else {
        return Some(format!("{text} is not an IP address"));
    };
    let denied = allowed.check_endpoint(address).err()?;
    Some(format!("{address} {}", denied.why()))
}

/// The addresses of all endpoints of a slice.
fn addresses_of(slice: &Value) -> BTreeSet<&str> {
    let endpoints = json::items(slice, &["endpoints"]).iter();
    let addresses = endpoints.flat_map(|endpoint| json::items(endpoint, &["addresses"]));
    addresses.filter_map(Value::as_str).collect()
}

/// Number of the addresses of all endpoints of a slice.
fn count_addresses(slice: &Value) -> usize {
    let endpoints = json::items(slice, &["endpoints"]).iter();
    endpoints
        .map(|endpoint| json::items(endpoint, &["addresses"]).len())
        .sum()
}

/// The addresses by which a slice follows pods: none if it has so many that it is denied, whichever pods there are.
fn followed_addresses(slice: &Value) -> BTreeSet<IpAddr> {
    if count_addresses(slice) > MAX_ADDRESSES {
        return BTreeSet::new();
    }
    let texts = addresses_of(slice).into_iter();
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Denies more addresses than the host's admission policy can check, and numbers that no controller can use.
fn check_sizes(slice: &Value, issues: &mut FieldIssues) {
    let addresses = count_addresses(slice);
    if addresses > MAX_ADDRESSES {
        let why = format!(
            "{addresses} addresses in one slice; allowed: at most {MAX_ADDRESSES}. Divide them among several EndpointSlices of the Service"
        );
        issues.deny("endpoints", why);
    }
    field_checks::check(slice, "", "", CHECKS, issues);
}

impl ToHost for Slices {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, cache: &Cache, name: &Name, slice: &Value) -> DesiredState {
        let service = service(name, slice).filter(|service| *service != api_server());
        let Some(service) = service.and_then(|service| cache.stores.tenant(KindId::Service).get(&service)) else {
            return DesiredState::Absent;
        };
        let service = service.object();
        if json::strings(&service, &["spec", "selector"]).is_empty()
            && json::text(&service, &["spec", "type"]) != Some("ExternalName")
        {
            DesiredState::Sync
        } else {
            DesiredState::Absent
        }
    }

    fn references(&self, _cache: &Cache, name: &Name, slice: &Value) -> BTreeSet<Target> {
        let kind = KindId::Service;
        service(name, slice)
            .map(|name| Target { kind, name })
            .into_iter()
            .collect()
    }

    fn prerequisites(&self, _cache: &Cache, _name: &Name, _slice: &Value) -> Vec<Key> {
        // A slice may be on the host before its Service.
        Vec::new()
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _slice: &Value, _host: &Value) -> WhenDenied {
        WhenDenied::Withdraw
    }

    fn narrows_at_once(&self) -> bool {
        true
    }

    fn narrowed(&self, desired: &Value, live: &Value) -> Option<Value> {
        // An address that the slice loses may be another tenant's pod's by now.
        let wanted = addresses_of(desired);
        if addresses_of(live).is_subset(&wanted) {
            return None;
        }
        let mut narrowed = desired.clone();
        narrowed["metadata"]["annotations"] = json!({});
        narrowed["ports"] = live["ports"].clone();
        narrowed["metadata"]["labels"][SERVICE] = live["metadata"]["labels"][SERVICE].clone();
        let remaining = |endpoint: &Value| {
            let mut endpoint = endpoint.clone();
            let addresses = endpoint["addresses"].as_array_mut()?;
            addresses.retain(|address| address.as_str().is_some_and(|address| wanted.contains(address)));
            (!addresses.is_empty()).then_some(endpoint)
        };
        let endpoints = json::items(live, &["endpoints"]).iter();
        narrowed["endpoints"] = endpoints.filter_map(remaining).collect();
        Some(narrowed)
    }

    fn translate(&self, cache: &Cache, name: &Name, slice: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let mut object = Value::Object(fields::copy(slice, "slice", SLICE, &mut issues));
        if !matches!(json::text(slice, &["addressType"]), Some("IPv4" | "IPv6")) {
            issues.deny("addressType", "endpoints are IPv4 or IPv6 addresses");
        }
        check_sizes(slice, &mut issues);
        let allowed = EndpointAddresses::new(cache);
        let mut endpoints = Vec::new();
        for (index, endpoint) in json::items(slice, &["endpoints"]).iter().enumerate() {
            let path = format!("endpoints[{index}]");
            let addresses = json::items(endpoint, &["addresses"]);
            if let Some(why) = addresses.iter().find_map(|address| denied(&allowed, address)) {
                issues.ignore(format!("{path}.addresses"), why);
                continue;
            }
            let mut copied = fields::copy(endpoint, &path, ENDPOINT, &mut issues);
            if let Some(node) = json::text(endpoint, &["nodeName"])
                && cache.stores.host(KindId::Node).contains(&Name::new("", node))
            {
                copied.insert("nodeName".into(), node.into());
            }
            endpoints.push(Value::Object(copied));
        }
        let ports: Vec<Value> = json::items(slice, &["ports"])
            .iter()
            .enumerate()
            .map(|(index, port)| fields::copy(port, &format!("ports[{index}]"), PORT, &mut issues).into())
            .collect();
        let mut labels = json!({MANAGED_BY: SYNCER});
        if let Some(service) = service(name, slice) {
            labels[SERVICE] = host_name(KindId::Service, &service).into();
        }
        let annotations = metadata::annotations(slice, &AnnotationRules::default(), &mut issues);
        object["metadata"] = json!({"labels": labels, "annotations": annotations});
        object["endpoints"] = endpoints.into();
        object["ports"] = ports.into();
        issues.into_result(object)
    }
}
