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
//! It must be gone from the host then, whatever else the slice contains.
//!
//! `Endpoints`, the older kind, never go to the host. The tenant's controller manager mirrors them into EndpointSlices,
//! and those go. Were the Endpoints on the host as well, its controller manager would mirror them a second time.

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
    // Slices change with the selector of their Service and with the addresses of the tenant's pods.
    .depends_on(&[
        Dependency::on_tenant(KindId::Service, |cache, service| {
            cache.keys_that_reference(KindId::EndpointSlice, &KindId::Service.key(service.clone()))
        }),
        Dependency::on_host(KindId::Pod, |cache, name| {
            let pod = cache.stores.host(KindId::Pod).get(name).map(|stored| stored.object());
            let addresses = pod.as_deref().map(pod_addresses::of).unwrap_or_default();
            let changed = cache.pod_addresses().set(name, addresses);
            if !changed {
                return Vec::new();
            }
            let mut keys = cache.keys_of(KindId::EndpointSlice);
            let (references, own) = (cache.references(), [KindId::Service.key(api_server())]);
            keys.retain(|slice| references.targets(slice) != own);
            keys
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
    ("conditions", Rule::Copy),
    ("deprecatedTopology", Rule::Ignore("nothing reads it")),
    ("hints", Rule::Copy),
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

struct Slices;

/// The Service of the tenant's API server, whose slice never goes to the host.
fn api_server() -> Name {
    Name::new("default", "kubernetes")
}

/// The Service that a slice is for.
pub(crate) fn service(name: &Name, slice: &Value) -> Option<Name> {
    let service = json::text(slice, &["metadata", "labels", SERVICE]).filter(|service| !service.is_empty())?;
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

/// Denies more addresses than the host's admission policy can check, and numbers that no controller can use.
fn check_sizes(slice: &Value, issues: &mut FieldIssues) {
    let endpoints = json::items(slice, &["endpoints"]).iter();
    let addresses: usize = endpoints
        .map(|endpoint| json::items(endpoint, &["addresses"]).len())
        .sum();
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
                issues.ignored.push(DeniedField::new(format!("{path}.addresses"), why));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::Side, store::Stored, tenant::test_tenant};
    use crate::registry;
    use std::sync::Arc;

    fn cache() -> Cache {
        let mut tenant = test_tenant();
        Arc::make_mut(&mut tenant.network).endpoint_cidrs = vec!["192.0.2.0/24".into(), "oops".into()];
        let cache = registry::new_cache(tenant);
        for (name, spec) in [
            ("db", json!({})),
            ("web", json!({"selector": {"app": "web"}})),
            (
                "outside",
                json!({"type": "ExternalName", "externalName": "a.example.com"}),
            ),
        ] {
            let service = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec});
            let store = cache.stores.tenant(KindId::Service);
            store.written(Name::new("shop", name), Stored::new(&service));
        }
        cache
    }

    fn pod(cache: &Cache, version: u64, phase: &str) -> Vec<Key> {
        let name = Name::new("shop", "pod");
        let pod = json!({"metadata": {"name": "pod-x", "resourceVersion": version.to_string()},
            "status": {"phase": phase, "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}});
        cache.stores.host(KindId::Pod).written(name.clone(), Stored::new(&pod));
        cache.update_dependents(Side::Host, KindId::Pod, &name)
    }

    fn slice(service: &str, addresses: &[&str]) -> Value {
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|address| json!({"addresses": [address]}))
            .collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "db-1", "namespace": "shop", "resourceVersion": "1", "labels": {
                SERVICE: service, MANAGED_BY: "endpointslicemirroring-controller.k8s.io", "app": "db"}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "db", "port": 5432, "protocol": "TCP"}]})
    }

    fn name() -> Name {
        Name::new("shop", "db-1")
    }

    fn addresses(cache: &Cache, slice: &Value) -> (Vec<Value>, Vec<String>) {
        let translated = Slices.translate(cache, &name(), slice).unwrap();
        let endpoints = json::items(&translated.object, &["endpoints"]).iter();
        let addresses = endpoints.map(|endpoint| endpoint["addresses"][0].clone()).collect();
        (addresses, translated.ignored.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_slice_of_the_api_server_does_not_follow_pods() {
        let cache = cache();
        let own = json!({"metadata": {"name": "kubernetes", "namespace": "default", "resourceVersion": "1", "labels": {
            SERVICE: "kubernetes"}}});
        for (slice_name, slice) in [(api_server(), own), (name(), slice("db", &[]))] {
            let slices = cache.stores.tenant(KindId::EndpointSlice);
            slices.written(slice_name.clone(), Stored::new(&slice));
            cache.update_dependents(Side::Tenant, KindId::EndpointSlice, &slice_name);
        }
        let mut keys = pod(&cache, 2, "Running");
        keys.retain(|key| key.kind == KindId::EndpointSlice);
        assert_eq!(keys, [KindId::EndpointSlice.key(name())]);
    }

    #[test]
    fn a_slice_of_an_outside_database() {
        let mut slice = slice("db", &["192.0.2.7"]);
        slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "x"});
        slice["endpoints"][0]["nodeName"] = "foreign".into();
        slice["endpoints"][0]["conditions"] = json!({"ready": true});
        insta::assert_yaml_snapshot!(Slices.translate(&cache(), &name(), &slice).unwrap().object);
    }

    #[test]
    fn only_services_without_selector_are_given_endpoints() {
        let cache = cache();
        for (service, want) in [
            ("db", DesiredState::Sync),
            ("web", DesiredState::Absent),
            ("outside", DesiredState::Absent),
            ("missing", DesiredState::Absent),
        ] {
            assert_eq!(
                Slices.desired_state(&cache, &name(), &slice(service, &[])),
                want,
                "{service}"
            );
        }
        let own = slice("kubernetes", &["10.0.0.1"]);
        assert_eq!(
            Slices.desired_state(&cache, &Name::new("default", "kubernetes"), &own),
            DesiredState::Absent
        );
    }

    #[test]
    fn an_address_is_allowed_as_long_as_a_pod_has_it() {
        let cache = cache();
        let slice = slice("db", &["10.1.2.3"]);
        cache
            .stores
            .tenant(KindId::EndpointSlice)
            .written(name(), Stored::new(&slice));
        assert_eq!(addresses(&cache, &slice).1.len(), 1, "no pod yet");
        let key = KindId::EndpointSlice.key(name());
        assert!(pod(&cache, 1, "Running").contains(&key));
        assert_eq!(addresses(&cache, &slice), (vec![json!("10.1.2.3")], vec![]));
        assert!(!pod(&cache, 2, "Running").contains(&key), "no news");
        assert!(pod(&cache, 3, "Succeeded").contains(&key));
        assert_eq!(addresses(&cache, &slice).0, Vec::<Value>::new());
    }

    #[test]
    fn foreign_addresses_are_left_out_with_an_event() {
        let slice = slice(
            "db",
            &[
                "169.254.169.254",
                "10.9.9.9",
                "192.0.2.8",
                "127.0.0.1",
                "224.0.0.1",
                "0.0.0.0",
                "db.example.com",
            ],
        );
        let (addresses, ignored) = addresses(&cache(), &slice);
        assert_eq!(addresses, [json!("192.0.2.8")]);
        insta::assert_yaml_snapshot!(ignored);
    }

    #[test]
    fn closed_networks_within_offered_ones_are_left_out_with_an_event() {
        let mut tenant = test_tenant();
        let network = Arc::make_mut(&mut tenant.network);
        network.endpoint_cidrs = vec!["10.0.0.0/8".into()];
        network.blocked = vec!["10.96.0.0/16".into(), "10.1.0.0/16".into(), "10.5.0.10/32".into()];
        let cache = registry::new_cache(tenant);
        pod(&cache, 1, "Running");
        // A database, the host's API server, another tenant's pod, a node, and a pod of the tenant.
        let slice = slice("db", &["10.20.0.7", "10.96.0.1", "10.1.2.4", "10.5.0.10", "10.1.2.3"]);
        let (kept, ignored) = addresses(&cache, &slice);
        assert_eq!(kept, [json!("10.20.0.7"), json!("10.1.2.3")]);
        assert_eq!(ignored.len(), 3);
        for (note, address) in ignored.iter().zip(["10.96.0.1", "10.1.2.4", "10.5.0.10"]) {
            let words = format!("{address} is in a network of the platform, which is never open to endpoints");
            assert!(note.ends_with(&words), "{note}");
        }
    }

    #[test]
    fn networks_that_the_host_closes_to_endpoints_are_left_out_even_for_pods() {
        let mut tenant = test_tenant();
        let network = Arc::make_mut(&mut tenant.network);
        network.endpoint_cidrs = vec!["10.0.0.0/8".into()];
        network.closed_to_endpoints = vec!["10.1.2.0/24".into()];
        let cache = registry::new_cache(tenant);
        pod(&cache, 1, "Running");
        let slice = slice("db", &["10.20.0.7", "10.1.2.9", "10.1.2.3"]);
        let (kept, ignored) = addresses(&cache, &slice);
        assert_eq!(kept, [json!("10.20.0.7")]);
        assert!(
            ignored[0].contains("10.1.2.9") && ignored[1].contains("10.1.2.3"),
            "{ignored:?}"
        );
    }

    #[test]
    fn slices_are_limited_in_size_and_ports_in_range() {
        let many = |addresses: usize| slice("db", &vec!["192.0.2.7"; addresses]);
        let denied = |slice: &Value| Slices.translate(&cache(), &name(), slice).map(|_| ());
        assert_eq!(denied(&many(MAX_ADDRESSES)), Ok(()));
        assert_eq!(denied(&many(MAX_ADDRESSES + 1)).unwrap_err()[0].field, "endpoints");
        let mut several = many(1);
        several["endpoints"][0]["addresses"] = json!(vec!["192.0.2.7"; MAX_ADDRESSES + 1]);
        assert_eq!(denied(&several).unwrap_err()[0].field, "endpoints");
        for port in [json!(0), json!(-1), json!(65_536), json!(4_294_967_376_u64)] {
            let mut slice = many(1);
            slice["ports"][0]["port"] = port;
            assert_eq!(denied(&slice).unwrap_err()[0].field, "ports[0].port");
        }
        let mut every = many(1);
        every["ports"][0]["port"] = Value::Null;
        assert_eq!(denied(&every), Ok(()), "without a number: every port");
    }

    #[test]
    fn endpoints_by_name_are_denied() {
        let mut slice = slice("db", &[]);
        slice["addressType"] = "FQDN".into();
        assert_eq!(
            Slices.translate(&cache(), &name(), &slice).unwrap_err()[0].field,
            "addressType"
        );
    }
}
