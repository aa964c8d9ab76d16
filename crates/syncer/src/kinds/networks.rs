//! Ranges of addresses, as policies and endpoints name them.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every IPv4 address.
pub const ALL_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
/// Every IPv6 address.
pub const ALL_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

/// Never anything of a tenant's: the node's own addresses, metadata services.
const NODE_LOCAL: &[IpNet] = &[
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

/// A range as users write it. IPv6 ranges that stand for IPv4 ones are refused: what a range means must not depend on
/// who reads it.
///
/// # Errors
/// Words for whoever wrote it.
pub fn parse(text: &str) -> Result<IpNet, String> {
    let network = text.split_once('/').and_then(|(address, length)| {
        let address = address.parse::<IpAddr>().ok()?;
        Some(IpNet::new(address, length.parse().ok()?).ok()?.trunc())
    });
    let network = network.ok_or_else(|| format!("{text} is not a range of addresses"))?;
    match network {
        IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some() => {
            Err(format!("{text} stands for IPv4 addresses: write it as an IPv4 range"))
        }
        network => Ok(network),
    }
}

/// The ranges that a tenant's policies may never open: those that its class lists, and every node's own. A range that
/// cannot be read blocks everything: a mistake of the platform must open nothing.
pub fn blocked(listed: &[String]) -> Vec<IpNet> {
    let listed = listed.iter().flat_map(|text| match parse(text) {
        Ok(network) => vec![network],
        Err(_) => vec![ALL_V4, ALL_V6],
    });
    NODE_LOCAL.iter().copied().chain(listed).collect()
}

/// Whether an address can be that of a workload at all.
pub fn is_workload_address(address: IpAddr) -> bool {
    let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(is_mapped
        || is_broadcast
        || address.is_unspecified()
        || address.is_multicast()
        || NODE_LOCAL.iter().any(|network| network.contains(&address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_in_one_way_only() {
        assert_eq!(parse("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        for bad in [
            "10.0.0.0",
            "010.0.0.0/8",
            "10.0.0.0/33",
            "::ffff:10.0.0.0/104",
            "any",
            "",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_platforms_mistake_blocks_everything() {
        assert!(blocked(&["10.0.0.0/8".into()]).len() == NODE_LOCAL.len() + 1);
        assert!(blocked(&["oops".into()]).ends_with(&[ALL_V4, ALL_V6]));
    }

    #[test]
    fn addresses_of_nodes_and_groups_are_no_workloads() {
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_workload_address(bad.parse().unwrap()), "{bad}");
        }
        for good in ["10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(is_workload_address(good.parse().unwrap()), "{good}");
        }
    }
}
