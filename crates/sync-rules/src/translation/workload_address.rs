//! Addresses that no workload has, and those that mean something else than they seem to. Ranges are read by
//! [`berth_api::ranges`].

use berth_api::ranges::{FORMS_OF_V4, METADATA, NODE_LOCAL};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Why an address can be neither that of a workload nor that of an external host, if so. IPv6 forms of an IPv4 address
/// are denied as such, because their meaning depends on who reads them.
pub fn special(address: IpAddr) -> Option<&'static str> {
    if METADATA.iter().any(|network| network.contains(&address)) {
        return Some("the address of a metadata service");
    }
    match address {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets() {
        [0, ..] => Some("an unspecified address"),
        [127, ..] => Some("a loopback address"),
        [169, 254, ..] => Some("a link-local address, where metadata services are"),
        [224..=239, ..] => Some("a multicast address"),
        [240..=255, ..] => Some("a reserved or broadcast address"),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
        _ if FORMS_OF_V4.iter().any(|network| network.contains(&IpAddr::V6(address))) => {
            Some("an IPv6 form of an IPv4 address (write it as IPv4)")
        }
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xfec0..=0xfeff, ..] => Some("a site-local address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn special_addresses_are_known_in_all_their_forms() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001:0:1::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:a9fe:a9fe::1",
            "fd00:42::42",
            "fd00:c1::a9fe:a9fe",
            "fd00:100::100:200",
        ] {
            assert!(special(address.parse().unwrap()).is_some(), "{address}");
        }
        for address in [
            "10.0.0.1",
            "192.0.2.1",
            "1.1.1.1",
            "fd00::1",
            "2001:db8::1",
            "2606:4700::1",
        ] {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn ipv6_forms_of_ipv4_addresses_are_special(address: Ipv4Addr) {
            for form in [address.to_ipv6_mapped(), address.to_ipv6_compatible()] {
                prop_assert!(special(form.into()).is_some());
            }
        }
    }
}
