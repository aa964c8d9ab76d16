//! Where teams reach their API server: at its Service, or from outside at a port of the nodes or at a load balancer. For
//! the latter there is a second Service, so that the address of the first never changes. With a gateway each tenant has a name there,
//! which teams use that ask for nothing else.

use crate::{
    control_plane::{API_SERVER, EXTERNAL_SERVICE, GatewayConfig, PublicEndpoint, authority},
    runtime::{Owner, cluster::pod_selector},
};
use berth_api::{
    ControlPlaneService, ControlPlaneServiceType, TenantCluster,
    conditions::{ConditionUpdate, ENDPOINT_READY},
    is_node_ready, labels,
};
use k8s_openapi::{
    api::core::v1::{Node, Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use kube::ResourceExt;
use std::{cmp::Reverse, net::IpAddr, sync::Arc};

/// Port at which a load balancer serves.
pub const PORT: u16 = 443;

/// Makes the API server's certificate valid for its name at the gateway. That is where the team reaches it, unless the spec asks
/// for a host name or a Service of its own.
pub fn add_gateway(
    public: &mut PublicEndpoint,
    gateway: &GatewayConfig,
    cluster: &TenantCluster,
    spec: &ControlPlaneService,
) {
    let host_name = gateway.host_name(cluster);
    if spec.kind == ControlPlaneServiceType::ClusterIp && spec.hostnames.is_empty() {
        public.url = url(&host_name, gateway.port);
    }
    if !public.hosts.contains(&host_name) {
        public.hosts.push(host_name);
    }
}

/// The URL of an API server at a host, which is a name or an address.
pub fn url(host: &str, port: u16) -> String {
    format!("https://{}", authority(host, port))
}

/// The Service through which a team reaches its API server from outside. `target`: the port at which the pods of the API server listen.
pub fn external_service(owner: Owner<'_>, spec: &ControlPlaneService, target: u16) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(EXTERNAL_SERVICE.into()),
            namespace: Some(owner.tenant.control_plane_namespace()),
            labels: Some(owner.labels.clone()),
            annotations: (!spec.annotations.is_empty()).then(|| spec.annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(spec.kind.as_str().into()),
            selector: Some(pod_selector(owner.tenant, API_SERVER)),
            ports: Some(vec![ServicePort {
                name: Some(API_SERVER.into()),
                protocol: Some("TCP".into()),
                port: PORT.into(),
                target_port: Some(IntOrString::Int(target.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The endpoint at the port that the host chose: under the first host name, or at one node.
///
/// # Errors
/// What the condition says while there is no port, or no node with an address.
pub fn endpoint_at_node(
    spec: &ControlPlaneService,
    service: &Service,
    nodes: &[Arc<Node>],
    earlier: Option<&str>,
) -> Result<PublicEndpoint, ConditionUpdate> {
    let port = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ports.as_ref()?.first()?.node_port)
        .and_then(|port| u16::try_from(port).ok())
        .ok_or_else(|| pending("NodePortPending", "the host has not chosen a port yet"))?;
    if let Some(name) = spec.hostnames.first() {
        return Ok(PublicEndpoint {
            url: url(name, port),
            hosts: spec.hostnames.clone(),
        });
    }
    let mut all: Vec<&Arc<Node>> = nodes.iter().collect();
    // Who is root on a node says which addresses it has. Of a node that a tenant uses, others would get each new one, with new API servers.
    all.sort_by_key(|node| (Reverse(is_node_ready(node)), is_used(node), node.name_any()));
    let addresses: Vec<String> = all.into_iter().filter_map(|node| address(node)).collect();
    // A node that is not Ready for a moment is no reason to publish another kubeconfig.
    let kept = addresses.iter().find(|address| earlier == Some(&url(address, port)));
    let chosen = kept.or(addresses.first());
    let chosen = chosen.ok_or_else(|| pending("NodePortPending", "no node of the host has an address"))?;
    Ok(PublicEndpoint {
        url: url(chosen, port),
        hosts: vec![chosen.clone()],
    })
}

/// Whether a node has a tenant, or is shared by tenants.
fn is_used(node: &Node) -> bool {
    let of_node = node.labels();
    [labels::NODE_STATE, labels::SHARED_POOL]
        .iter()
        .any(|key| of_node.contains_key(*key))
}

/// The external address of a node, else its internal one. API servers accept every text for one: in a kubeconfig it could lead elsewhere, and no
/// certificate could have it.
fn address(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    ["ExternalIP", "InternalIP"].into_iter().find_map(|kind| {
        let mut of_kind = addresses.iter().filter(|address| address.type_ == kind);
        let found = of_kind.find(|address| address.address.parse::<IpAddr>().is_ok())?;
        Some(found.address.clone())
    })
}

/// The endpoint at the load balancer: under the first host name, or its own name or address.
///
/// # Errors
/// What the condition says while the load balancer has no address.
pub fn endpoint_at_load_balancer(
    spec: &ControlPlaneService,
    service: &Service,
) -> Result<PublicEndpoint, ConditionUpdate> {
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let own: Vec<String> = ingress
        .into_iter()
        .flatten()
        .filter_map(|ingress| ingress.hostname.clone().or_else(|| ingress.ip.clone()))
        .collect();
    if own.is_empty() {
        return Err(pending(
            "LoadBalancerPending",
            "the load balancer has no address yet; if none comes, the host has no controller for Services of type \
             LoadBalancer, or that controller says why in an Event of Service kube-apiserver-external",
        ));
    }
    let hosts: Vec<String> = spec.hostnames.iter().chain(&own).cloned().collect();
    Ok(PublicEndpoint {
        url: url(&hosts[0], PORT),
        hosts,
    })
}

fn pending(reason: &'static str, message: &str) -> ConditionUpdate {
    ConditionUpdate::mark_false(ENDPOINT_READY, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::ControlPlaneServiceType;
    use serde_json::json;

    fn spec(kind: ControlPlaneServiceType, hostnames: &[&str]) -> ControlPlaneService {
        ControlPlaneService {
            kind,
            hostnames: hostnames.iter().map(ToString::to_string).collect(),
            ..ControlPlaneService::default()
        }
    }

    fn node(name: &str, address: &str, ready: &str) -> Arc<Node> {
        let node = json!({
            "metadata": {"name": name},
            "status": {
                "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": ready}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn with_port() -> Service {
        serde_json::from_value(json!({"spec": {"ports": [{"port": 443, "nodePort": 30443}]}})).unwrap()
    }

    #[test]
    fn a_node_port_is_reached_at_a_host_name_or_always_at_the_same_node() {
        let nodes = [node("a", "10.0.0.1", "False"), node("b", "10.0.0.2", "True")];
        let by_name = endpoint_at_node(
            &spec(ControlPlaneServiceType::NodePort, &["k.example.com"]),
            &with_port(),
            &nodes,
            None,
        )
        .unwrap();
        assert_eq!(by_name.url, "https://k.example.com:30443");
        let plain = spec(ControlPlaneServiceType::NodePort, &[]);
        let first = endpoint_at_node(&plain, &with_port(), &nodes, None).unwrap();
        assert_eq!(
            (first.url.as_str(), first.hosts),
            ("https://10.0.0.2:30443", vec!["10.0.0.2".into()])
        );
        let kept = endpoint_at_node(&plain, &with_port(), &nodes, Some("https://10.0.0.1:30443")).unwrap();
        assert_eq!(kept.url, "https://10.0.0.1:30443");
        let none = endpoint_at_node(&plain, &with_port(), &[], None).unwrap_err();
        assert_eq!(none.reason, "NodePortPending");
        assert_eq!(
            endpoint_at_node(&plain, &Service::default(), &nodes, None)
                .unwrap_err()
                .reason,
            "NodePortPending"
        );
    }

    #[test]
    fn a_node_of_a_tenant_does_not_say_where_others_reach_their_api_servers() {
        let plain = spec(ControlPlaneServiceType::NodePort, &[]);
        let used = |key: &str, address: &str| {
            let mut used = Node::clone(&node("a", address, "True"));
            used.metadata.labels = Some([(key.to_owned(), "x".to_owned())].into());
            Arc::new(used)
        };
        let find = |nodes: &[Arc<Node>], earlier| endpoint_at_node(&plain, &with_port(), nodes, earlier);
        for key in [labels::NODE_STATE, labels::SHARED_POOL] {
            for address in ["10.0.0.1", "not an address", "attacker.example.com"] {
                let nodes = [used(key, address), node("b", "10.0.0.2", "True")];
                assert_eq!(find(&nodes, None).unwrap().hosts, ["10.0.0.2"], "{key}: {address}");
            }
            // The earlier address stays, and so does everything where there are no other nodes.
            let nodes = [used(key, "10.0.0.1"), node("b", "10.0.0.2", "True")];
            let kept = find(&nodes, Some("https://10.0.0.1:30443")).unwrap();
            assert_eq!(kept.hosts, ["10.0.0.1"]);
            assert_eq!(find(&nodes[..1], None).unwrap().hosts, ["10.0.0.1"]);
        }
        let text = find(&[node("a", "attacker.example.com", "True")], None);
        assert_eq!(text.unwrap_err().reason, "NodePortPending");
    }

    #[test]
    fn a_team_that_asks_for_nothing_reaches_the_gateway() {
        let mut cluster = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team-a".into());
        let gateway = GatewayConfig {
            domain: "example.com".parse().unwrap(),
            port: 8443,
        };
        let name = "vision.team-a.example.com";
        let own = "https://own.example.net:443";
        let at_gateway = format!("https://{name}:8443");
        for (kind, hostnames, expected) in [
            (ControlPlaneServiceType::ClusterIp, vec![], at_gateway.as_str()),
            (ControlPlaneServiceType::ClusterIp, vec!["own.example.net"], own),
            (ControlPlaneServiceType::NodePort, vec![], own),
            (ControlPlaneServiceType::LoadBalancer, vec!["own.example.net"], own),
        ] {
            let mut public = PublicEndpoint {
                url: own.into(),
                hosts: hostnames.iter().map(ToString::to_string).collect(),
            };
            // Once more changes nothing: certificates are issued anew when their names change.
            for _ in 0..2 {
                add_gateway(&mut public, &gateway, &cluster, &spec(kind, &hostnames));
            }
            assert_eq!(public.url, expected, "{kind:?} {hostnames:?}");
            let hosts: Vec<&str> = hostnames.iter().copied().chain([name]).collect();
            assert_eq!(public.hosts, hosts);
        }
    }

    #[test]
    fn a_load_balancer_is_waited_for() {
        let plain = spec(ControlPlaneServiceType::LoadBalancer, &[]);
        assert_eq!(
            endpoint_at_load_balancer(&plain, &with_port()).unwrap_err().reason,
            "LoadBalancerPending"
        );
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}});
        let served: Service = serde_json::from_value(status).unwrap();
        assert_eq!(
            endpoint_at_load_balancer(&plain, &served).unwrap().url,
            "https://192.0.2.7:443"
        );
        let named = endpoint_at_load_balancer(
            &spec(ControlPlaneServiceType::LoadBalancer, &["k.example.com"]),
            &served,
        )
        .unwrap();
        assert_eq!(named.url, "https://k.example.com:443");
        assert_eq!(named.hosts, ["k.example.com", "192.0.2.7"]);
    }
}
