//! Networks of clients that may connect, of which a change takes some away: they must not stay open until it is the turn of the change.

use ipnet::IpNet;
use serde_json::Value;
use std::net::IpAddr;

/// The networks of `present` that may still connect if those of `wanted` shall be all: empty for everyone, `None` for nobody.
pub fn remaining(wanted: &[Value], present: &[Value]) -> Option<Vec<Value>> {
    if wanted.is_empty() {
        return Some(present.to_vec());
    }
    // Otherwise another order of the same networks would be a write that does not wait, and the order before another one.
    if !present.is_empty() && hold(wanted, present) {
        return Some(present.to_vec());
    }
    if present.is_empty() || hold(present, wanted) {
        return Some(wanted.to_vec());
    }
    let of_wanted = Networks::new(wanted);
    let kept = present.iter().filter(|network| of_wanted.hold(network));
    let kept: Vec<Value> = kept.cloned().collect();
    (!kept.is_empty()).then_some(kept)
}

/// Whether `outer` have all addresses of `inner`.
pub fn hold(outer: &[Value], inner: &[Value]) -> bool {
    let outer = Networks::new(outer);
    inner.iter().all(|network| outer.hold(network))
}

/// Networks as an object names them.
struct Networks<'a> {
    listed: &'a [Value],
    /// Those that can be read. Neighbours are one.
    merged: Vec<IpNet>,
}

impl<'a> Networks<'a> {
    fn new(listed: &'a [Value]) -> Self {
        let readable: Vec<IpNet> = listed.iter().filter_map(read).collect();
        Self {
            listed,
            merged: IpNet::aggregate(&readable),
        }
    }

    /// Whether they have all addresses of a network. One that cannot be read is compared as text.
    fn hold(&self, network: &Value) -> bool {
        let inner = read(network);
        let is_in = |outer: &IpNet| inner.is_some_and(|inner| outer.contains(&inner));
        self.listed.contains(network) || self.merged.iter().any(is_in)
    }
}

/// A network, or an address.
fn read(network: &Value) -> Option<IpNet> {
    let text = network.as_str()?.trim();
    let address = || Some(IpNet::from(text.parse::<IpAddr>().ok()?));
    text.parse().ok().or_else(address)
}
