//! What an API server allocates to a Service: addresses and node ports, which are the same on both sides. The host
//! allocates them, and the tenant's object gets the same.

use crate::model::json;
use serde_json::{Map, Value, json};

/// Fields of the spec that an API server allocates, without those of the ports.
const ALLOCATED: [&str; 5] = [
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "healthCheckNodePort",
];

/// Fields that decide whether there are node ports, and which.
const EXPOSING: [&str; 4] = [
    "type",
    "externalTrafficPolicy",
    "allocateLoadBalancerNodePorts",
    "healthCheckNodePort",
];

pub(super) fn kind(service: &Value) -> &str {
    json::text(service, &["spec", "type"]).unwrap_or("ClusterIP")
}

fn cluster_ip(service: &Value) -> &str {
    json::text(service, &["spec", "clusterIP"]).unwrap_or_default()
}

/// Whether a Service of this type has an address. A headless one (`None`) and one for an external name have none.
fn has_address(service: &Value) -> bool {
    kind(service) != "ExternalName" && cluster_ip(service) != "None"
}

/// The addresses of a Service, of one family or of both, as they are written.
pub fn addresses(service: &Value) -> impl Iterator<Item = &str> {
    let all = json::items(service, &["spec", "clusterIPs"])
        .iter()
        .filter_map(Value::as_str);
    let written = std::iter::once(cluster_ip(service)).chain(all);
    written.filter(|address| !address.is_empty() && *address != "None")
}

pub(super) fn is_exposed(service: &Value) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
}

/// What is allocated to a Service.
pub fn of(service: &Value) -> Value {
    let mut allocated: Map<String, Value> = ALLOCATED
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), service["spec"].get(field)?.clone())))
        .filter(|(_, value)| !json::is_unset(value))
        .collect();
    allocated.insert("type".into(), kind(service).into());
    let mut ports: Vec<Value> = json::items(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            json!([
                port.get("port"),
                protocol(port),
                port.get("nodePort").and_then(Value::as_u64)
            ])
        })
        .collect();
    ports.sort_by_key(ToString::to_string);
    allocated.insert("ports".into(), ports.into());
    allocated.into()
}

fn protocol(port: &Value) -> &str {
    json::text(port, &["protocol"]).unwrap_or("TCP")
}

pub(super) fn is_same_port(one: &Value, other: &Value) -> bool {
    one.get("port") == other.get("port") && protocol(one) == protocol(other)
}

/// Whether something has to be allocated before `service` can be stored in place of `old`. Releases happen afterwards.
pub fn is_needed(service: &Value, old: Option<&Value>) -> bool {
    if !has_address(service) {
        return false;
    }
    let Some(old) = old.filter(|old| kind(old) != "ExternalName" && !cluster_ip(old).is_empty()) else {
        return true;
    };
    // An update that leaves out an allocated value keeps it; a changed address is rejected by the API server itself.
    let is_kept = |field: &str| {
        service["spec"].get(field).is_none_or(json::is_unset) || service["spec"].get(field) == old["spec"].get(field)
    };
    if !is_kept("clusterIP") {
        return false;
    }
    let goes_single = json::text(service, &["spec", "ipFamilyPolicy"]) == Some("SingleStack");
    let addresses = ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].into_iter().all(is_kept);
    if !addresses && !goes_single {
        return true;
    }
    let ports_kept = || {
        let known = json::items(old, &["spec", "ports"]);
        json::items(service, &["spec", "ports"]).iter().all(|port| {
            let is_kept = |other: &&Value| {
                let wanted = port.get("nodePort").filter(|number| !json::is_unset(number));
                is_same_port(other, port) && (wanted.is_none() || wanted == other.get("nodePort"))
            };
            known.iter().any(|other| is_kept(&other))
        })
    };
    is_exposed(service) && !(EXPOSING.into_iter().all(is_kept) && ports_kept())
}

/// JSON patch operations that write into `service` what the host has allocated.
pub fn patch(service: &Value, host: &Value) -> Vec<Value> {
    let add = |path: String, value: &Value| json!({"op": "add", "path": path, "value": value});
    let (spec, given) = (&service["spec"], &host["spec"]);
    let mut operations: Vec<Value> = ALLOCATED
        .iter()
        .filter_map(|field| Some((field, given.get(field).filter(|value| !json::is_unset(value))?)))
        .filter(|(field, value)| spec.get(field) != Some(value))
        .map(|(field, value)| add(format!("/spec/{field}"), value))
        .collect();
    if is_exposed(service) {
        let host_ports = json::items(given, &["ports"]);
        for (index, port) in json::items(spec, &["ports"]).iter().enumerate() {
            let number = host_ports
                .iter()
                .find(|other| is_same_port(other, port))
                .and_then(|other| other.get("nodePort"))
                .filter(|number| !json::is_unset(number) && port.get("nodePort") != Some(number));
            operations.extend(number.map(|number| add(format!("/spec/ports/{index}/nodePort"), number)));
        }
    }
    operations
}

