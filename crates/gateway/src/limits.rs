//! Counters that limit how many connections a source or a tenant may have.

use berth_runtime::locks::lock;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Network bits of an IPv6 address that one source has: what a site gives to one host or link (RFC 4291, section 2.5.1).
const V6_NETWORK: u128 = !0 << 64;
/// Network bits of what a site has (RFC 6177).
const V6_SITE: u128 = !0 << 80;
/// A site may take as many slots as so many sources, so that its networks of /64 together do not take all that there are.
const SOURCES_OF_SITE: usize = 2;

/// A counter that does not exceed a limit.
#[derive(Debug, Default)]
pub struct Slots(Arc<AtomicUsize>);

impl Slots {
    /// Takes a slot until the result is dropped; `None` if `limit` are taken.
    pub fn take(&self, limit: usize) -> Option<Slot> {
        let below = |taken: usize| (taken < limit).then_some(taken + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        taken.is_ok().then(|| Slot(Arc::clone(&self.0)))
    }
}

/// A taken slot.
#[derive(Debug)]
pub struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counters by source, none of which exceeds a limit.
#[derive(Debug, Default)]
pub struct Sources(Arc<Mutex<Taken>>);

/// How many slots are taken; of what has none, nothing is kept.
#[derive(Debug, Default)]
struct Taken {
    by_source: HashMap<IpAddr, usize>,
    by_site: HashMap<IpAddr, usize>,
}

impl Sources {
    /// Takes a slot of this address until the result is dropped; `None` if its source has taken `limit`, or its site twice as many.
    pub fn take(&self, address: IpAddr, limit: usize) -> Option<SourceSlot> {
        let source = source_of(address);
        let site = site_of(source);
        let mut taken = lock(&self.0);
        let count = |counts: &HashMap<IpAddr, usize>, key: &IpAddr| counts.get(key).copied().unwrap_or_default();
        let of_site = site.map_or(0, |site| count(&taken.by_site, &site));
        if count(&taken.by_source, &source) >= limit || of_site >= limit.saturating_mul(SOURCES_OF_SITE) {
            return None;
        }
        *taken.by_source.entry(source).or_default() += 1;
        if let Some(site) = site {
            *taken.by_site.entry(site).or_default() += 1;
        }
        Some(SourceSlot {
            taken: Arc::clone(&self.0),
            source,
        })
    }
}

/// A taken slot of a source.
#[derive(Debug)]
pub struct SourceSlot {
    taken: Arc<Mutex<Taken>>,
    source: IpAddr,
}

impl SourceSlot {
    /// The source: an address, or the first address of an IPv6 network.
    pub fn address(&self) -> IpAddr {
        self.source
    }
}

impl Drop for SourceSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        give_back(&mut taken.by_source, self.source);
        if let Some(site) = site_of(self.source) {
            give_back(&mut taken.by_site, site);
        }
    }
}

fn give_back(counts: &mut HashMap<IpAddr, usize>, key: IpAddr) {
    let count = counts.get_mut(&key).map(|count| {
        *count -= 1;
        *count
    });
    if count == Some(0) {
        counts.remove(&key);
    }
}

/// What counts as one source: an IPv4 address, also one that was translated, or an IPv6 network of /64.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if is_translated(v6) => v6.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & V6_NETWORK).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The site of a source, which may have many networks of /64: the IPv6 network of /48. None for an IPv4 address.
fn site_of(source: IpAddr) -> Option<IpAddr> {
    match source {
        IpAddr::V6(v6) if !is_translated(v6) => Some(Ipv6Addr::from_bits(v6.to_bits() & V6_SITE).into()),
        IpAddr::V6(_) | IpAddr::V4(_) => None,
    }
}

/// Whether a translator in front of the gateway gives this address to an IPv4 client: it is in the network 64:ff9b::/96 (RFC 6052), or in
/// 64:ff9b:1::/48 (RFC 8215). All of these clients would be one source otherwise.
fn is_translated(address: Ipv6Addr) -> bool {
    matches!(
        address.segments(),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_back() {
        let slots = Slots::default();
        let first = slots.take(2).unwrap();
        let _second = slots.take(2).unwrap();
        assert!(slots.take(2).is_none());
        drop(first);
        assert!(slots.take(2).is_some());
        assert!(slots.take(0).is_none());
    }

    #[test]
    fn each_source_has_its_own_limit_and_none_is_remembered() {
        let sources = Sources::default();
        let (a, b): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let first = sources.take(a, 1).unwrap();
        assert!(sources.take(a, 1).is_none() && sources.take(b, 0).is_none());
        let other = sources.take(b, 1).unwrap();
        drop(first);
        let again = sources.take(a, 1).unwrap();
        drop((again, other));
        assert!(lock(&sources.0).by_source.is_empty());
    }

    #[test]
    fn the_networks_of_a_site_together_have_the_slots_of_two() {
        let sources = Sources::default();
        let take = |text: &str| sources.take(text.parse().unwrap(), 2);
        let mut slots = Vec::new();
        for network in 0..3 {
            while let Some(slot) = take(&format!("2001:db8:0:{network}::1")) {
                slots.push(slot);
            }
        }
        assert_eq!(slots.len(), 4);
        // Another site, and IPv4 clients behind a translator.
        for other in [
            "2001:db8:1::1",
            "64:ff9b::192.0.2.1",
            "64:ff9b::192.0.2.2",
            "64:ff9b::192.0.2.3",
        ] {
            slots.extend([take(other).unwrap(), take(other).unwrap()]);
        }
        drop(slots);
        let taken = lock(&sources.0);
        assert!(taken.by_source.is_empty() && taken.by_site.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let source = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        for network in ["64:ff9b::", "64:ff9b:1:2::"] {
            assert_ne!(
                source(&format!("{network}192.0.2.1")),
                source(&format!("{network}192.0.2.2")),
                "{network}"
            );
        }
        assert_eq!(source("64:ff9b:2::192.0.2.1"), source("64:ff9b:2::192.0.2.2"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }
}
