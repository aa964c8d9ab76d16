//! Tests of what is known of endpoints: it leads to the same as reading all pods.

use super::*;
use crate::{
    model::{
        pod_addresses::{self, is_finished, is_ready},
        resource::{Side, host_name},
        store::{Stored, is_origin},
        tenant::test_tenant,
    },
    registry,
};
use proptest::prelude::*;
use serde_json::json;

/// The endpoints behind a port of a Service, by reading all pods on both sides.
fn of_pods_by_reading(cache: &Cache, name: &Name, service: &Value, port: &Value) -> Vec<SocketAddr> {
    let selector = json::strings(service, &["spec", "selector"]);
    let even_unready = service["spec"]["publishNotReadyAddresses"] == Value::Bool(true);
    let families = json::items(service, &["spec", "ipFamilies"]);
    let is_preferred = |address: &IpAddr| {
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        families
            .first()
            .and_then(Value::as_str)
            .is_none_or(|first| first == family)
    };
    let pods = cache.stores.tenant(KindId::Pod).all().into_iter();
    pods.filter(|(pod, _)| pod.namespace == name.namespace)
        .filter_map(|(pod, stored)| {
            let object = stored.object();
            let labels = json::strings(&object, &["metadata", "labels"]);
            let host = cache.stores.host(KindId::Pod).get(&pod)?;
            let state = host.object();
            let is_good = selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && stored.deletion.is_none()
                && is_origin(&stored, &host)
                && !is_finished(&state["status"])
                && (even_unready || (is_ready(&state) && host.deletion.is_none()));
            let port = is_good.then(|| port_by_reading(&object, port)).flatten()?;
            let addresses = pod_addresses::of(&state);
            let address = addresses.iter().find(|address| is_preferred(address));
            address
                .or(addresses.first())
                .map(|address| SocketAddr::new(*address, port))
        })
        .collect()
}

fn port_by_reading(pod: &Value, port: &Value) -> Option<u16> {
    let target = match &port["targetPort"] {
        Value::Null => &port["port"],
        target => target,
    };
    let named = |name: &str| {
        let containers = ["containers", "initContainers"].into_iter();
        let containers = containers.flat_map(|field| json::items(pod, &["spec", field]));
        let mut ports = containers.flat_map(|container| json::items(container, &["ports"]));
        ports.find(|port| port["name"] == name)?["containerPort"].as_u64()
    };
    let number = target.as_str().map_or_else(|| target.as_u64(), named);
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)
}

fn put(cache: &Cache, side: Side, kind: KindId, name: &Name, object: Value) {
    cache.stores.of(side, kind).watched(name.clone(), Stored::from(object));
    cache.update_dependents(side, kind, name);
}

fn forget(cache: &Cache, side: Side, kind: KindId, name: &Name) {
    cache.stores.of(side, kind).forget(name);
    cache.update_dependents(side, kind, name);
}

/// One of six pods, in two namespaces.
fn pod_name(number: u8) -> Name {
    let namespace = if number.is_multiple_of(2) { "team" } else { "other" };
    Name::new(namespace, &format!("p{number}"))
}

/// The tenant's pod, of which bits say what it is.
fn tenant_pod(bits: u16) -> Value {
    let is = |bit: u16| bits & (1 << bit) != 0;
    let mut labels = json!({"app": if is(0) { "a" } else { "b" }});
    if is(1) {
        labels["tier"] = "web".into();
    }
    let mut metadata = json!({"name": "p", "uid": if is(2) { "one" } else { "two" }, "labels": labels});
    if is(3) && is(4) {
        metadata["deletionTimestamp"] = "2027-01-15T08:00:30Z".into();
    }
    let port = |bit: u16, number: u32| is(bit).then(|| json!({"name": "web", "containerPort": number}));
    let own: Vec<Value> = [port(5, 8443), port(6, 70_000), port(7, 8444)]
        .into_iter()
        .flatten()
        .collect();
    let first: Vec<Value> = port(8, 9000).into_iter().collect();
    json!({"metadata": metadata, "spec": {"containers": [{}, {"ports": own}], "initContainers": [{"ports": first}]}})
}

/// The host's pod, of which bits say what it is.
fn host_pod(name: &Name, number: u8, bits: u16) -> Value {
    let is = |bit: u16| bits & (1 << bit) != 0;
    let mut metadata = json!({
        "name": host_name(KindId::Pod, name),
        "uid": "h",
        "annotations": {"berth.dev/origin-uid": if is(0) { "one" } else { "two" }},
    });
    if is(1) && is(2) {
        metadata["deletionTimestamp"] = "2027-01-15T08:00:30Z".into();
    }
    let phase = if is(3) && is(4) { "Succeeded" } else { "Running" };
    let (four, six) = (format!("10.0.0.{number}"), format!("fd00::{number}"));
    let addresses = [(5, &four), (6, &six)].into_iter().filter(|(bit, _)| is(*bit));
    let addresses: Vec<Value> = addresses.map(|(_, address)| json!({"ip": address})).collect();
    let ready = if is(7) { "True" } else { "False" };
    let mut status = json!({"phase": phase, "podIPs": addresses, "conditions": [{"type": "Ready", "status": ready}]});
    if is(8) && is(9) {
        status["hostIP"] = four.into();
    }
    json!({"metadata": metadata, "status": status})
}

