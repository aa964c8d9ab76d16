//! What a change of a policy takes away: rules only allow traffic, so that one which is gone in the tenant must not stay on the host while the
//! rest of the change waits.
//!
//! What is written meanwhile is made of the host's rules: of each what one rule of the tenant still allows. So nothing of the change gets through
//! before its turn, and a rule to which something is added stays as it was.

use super::DIRECTIONS;
use crate::model::json;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Most ports and exceptions that a policy gets in this way. They have less than 4 KiB, by which every object may grow.
const MOST_NEW: usize = 64;

/// The host's policy `live` without what `desired` does not allow, if it allows anything that `desired` does not.
pub(super) fn narrowed(desired: &Value, live: &Value) -> Option<Value> {
    let selects_others = desired["spec"]["podSelector"] != live["spec"]["podSelector"];
    let mut narrowed = desired.clone();
    narrowed["spec"] = live["spec"].clone();
    let (mut loses, mut room) = (false, MOST_NEW);
    for (direction, side) in DIRECTIONS {
        let wanted: Vec<Allowed> = if selects_others {
            Vec::new()
        } else {
            let rules = json::items(desired, &["spec", direction]).iter();
            rules.map(|rule| Allowed::by(rule, side)).collect()
        };
        let mut kept = Vec::new();
        for rule in json::items(live, &["spec", direction]) {
            match wanted.iter().filter_map(|allowed| allowed.of(rule, side)).max() {
                Some(rest) if rest.is_whole => kept.push(rule.clone()),
                rest => {
                    loses = true;
                    if let Some(rest) = rest.filter(|rest| rest.new <= room) {
                        room -= rest.new;
                        kept.push(rest.rule);
                    }
                }
            }
        }
        if let Some(spec) = narrowed["spec"].as_object_mut() {
            spec.remove(direction);
            if !kept.is_empty() {
                spec.insert(direction.into(), kept.into());
            }
        }
    }
    loses.then_some(narrowed)
}

/// What is left of a rule of the host.
#[derive(Debug, PartialEq, Eq)]
struct Rest {
    /// Whether that is the whole rule.
    is_whole: bool,
    rule: Value,
    /// Ports and exceptions in it that the host's rule does not have.
    new: usize,
}

impl Rest {
    /// First the whole rule, then the one with the most peers and the least that is new.
    fn order(&self) -> (bool, usize, std::cmp::Reverse<usize>) {
        let peers = DIRECTIONS
            .iter()
            .map(|(_, side)| json::items(&self.rule, &[side]).len());
        (self.is_whole, peers.sum(), std::cmp::Reverse(self.new))
    }
}

impl Ord for Rest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Rest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What a rule of the tenant allows, so that rules of the host can be compared with it.
struct Allowed {
    /// None: everyone.
    peers: Option<Peers>,
    /// None: all ports.
    ports: Option<HashMap<String, Value>>,
}

#[derive(Default)]
struct Peers {
    /// Those that are compared as a whole, as text.
    exact: HashSet<String>,
    /// Exceptions of each range, in the order of the text.
    ranges: HashMap<String, Vec<String>>,
}

impl Allowed {
    fn by(rule: &Value, side: &str) -> Self {
        let peers = listed(rule, side).map(|peers| {
            let mut known = Peers::default();
            for peer in peers {
                match range(peer) {
                    Some((cidr, except)) => {
                        known.ranges.insert(cidr, except);
                    }
                    None => {
                        known.exact.insert(peer.to_string());
                    }
                }
            }
            known
        });
        let ports = listed(rule, "ports").map(|ports| {
            let ports = ports.iter().map(with_protocol);
            ports.map(|port| (port.to_string(), port)).collect()
        });
        Self { peers, ports }
    }

