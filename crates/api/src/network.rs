//! Who of outside a tenant's pods may talk to, and who to them. Inside of a tenant its own NetworkPolicies decide; across
//! its border nothing passes that is not declared here.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tenant asks for: `spec.network` of a TenantCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantNetwork {
    /// How the tenant is kept apart from everything else.
    pub isolation: Isolation,
    /// Networks outside of the cluster that the tenant's pods may reach. Without it as the tenant's class says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRules>,
    /// Who outside of the tenant may reach its pods. Without it as the tenant's class says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressRules>,
}

/// How a tenant is kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// Only what is declared passes the border of the tenant.
    #[default]
    Strict,
}

/// What the tenant's pods may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressRules {
    /// Networks, each with ports. What the platform keeps for itself is taken out of them.
    #[schemars(length(max = 64))]
    pub allow: Vec<EgressRule>,
}

/// Who may reach the tenant's pods.
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

/// Somebody who may reach pods: a network, or the pods of a namespace of the host.
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
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// What of the network a class lets its tenants have: `spec.network` of a TenantClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassNetwork {
    /// What tenants may reach.
    pub egress: ClassEgress,
    /// Who may reach tenants.
    pub ingress: ClassIngress,
}

/// What tenants of a class may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassEgress {
    /// Networks within which tenants may declare egress; `0.0.0.0/0` and `::/0` for every one. What the platform keeps for
    /// itself is never opened.
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    pub allowed_cidrs: Vec<String>,
    /// What tenants have that declare nothing.
    #[schemars(length(max = 64))]
    pub default: Vec<EgressRule>,
}

/// Who may reach tenants of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassIngress {
    /// Networks that tenants may let in.
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    pub allowed_cidrs: Vec<String>,
    /// Namespaces of the host whose pods tenants may let in.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub allowed_namespaces: Vec<String>,
    /// What tenants have that declare nothing.
    #[schemars(length(max = 64))]
    pub default: Vec<IngressRule>,
}

/// What of a tenant's network is open towards the outside. Control finds it out and tells the tenant's syncer, which lets no
/// policy of the tenant open more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkLimits {
    /// Networks that stay closed whatever is declared.
    pub blocked: Vec<String>,
    /// What is declared to be reached.
    pub egress: Vec<EgressRule>,
    /// Who is declared to be let in.
    pub ingress: Vec<IngressRule>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_as_teams_write_it_is_read() {
        let text = r#"{"isolation": "strict", "egress": {"allow": [{"cidr": "10.20.0.0/16", "ports": [443]}]}}"#;
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
