//! The host's network, which no tenant may reach, as far as the host's API shows it: pods, Services, nodes and API servers.
//! Flags add what it does not show (a CNI with its own ranges, a network of machines without kubelets).

use berth_api::ranges;
use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use std::{
    cmp::Reverse,
    net::{IpAddr, SocketAddr},
};

/// Blocked ranges in the policies of a tenant. Beyond that, neighbouring ranges are merged: policy engines pay for each range on
/// every node.
const MAX_BLOCKED_RANGES: usize = 250;

/// Addresses of a node in each family. Its kubelet reports them, and who is root on a node of a tenant can be its kubelet: with some
/// hundred addresses, one node would close all networks to all tenants.
const MAX_NODE_ADDRESSES: usize = 4;

/// Ranges in a list with which an admission policy compares addresses. An API server bounds what the evaluation of a policy may
/// cost: one expression may cost a million units.
///
/// Every address of a slice is compared with every range that is closed to endpoints, for up to 15 units. 500 addresses
/// (`endpoint_slice::MAX_ADDRESSES`) and 100 ranges, with a dozen that are always closed, stay below the bound. Every range of a
/// NetworkPolicy is compared with every blocked range, and excepts it: that costs the square of their number for each peer.
const MAX_COMPARED_RANGES: usize = 100;

/// The host's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetwork {
    /// Ranges that are blocked for every tenant, sorted; none contains another.
    pub blocked: Vec<IpNet>,
    /// The ranges of pods among them.
    pub pods: Vec<IpNet>,
    /// The ranges of Services among them.
    pub services: Vec<IpNet>,
    /// The addresses of nodes among them; none contains another. Flags may block ranges around them.
    pub nodes: Vec<IpNet>,
    /// Addresses of the host's API servers.
    pub api_servers: Vec<SocketAddr>,
}

impl HostNetwork {
    /// The blocked ranges of tenants whose class blocks more; none contains another.
    pub fn blocked_with(&self, by_class: &[IpNet]) -> Vec<IpNet> {
        let all: Vec<IpNet> = self.blocked.iter().chain(by_class).copied().collect();
        let mut blocked = IpNet::aggregate(&all);
        blocked.sort();
        blocked
    }

    /// The address families of pods, Services and nodes, each as the network of all its addresses.
    pub fn families(&self) -> Vec<IpNet> {
        let known = || self.pods.iter().chain(&self.services).chain(&self.nodes);
        let is_used = |family: &IpNet| known().any(|range| family.contains(range));
        [ranges::ALL_V4, ranges::ALL_V6].into_iter().filter(is_used).collect()
    }

    /// Ranges of the host in which no pod lies, as far as it is known: Service ranges and API servers, and nodes within
    /// `offered`. Sorted; none contains another.
    ///
    /// Pods may have addresses between those of nodes, so nodes are listed one by one as long as they are few enough. If not,
    /// neighbouring ranges are merged, around the known ranges of pods if that is possible. What lies between is then closed as well:
    /// it is better to reject an endpoint at a pod than to allow one at a node.
    pub fn ranges_without_pods(&self, offered: &[IpNet]) -> Vec<IpNet> {
        let nodes = self
            .nodes
            .iter()
            .filter(|node| offered.iter().any(|range| ranges::overlap(*range, **node)))
            .copied();
        let servers = self.api_servers.iter().map(|server| IpNet::from(server.ip()));
        let all: Vec<IpNet> = self.services.iter().copied().chain(servers).chain(nodes).collect();
        few_ranges(&all, &self.pods)
    }
}

/// Ranges that contain all of `ranges`, few enough for an admission policy; sorted, none contains another. Beyond that,
/// neighbouring ranges are merged, around `apart_from` if that is possible.
pub(super) fn few_ranges(ranges: &[IpNet], apart_from: &[IpNet]) -> Vec<IpNet> {
    let around = merge_ranges(IpNet::aggregate(&ranges.to_vec()), MAX_COMPARED_RANGES, apart_from);
    let mut few = merge_ranges(around, MAX_COMPARED_RANGES, &[]);
    few.sort();
    few
}

/// The host's network, with all addresses that its nodes report.
#[cfg(test)]
pub(super) fn collect_host_network<'n, 's>(
    nodes: impl IntoIterator<Item = &'n Node>,
    service_ranges: impl IntoIterator<Item = &'s str>,
    api_servers: Vec<SocketAddr>,
    flags: &[IpNet],
) -> HostNetwork {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    let addresses = nodes.iter().copied().flat_map(addresses_of).collect();
    collect_with_addresses((nodes, addresses), service_ranges, api_servers, flags)
}

