//! Addresses of Services of the host that lead to a tenant's API server: load balancers, and ports of nodes. Pure.

use std::net::IpAddr;

use berth_api::{ControlPlaneServiceType, TenantCluster, is_node_ready, system};
use berth_control::control_plane::authority;
use k8s_openapi::api::core::v1::{Node, Service};

use super::forward::TLS_NAME;
use crate::user_config::document::Server;

/// The Service of an API server for clients outside of the host, in the control-plane namespace.
const EXTERNAL_SERVICE: &str = "kube-apiserver-external";
/// Nodes that are tried at most.
const MAX_NODES: usize = 8;

/// A Service that leads to a tenant's API server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Namespace of the Service.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: &'static str,
    /// The name that is in the certificate, and by which the gateway knows the tenant.
    tls_name: String,
}

impl Target {
    /// The tenant's own Service, if its spec asks for a port of the nodes or a load balancer. Else that of the gateway, which may be reached
    /// where its names do not resolve; none if the address of the tenant is no name.
    pub(super) fn of(tenant: &TenantCluster) -> Option<Self> {
        let status = tenant.status.as_ref()?;
        if tenant.spec.service().kind != ControlPlaneServiceType::ClusterIp {
            return Some(Self {
                namespace: status.control_plane_namespace.clone()?,
                name: EXTERNAL_SERVICE,
                tls_name: TLS_NAME.into(),
            });
        }
        let endpoint: http::Uri = status.endpoint.as_ref()?.parse().ok()?;
        let host = endpoint.host()?;
        let is_name = host.trim_matches(['[', ']']).parse::<IpAddr>().is_err();
        is_name.then(|| Self {
            namespace: system::NAMESPACE.into(),
            name: system::GATEWAY,
            tls_name: host.into(),
        })
    }

    /// Where the Service is reached: at its load balancer, and at a port of the nodes.
    pub(super) fn servers(&self, service: &Service, nodes: &[Node]) -> Vec<Server> {
        let Some(port) = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()?.first()) else {
            return Vec::new();
        };
        let status = service.status.as_ref();
        let balancers = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
        let balancers = balancers.into_iter().flatten().filter_map(|ingress| {
            let host = ingress.ip.as_ref().or(ingress.hostname.as_ref())?;
            Some((host.as_str(), port.port))
        });
        let nodes = nodes.iter().filter(|node| is_node_ready(node)).filter_map(address);
        let nodes = nodes.take(MAX_NODES);
        let nodes = nodes.filter_map(|node| Some((node, port.node_port?)));
        let servers = balancers.chain(nodes).filter_map(|(host, port)| {
            Some(Server {
                url: format!("https://{}", authority(host, u16::try_from(port).ok()?)),
                tls_name: self.tls_name.clone(),
            })
        });
        servers.collect()
    }
}

/// The external address of a node, else its internal one.
fn address(node: &Node) -> Option<&str> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let find = |kind: &str| addresses.iter().find(|address| address.type_ == kind);
    find("ExternalIP")
        .or_else(|| find("InternalIP"))
        .map(|found| found.address.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tenant(kind: &str, endpoint: &str) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"},
            "spec": {"controlPlane": {"service": {"type": kind}}},
            "status": {"endpoint": endpoint, "controlPlaneNamespace": "berth-vision-cp"},
        }))
        .unwrap()
    }

    #[test]
    fn a_tenant_is_reached_by_its_own_service_or_by_that_of_the_gateway() {
        let target = |kind: &str, endpoint: &str| {
            let target = Target::of(&tenant(kind, endpoint))?;
            Some(format!("{}/{} as {}", target.namespace, target.name, target.tls_name))
        };
        let name = "https://vision.team.clusters.example.com:8443";
        for kind in ["NodePort", "LoadBalancer"] {
            let own = target(kind, name);
            assert_eq!(
                own.as_deref(),
                Some("berth-vision-cp/kube-apiserver-external as kubernetes"),
                "{kind}"
            );
        }
        assert_eq!(
            target("ClusterIP", name).as_deref(),
            Some("berth-system/berth-gateway as vision.team.clusters.example.com")
        );
        for address in ["https://10.0.0.1:443", "https://[fd00::1]:443", ""] {
            assert_eq!(target("ClusterIP", address), None, "{address}");
        }
    }

    fn node(name: &str, is_ready: &str, addresses: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": is_ready}], "addresses": addresses},
        }))
        .unwrap()
    }

    #[test]
    fn load_balancers_are_named_before_ports_of_ready_nodes() {
        let address = |kind: &str, address: &str| json!({"type": kind, "address": address});
        let nodes = [
            node("broken", "False", &json!([address("InternalIP", "10.0.0.9")])),
            node("inside", "True", &json!([address("InternalIP", "fd00::1")])),
            node(
                "outside",
                "True",
                &json!([address("InternalIP", "10.0.0.2"), address("ExternalIP", "192.0.2.2")]),
            ),
            node("new", "True", &json!(null)),
        ];
        let urls = |service: Value| {
            let service: Service = serde_json::from_value(service).unwrap();
            let target = Target::of(&tenant("NodePort", "https://a:443")).unwrap();
            let servers = target.servers(&service, &nodes);
            assert!(servers.iter().all(|server| server.tls_name == "kubernetes"));
            servers.into_iter().map(|server| server.url).collect::<Vec<_>>()
        };
        let at_nodes = ["https://[fd00::1]:30443", "https://192.0.2.2:30443"];
        let ports = json!([{"port": 443, "nodePort": 30443}]);
        assert_eq!(urls(json!({"spec": {"ports": ports}})), at_nodes);
        let ingress = json!([{"ip": "192.0.2.9"}, {"hostname": "lb.example.com"}, {}]);
        let balanced = json!({"spec": {"ports": ports}, "status": {"loadBalancer": {"ingress": ingress}}});
        let expected = ["https://192.0.2.9:443", "https://lb.example.com:443"];
        assert_eq!(urls(balanced), [expected, at_nodes].concat());
        assert!(urls(json!({"spec": {"ports": [{"port": 443}]}})).is_empty());
        assert!(urls(json!({})).is_empty());
    }
}