/// Whether the host's Service has to be replaced because its address differs.
pub fn is_another(wanted: &Value, live: &Value) -> bool {
    let is_set = |service: &&Value| kind(service) != "ExternalName" && !cluster_ip(service).is_empty();
    let addresses = |service: &Value| json::items(service, &["spec", "clusterIPs"]).to_vec();
    let (Some(wanted), Some(live)) = (Some(wanted).filter(is_set), Some(live).filter(is_set)) else {
        return false;
    };
    cluster_ip(wanted) != cluster_ip(live)
        || addresses(wanted)
            .iter()
            .zip(addresses(live))
            .any(|(wanted, live)| *wanted != live)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: &Value) -> Value {
        json!({"spec": spec})
    }

    fn with_address() -> Value {
        service(
            &json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP"}]}),
        )
    }

    fn changed(changes: &Value) -> Value {
        let mut changed = with_address();
        for (key, value) in changes.as_object().unwrap() {
            changed["spec"][key] = value.clone();
        }
        changed
    }

    #[test]
    fn new_services_need_an_address_unless_they_have_none() {
        assert!(is_needed(&service(&json!({"type": "ClusterIP"})), None));
        assert!(is_needed(
            &service(&json!({"type": "ClusterIP", "clusterIP": "10.96.0.9"})),
            None
        ));
        assert!(!is_needed(&service(&json!({"type": "ExternalName"})), None));
        assert!(!is_needed(
            &service(&json!({"type": "ClusterIP", "clusterIP": "None"})),
            None
        ));
    }

    #[test]
    fn updates_need_the_host_only_for_new_allocations() {
        let old = with_address();
        let cases = [
            (json!({"selector": {"a": "b"}}), false),
            (json!({"clusterIP": "", "clusterIPs": null, "ipFamilies": null}), false),
            (json!({"clusterIP": "10.96.0.10"}), false),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), true),
            (json!({"ports": [{"port": 81}]}), false),
            (json!({"type": "NodePort"}), true),
            (json!({"type": "ExternalName"}), false),
            (json!({"type": "LoadBalancer"}), true),
        ];
        for (change, needed) in cases {
            assert_eq!(is_needed(&changed(&change), Some(&old)), needed, "{change}");
        }
        let external = service(&json!({"type": "ExternalName", "externalName": "example.com"}));
        assert!(is_needed(&old, Some(&external)));
        let headless = changed(&json!({"clusterIP": "None", "clusterIPs": ["None"]}));
        assert!(!is_needed(&old, Some(&headless)), "headless stays headless");
        assert!(!is_needed(&external, Some(&old)));
    }

    #[test]
    fn new_ports_need_node_ports() {
        let old = changed(&json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}));
        let with = |ports: Value| changed(&json!({"type": "NodePort", "ports": ports}));
        for (ports, needed) in [
            (json!([{"port": 80}]), false),
            (json!([{"port": 80, "nodePort": 30080}]), false),
            (json!([{"port": 80, "nodePort": 30081}]), true),
            (json!([{"port": 80}, {"port": 81}]), true),
            (json!([{"port": 80, "protocol": "UDP"}]), true),
        ] {
            assert_eq!(is_needed(&with(ports.clone()), Some(&old)), needed, "{ports}");
        }
        assert!(!is_needed(&with_address(), Some(&old)), "a release needs nothing");
    }

    #[test]
    fn a_second_family_needs_an_address_and_removing_it_does_not() {
        let dual = changed(
            &json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.0.9", "fd00::9"], "ipFamilies": ["IPv4", "IPv6"]}),
        );
        assert!(is_needed(&dual, Some(&with_address())));
        assert!(!is_needed(&with_address(), Some(&dual)));
    }

    #[test]
    fn the_patch_writes_what_was_given() {
        let asked = service(&json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}));
        let host = service(
            &json!({"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "selector": {"berth.dev/tenant": "x"},
            "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053}, {"port": 80, "protocol": "TCP", "nodePort": 30080}]}),
        );
        insta::assert_yaml_snapshot!(patch(&asked, &host));
        assert!(patch(&with_address(), &with_address()).is_empty());
    }

    #[test]
    fn only_allocated_fields_are_compared() {
        let more = changed(&json!({"selector": {"a": "b"}, "ports": [{"port": 80}]}));
        assert_eq!(of(&more), of(&with_address()));
        assert_ne!(of(&changed(&json!({"type": "NodePort"}))), of(&with_address()));
    }

    #[test]
    fn another_address_needs_a_new_service() {
        assert!(!is_another(&with_address(), &with_address()));
        assert!(is_another(
            &changed(&json!({"clusterIP": "10.96.0.10"})),
            &with_address()
        ));
        assert!(is_another(&changed(&json!({"clusterIP": "None"})), &with_address()));
        let external = service(&json!({"type": "ExternalName"}));
        assert!(!is_another(&external, &with_address()) && !is_another(&with_address(), &external));
    }
}
