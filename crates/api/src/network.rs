//! Which networks outside a tenant its pods may reach, and which may reach them. Between the pods of a tenant, its own
//! NetworkPolicies apply. To and from the outside, Berth allows only what is declared here.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Networks that a tenant declares: `spec.network` of a TenantCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantNetwork {
    /// Networks outside the cluster that the tenant's pods may reach. Defaults to those of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRules>,
    /// Networks and host namespaces that may reach the tenant's pods. Defaults to those of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressRules>,
}

/// Networks that the tenant's pods may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressRules {
    /// Networks, each with ports. Berth excludes the platform's own networks from them.
    #[schemars(length(max = 64))]
    pub allow: Vec<EgressRule>,
}

/// Sources that may reach the tenant's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRules {
    /// Networks or namespaces of the host, each with ports.
    #[schemars(length(max = 64))]
    pub allow: Vec<IngressRule>,
}

/// A network that pods may reach.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("isCIDR(self.cidr) && cidr(self.cidr) == cidr(self.cidr).masked()")
    .message("cidr must be a network by its first address, such as 10.20.0.0/16")
    .field_path(".cidr"))]
pub struct EgressRule {
    /// The network, for example 10.20.0.0/16.
    #[schemars(length(min = 1, max = 43))]
    pub cidr: String,
    /// Ports. None: every port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 25), inner(range(min = 1, max = 65535)))]
    pub ports: Vec<u16>,
    /// Protocol. Without it TCP if there are ports, and every protocol if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
}

/// A source that may reach pods: a network, or the pods of a host namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cidr) != has(self.namespace)")
    .message("exactly one of cidr and namespace must be given"))]
#[x_kube(validation = Rule::new("!has(self.cidr) || (isCIDR(self.cidr) && cidr(self.cidr) == cidr(self.cidr).masked())")
    .message("cidr must be a network by its first address, such as 10.20.0.0/16")
    .field_path(".cidr"))]
pub struct IngressRule {
    /// The network, for example 10.20.0.0/16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 43))]
    pub cidr: Option<String>,
    /// Name of a namespace of the host, for example that of the platform's ingress controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Ports of the pods. None: every port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 25), inner(range(min = 1, max = 65535)))]
    pub ports: Vec<u16>,
    /// Protocol. Without it TCP if there are ports, and every protocol if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// TCP.
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP.
    #[serde(rename = "UDP")]
    Udp,
    /// SCTP.
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    /// Its name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// Network rules of a class: `spec.network` of a TenantClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassNetwork {
    /// Networks that tenants' pods may reach.
    pub egress: ClassEgress,
    /// Networks and host namespaces that may reach tenants' pods.
    pub ingress: ClassIngress,
    /// Hosts that the tenants' API servers may reach.
    pub api_server_egress: ApiServerEgress,
    /// Networks, besides the tenant's own pods, in which the endpoints of Services without a selector may lie. Networks of the
    /// platform stay closed even within these.
    #[serde(rename = "endpointCIDRs")]
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    pub endpoint_cidrs: Vec<String>,
    /// Networks that no tenant may reach or open, besides those that Berth finds by itself: pods, Services and nodes of the
    /// host, and metadata services.
    #[serde(rename = "blockedCIDRs")]
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    pub blocked_cidrs: Vec<String>,
}

/// Hosts that the tenants' API servers may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServerEgress {
    /// Hosts outside the cluster that may serve webhooks, aggregated APIs and keys of OIDC issuers of tenants: `host` for port 443,
    /// `host:port` for another. Addresses of the platform cannot be reached even if they are listed.
    #[schemars(
        length(max = 64),
        inner(
            length(max = 259),
            regex(
                pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*|\[[0-9a-f:]+\])(:[0-9]{1,5})?$"
            )
        )
    )]
    pub hosts: Vec<String>,
}

/// Networks that the pods of a class's tenants may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassEgress {
    /// Networks within which tenants may declare egress; `0.0.0.0/0` and `::/0` for all. The platform's own networks stay closed.
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    #[serde(rename = "allowedCIDRs")]
    pub allowed_cidrs: Vec<String>,
    /// Rules of tenants that declare none.
    #[schemars(length(max = 64))]
    pub default: Vec<EgressRule>,
}

/// Sources that may reach the pods of a class's tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassIngress {
    /// Networks from which tenants may declare ingress.
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    #[serde(rename = "allowedCIDRs")]
    pub allowed_cidrs: Vec<String>,
    /// Host namespaces from whose pods tenants may declare ingress.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub allowed_namespaces: Vec<String>,
    /// Rules of tenants that declare none.
    #[schemars(length(max = 64))]
    pub default: Vec<IngressRule>,
}

/// Limits of a tenant's network, which control computes for the tenant's syncer. No object of the tenant may open more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkLimits {
    /// Networks that NetworkPolicies leave closed even if they are declared. If there are many, neighbouring ones are merged.
    pub blocked: Vec<String>,
    /// The same for endpoints and for connections of the API server, not merged. If it is empty, `blocked` holds for them.
    pub closed: Vec<String>,
    /// Declared egress.
    pub egress: Vec<EgressRule>,
    /// Declared ingress.
    pub ingress: Vec<IngressRule>,
    /// Networks in which endpoints that the tenant writes itself may lie.
    pub endpoint_cidrs: Vec<String>,
    /// Networks in which no endpoint may lie, not even a pod of the tenant: the host's admission policy rejects it.
    pub closed_to_endpoints: Vec<String>,
    /// The address families of the host's network, each as the network of all its addresses. A pod may have an address of each.
    /// If it is empty, of both.
    pub families: Vec<String>,
    /// Hosts that the tenant's API server may reach: `host` for port 443, `host:port` for another.
    pub api_server_hosts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_as_teams_write_it_is_read() {
        let text = r#"{"egress": {"allow": [{"cidr": "10.20.0.0/16", "ports": [443]}]}}"#;
        let network: TenantNetwork = serde_json::from_str(text).unwrap();
        let allow = network.egress.unwrap().allow;
        assert_eq!(
            (allow[0].cidr.as_str(), allow[0].ports.as_slice()),
            ("10.20.0.0/16", &[443][..])
        );
        assert_eq!((allow[0].protocol, network.ingress), (None, None));
        let nothing: TenantNetwork = serde_json::from_str("{}").unwrap();
        assert_eq!(nothing, TenantNetwork::default());
    }
}
