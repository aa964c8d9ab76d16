use super::*;
use crate::{
    model::{
        resource::{Side, host_name},
        store::Stored,
        tenant::test_tenant,
    },
    registry,
};
use berth_api::NetworkLimits;
use serde_json::{Value, json};
use std::sync::Arc;

const OWN_POD: &str = "10.244.1.7";
const OTHER_POD: &str = "10.244.2.9";
const CLUSTER_IP: &str = "10.96.7.7";

fn put(cache: &Cache, side: Side, kind: KindId, name: &Name, mut object: Value) {
    object["metadata"]["resourceVersion"] = "1".into();
    cache.stores.of(side, kind).written(name.clone(), Stored::new(&object));
    cache.update_dependents(side, kind, name);
}

/// A pod of the tenant, and its host pod.
fn pod(cache: &Cache, name: &str, labels: &Value, address: &str, ready: &str) {
    let name = Name::new("default", name);
    let tenant = json!({
        "metadata": {"name": name.name.as_ref(), "uid": "u", "labels": labels},
        "spec": {"containers": [{"name": "main", "ports": [{"name": "web", "containerPort": 8443}]}]},
    });
    let host = json!({
        "metadata": {"name": host_name(KindId::Pod, &name), "uid": "h", "annotations": {"berth.dev/origin-uid": "u"}},
        "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
    });
    put(cache, Side::Tenant, KindId::Pod, &name, tenant);
    put(cache, Side::Host, KindId::Pod, &name, host);
}

fn service(cache: &Cache, name: &str, spec: &Value) {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    put(
        cache,
        Side::Tenant,
        KindId::Service,
        &Name::new("default", name),
        object,
    );
}

fn cache() -> Cache {
    let network = NetworkLimits {
        api_server_hosts: vec!["hooks.example.com".into(), "10.9.9.9:8443".into(), "[fd00::9]".into()],
        endpoint_cidrs: vec!["10.30.0.0/16".into()],
        blocked: vec!["10.96.0.0/12".into(), "10.244.0.0/16".into(), "172.18.0.0/16".into()],
        ..NetworkLimits::default()
    };
    let mut tenant = test_tenant();
    tenant.network = Arc::new(network);
    let cache = registry::new_cache(tenant);
    let node = json!({
        "metadata": {"name": "gpu-1"},
        "spec": {"nodeName": "gpu-1"},
        "status": {"node": {"addresses": [{"type": "InternalIP", "address": "172.18.0.5"}, {"type": "InternalIP", "address": "fd18::5"}]}},
    });
    put(&cache, Side::Host, KindId::Node, &Name::new("", "gpu-1"), node);
    pod(&cache, "hook", &json!({"app": "hook"}), OWN_POD, "True");
    pod(&cache, "starting", &json!({"app": "hook"}), "10.244.1.8", "False");
    let ports = json!([{"port": 443, "targetPort": "web"}, {"port": 53, "protocol": "UDP"}, {"port": 80}]);
    service(
        &cache,
        "hook",
        &json!({"clusterIP": CLUSTER_IP, "clusterIPs": [CLUSTER_IP, "fd96::7"], "selector": {"app": "hook"}, "ports": ports}),
    );
    cache
}

fn locals() -> Locals<SocketAddr> {
    let mut locals = Locals::default();
    let target = Target::parse("127.0.0.1:8443").unwrap();
    locals.add(target, ([127, 0, 0, 1], 8443).into());
    locals
}

fn go(cache: &Cache, target: &str) -> String {
    match route(cache, &locals(), &Target::parse(target).unwrap()) {
        Ok(Route::Local(local)) => format!("local {local:?}"),
        Ok(Route::Kubelet(node)) => format!("kubelet {node}"),
        Ok(Route::Addresses(kind, addresses)) => format!("{kind} {addresses:?}"),
        Ok(Route::External(target)) => format!("external {target}"),
        Err(error) => format!("{} {}", error.status.as_u16(), error.message),
    }
}

