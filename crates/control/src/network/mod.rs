//! Network isolation of tenants: policies on the host that deny all traffic that is not allowed.
//!
//! [`build_policies`] returns NetworkPolicies for the tenant's two namespaces; [`cluster_policy`] is a policy in the tier of
//! administrators, on hosts that serve it, which no NetworkPolicy can override. Both are pure functions of a
//! [`NetworkIsolation`]; [`apply_policies`] applies them. An admission policy keeps a syncer from writing NetworkPolicies that
//! allow more.

pub mod allowed;
mod apply;
mod build;
pub mod cluster_policy;
mod control_plane;
mod host_addresses;
pub mod host_network;
pub mod node_ports;
mod workloads;

#[cfg(test)]
mod tests;

pub use allowed::{AllowedNetworks, resolve_allowed_networks, restrict_to_class};
pub use apply::{
    AdministrativeTier, NetworkConfig, NetworkContext, apply_policies, delete_cluster_policy, read_host_network,
};
pub use host_addresses::HostAddresses;
pub use host_network::HostNetwork;
pub use node_ports::NodePortAccess;

use crate::{control_plane::Endpoints, runtime::cluster::APP_NAME};
use berth_api::{NetworkLimits, labels, names::TenantId, network::ClassNetwork, ranges};
use build::{label_selector, pods_in};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use std::{collections::BTreeMap, net::SocketAddr};

/// Everything that a tenant's policies follow from.
#[derive(Clone, Debug)]
pub struct NetworkIsolation<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Labels of all objects of the tenant.
    pub labels: BTreeMap<String, String>,
    /// Networks outside the tenant that it may reach and be reached from.
    pub allowed: &'a AllowedNetworks,
    /// The network of the host.
    pub host: &'a HostNetwork,
    /// Ranges that are blocked whatever is allowed; none contains another.
    pub blocked: &'a [IpNet],
    /// Node ports of the tenant's Services.
    pub node_ports: NodePortAccess,
    /// Whether the components of the control plane are pods.
    pub uses_pods: bool,
    /// Their addresses.
    pub endpoints: &'a Endpoints,
    /// DNS servers outside the tenant that its DNS forwards to.
    pub dns_servers: Vec<SocketAddr>,
    /// Hosts outside the tenant that may serve its webhooks, with a port unless it is 443.
    pub webhook_hosts: &'a [String],
    /// Endpoints of the datastore.
    pub datastore: &'a [String],
    /// Namespaces of the host whose pods may connect to the API server.
    pub api_server_clients: Vec<&'a str>,
    /// Who may read the metrics of the syncer besides Berth, as peers of a policy in Berth's namespace.
    pub metrics_from: &'a [NetworkPolicyPeer],
}

impl NetworkIsolation<'_> {
    fn namespace(&self, role: &str) -> LabelSelector {
        label_selector([(labels::TENANT, self.tenant.slug()), (labels::ROLE, role)])
    }

    /// The tenant's pods, as a peer in another namespace.
    fn workloads(&self) -> NetworkPolicyPeer {
        pods_in(self.namespace(labels::ROLE_WORKLOADS), LabelSelector::default())
    }

    /// Pods of a component, as a peer in another namespace.
    fn component(&self, name: &str) -> NetworkPolicyPeer {
        pods_in(
            self.namespace(labels::ROLE_CONTROL_PLANE),
            label_selector([(APP_NAME, name)]),
        )
    }
}

/// What is allowed for a tenant, and offered for its endpoints.
fn collect_opened(allowed: &AllowedNetworks, class: &ClassNetwork) -> Vec<IpNet> {
    let AllowedNetworks { egress, ingress } = allowed;
    let cidrs = egress.iter().map(|rule| &rule.cidr);
    let cidrs = cidrs.chain(ingress.iter().filter_map(|rule| rule.cidr.as_ref()));
    parse_ranges(cidrs.chain(&class.endpoint_cidrs))
}

