//! What of the host's network no tenant may reach, as far as the host's API tells: pods, Services, nodes and API servers. What
//! it does not tell (a CNI with ranges of its own, a network of machines without kubelet) is given by flags.

use berth_api::ranges;
use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Node, discovery::v1::EndpointSlice};
use std::net::{IpAddr, SocketAddr};

/// How many ranges the policies of a tenant take out at most. Beyond that neighbouring ranges are closed together: policy
/// engines pay for each, on every node.
const MOST_RANGES: usize = 250;

/// The host's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Never opened to any tenant, sorted, none within another.
    pub blocked: Vec<IpNet>,
    /// Of these, the ranges of pods.
    pub pods: Vec<IpNet>,
    /// Of these, the ranges of Services.
    pub services: Vec<IpNet>,
    /// Where the host's API servers listen.
    pub api_servers: Vec<SocketAddr>,
}

impl HostFacts {
    /// Every range that stays closed to tenants of a class that closes these besides, none within another.
    pub fn closed_with(&self, by_class: &[IpNet]) -> Vec<IpNet> {
        let all: Vec<IpNet> = self.blocked.iter().chain(by_class).copied().collect();
        let mut closed = IpNet::aggregate(&all);
        closed.sort();
        closed
    }
}

/// Puts together what is known of the host.
pub fn gather<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    service_ranges: impl IntoIterator<Item = &'a str>,
    api_servers: Vec<SocketAddr>,
    flags: &[IpNet],
) -> HostFacts {
    let mut pods = Vec::new();
    let mut machines: Vec<IpNet> = api_servers.iter().map(|server| IpNet::from(server.ip())).collect();
    for node in nodes {
        let spec = node.spec.iter();
        let listed = spec.clone().flat_map(|spec| spec.pod_cidrs.iter().flatten());
        let first = spec.flat_map(|spec| spec.pod_cidr.iter());
        pods.extend(listed.chain(first).filter_map(|text| ranges::parse(text).ok()));
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        machines.extend(addresses.filter_map(|address| address.address.parse::<IpAddr>().ok().map(IpNet::from)));
    }
    let pods = IpNet::aggregate(&pods);
    let services: Vec<IpNet> = service_ranges
        .into_iter()
        .filter_map(|text| ranges::parse(text).ok())
        .collect();
    let all = ranges::never_open()
        .chain(flags.iter().copied())
        .chain(services.iter().copied());
    let all: Vec<IpNet> = all.chain(pods.iter().copied()).chain(machines).collect();
    let mut blocked = bounded(IpNet::aggregate(&all), MOST_RANGES);
    blocked.sort();
    HostFacts {
        blocked,
        pods,
        services,
        api_servers,
    }
}

/// At most `most` ranges that hold all of `ranges`: the longest prefixes are made shorter until they meet.
fn bounded(mut ranges: Vec<IpNet>, most: usize) -> Vec<IpNet> {
    while ranges.len() > most {
        // An IPv6 network is told by half of its bits, so both families shrink alike.
        let length = |range: &IpNet| u32::from(range.prefix_len()) * 128 / u32::from(range.max_prefix_len());
        let Some(longest) = ranges.iter().map(length).max().filter(|longest| *longest > 0) else {
            break;
        };
        for range in &mut ranges {
            if length(range) == longest
                && let Some(wider) = range.supernet()
            {
                *range = wider;
            }
        }
        ranges = IpNet::aggregate(&ranges);
    }
    ranges
}

/// Where the API servers behind `default/kubernetes` listen.
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
    fn pods_services_nodes_and_api_servers_are_closed() {
        let nodes = [
            node("10.244.0.0/24", "192.168.5.10"),
            node("10.244.1.0/24", "192.168.5.12"),
        ];
        let flags = [ranges::parse("192.168.100.0/24").unwrap()];
        let servers = vec![
            "192.168.5.10:6443".parse().unwrap(),
            "192.168.9.9:6443".parse().unwrap(),
        ];
        let facts = gather(&nodes, ["10.96.0.0/16"], servers, &flags);
        insta::assert_yaml_snapshot!(facts.blocked.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(facts.pods, [ranges::parse("10.244.0.0/23").unwrap()]);
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
        fn bounded_ranges_hold_everything(addresses in prop::collection::vec(any::<u32>(), 1..60), most in 1_usize..20) {
            let all: Vec<IpNet> = addresses.iter().map(|bits| IpNet::from(IpAddr::from(bits.to_be_bytes()))).collect();
            let fewer = bounded(IpNet::aggregate(&all), most);
            prop_assert!(fewer.len() <= most);
            prop_assert!(all.iter().all(|one| fewer.iter().any(|range| range.contains(one))));
        }
    }
}