#[test]
fn targets_of_the_tenant_can_be_reached() {
    let cache = cache();
    for (target, way) in [
        ("gpu-1:10250", "kubelet gpu-1"),
        ("172.18.0.5:10250", "kubelet gpu-1"),
        ("[fd18::5]:10250", "kubelet gpu-1"),
        ("127.0.0.1:8443", "local 127.0.0.1:8443"),
        ("10.244.1.7:9999", "pod [10.244.1.7:9999]"),
        ("10.96.7.7:443", "service [10.244.1.7:8443]"),
        ("10.96.7.7:80", "service [10.244.1.7:80]"),
        ("[fd96::7]:443", "service [10.244.1.7:8443]"),
        ("hook.default.svc:443", "service [10.244.1.7:8443]"),
        ("hook.default.svc.cluster.local.:443", "service [10.244.1.7:8443]"),
        ("hooks.example.com:443", "external hooks.example.com:443"),
        ("10.9.9.9:8443", "external 10.9.9.9:8443"),
        ("[fd00::9]:443", "external [fd00::9]:443"),
        ("10.30.1.2:5000", "endpoint [10.30.1.2:5000]"),
    ] {
        assert_eq!(go(&cache, target), way, "{target}");
    }
}

#[test]
fn connections_for_users_differ_from_those_of_the_api_server_itself() {
    let cache = cache();
    let is_for_users = |target: &str| {
        let route = route(&cache, &locals(), &Target::parse(target).unwrap());
        route.unwrap().is_for_users()
    };
    for target in ["gpu-1:10250", "10.244.1.7:9999", "10.30.1.2:5000"] {
        assert!(is_for_users(target), "{target}");
    }
    for target in [
        "127.0.0.1:8443",
        "10.96.7.7:443",
        "hook.default.svc:443",
        "hooks.example.com:443",
        "10.9.9.9:8443",
    ] {
        assert!(!is_for_users(target), "{target}");
    }
}

#[test]
fn targets_at_addresses_of_pods_have_the_namespace_of_the_pod() {
    let cache = cache();
    let namespace = |target: &str| namespace_of_pod(&cache, &Target::parse(target).unwrap());
    assert_eq!(namespace("10.244.1.7:9999").as_deref(), Some("default"));
    for target in ["10.96.7.7:443", "10.30.1.2:5000", "hook.default.svc:443"] {
        assert_eq!(namespace(target), None, "{target}");
    }
}

#[test]
fn other_targets_are_denied_with_a_reason() {
    let cache = cache();
    for (target, message) in [
        (
            "169.254.169.254:80",
            "403 169.254.169.254:80 is a link-local address, where metadata services are",
        ),
        (
            "[fd00:ec2::254]:80",
            "403 [fd00:ec2::254]:80 is the address of a metadata service",
        ),
        ("[::ffff:169.254.169.254]:80", "an IPv6 form of an IPv4 address"),
        ("[64:ff9b::a9fe:a9fe]:80", "an IPv6 form of an IPv4 address"),
        ("127.0.0.1:6443", "a loopback address"),
        ("[::1]:8443", "a loopback address"),
        ("0.0.0.0:8443", "an unspecified address"),
        ("224.0.0.1:80", "a multicast address"),
        ("172.18.0.5:2379", "403 172.18.0.5:2379: ports of nodes"),
        ("gpu-1:22", "403 gpu-1:22: ports of nodes"),
        ("172.18.0.6:10250", "is no address of your pods"),
        (
            "gpu-2:10250",
            "neither a Service of your cluster nor a host that your class lists",
        ),
        (&format!("{OTHER_POD}:80"), "is no address of your pods"),
        ("10.96.0.1:443", "is no address of your pods or Services"),
        (
            "kubernetes.default.svc:443",
            "404 there is no Service default/kubernetes",
        ),
        ("metadata.google.internal:80", "nor a host that your class lists"),
        ("localhost:443", "nor a host that your class lists"),
        ("hooks.example.com:80", "nor a host that your class lists"),
        ("evil.hooks.example.com:443", "nor a host that your class lists"),
        ("10.9.9.9:443", "is no address of your pods"),
        ("10.96.7.7:53", "404 Service default/hook has no TCP port 53"),
        ("10.96.7.7:10250", "404 Service default/hook has no TCP port 10250"),
        ("[fd96::8]:443", "is no address of your pods"),
    ] {
        let way = go(&cache, target);
        assert!(way.contains(message), "{target}: {way}");
    }
}

