//! What a change of a Service takes away from the ways into it: its owner may close it, and the change may have to wait.
//!
//! | what | when it is gone at once |
//! |---|---|
//! | a node port or a load balancer | if the type no longer has it, if no port stays, or if of the networks that may connect none stays. It comes back with the rest of the change. A load balancer whose Service keeps its node ports goes alone: a port that is released could be another Service's then |
//! | a port | if none has its number and protocol any more. Where it leads to, and its node port, change with the rest. The last one stays inside |
//! | networks that may connect to a load balancer | those that are in none of the new ones. The same networks in another order, or divided, are nothing lost |
//! | all pods | if its endpoints change too often, and there is no room for the rest |
//!
//! What is written is made of the host's Service, so that nothing of the change gets through before its turn, but for networks: these become the new ones
//! if all of them are within those before. What the Service selects otherwise changes with the rest.

use super::{SPEC, allocation, close_to_outside, selects_nothing};
use crate::{
    model::json,
    translation::{fields::Rule, metadata, sources},
};
use berth_api::labels;
use serde_json::{Map, Value};

const RANGES: &str = "loadBalancerSourceRanges";
/// Fields that only load balancers have.
const OF_LOAD_BALANCER: [&str; 4] = [
    "allocateLoadBalancerNodePorts",
    "healthCheckNodePort",
    "loadBalancerClass",
    RANGES,
];

/// The host's Service `live` without the ways in that `desired` does not have, if there are any.
pub(super) fn narrowed(desired: &Value, live: &Value) -> Option<Value> {
    let is_known = |field: &str| {
        SPEC.iter()
            .any(|(known, rule)| *known == field && !matches!(rule, Rule::Deny(_)))
    };
    let mut spec: Map<String, Value> = live["spec"].as_object()?.clone();
    spec.retain(|field, _| is_known(field));
    let mut service = json::object([("metadata", metadata::unchanged(live)), ("spec", spec.into())]);
    let before = service["spec"].clone();
    let wanted = json::items(desired, &["spec", "ports"]);
    let is_kept = |port: &&Value| wanted.iter().any(|other| allocation::is_same_port(other, port));
    let ports: Vec<Value> = { json::items(live, &["spec", "ports"]).iter() }
        .filter(is_kept)
        .cloned()
        .collect();
    let networks = remaining_networks(desired, live);
    let stays_open = exposure(desired) >= exposure(live) && !ports.is_empty() && networks.is_some();
    let has_node_ports = keeps_node_ports(desired, &ports);
    if !ports.is_empty() {
        service["spec"]["ports"] = ports.into();
    }
    if allocation::kind(live) == "LoadBalancer" && has_node_ports {
        remove_load_balancer(&mut service);
    } else if allocation::is_exposed(live) && !stays_open {
        close_to_outside(&mut service);
    } else if let Some(networks) = networks.filter(|networks| !networks.is_empty()) {
        service["spec"][RANGES] = networks.into();
    }
    if selects_nothing(desired)
        && let Some(selector) = service["spec"].get_mut("selector").and_then(Value::as_object_mut)
    {
        selector.insert(labels::ENDPOINTS.into(), labels::ENDPOINTS_NONE.into());
    }
    (service["spec"] != before).then_some(service)
}

/// How far the ways into a Service lead.
fn exposure(service: &Value) -> u8 {
    match allocation::kind(service) {
        "LoadBalancer" => 2,
        "NodePort" => 1,
        _ => 0,
    }
}

/// Whether a Service is to have node ports alone, and all of `ports` have one on the host.
fn keeps_node_ports(desired: &Value, ports: &[Value]) -> bool {
    let has_one = |port: &Value| port["nodePort"].as_u64().is_some_and(|number| number != 0);
    allocation::kind(desired) == "NodePort" && !ports.is_empty() && ports.iter().all(has_one)
}