    /// What this allows of a rule of the host, if anything.
    fn of(&self, rule: &Value, side: &str) -> Option<Rest> {
        let (mut is_whole, mut new) = (true, 0);
        let mut rest = Map::new();
        match (&self.peers, listed(rule, side)) {
            (None, None) => {}
            (None, Some(peers)) => {
                rest.insert(side.into(), peers.into());
            }
            // Everyone, of whom only some are left: it waits.
            (Some(_), None) => return None,
            (Some(allowed), Some(peers)) => {
                let kept: Vec<Value> = peers
                    .iter()
                    .filter_map(|peer| {
                        let (kept, added) = allowed.of(peer)?;
                        is_whole &= added == 0;
                        new += added;
                        Some(kept)
                    })
                    .collect();
                if kept.is_empty() {
                    return None;
                }
                is_whole &= kept.len() == peers.len();
                rest.insert(side.into(), kept.into());
            }
        }
        match (&self.ports, listed(rule, "ports")) {
            (None, None) => {}
            (None, Some(ports)) => {
                rest.insert("ports".into(), ports.into());
            }
            (Some(allowed), None) => {
                is_whole = false;
                new += allowed.len();
                rest.insert("ports".into(), allowed.values().cloned().collect());
            }
            (Some(allowed), Some(ports)) => {
                let is_allowed = |port: &&Value| allowed.contains_key(&with_protocol(port).to_string());
                let kept: Vec<Value> = ports.iter().filter(is_allowed).cloned().collect();
                if kept.is_empty() {
                    return None;
                }
                is_whole &= kept.len() == ports.len();
                rest.insert("ports".into(), kept.into());
            }
        }
        Some(Rest {
            is_whole,
            rule: rest.into(),
            new,
        })
    }
}

impl Peers {
    /// What is left of a peer of the host, if anything, and how many exceptions it gets.
    fn of(&self, peer: &Value) -> Option<(Value, usize)> {
        let Some((cidr, mut except)) = range(peer) else {
            return self.exact.contains(&peer.to_string()).then(|| (peer.clone(), 0));
        };
        let before = except.len();
        let missing = self
            .ranges
            .get(&cidr)?
            .iter()
            .filter(|network| !except.contains(network));
        let missing: Vec<String> = missing.cloned().collect();
        if missing.is_empty() {
            return Some((peer.clone(), 0));
        }
        except.extend(missing);
        let added = except.len() - before;
        Some((json!({"ipBlock": {"cidr": cidr, "except": except}}), added))
    }
}

/// The items of a field; none if it is absent or empty, which both mean everything.
fn listed<'a>(rule: &'a Value, field: &str) -> Option<&'a [Value]> {
    Some(json::items(rule, &[field])).filter(|items| !items.is_empty())
}

/// The range of a peer that is one, and its exceptions.
fn range(peer: &Value) -> Option<(String, Vec<String>)> {
    let cidr = json::text(peer, &["ipBlock", "cidr"])?.to_owned();
    let except = json::items(peer, &["ipBlock", "except"]).iter();
    Some((cidr, except.filter_map(Value::as_str).map(Into::into).collect()))
}