/// The blocked ranges of a tenant, `blocked`, and their addresses behind a translator (NAT64), if something is open there: a translator would lead to
/// what is closed. None contains another.
pub fn close_behind_nat64(allowed: &AllowedNetworks, class: &ClassNetwork, mut blocked: Vec<IpNet>) -> Vec<IpNet> {
    let opened = collect_opened(allowed, class);
    // The name of a host may resolve to any address.
    let is_open = !class.api_server_egress.hosts.is_empty();
    if is_open || opened.iter().any(|range| ranges::overlap(*range, ranges::NAT64)) {
        let translated: Vec<IpNet> = blocked.iter().copied().filter_map(ranges::behind_nat64).collect();
        blocked.extend(translated);
        blocked = IpNet::aggregate(&blocked);
        blocked.sort();
    }
    blocked
}

/// Limits for the tenant's syncer and for the admission policy of NetworkPolicies. Blocked ranges that overlap nothing that is
/// allowed, or offered for endpoints, are left out, so that most tenants do not change when a node is added or removed. If the
/// others are too many for the policy, neighbouring ones are merged, around open networks without blocked ranges if that is possible:
/// it is better to keep a neighbour of the platform closed than to open the platform.
pub fn network_limits(
    allowed: &AllowedNetworks,
    class: &ClassNetwork,
    host: &HostNetwork,
    blocked: &[IpNet],
) -> NetworkLimits {
    let webhook_hosts = &class.api_server_egress.hosts;
    let AllowedNetworks { egress, ingress } = allowed;
    let opened = collect_opened(allowed, class);
    let is_relevant = |range: &&IpNet| opened.iter().any(|opened| ranges::overlap(*opened, **range));
    let relevant: Vec<IpNet> = blocked.iter().filter(is_relevant).copied().collect();
    // The name of a host may resolve to any address.
    let closed = if webhook_hosts.is_empty() { &relevant } else { blocked };
    let is_open = |range: &&IpNet| !relevant.iter().any(|blocked| ranges::overlap(*blocked, **range));
    let open: Vec<IpNet> = opened.iter().filter(is_open).copied().collect();
    let merged = host_network::few_ranges(&relevant, &open);
    NetworkLimits {
        closed: closed.iter().map(ToString::to_string).collect(),
        blocked: merged.iter().map(ToString::to_string).collect(),
        egress: egress.clone(),
        ingress: ingress.clone(),
        endpoint_cidrs: class.endpoint_cidrs.clone(),
        closed_to_endpoints: closed_to_endpoints(host, class),
        families: host.families().iter().map(ToString::to_string).collect(),
        api_server_hosts: webhook_hosts.clone(),
    }
}

/// Ranges in which no endpoint of a tenant may lie, for the admission policy of EndpointSlices: it cannot tell the tenant's
/// pods from others, so it closes what contains no pods. They are few enough that the API server evaluates the policy for
/// every slice that a syncer writes. The syncer gets the same list: merged ranges may hold pods of the tenant, also outside of what
/// is offered, and the syncer must leave these out before the policy rejects their slice.
pub fn closed_to_endpoints(host: &HostNetwork, class: &ClassNetwork) -> Vec<String> {
    let offered = parse_ranges(&class.endpoint_cidrs);
    let closed = host.ranges_without_pods(&offered);
    closed.iter().map(ToString::to_string).collect()
}

/// The ranges that can be parsed: the others open nothing.
fn parse_ranges<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpNet> {
    texts.into_iter().filter_map(|text| ranges::parse(text).ok()).collect()
}

/// Every NetworkPolicy of a tenant's two namespaces.
pub fn build_policies(isolation: &NetworkIsolation<'_>) -> Vec<NetworkPolicy> {
    let mut policies = workloads::build_policies(isolation);
    if isolation.uses_pods {
        policies.extend(control_plane::build_policies(isolation));
    }
    policies
}
