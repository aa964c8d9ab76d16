//! What it costs the host's API server to evaluate the admission policy `berth-network-policies`, which compares each range of a
//! NetworkPolicy with each range that is allowed or blocked for the tenant. The API server rejects a request if one expression costs
//! more than a million units.
//!
//! The count follows the API server's own: a comparison pays for the bytes of prefixes and for the texts that are parsed. It is
//! rounded up everywhere.

use super::limits::{Limits, Peer};
use crate::model::json;
use berth_api::ranges;
use ipnet::IpNet;
use serde_json::Value;
use std::collections::HashSet;

/// Most units for one direction of a policy. The rest is for the lists that the expressions start with.
pub const MAX_COST: usize = 900_000;

/// A step through a list, with the access to the fields that it reads.
const STEP: usize = 10;
/// A peer, and its share of its rule.
const PEER: usize = 40;
/// A selector of namespaces, besides the search in the list of those that are allowed.
const NAMESPACES: usize = 40;

/// A range, and what it costs to parse its text.
struct Range {
    net: IpNet,
    parse: usize,
}

impl Range {
    fn new(net: IpNet) -> Self {
        Self {
            net,
            parse: net.to_string().len().div_ceil(10),
        }
    }

    /// What it costs to find out whether `other` lies in it.
    fn compare(&self, other: &Self) -> usize {
        let bytes = usize::from(self.net.prefix_len()).div_ceil(8);
        (2 * bytes).div_ceil(10) + bytes.div_ceil(10) + 1 + other.parse
    }
}

/// The lists with which the policy compares the peers of one direction.
pub struct Cost {
    allowed: Vec<Range>,
    namespaces: usize,
    blocked: Vec<Range>,
}

impl Cost {
    /// The lists for peers on one side of a rule: `to` or `from`.
    pub fn new(limits: &Limits, side: &str) -> Self {
        let peers = if side == "to" { &limits.egress } else { &limits.ingress };
        let mut blocked = limits.blocked.clone();
        blocked.sort();
        blocked.dedup();
        let mut allowed = Vec::new();
        let mut namespaces = 0;
        for listed in peers {
            match &listed.peer {
                Peer::Network(network) => allowed.push(Range::new(*network)),
                Peer::Namespace(_) => namespaces += 1,
            }
        }
        Self {
            allowed,
            namespaces,
            blocked: blocked.into_iter().map(Range::new).collect(),
        }
    }

    /// Units for these rules of a policy on the host.
    pub fn of_rules(&self, rules: &[Value], side: &str) -> usize {
        let peers = rules.iter().flat_map(|rule| json::items(rule, &[side]));
        peers.map(|peer| self.of_peer(peer)).sum()
    }

    fn of_peer(&self, peer: &Value) -> usize {
        let namespaces = if peer.get("namespaceSelector").is_some() {
            NAMESPACES + self.namespaces
        } else {
            0
        };
        PEER + namespaces + peer.get("ipBlock").map_or(0, |block| self.of_block(block))
    }

    fn of_block(&self, block: &Value) -> usize {
        let read = |text: &Value| ranges::parse(text.as_str().unwrap_or_default()).ok().map(Range::new);
        // Translation writes only ranges that can be read.
        let Some(cidr) = block.get("cidr").and_then(read) else {
            return 0;
        };
        let except: Vec<Range> = json::items(block, &["except"]).iter().filter_map(read).collect();
        let listed: HashSet<IpNet> = except.iter().map(|range| range.net).collect();
        let of_allowed = |allowed: &Range| STEP + allowed.parse + allowed.compare(&cidr);
        let of_blocked = |blocked: &Range| {
            let outside = 2 * STEP + blocked.parse + blocked.compare(&cidr) + cidr.parse + cidr.compare(blocked);
            if !cidr.net.contains(&blocked.net) {
                return outside;
            }
            let find = STEP + except.len();
            if listed.contains(&blocked.net) {
                outside + find
            } else {
                outside + find + STEP + search(&except, blocked)
            }
        };
        let allowed: usize = self.allowed.iter().map(of_allowed).sum();
        let blocked: usize = self.blocked.iter().map(of_blocked).sum();
        allowed + blocked
    }
}

/// Units to find the first of `ranges` that contains `range`, one after the other.
fn search(ranges: &[Range], range: &Range) -> usize {
    let found = ranges.iter().position(|other| other.net.contains(&range.net));
    let compared = &ranges[..found.map_or(ranges.len(), |index| index + 1)];
    compared
        .iter()
        .map(|other| STEP + other.parse + other.compare(range))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::NetworkLimits;
    use serde_json::json;

    fn cost(blocked: &[String], peers: &[Value]) -> usize {
        let limits: NetworkLimits = serde_json::from_value(json!({
            "blocked": blocked, "egress": [{"cidr": "0.0.0.0/0"}, {"cidr": "::/0"}],
            "ingress": [{"namespace": "a"}, {"namespace": "b"}],
        }))
        .unwrap();
        Cost::new(&Limits::new(&limits), "to").of_rules(&[json!({ "to": peers })], "to")
    }

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("172.16.{n}.1/32")).collect()
    }

    #[test]
    fn every_peer_pays_for_every_blocked_range() {
        let nodes = nodes(100);
        let always: Vec<String> = ranges::never_open().map(|network| network.to_string()).collect();
        let except = [nodes.clone(), always].concat();
        let everywhere = json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": except}});
        let one = cost(&nodes, std::slice::from_ref(&everywhere));
        // As many comparisons as ranges, and a search through the list of exceptions for each.
        assert!((14_000..20_000).contains(&one), "{one}");
        assert_eq!(cost(&nodes, &[everywhere.clone(), everywhere]), 2 * one);
        let small = cost(&nodes, &[json!({"ipBlock": {"cidr": "192.0.2.0/24"}})]);
        assert!(small < one / 2, "{small}");
        assert_eq!(cost(&nodes, &[json!({"podSelector": {}})]), PEER);
    }

    #[test]
    fn exceptions_that_are_not_listed_cost_a_search() {
        let peer = |except: &[&str]| json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": except}});
        let nodes = nodes(100);
        let first = cost(&nodes, &[peer(&["172.16.0.0/12", "192.0.2.0/24", "198.51.100.0/24"])]);
        let last = cost(&nodes, &[peer(&["10.0.0.0/8", "11.0.0.0/8", "172.16.0.0/12"])]);
        assert!(last > first + 100 * 2 * STEP, "{last} {first}");
    }
}