/// A port as an API server writes it.
fn with_protocol(port: &Value) -> Value {
    let mut port = port.clone();
    if port.get("protocol").is_none() {
        port["protocol"] = "TCP".into();
    }
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(app: &str, ingress: &[&Value], egress: &[&Value]) -> Value {
        let mut spec = json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]});
        for (direction, rules) in [("ingress", ingress), ("egress", egress)] {
            if !rules.is_empty() {
                spec[direction] = json!(rules);
            }
        }
        json!({"metadata": {}, "spec": spec})
    }

    fn pods(app: &str) -> Value {
        json!({"podSelector": {"matchLabels": {"app": app}}})
    }

    fn block(except: &[&str]) -> Value {
        json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": except}})
    }

    /// What is written of a change of one rule for incoming traffic; none if nothing is lost.
    fn rest(live: &Value, desired: &Value) -> Option<Value> {
        let narrowed = narrowed(&policy("db", &[desired], &[]), &policy("db", &[live], &[]))?;
        Some(narrowed["spec"]["ingress"].clone())
    }

    #[test]
    fn rules_that_are_lost_do_not_wait_for_those_that_are_new() {
        let rule = |peer: &str| json!({"ports": [{"port": 1}], "from": [pods(peer)]});
        let [a, b, c] = ["a", "b", "c"].map(rule);
        let d = json!({"ports": [{"port": 1}], "to": [pods("d")]});
        let mut live_a = a.clone();
        live_a["ports"][0]["protocol"] = "TCP".into();
        let live = policy("db", &[&live_a, &b], &[&d]);
        assert_eq!(
            narrowed(&policy("db", &[&a, &c], &[&d]), &live),
            Some(policy("db", &[&live_a], &[&d])),
            "one of three is in both"
        );
        assert_eq!(
            narrowed(&policy("db", &[], &[&d]), &live),
            Some(policy("db", &[], &[&d]))
        );
        for grown in [policy("db", &[&a, &b, &c], &[&d]), policy("db", &[&b, &a], &[&d, &d])] {
            assert_eq!(narrowed(&grown, &live), None, "nothing is lost");
        }
    }

    #[test]
    fn a_rule_to_which_something_is_added_stays() {
        let live = json!({"ports": [{"port": 1}], "from": [pods("a"), block(&["10.0.0.0/8", "10.1.0.1/32"])]});
        for desired in [
            json!({"ports": [{"port": 1}], "from": [block(&["10.0.0.0/8"]), pods("b"), pods("a")]}),
            json!({"ports": [{"port": 2}, {"port": 1, "protocol": "TCP"}], "from": live["from"]}),
            json!({"from": live["from"]}),
            json!({"ports": live["ports"]}),
            json!({}),
        ] {
            assert_eq!(rest(&live, &desired), None, "{desired}");
        }
        assert_eq!(rest(&json!({}), &json!({})), None);
    }

    #[test]
    fn of_a_rule_that_is_lost_in_part_the_rest_stays() {
        let live = json!({"ports": [{"port": 1}, {"port": 2}], "from": [pods("a"), pods("b"), block(&["10.0.0.0/8"])]});
        let desired = json!({"ports": [{"port": 2}, {"port": 3}], "from": [pods("b"), block(&["10.0.0.0/8", "192.0.2.1/32"]), pods("c")]});
        assert_eq!(
            rest(&live, &desired),
            Some(json!([{"ports": [{"port": 2}], "from": [pods("b"), block(&["10.0.0.0/8", "192.0.2.1/32"])]}]))
        );
        let all_ports = json!({"from": [pods("a")]});
        let one_port = json!({"ports": [{"port": 1, "protocol": "TCP"}], "from": [pods("a")]});
        assert_eq!(rest(&all_ports, &one_port), Some(json!([one_port])));
        for other in [
            json!({"ports": [{"port": 4}], "from": live["from"]}),
            json!({"ports": live["ports"], "from": [pods("c")]}),
        ] {
            assert_eq!(rest(&live, &other), Some(Value::Null), "{other}");
        }
        assert_eq!(
            rest(&json!({}), &all_ports),
            Some(Value::Null),
            "everyone is not made some"
        );
    }

    #[test]
    fn nothing_of_a_change_is_written_with_what_is_lost() {
        let live = json!({"ports": [{"port": 1}], "from": [pods("a"), pods("b"), block(&[])]});
        let many = vec![pods("a"); 100];
        let fat = json!({"ports": vec![json!({"port": 1}); 100], "from": many});
        assert_eq!(
            rest(&live, &fat),
            Some(json!([{"ports": [{"port": 1}], "from": [pods("a")]}]))
        );
        let networks: Vec<String> = (0..=MOST_NEW).map(|index| format!("192.0.2.{index}/32")).collect();
        let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
        let fat = json!({"ports": [{"port": 1}], "from": [block(&networks)]});
        assert_eq!(rest(&live, &fat), Some(Value::Null), "too many exceptions");
        let less = json!({"ports": [{"port": 1}], "from": [block(&networks[1..])]});
        assert_eq!(rest(&live, &less), Some(json!([less])));
    }

    #[test]
    fn pods_that_are_no_longer_selected_lose_all_rules() {
        let rule = json!({"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]});
        let live = policy("db", &[], &[&rule]);
        assert_eq!(
            narrowed(&policy("web", &[], &[&rule]), &live),
            Some(policy("db", &[], &[]))
        );
        assert_eq!(
            narrowed(&policy("web", &[], &[&rule]), &policy("db", &[], &[])),
            None,
            "it had none"
        );
    }
}
