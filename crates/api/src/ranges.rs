//! Ranges of addresses in policies and endpoints. Control and syncers parse them in the same way.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every IPv4 address.
pub const ALL_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
/// Every IPv6 address.
pub const ALL_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

/// A node's own addresses, and link-local ones, under which most clouds serve metadata and credentials.
pub const NODE_LOCAL: &[IpNet] = &[
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

/// Metadata services of clouds that are not at link-local addresses.
pub const METADATA: &[IpNet] = &[
    // Alibaba Cloud.
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 100, 100, 200), 32)),
    // Azure.
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32)),
    // Oracle Cloud.
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 192), 32)),
    // AWS, and what gives credentials to pods there.
    single(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    single(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // Google Cloud.
    single(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Akamai (Linode).
    single(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)),
    // Alibaba Cloud.
    single(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)),
    // Oracle Cloud.
    single(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Scaleway.
    single(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

const fn single(address: Ipv6Addr) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address, 128))
}

/// Multicast and broadcast addresses. What a pod sends there reaches its own node, and programs of the node that listen on all addresses.
pub const MULTICAST_AND_BROADCAST: &[IpNet] = &[
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
];

/// Networks of IPv6 addresses that stand for IPv4 addresses. What such an address leads to depends on who reads it.
pub const FORMS_OF_V4: &[IpNet] = &[
    // Compatible and mapped.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 80)),
    // Translated.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 80)),
    // NAT64, also with a local prefix.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 32)),
    // 6to4 and Teredo.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32)),
];

/// The network by which translators lead IPv6 clients to IPv4 addresses (NAT64, RFC 6052), which are its last 32 bits.
pub const NAT64: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96));

/// The addresses in [`NAT64`] for an IPv4 range; none for an IPv6 range.
pub fn behind_nat64(range: IpNet) -> Option<IpNet> {
    let (IpNet::V4(range), IpNet::V6(prefix)) = (range, NAT64) else {
        return None;
    };
    let address = u128::from(prefix.addr()) | u128::from(u32::from(range.addr()));
    Ipv6Net::new(address.into(), prefix.prefix_len() + range.prefix_len())
        .ok()
        .map(IpNet::V6)
}

/// Networks that no tenant may reach on any host.
pub fn never_open() -> impl Iterator<Item = IpNet> {
    NODE_LOCAL.iter().chain(METADATA).copied()
}

/// Parses a range as users write it. IPv6 ranges that represent IPv4 ranges are rejected, because programs read them in
/// different ways.
///
/// # Errors
/// A message for the author of the range.
pub fn parse(text: &str) -> Result<IpNet, String> {
    let network = text.split_once('/').and_then(|(address, length)| {
        let address = address.parse::<IpAddr>().ok()?;
        Some(IpNet::new(address, length.parse().ok()?).ok()?.trunc())
    });
    let network = network.ok_or_else(|| format!("{text} is not a range of addresses"))?;
    match network {
        IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some() => {
            Err(format!("{text} represents IPv4 addresses: write it as an IPv4 range"))
        }
        network => Ok(network),
    }
}

/// Ranges that no tenant may open. One that cannot be parsed blocks everything: a mistake of the platform must open nothing.
pub fn blocking<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpNet> {
    let read = |text: &String| parse(text).map_or_else(|_| vec![ALL_V4, ALL_V6], |network| vec![network]);
    texts.into_iter().flat_map(read).collect()
}

/// What two ranges have in common: one of them, or nothing.
pub fn common(one: IpNet, other: IpNet) -> Option<IpNet> {
    if one.contains(&other) {
        Some(other)
    } else if other.contains(&one) {
        Some(one)
    } else {
        None
    }
}

/// Whether two ranges have an address in common.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    common(one, other).is_some()
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
    fn ranges_behind_a_translator_have_the_same_size() {
        for (range, translated) in [
            ("169.254.0.0/16", "64:ff9b::a9fe:0/112"),
            ("10.96.0.1/32", "64:ff9b::a60:1/128"),
            ("0.0.0.0/0", "64:ff9b::/96"),
        ] {
            assert_eq!(behind_nat64(parse(range).unwrap()), Some(parse(translated).unwrap()));
        }
        assert_eq!(behind_nat64(parse("fd00::/8").unwrap()), None);
    }

    #[test]
    fn an_invalid_blocked_range_blocks_everything() {
        assert_eq!(blocking(&["10.0.0.0/8".to_owned()]).len(), 1);
        assert_eq!(blocking(&["oops".to_owned()]), [ALL_V4, ALL_V6]);
    }

    #[test]
    fn ranges_lie_within_each_other_or_apart() {
        let net = |text: &str| parse(text).unwrap();
        assert_eq!(common(net("10.0.0.0/8"), net("10.1.0.0/16")), Some(net("10.1.0.0/16")));
        assert_eq!(common(net("10.1.0.0/16"), net("10.0.0.0/8")), Some(net("10.1.0.0/16")));
        assert_eq!(common(net("10.1.0.0/16"), net("10.2.0.0/16")), None);
        assert_eq!(common(ALL_V4, net("fd00::/8")), None);
    }
}