/// Takes the load balancer away and leaves the node ports.
fn remove_load_balancer(service: &mut Value) {
    if let Some(spec) = service["spec"].as_object_mut() {
        spec.insert("type".into(), "NodePort".into());
        spec.retain(|field, _| !OF_LOAD_BALANCER.contains(&field.as_str()));
    }
}

/// The networks that may still connect to the load balancer `live`: empty for everyone, `None` for nobody. Of other Services it is empty.
fn remaining_networks(desired: &Value, live: &Value) -> Option<Vec<Value>> {
    let of = |service| json::items(service, &["spec", RANGES]);
    let (wanted, present) = (of(desired), of(live));
    if allocation::kind(live) != "LoadBalancer" {
        return Some(present.to_vec());
    }
    sources::remaining(wanted, present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A load balancer of the host with these ports and networks.
    fn balancer(ports: &[u16], networks: &[&str]) -> Value {
        let ports: Vec<Value> = ports
            .iter()
            .map(|port| json!({"port": port, "protocol": "TCP", "targetPort": 8080, "nodePort": 30_000 + port}))
            .collect();
        let mut service = json!({
            "metadata": {"labels": {"berth.dev/tenant": "a"}, "annotations": {"berth.dev/applied-hash": "b", "example.com/internal": "true"}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.7.7", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31_000,
                "selector": {"app": "a"}, "ports": ports},
        });
        if !networks.is_empty() {
            service["spec"][RANGES] = json!(networks);
        }
        service
    }

    fn with_type(kind: &str, mut service: Value) -> Value {
        service["spec"]["type"] = kind.into();
        service
    }

    #[test]
    fn a_service_that_is_closed_to_the_outside_is_closed_at_once() {
        let live = balancer(&[80], &["192.0.2.0/24"]);
        let mut desired = with_type("ClusterIP", balancer(&[80, 81], &[]));
        desired["spec"]["selector"] = json!({"app": "b"});
        let closed = json!({
            "metadata": {"labels": {}, "annotations": {}},
            "spec": {"type": "ClusterIP", "clusterIP": "10.96.7.7", "selector": {"app": "a"},
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]},
        });
        assert_eq!(narrowed(&desired, &live).as_ref(), Some(&closed));
        assert_eq!(narrowed(&desired, &closed), None, "the rest waits");
        // What is not closed by the type, and cannot be written in another way.
        for desired in [
            balancer(&[81], &["192.0.2.0/24"]),
            balancer(&[80], &["198.51.100.0/24"]),
        ] {
            assert_eq!(narrowed(&desired, &live).as_ref(), Some(&closed), "{desired}");
        }
    }

    #[test]
    fn a_service_that_loses_its_load_balancer_keeps_its_node_ports() {
        let live = balancer(&[80, 81], &["192.0.2.0/24"]);
        let desired = with_type("NodePort", balancer(&[80, 82], &[]));
        let narrowed = narrowed(&desired, &live).unwrap();
        let spec = json!({"type": "NodePort", "clusterIP": "10.96.7.7", "externalTrafficPolicy": "Local", "selector": {"app": "a"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30_080}]});
        assert_eq!(narrowed["spec"], spec);
        assert_eq!(super::narrowed(&desired, &narrowed), None, "the rest waits");
        // It would get one at once.
        let mut without = live.clone();
        without["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        let closed = super::narrowed(&desired, &without).unwrap();
        assert_eq!(closed["spec"]["type"], "ClusterIP");
    }

    #[test]
    fn ports_and_networks_that_are_lost_do_not_wait() {
        let live = balancer(&[80, 81], &["192.0.2.0/24", "10.0.0.0/8"]);
        for (desired, expected) in [
            (
                balancer(&[81, 82], &[]),
                balancer(&[81], &["192.0.2.0/24", "10.0.0.0/8"]),
            ),
            (
                balancer(&[80, 81], &["10.0.0.0/7", "203.0.113.0/24"]),
                balancer(&[80, 81], &["10.0.0.0/8"]),
            ),
            (
                balancer(&[80, 81], &["10.1.0.0/16"]),
                balancer(&[80, 81], &["10.1.0.0/16"]),
            ),
        ] {
            let narrowed = narrowed(&desired, &live).unwrap();
            assert_eq!(narrowed["spec"], expected["spec"]);
            let metadata = json!({"labels": {}, "annotations": {"example.com/internal": "true"}});
            assert_eq!(narrowed["metadata"], metadata, "it may be what closes it");
            assert_eq!(super::narrowed(&desired, &narrowed), None);
        }
        let open = balancer(&[80], &[]);
        let narrowed = narrowed(&balancer(&[80], &["10.0.0.0/8"]), &open).unwrap();
        assert_eq!(narrowed["spec"], balancer(&[80], &["10.0.0.0/8"])["spec"]);
    }

    #[test]
    fn the_same_networks_in_other_words_wait() {
        let live = balancer(&[80], &["10.0.0.0/8", "192.0.2.0/24"]);
        for networks in [
            &["192.0.2.0/24", "10.0.0.0/8"][..],
            &["10.0.0.0/8", "192.0.2.0/24", "10.0.0.0/8", "10.1.0.0/16"],
            &["10.0.0.0/9", "10.128.0.0/9", "192.0.2.0/25", "192.0.2.128/25"],
        ] {
            assert_eq!(narrowed(&balancer(&[80], networks), &live), None, "{networks:?}");
        }
        let divided = balancer(&[80], &["10.0.0.0/9", "10.128.0.0/9"]);
        let narrowed = narrowed(&balancer(&[80], &["10.64.0.0/10", "10.128.0.0/9"]), &divided).unwrap();
        assert_eq!(narrowed["spec"][RANGES], json!(["10.64.0.0/10", "10.128.0.0/9"]));
    }

    #[test]
    fn a_service_that_is_closed_selects_no_pod_at_once() {
        let mut live = balancer(&[80], &[]);
        let mut closed = balancer(&[80, 81], &[]);
        closed["spec"]["selector"] = json!({"app": "b", (labels::ENDPOINTS): labels::ENDPOINTS_NONE});
        let narrowed = narrowed(&closed, &live).unwrap();
        live["spec"]["selector"][labels::ENDPOINTS] = labels::ENDPOINTS_NONE.into();
        assert_eq!(narrowed["spec"], live["spec"]);
        assert_eq!(super::narrowed(&closed, &narrowed), None, "the rest waits");
        live["spec"].as_object_mut().unwrap().remove("selector");
        assert_eq!(
            super::narrowed(&closed, &live),
            None,
            "the host makes no endpoints for it"
        );
    }

    #[test]
    fn what_adds_or_moves_waits() {
        let live = balancer(&[80], &["10.0.0.0/8"]);
        let mut moved = live.clone();
        moved["spec"]["ports"][0]["targetPort"] = 9090.into();
        moved["spec"]["selector"] = json!({"app": "b"});
        for desired in [
            live.clone(),
            moved,
            balancer(&[80, 81], &["10.0.0.0/8", "192.0.2.0/24"]),
            balancer(&[80], &[]),
        ] {
            assert_eq!(narrowed(&desired, &live), None, "{desired}");
        }
        let inside = with_type("ClusterIP", json!({"metadata": {}, "spec": {"ports": [{"port": 80}]}}));
        assert_eq!(narrowed(&live, &inside), None);
        let another = with_type("ClusterIP", json!({"metadata": {}, "spec": {"ports": [{"port": 90}]}}));
        assert_eq!(narrowed(&another, &inside), None, "a Service has a port");
        let two = with_type(
            "ClusterIP",
            json!({"metadata": {}, "spec": {"ports": [{"port": 80}, {"port": 90}]}}),
        );
        assert_eq!(narrowed(&another, &two).unwrap()["spec"], another["spec"]);
    }
}
