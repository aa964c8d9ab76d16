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
pub struct Sources(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Sources {
    /// Takes a slot of this address until the result is dropped; `None` if its source has taken `limit`.
    pub fn take(&self, address: IpAddr, limit: usize) -> Option<SourceSlot> {
        let source = source_of(address);
        let mut taken = lock(&self.0);
        let count = taken.get(&source).copied().unwrap_or_default();
        (count < limit).then(|| {
            taken.insert(source, count + 1);
            SourceSlot {
                taken: Arc::clone(&self.0),
                source,
            }
        })
    }
}

/// A taken slot of a source.
#[derive(Debug)]
pub struct SourceSlot {
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
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
        let count = taken.get_mut(&self.source).map(|count| {
            *count -= 1;
            *count
        });
        if count == Some(0) {
            taken.remove(&self.source);
        }
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

/// Whether a translator before the gateway has made the address of that of an IPv4 client: it is in the network 64:ff9b::/96 (RFC 6052), or in
/// 64:ff9b:1::/48 (RFC 8215). All IPv4 clients are in one network of /64 then, in which one client would have the places of all.
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
        assert!(lock(&sources.0).is_empty());
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