#[test]
fn an_ending_or_replaced_pod_is_no_endpoint() {
    let cache = cache();
    let name = Name::new("default", "hook");
    let message = "503 Service default/hook has no endpoint that is ready and one of your pods";
    let mut host = Value::clone(&cache.stores.host(KindId::Pod).get(&name).unwrap().object());
    host["metadata"]["annotations"]["berth.dev/origin-uid"] = "earlier".into();
    put(&cache, Side::Host, KindId::Pod, &name, host.clone());
    assert_eq!(go(&cache, "10.96.7.7:443"), message);
    host["metadata"]["annotations"]["berth.dev/origin-uid"] = "u".into();
    put(&cache, Side::Host, KindId::Pod, &name, host.clone());
    assert_eq!(go(&cache, "10.96.7.7:443"), "service [10.244.1.7:8443]");
    let mut removed = host.clone();
    removed["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z".into();
    put(&cache, Side::Host, KindId::Pod, &name, removed);
    assert_eq!(go(&cache, "10.96.7.7:443"), message, "the host removes it");
    host["status"]["phase"] = "Failed".into();
    put(&cache, Side::Host, KindId::Pod, &name, host);
    assert_eq!(go(&cache, "10.96.7.7:443"), message);
    assert!(
        go(&cache, "10.244.1.7:80").starts_with("403"),
        "its address may be another tenant's now"
    );
}

#[test]
fn what_the_kubelet_of_a_node_reports_does_not_open_closed_addresses() {
    let cache = cache();
    let no_endpoint = "503 Service default/hook has no endpoint that is ready and one of your pods";
    for address in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
        "64:ff9b::a9fe:a9fe",
    ] {
        pod(&cache, "hook", &json!({"app": "hook"}), address, "True");
        let target = Target {
            host: Host::Address(address.parse().unwrap()),
            port: 80,
        };
        let way = go(&cache, &target.to_string());
        assert!(way.starts_with("403 "), "{way}");
        assert_eq!(go(&cache, "10.96.7.7:443"), no_endpoint, "{address}");
        assert_eq!(go(&cache, "hook.default.svc:80"), no_endpoint, "{address}");
    }
}

