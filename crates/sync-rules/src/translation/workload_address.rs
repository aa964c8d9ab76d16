//! Addresses as endpoints name them. Ranges are read by [`berth_api::ranges`].

use berth_api::ranges::NODE_LOCAL;
use std::net::IpAddr;

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
