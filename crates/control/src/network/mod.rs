//! A tenant's border in the network: what control makes on the host so that nothing passes it that is not declared.
//!
//! [`policies`] are NetworkPolicies for the tenant's two namespaces; [`deny`] is one policy of the administrators' tier, on
//! hosts that serve it, which no NetworkPolicy can open. Both are pure functions of an [`Isolation`]; [`ensure`] applies them.
//! A wall (`berth_admission_policies::network_policies`) keeps a syncer from writing policies that open more than is declared.

mod apply;
mod build;
mod control_plane;
pub mod declared;
pub mod deny;
pub mod facts;
mod workloads;

#[cfg(test)]
mod tests;

pub use apply::{NetworkConfig, Served, ensure, host_facts, remove};
pub use declared::{Declared, declared};
pub use facts::HostFacts;

use crate::{control_plane::Endpoints, runtime::cluster::APP_NAME};
use berth_api::{NetworkLimits, labels, names::TenantId, network::ClassNetwork, ranges};
use build::{labelled, pods_in};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use std::{collections::BTreeMap, net::SocketAddr};

/// What decides about a tenant's border.
#[derive(Clone, Debug)]
pub struct Isolation<'a> {
    /// Whose it is.
    pub tenant: &'a TenantId,
    /// Labels of everything of the tenant.
    pub labels: BTreeMap<String, String>,
    /// What passes.
    pub declared: &'a Declared,
    /// What of the host never does.
    pub facts: &'a HostFacts,
    /// Every range that stays closed whatever is declared, none within another.
    pub closed: &'a [IpNet],
    /// Whether the components of the control plane are pods.
    pub uses_pods: bool,
    /// Where they listen.
    pub endpoints: &'a Endpoints,
    /// Servers outside that the tenant's DNS asks, if the class names any.
    pub dns_servers: Vec<SocketAddr>,
    /// Hosts outside that webhooks of the tenant may be served by, with ports if they are not HTTPS's.
    pub webhook_hosts: &'a [String],
    /// Endpoints of the datastore.
    pub datastore: &'a [String],
}

impl Isolation<'_> {
    fn namespace(&self, role: &str) -> LabelSelector {
        labelled([(labels::TENANT, self.tenant.slug()), (labels::ROLE, role)])
    }

    /// The tenant's pods, seen from another namespace.
    fn workloads(&self) -> NetworkPolicyPeer {
        pods_in(self.namespace(labels::ROLE_WORKLOADS), LabelSelector::default())
    }

    /// Pods of a component, seen from another namespace.
    fn component(&self, name: &str) -> NetworkPolicyPeer {
        pods_in(self.namespace(labels::ROLE_CONTROL_PLANE), labelled([(APP_NAME, name)]))
    }
}

/// What the tenant's syncer and the wall for NetworkPolicies have to know. Closed ranges that concern nothing declared are left
/// out, so that a node that comes or goes means nothing to most tenants.
pub fn limits(declared: &Declared, class: &ClassNetwork, closed: &[IpNet]) -> NetworkLimits {
    let webhook_hosts = &class.api_server_egress.hosts;
    let Declared { egress, ingress } = declared;
    let cidrs = egress.iter().map(|rule| &rule.cidr);
    let cidrs = cidrs.chain(ingress.iter().filter_map(|rule| rule.cidr.as_ref()));
    let opened: Vec<IpNet> = cidrs.filter_map(|cidr| ranges::parse(cidr).ok()).collect();
    // A name may lead anywhere.
    let concerns =
        |closed: &&IpNet| !webhook_hosts.is_empty() || opened.iter().any(|range| ranges::overlap(*range, **closed));
    NetworkLimits {
        blocked: closed.iter().filter(concerns).map(ToString::to_string).collect(),
        egress: egress.clone(),
        ingress: ingress.clone(),
        endpoint_cidrs: class.endpoint_cidrs.clone(),
        api_server_hosts: webhook_hosts.clone(),
    }
}

/// Every NetworkPolicy of a tenant's two namespaces.
pub fn policies(isolation: &Isolation<'_>) -> Vec<NetworkPolicy> {
    let mut policies = workloads::policies(isolation);
    if isolation.uses_pods {
        policies.extend(control_plane::policies(isolation));
    }
    policies
}