/// Services that differ in everything on which their endpoints depend.
fn services() -> Vec<Value> {
    let mut services = Vec::new();
    let selectors = [
        json!({"app": "a"}),
        json!({"tier": "web"}),
        json!({"app": "a", "tier": "web"}),
    ];
    let ports = [
        json!({"port": 80}),
        json!({"port": 80, "targetPort": 8080}),
        json!({"port": 80, "targetPort": "web"}),
        json!({"port": 80, "targetPort": 0}),
    ];
    for selector in &selectors {
        for port in &ports {
            for families in [json!(null), json!(["IPv4"]), json!(["IPv6", "IPv4"])] {
                for unready in [false, true] {
                    services.push(json!({"metadata": {"name": "s"}, "spec": {
                        "selector": selector, "ports": [port], "ipFamilies": families, "publishNotReadyAddresses": unready}}));
                }
            }
        }
    }
    services
}

proptest! {
    /// Whatever happens to pods on both sides, in whichever order, the endpoints of all Services are those that reading all pods finds.
    #[test]
    fn what_is_known_of_pods_leads_to_the_same_as_reading_them(
        changes in prop::collection::vec((any::<bool>(), 0_u8..6, prop::option::weighted(0.9, any::<u16>())), 0..40)
    ) {
        let cache = registry::new_cache(test_tenant());
        for (is_host, number, bits) in changes {
            let name = pod_name(number);
            let side = if is_host { Side::Host } else { Side::Tenant };
            match bits {
                Some(bits) if is_host => put(&cache, side, KindId::Pod, &name, host_pod(&name, number, bits)),
                Some(bits) => put(&cache, side, KindId::Pod, &name, tenant_pod(bits)),
                None => forget(&cache, side, KindId::Pod, &name),
            }
        }
        let name = Name::new("team", "s");
        for service in services() {
            let port = &service["spec"]["ports"][0];
            let part = working_part(&Stored::new(&service));
            let mut known = of_pods(&cache, &name, &part, port);
            let mut read = of_pods_by_reading(&cache, &name, &service, port);
            known.sort();
            read.sort();
            prop_assert_eq!(known, read, "{}", service);
        }
    }
}

#[test]
fn a_connection_reads_no_pod() {
    let cache = registry::new_cache(test_tenant());
    let (name, pod) = (Name::new("team", "hook"), pod_name(2));
    let service = json!({"metadata": {"name": "hook"}, "spec": {"clusterIP": "10.96.7.7", "selector": {"app": "a"}, "ports": [{"port": 443}]}});
    put(&cache, Side::Tenant, KindId::Service, &name, service);
    // Of the label `app: a`, and for the same pod; running and ready.
    put(&cache, Side::Tenant, KindId::Pod, &pod, tenant_pod(0b101));
    put(
        &cache,
        Side::Host,
        KindId::Pod,
        &pod,
        host_pod(&pod, 2, 1 | (1 << 5) | (1 << 7)),
    );
    let endpoints = || endpoints(&cache, &name, 443);
    let address: SocketAddr = "10.0.0.2:443".parse().unwrap();
    let expected = Ok(vec![address]);
    assert_eq!(endpoints(), expected);
    for side in [Side::Tenant, Side::Host] {
        cache.stores.of(side, KindId::Pod).forget(&pod);
    }
    assert_eq!(endpoints(), expected, "what is known is all that is needed");
    cache.update_dependents(Side::Host, KindId::Pod, &pod);
    assert!(endpoints().is_err());
    assert_eq!(by_address(&cache, "10.96.7.7".parse().unwrap()), Some(name.clone()));
    forget(&cache, Side::Tenant, KindId::Service, &name);
    assert_eq!(by_address(&cache, "10.96.7.7".parse().unwrap()), None);
}

#[test]
fn slices_are_found_by_their_service_and_no_others_are_read() {
    let cache = registry::new_cache(test_tenant());
    let pod = pod_name(2);
    put(&cache, Side::Tenant, KindId::Pod, &pod, tenant_pod(0b101));
    put(&cache, Side::Host, KindId::Pod, &pod, host_pod(&pod, 2, 1 | (1 << 5)));
    let name = Name::new("team", "by-hand");
    let service = json!({"metadata": {"name": "by-hand"}, "spec": {"ports": [{"port": 443}]}});
    put(&cache, Side::Tenant, KindId::Service, &name, service);
    let slice = |service: &str, port: u16| {
        json!({
            "metadata": {"name": "x", "labels": {endpoint_slice::SERVICE: service}},
            "addressType": "IPv4",
            "ports": [{"port": port}],
            "endpoints": [{"addresses": ["10.0.0.2"]}],
        })
    };
    let put_slice = |namespace: &str, slice_name: &str, object: Value| {
        let slice_name = Name::new(namespace, slice_name);
        put(&cache, Side::Tenant, KindId::EndpointSlice, &slice_name, object);
    };
    put_slice("team", "a", slice("by-hand", 1));
    put_slice("team", "b", slice("another", 2));
    put_slice("other", "c", slice("by-hand", 3));
    put_slice("team", "d", slice("by-hand", 4));
    let found = || {
        let found = endpoints(&cache, &name, 443).unwrap_or_default();
        found.iter().map(SocketAddr::port).collect::<Vec<_>>()
    };
    assert_eq!(found(), [1, 4]);
    // The index follows in a moment.
    let slices = cache.stores.tenant(KindId::EndpointSlice);
    slices.watched(Name::new("team", "a"), Stored::from(slice("another", 1)));
    assert_eq!(found(), [4]);
    put_slice("team", "a", slice("another", 1));
    forget(&cache, Side::Tenant, KindId::EndpointSlice, &Name::new("team", "d"));
    assert_eq!(found(), [0; 0]);
}