#[test]
fn endpoints_that_the_tenant_writes_are_limited_to_allowed_addresses() {
    let cache = cache();
    service(
        &cache,
        "by-hand",
        &json!({"clusterIP": "10.96.7.9", "ports": [{"name": "a", "port": 443}]}),
    );
    let slice = |addresses: &Value| {
        let name = Name::new("default", "by-hand-1");
        let object = json!({
            "metadata": {"name": "by-hand-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "by-hand"}},
            "addressType": "IPv4",
            "ports": [{"name": "b", "port": 1}, {"name": "a", "port": 8443}],
            "endpoints": [{"addresses": addresses}, {"addresses": ["10.244.1.8"], "conditions": {"ready": false}}],
        });
        put(&cache, Side::Tenant, KindId::EndpointSlice, &name, object);
        go(&cache, "10.96.7.9:443")
    };
    let no_endpoint = "503 Service default/by-hand has no endpoint that is ready and one of your pods";
    for address in [
        OTHER_POD,
        "169.254.169.254",
        "127.0.0.1",
        "10.96.0.1",
        "172.18.0.5",
        "8.8.8.8",
    ] {
        assert_eq!(slice(&json!([address])), no_endpoint, "{address}");
    }
    assert_eq!(slice(&json!([OWN_POD, OTHER_POD])), "service [10.244.1.7:8443]");
    assert_eq!(slice(&json!(["10.30.0.1"])), "service [10.30.0.1:8443]");
}

#[test]
fn networks_for_endpoints_do_not_open_closed_ones() {
    let mut tenant = cache().tenant.clone();
    Arc::make_mut(&mut tenant.network).endpoint_cidrs = vec!["0.0.0.0/0".into(), "::/0".into()];
    let cache = registry::new_cache(tenant);
    pod(&cache, "hook", &json!({"app": "hook"}), OWN_POD, "True");
    service(
        &cache,
        "by-hand",
        &json!({"clusterIP": "10.96.7.9", "ports": [{"name": "a", "port": 443}]}),
    );
    let slice = |address: &str| {
        let name = Name::new("default", "by-hand-1");
        let object = json!({
            "metadata": {"name": "by-hand-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "by-hand"}},
            "addressType": "IPv4",
            "ports": [{"name": "a", "port": 8443}],
            "endpoints": [{"addresses": [address]}],
        });
        put(&cache, Side::Tenant, KindId::EndpointSlice, &name, object);
        go(&cache, "10.96.7.9:443")
    };
    let no_endpoint = "503 Service default/by-hand has no endpoint that is ready and one of your pods";
    for address in [OTHER_POD, "10.96.0.1", "172.18.0.5"] {
        let way = go(&cache, &format!("{address}:443"));
        assert_eq!(
            way,
            format!("403 {address}:443 is in a network of the platform, which is never open to endpoints")
        );
        assert_eq!(slice(address), no_endpoint, "{address}");
    }
    for address in ["169.254.169.254", "100.100.100.200", "127.0.0.1", "240.0.0.1"] {
        let way = go(&cache, &format!("{address}:443"));
        assert!(way.starts_with("403 "), "{way}");
        assert_eq!(slice(address), no_endpoint, "{address}");
    }
    let way = go(&cache, "[64:ff9b::a9fe:a9fe]:443");
    assert!(way.contains("an IPv6 form of an IPv4 address"), "{way}");
    for (address, way) in [("8.8.8.8", "endpoint"), (OWN_POD, "pod")] {
        assert_eq!(go(&cache, &format!("{address}:443")), format!("{way} [{address}:443]"));
        assert_eq!(slice(address), format!("service [{address}:8443]"));
    }
}

#[test]
fn the_hosts_api_server_is_no_endpoint() {
    let platform = ["192.168.1.1".parse().unwrap()];
    let target = Target::parse("by-hand.default.svc:443").unwrap();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(
        without_platform(&platform, &target, vec![at("192.168.1.1:6443"), at("192.168.1.2:6443")]),
        Ok(vec![at("192.168.1.2:6443")])
    );
    let error = without_platform(&platform, &target, vec![at("192.168.1.1:6443")]).unwrap_err();
    assert_eq!(
        (error.status, error.message.as_str()),
        (
            StatusCode::FORBIDDEN,
            "by-hand.default.svc:443 may not be reached: its address is the platform's own"
        )
    );
}

#[test]
fn resolved_addresses_are_checked() {
    let cache = cache();
    let platform = ["192.168.1.1".parse().unwrap()];
    let target = Target::parse("hooks.example.com:443").unwrap();
    let check = |address: &str| check_external(&cache, &platform, &target, address.parse().unwrap());
    assert_eq!(check("93.184.215.14"), Ok(()));
    assert_eq!(check("192.168.1.2"), Ok(()));
    for address in [
        "169.254.169.254",
        "127.0.0.1",
        "::1",
        "::ffff:93.184.215.14",
        "fd00:ec2::254",
        "192.168.1.1",
        "10.96.0.1",
        "172.18.0.5",
        OWN_POD,
    ] {
        let message = check(address).unwrap_err().message;
        assert!(
            message.starts_with("hooks.example.com:443 may not be reached: its address is "),
            "{address}: {message}"
        );
        assert!(!message.contains(address), "{message}");
    }
}

proptest::proptest! {
    /// Only the addresses that the cache contains can be reached.
    #[test]
    fn unknown_addresses_cannot_be_reached(bits: u32, port in 1_u16..) {
        let cache = cache();
        let target = Target { host: Host::Address(std::net::Ipv4Addr::from(bits).into()), port };
        let known = [[10, 244, 1, 7], [10, 96, 7, 7], [172, 18, 0, 5], [10, 9, 9, 9]].map(u32::from_be_bytes);
        if !known.contains(&bits) && bits >> 16 != u32::from_be_bytes([0, 0, 10, 30]) {
            proptest::prop_assert!(route(&cache, &Locals::<SocketAddr>::default(), &target).is_err());
        }
    }
}