/// The host's network, from its nodes and their addresses that count, from Service ranges and API servers, and from flags.
pub fn collect_with_addresses<'n, 's>(
    (nodes, node_addresses): (impl IntoIterator<Item = &'n Node>, Vec<IpAddr>),
    service_ranges: impl IntoIterator<Item = &'s str>,
    api_servers: Vec<SocketAddr>,
    flags: &[IpNet],
) -> HostNetwork {
    let mut pods = Vec::new();
    for node in nodes {
        let spec = node.spec.iter();
        let listed = spec.clone().flat_map(|spec| spec.pod_cidrs.iter().flatten());
        let first = spec.flat_map(|spec| spec.pod_cidr.iter());
        pods.extend(listed.chain(first).filter_map(|text| ranges::parse(text).ok()));
    }
    let node_addresses: Vec<IpNet> = node_addresses.into_iter().map(IpNet::from).collect();
    let pods = IpNet::aggregate(&pods);
    let nodes = IpNet::aggregate(&node_addresses);
    let services: Vec<IpNet> = service_ranges
        .into_iter()
        .filter_map(|text| ranges::parse(text).ok())
        .collect();
    let all = ranges::never_open()
        .chain(ranges::MULTICAST_AND_BROADCAST.iter().copied())
        .chain(flags.iter().copied())
        .chain(services.iter().copied());
    let all = all.chain(api_servers.iter().map(|server| IpNet::from(server.ip())));
    let all: Vec<IpNet> = all.chain(pods.iter().copied()).chain(node_addresses).collect();
    let mut blocked = merge_ranges(IpNet::aggregate(&all), MAX_BLOCKED_RANGES, &[]);
    blocked.sort();
    HostNetwork {
        blocked,
        pods,
        services,
        nodes,
        api_servers,
    }
}

/// The addresses of a node that count: of each family the first [`MAX_NODE_ADDRESSES`].
pub fn addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    let mut counts = [0_usize; 2];
    all_addresses_of(node).filter(move |address| {
        let count = &mut counts[usize::from(address.is_ipv6())];
        *count += 1;
        *count <= MAX_NODE_ADDRESSES
    })
}

/// All addresses that a node reports of its machine. An IPv6 form of an IPv4 address is this IPv4 address: no API server accepts the form in a policy, so that
/// one node would keep the policies of all tenants from being written.
pub fn all_addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of_machine = addresses.filter(|address| ["InternalIP", "ExternalIP"].contains(&address.type_.as_str()));
    of_machine
        .filter_map(|address| address.address.parse::<IpAddr>().ok())
        .map(|address| address.to_canonical())
}

/// At most `most` ranges that contain all of `ranges`, of which none contains another: neighbours become the smallest network around both, the nearest
/// ones first, so that a range far from all others closes nothing around it. No network grows into one of `apart_from`; if that leaves too little to merge,
/// there are more than `most`.
fn merge_ranges(mut ranges: Vec<IpNet>, most: usize, apart_from: &[IpNet]) -> Vec<IpNet> {
    let surplus = ranges.len().saturating_sub(most);
    if surplus == 0 {
        return ranges;
    }
    ranges.sort();
    // In proportion to the length of addresses, so that both families shrink alike.
    let length = |range: &IpNet| u32::from(range.prefix_len()) * 128 / u32::from(range.max_prefix_len());
    let is_apart = |wider: &IpNet| apart_from.iter().all(|other| !ranges::overlap(*wider, *other));
    let around = ranges.windows(2).filter_map(|pair| network_around(pair[0], pair[1]));
    let mut around: Vec<IpNet> = around.filter(is_apart).collect();
    around.sort_by_key(|wider| Reverse(length(wider)));
    // Each takes the place of one range, as all smaller ones within it come before it.
    around.truncate(surplus);
    ranges.extend(around);
    IpNet::aggregate(&ranges)
}

/// The smallest network that contains both; none if they are of different families.
fn network_around(one: IpNet, other: IpNet) -> Option<IpNet> {
    let mut wider = one;
    while !wider.contains(&other) {
        wider = wider.supernet()?;
    }
    Some(wider)
}

