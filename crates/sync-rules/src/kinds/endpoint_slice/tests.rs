use super::*;
use crate::kinds::schemas;
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

fn put(cache: &Cache, name: &Name, slice: &Value) {
    let slices = cache.stores.tenant(KindId::EndpointSlice);
    slices.watched(name.clone(), Stored::new(slice));
    cache.update_dependents(Side::Tenant, KindId::EndpointSlice, name);
}

#[test]
fn a_slice_follows_the_pods_whose_addresses_it_names() {
    let cache = cache();
    let many = vec!["10.1.2.3"; MAX_ADDRESSES + 1];
    put(&cache, &name(), &slice("db", &["192.0.2.7", "10.1.2.3"]));
    put(&cache, &api_server(), &slice("kubernetes", &["192.0.2.1"]));
    put(&cache, &Name::new("shop", "another"), &slice("db", &["10.1.2.4"]));
    put(&cache, &Name::new("shop", "denied"), &slice("db", &many));
    let follow = |version: u64, phase: &str| {
        let mut keys = pod(&cache, version, phase);
        keys.retain(|key| key.kind == KindId::EndpointSlice);
        keys
    };
    assert_eq!(follow(2, "Running"), [KindId::EndpointSlice.key(name())]);
    put(&cache, &name(), &slice("db", &["192.0.2.7"]));
    assert!(follow(3, "Succeeded").is_empty());
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
    put(&cache, &name(), &slice);
    assert_eq!(addresses(&cache, &slice).1.len(), 1, "no pod yet");
    let key = KindId::EndpointSlice.key(name());
    assert!(pod(&cache, 1, "Running").contains(&key));
    assert_eq!(addresses(&cache, &slice), (vec![json!("10.1.2.3")], vec![]));
    assert!(!pod(&cache, 2, "Running").contains(&key), "no news");
    assert!(pod(&cache, 3, "Succeeded").contains(&key));
    assert_eq!(addresses(&cache, &slice).0, Vec::<Value>::new());
}

#[test]
fn addresses_that_are_lost_do_not_wait_for_those_that_are_new() {
    let object = |addresses: &[&str], port: u16| {
        let mut slice = slice("db", addresses);
        slice["ports"][0]["port"] = port.into();
        slice["metadata"]["annotations"] = json!({});
        slice
    };
    let live = object(&["10.1.2.3", "10.1.2.4"], 1);
    let desired = object(&["10.1.2.4", "10.1.2.5"], 2);
    assert_eq!(Slices.narrowed(&desired, &live), Some(object(&["10.1.2.4"], 1)));
    assert_eq!(Slices.narrowed(&object(&[], 2), &live), Some(object(&[], 1)));
    for grown in [object(&["10.1.2.3", "10.1.2.4", "10.1.2.5"], 2), live.clone()] {
        assert_eq!(Slices.narrowed(&grown, &live), None, "nothing is lost");
    }
    let mut both = live.clone();
    both["endpoints"] = json!([{"addresses": ["10.1.2.4", "10.1.2.5"]}]);
    assert_eq!(
        Slices.narrowed(&live, &both).unwrap()["endpoints"],
        json!([{"addresses": ["10.1.2.4"]}]),
        "one of both is lost"
    );
}

#[test]
fn nothing_of_a_change_is_written_with_the_addresses_that_are_lost() {
    let live = slice("db", &["10.1.2.3", "10.1.2.4"]);
    let mut fat = slice("web", &["10.1.2.3"; 500]);
    for endpoint in fat["endpoints"].as_array_mut().unwrap() {
        endpoint["hostname"] = "a".repeat(63).into();
    }
    fat["ports"] = json!(vec![json!({"port": 1}); 100]);
    fat["metadata"]["annotations"] = json!({"simulation.berth.dev/a": "a".repeat(100_000)});
    let mut left = slice("db", &["10.1.2.3"]);
    left["metadata"]["annotations"] = json!({});
    assert_eq!(Slices.narrowed(&fat, &live), Some(left));
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

#[test]
fn every_field_of_every_version_has_a_rule() {
    schemas::check(&[
        ("Endpoint", ENDPOINT),
        ("EndpointConditions", CONDITIONS),
        ("EndpointHints", HINTS),
        ("EndpointPort", PORT),
        ("EndpointSlice", SLICE),
        ("ForNode", HINT),
        ("ForZone", HINT),
    ]);
}
