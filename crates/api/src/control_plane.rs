//! How a tenant's control plane runs, and where teams reach it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the control plane runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneSpec {
    /// Number of replicas of each control plane component, except the syncer, which always has one. With more than one, the
    /// API server survives the failure of a host node. Where control planes are processes on one machine, it must be 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 3))]
    pub replicas: u32,
    /// How clients outside the host cluster reach the API server.
    #[serde(default)]
    pub service: ControlPlaneService,
}

impl Default for ControlPlaneSpec {
    fn default() -> Self {
        Self {
            replicas: one(),
            service: ControlPlaneService::default(),
        }
    }
}

fn one() -> u32 {
    1
}

/// The Service of a tenant's API server.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.annotations) || self.annotations.size() == 0 || self.type == 'LoadBalancer'")
    .message("annotations are for type LoadBalancer")
    .field_path(".annotations"))]
pub struct ControlPlaneService {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub kind: ControlPlaneServiceType,
    /// Host names or IPv4 addresses under which teams reach the API server. Its certificate is valid for them, and the
    /// first stands in the kubeconfig. Berth makes no DNS records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
        )
    )]
    pub hostnames: Vec<String>,
    /// Annotations of the Service of type LoadBalancer, with keys that the tenant's class allows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub annotations: BTreeMap<String, String>,
}

/// Type of the Service of an API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ControlPlaneServiceType {
    /// At an address of the host's Services: from nodes of the host, from those of its pods that the platform lets connect, and wherever that network is
    /// routed.
    #[default]
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    /// At a port of every node of the host as well.
    NodePort,
    /// At an address of a load balancer as well, which the host's cloud or network provides.
    LoadBalancer,
}

impl ControlPlaneServiceType {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }

    /// The type of this name; none if API servers have no such Service.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::ClusterIp, Self::NodePort, Self::LoadBalancer];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a class allows for the control planes of its tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassControlPlane {
    /// What tenants may set in `spec.controlPlane.service`.
    pub service: ControlPlaneServicePolicy,
}

/// What tenants may set for the Service of their API server.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneServicePolicy {
    /// Types that tenants may use. Empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub types: Vec<ControlPlaneServiceType>,
    /// Keys of annotations that tenants may give to their load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 316)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub annotations: Vec<String>,
}

fn annotations(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 1024},
    })
}