/// Addresses of the API servers behind `default/kubernetes`.
pub fn api_servers<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = Vec::new();
    for slice in slices {
        let ports = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| u16::try_from(port.port?).ok());
        for port in ports {
            let addresses = slice
                .endpoints
                .iter()
                .flatten()
                .flat_map(|endpoint| &endpoint.addresses);
            let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
            found.extend(addresses.map(|address| SocketAddr::new(address, port)));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::NodeAddress;
    use proptest::prelude::*;
    use serde_json::json;

    fn node(pods: &str, address: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"podCIDR": pods, "podCIDRs": [pods]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": "n"}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_services_nodes_and_api_servers_are_blocked() {
        let nodes = [
            node("10.244.0.0/24", "192.168.5.10"),
            node("10.244.1.0/24", "192.168.5.12"),
        ];
        let flags = [ranges::parse("192.168.100.0/24").unwrap()];
        let servers = vec![
            "192.168.5.10:6443".parse().unwrap(),
            "192.168.9.9:6443".parse().unwrap(),
        ];
        let facts = collect_host_network(&nodes, ["10.96.0.0/16"], servers, &flags);
        insta::assert_yaml_snapshot!(facts.blocked.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(facts.pods, [ranges::parse("10.244.0.0/23").unwrap()]);
    }

    #[test]
    fn families_are_those_of_pods_services_and_nodes() {
        let families = |pods: &str, address: &str, services: &[&str]| {
            let facts = collect_host_network(&[node(pods, address)], services.iter().copied(), Vec::new(), &[]);
            facts.families()
        };
        let (v4, v6) = (ranges::ALL_V4, ranges::ALL_V6);
        assert_eq!(families("10.244.0.0/24", "192.168.5.10", &["10.96.0.0/16"]), [v4]);
        assert_eq!(families("fd01::/64", "fd02::1", &["fd03::/112"]), [v6]);
        assert_eq!(
            families("10.244.0.0/24", "192.168.5.10", &["10.96.0.0/16", "fd03::/112"]),
            [v4, v6]
        );
        assert_eq!(families("10.244.0.0/24", "fd02::1", &[]), [v4, v6]);
        assert!(HostNetwork::default().families().is_empty());
    }

    #[test]
    fn ranges_without_pods_hold_services_api_servers_and_offered_nodes() {
        let nodes = [
            node("10.244.0.0/24", "192.168.5.10"),
            node("10.244.1.0/24", "172.18.0.5"),
        ];
        let flags = [ranges::parse("192.168.0.0/16").unwrap()];
        let servers = vec!["192.168.9.9:6443".parse().unwrap()];
        let facts = collect_host_network(&nodes, ["10.96.0.0/16"], servers, &flags);
        let closed = |offered: &[&str]| -> Vec<String> {
            let offered: Vec<IpNet> = offered.iter().map(|text| ranges::parse(text).unwrap()).collect();
            let closed = facts.ranges_without_pods(&offered);
            closed.iter().map(ToString::to_string).collect()
        };
        assert_eq!(closed(&[]), ["10.96.0.0/16", "192.168.9.9/32"]);
        let with_node = ["10.96.0.0/16", "192.168.5.10/32", "192.168.9.9/32"];
        assert_eq!(closed(&["10.0.0.0/8", "192.168.0.0/16"]), with_node);
        let many: Vec<Node> = (0..=MAX_BLOCKED_RANGES)
            .map(|n| node("10.244.0.0/24", &format!("172.16.{}.{}", n / 100, 2 * (n % 100) + 1)))
            .collect();
        let few = collect_host_network(&many[..100], [], Vec::new(), &[]);
        let everything = [ranges::ALL_V4];
        assert_eq!(few.ranges_without_pods(&everything).len(), 100, "not merged");
        let facts = collect_host_network(&many, ["10.96.0.0/16"], Vec::new(), &[]);
        let merged = facts.ranges_without_pods(&everything);
        assert!(merged.len() <= MAX_COMPARED_RANGES, "{}", merged.len());
        for node in &many {
            let address = addresses_of(node).next().unwrap();
            assert!(merged.iter().any(|range| range.contains(&address)), "{address} is open");
        }
        assert!(merged.contains(&ranges::parse("10.96.0.0/16").unwrap()));
    }

    #[test]
    fn merged_ranges_keep_apart_from_pods_if_they_can() {
        // Each node of one rack has its pods' range beside it.
        let beside_pods = |n: usize| {
            let (pods, address) = (format!("172.16.{}.0/24", 2 * n + 1), format!("172.16.{}.1", 2 * n));
            node(&pods, &address)
        };
        let elsewhere = (0..100).map(|n| node("10.244.0.0/24", &format!("172.20.{}.1", 2 * n)));
        let nodes: Vec<Node> = (0..60).map(beside_pods).chain(elsewhere).collect();
        let facts = collect_host_network(&nodes, [], Vec::new(), &[]);
        let closed = facts.ranges_without_pods(&[ranges::ALL_V4]);
        let with_pods = |range: &IpNet| facts.pods.iter().any(|pods| ranges::overlap(*range, *pods));
        assert!(
            closed.len() <= MAX_COMPARED_RANGES && !closed.iter().any(with_pods),
            "{closed:?}"
        );

        let nodes: Vec<Node> = (0..120).map(beside_pods).collect();
        let closed = collect_host_network(&nodes, [], Vec::new(), &[]).ranges_without_pods(&[ranges::ALL_V4]);
        assert!(closed.len() <= MAX_COMPARED_RANGES, "{closed:?}");
        for address in nodes.iter().flat_map(addresses_of) {
            assert!(closed.iter().any(|range| range.contains(&address)), "{address} is open");
        }
    }

    #[test]
    fn api_servers_are_found_behind_their_service() {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes"}, "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}],
            "endpoints": [{"addresses": ["192.168.5.10"]}, {"addresses": ["192.168.5.11"]}],
        }))
        .unwrap();
        let found: Vec<String> = api_servers(&[slice]).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.168.5.10:6443", "192.168.5.11:6443"]);
    }

    proptest! {
        #[test]
        fn merged_ranges_contain_all_ranges(addresses in prop::collection::vec(any::<u32>(), 1..60), most in 1_usize..20) {
            let all: Vec<IpNet> = addresses.iter().map(|bits| IpNet::from(IpAddr::from(bits.to_be_bytes()))).collect();
            let fewer = merge_ranges(IpNet::aggregate(&all), most, &[]);
            prop_assert!(fewer.len() <= most);
            prop_assert!(all.iter().all(|one| fewer.iter().any(|range| range.contains(one))));
        }
    }

    #[test]
    fn ranges_far_from_all_others_close_nothing_around_them() {
        let net = |text: String| -> IpNet { ranges::parse(&text).unwrap() };
        let near = (0..100).flat_map(|n| [1, 3].map(|last| format!("192.168.{n}.{last}/32")));
        let far: Vec<IpNet> = (1..=50).map(|n| net(format!("{n}.77.3.9/32"))).collect();
        let other_family = (1..=50).map(|n| format!("2001:db8:{n}::9/128"));
        let all: Vec<IpNet> = near.chain(other_family).map(net).chain(far.iter().copied()).collect();
        let merged = merge_ranges(IpNet::aggregate(&all), 250, &[]);
        assert_eq!(merged.len(), 250);
        assert!(far.iter().all(|range| merged.contains(range)), "{merged:?}");
        let widest = merged
            .iter()
            .filter(|range| range.addr().is_ipv4())
            .map(IpNet::prefix_len)
            .min();
        assert_eq!(widest, Some(30), "{merged:?}");
        assert!(all.iter().all(|one| merged.iter().any(|range| range.contains(one))));
    }

    #[test]
    fn a_node_that_reports_a_form_of_an_address_closes_the_address() {
        let nodes = [
            node("10.244.0.0/24", "192.168.5.10"),
            node("10.244.1.0/24", "::ffff:192.168.5.66"),
        ];
        let facts = collect_host_network(&nodes, ["10.96.0.0/16"], Vec::new(), &[]);
        let closed: IpNet = "192.168.5.66/32".parse().unwrap();
        assert!(facts.blocked.contains(&closed), "{:?}", facts.blocked);
        assert!(facts.nodes.contains(&closed), "{:?}", facts.nodes);
        for range in &facts.blocked {
            // As in the policies, and as an API server writes it.
            let text = range.to_string();
            assert!(!(text.contains(':') && text.contains('.')), "{text}");
            assert_eq!(ranges::parse(&text).as_ref(), Ok(range));
        }
        assert_eq!(facts.families(), [ranges::ALL_V4]);
    }

    #[test]
    fn a_node_that_reports_every_network_closes_few_addresses() {
        let mut liar = node("10.244.1.0/24", "192.168.5.66");
        let addresses = liar.status.as_mut().unwrap().addresses.as_mut().unwrap();
        for number in 0..448 {
            addresses.push(NodeAddress {
                address: format!("{}.{}.7.223", number % 224, 100 + number / 224),
                type_: "ExternalIP".into(),
            });
            addresses.push(NodeAddress {
                address: format!("2001:db8:{number}::1"),
                type_: "InternalIP".into(),
            });
        }
        assert_eq!(addresses_of(&liar).count(), 2 * MAX_NODE_ADDRESSES);
        assert_eq!(addresses_of(&liar).next().unwrap().to_string(), "192.168.5.66");
        let intact: Vec<Node> = (0..150)
            .map(|number| node(&format!("10.244.{number}.0/24"), &format!("192.168.5.{number}")))
            .collect();
        let blocked = |nodes: &[Node]| collect_host_network(nodes, ["10.96.0.0/16"], Vec::new(), &[]).blocked;
        let shortest = |ranges: &[IpNet]| {
            ranges
                .iter()
                .filter(|range| range.addr().is_ipv4() && !ranges::MULTICAST_AND_BROADCAST.contains(range))
                .map(IpNet::prefix_len)
                .min()
        };
        let all: Vec<Node> = intact.iter().cloned().chain([liar]).collect();
        assert_eq!(shortest(&blocked(&all)), shortest(&blocked(&intact)));
    }
}
