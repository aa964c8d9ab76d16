//! What a change of a policy takes away: rules only allow traffic, so that one which is gone in the tenant must not stay on the host while the
//! rest of the change waits.
//!
//! What is written meanwhile is made of the host's policy and of nothing else: of each rule the peers and ports that one rule of the tenant still
//! allows. So nothing of the change gets through before its turn, each such write leaves less, and a rule to which something is added stays as it
//! was. A range that gets exceptions is gone until its turn, as is a rule for all ports that gets some.
//!
//! Selectors that differ only in [`labels::LABELS_LEFT_OUT`] are the same here: no change of a tenant makes this difference. An earlier release wrote the
//! policy, and nothing of it closes until it is written again.

use super::{DIRECTIONS, isolation};
use crate::model::json;
use berth_api::labels;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Most comparisons of a peer or a port with a rule, which take a tenth of a second. In larger policies only whole rules are compared.
const MOST_COMPARED: usize = 1_000_000;

/// The host's policy `live` without what `desired` does not allow, if it allows anything that `desired` does not.
pub(super) fn narrowed(desired: &Value, live: &Value) -> Option<Value> {
    let selected = |policy: &Value| {
        let mut selector = policy["spec"]["podSelector"].clone();
        of_any_release(&mut selector);
        selector
    };
    let selects_others = selected(desired) != selected(live);
    let mut narrowed = desired.clone();
    narrowed["metadata"]["annotations"] = Map::new().into();
    narrowed["spec"] = live["spec"].clone();
    let mut loses = false;
    for (direction, side) in DIRECTIONS {
        // The rules of a direction that a policy is not about allow nothing.
        let is_about = isolation::directions(&desired["spec"]).any(|about| about.eq_ignore_ascii_case(direction));
        let wanted = if selects_others || !is_about {
            &[]
        } else {
            json::items(desired, &["spec", direction])
        };
        let present = json::items(live, &["spec", direction]);
        let kept = remaining(present, wanted, side);
        loses |= kept != present;
        if let Some(spec) = narrowed["spec"].as_object_mut() {
            spec.remove(direction);
            if !kept.is_empty() {
                spec.insert(direction.into(), kept.into());
            }
        }
    }
    loses.then_some(narrowed)
}

/// What is left of the rules `present` if those that are `wanted` are all that may be allowed.
fn remaining(present: &[Value], wanted: &[Value], side: &str) -> Vec<Value> {
    let whole: HashSet<String> = wanted.iter().map(normal_text).collect();
    let allowed: Vec<Allowed> = wanted.iter().map(|rule| Allowed::by(rule, side)).collect();
    let count = |rule: &Value| json::items(rule, &[side]).len() + json::items(rule, &["ports"]).len() + 1;
    let parts: usize = present.iter().map(count).sum();
    let compares_parts = parts.saturating_mul(allowed.len()) <= MOST_COMPARED;
    let rest = |rule: &Value| {
        if whole.contains(&normal_text(rule)) {
            return Some(rule.clone());
        }
        if !compares_parts {
            return None;
        }
        let parts = Parts::of(rule, side);
        let rests = allowed.iter().filter_map(|allowed| allowed.of(&parts));
        let (kept_peers, kept_ports) = rests.max_by_key(|(peers, ports)| (peers.len(), ports.len()))?;
        let mut rest = Map::new();
        for (field, kept) in [(side, kept_peers), ("ports", kept_ports)] {
            if !kept.is_empty() {
                rest.insert(field.into(), kept.into_iter().cloned().collect());
            }
        }
        Some(rest.into())
    };
    present.iter().filter_map(rest).collect()
}

/// Who or what a peer of a rule is.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Peer {
    /// One that is compared as a whole, as text.
    Exact(String),
    /// A range with exceptions.
    Range(String, Vec<String>),
}

impl Peer {
    fn new(peer: &Value) -> Self {
        if let Some(cidr) = json::text(peer, &["ipBlock", "cidr"]) {
            let except = json::items(peer, &["ipBlock", "except"]).iter();
            let except = except.filter_map(Value::as_str).map(Into::into).collect();
            return Self::Range(cidr.to_owned(), except);
        }
        let mut peer = peer.clone();
        json::each_mut(&mut peer, "podSelector", &mut of_any_release);
        Self::Exact(peer.to_string())
    }
}

/// A rule of the host, prepared for comparisons.
struct Parts<'a> {
    /// Empty: everyone.
    peers: Vec<(Peer, &'a Value)>,
    /// Empty: all ports.
    ports: Vec<(String, &'a Value)>,
}

impl<'a> Parts<'a> {
    fn of(rule: &'a Value, side: &str) -> Self {
        let peers = json::items(rule, &[side]).iter();
        let ports = json::items(rule, &["ports"]).iter();
        Self {
            peers: peers.map(|peer| (Peer::new(peer), peer)).collect(),
            ports: ports.map(|port| (with_protocol(port).to_string(), port)).collect(),
        }
    }
}

/// What a rule of the tenant allows.
struct Allowed {
    /// None: everyone.
    peers: Option<Peers>,
    /// None: all ports.
    ports: Option<HashSet<String>>,
}

#[derive(Default)]
struct Peers {
    exact: HashSet<String>,
    /// The exceptions of each range. A rule may have a range several times.
    ranges: HashMap<String, Vec<Vec<String>>>,
}

impl Allowed {
    fn by(rule: &Value, side: &str) -> Self {
        let Parts { peers, ports } = Parts::of(rule, side);
        let mut known = Peers::default();
        let has_peers = !peers.is_empty();
        for (peer, _) in peers {
            match peer {
                Peer::Exact(text) => {
                    known.exact.insert(text);
                }
                Peer::Range(cidr, except) => known.ranges.entry(cidr).or_default().push(except),
            }
        }
        let ports: HashSet<String> = ports.into_iter().map(|(text, _)| text).collect();
        Self {
            peers: has_peers.then_some(known),
            ports: Some(ports).filter(|ports| !ports.is_empty()),
        }
    }

    /// The peers and ports of a rule of the host that this allows, if there are any. No peers are everyone, and no ports all of them.
    fn of<'a>(&self, rule: &Parts<'a>) -> Option<(Vec<&'a Value>, Vec<&'a Value>)> {
        let peers = rule.peers.iter();
        let peers = peers.filter(|(peer, _)| self.peers.as_ref().is_none_or(|allowed| allowed.contain(peer)));
        let ports = rule.ports.iter();
        let ports = ports.filter(|(text, _)| self.ports.as_ref().is_none_or(|allowed| allowed.contains(text)));
        let peers: Vec<&Value> = peers.map(|(_, peer)| *peer).collect();
        let ports: Vec<&Value> = ports.map(|(_, port)| *port).collect();
        // Nothing must not become everything.
        let has_peers = !peers.is_empty() || self.peers.is_none() && rule.peers.is_empty();
        let has_ports = !ports.is_empty() || self.ports.is_none() && rule.ports.is_empty();
        (has_peers && has_ports).then_some((peers, ports))
    }
}

impl Peers {
    fn contain(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Exact(text) => self.exact.contains(text),
            Peer::Range(cidr, except) => self.ranges.get(cidr).is_some_and(|ranges| {
                let is_within = |wanted: &Vec<String>| wanted.iter().all(|network| except.contains(network));
                ranges.iter().any(is_within)
            }),
        }
    }
}

/// Takes [`labels::LABELS_LEFT_OUT`] out of a selector.
fn of_any_release(selector: &mut Value) {
    if let Some(expressions) = selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        expressions.retain(|expression| json::text(expression, &["key"]) != Some(labels::LABELS_LEFT_OUT));
    }
}

/// A rule as text, with the protocol of each port.
fn normal_text(rule: &Value) -> String {
    let mut rule = rule.clone();
    json::each_mut(&mut rule, "ports[]", &mut |port| *port = with_protocol(port));
    rule.to_string()
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
    use serde_json::json;

    fn policy(app: &str, ingress: &[&Value], egress: &[&Value]) -> Value {
        let mut spec = json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]});
        for (direction, rules) in [("ingress", ingress), ("egress", egress)] {
            if !rules.is_empty() {
                spec[direction] = json!(rules);
            }
        }
        json!({"metadata": {"annotations": {}}, "spec": spec})
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
            Some(json!([{"ports": [{"port": 2}], "from": [pods("b")]}]))
        );
        let of_a = json!({"from": [pods("a")]});
        for (live, desired) in [
            (&live, json!({"ports": [{"port": 4}], "from": live["from"]})),
            (&live, json!({"ports": live["ports"], "from": [pods("c")]})),
            // All ports, or everyone, of which only some are left.
            (&of_a, json!({"ports": [{"port": 1}], "from": [pods("a")]})),
            (&json!({}), of_a.clone()),
        ] {
            assert_eq!(rest(live, &desired), Some(Value::Null), "{desired}");
        }
    }

    #[test]
    fn nothing_of_a_change_is_written_with_what_is_lost() {
        let live = json!({"ports": [{"port": 1}], "from": [pods("a"), pods("b"), block(&[])]});
        let many = vec![pods("a"); 100];
        let fat = json!({"ports": vec![json!({"port": 1}); 100], "from": many});
        let left = json!({"ports": [{"port": 1}], "from": [pods("a")]});
        assert_eq!(rest(&live, &fat), Some(json!([left])));
        let mut noted = policy("db", &[&fat], &[]);
        noted["metadata"]["annotations"] = json!({"simulation.berth.dev/a": "a".repeat(100_000)});
        assert_eq!(
            narrowed(&noted, &policy("db", &[&live], &[])),
            Some(policy("db", &[&left], &[]))
        );
    }

    #[test]
    fn a_range_may_be_in_a_rule_several_times() {
        let live = json!({"from": [block(&["10.0.0.0/8"]), block(&[])]});
        assert_eq!(
            rest(&live, &json!({"from": [block(&[]), block(&["10.0.0.0/8"]), pods("a")]})),
            None
        );
        let desired = json!({"from": [block(&["192.0.2.1/32"]), block(&["10.0.0.0/8"])]});
        assert_eq!(rest(&live, &desired), Some(json!([{"from": [block(&["10.0.0.0/8"])]}])));
    }

    #[test]
    fn rules_of_a_direction_that_the_policy_is_no_longer_about_are_lost() {
        let rule = json!({"to": [pods("a")]});
        let live = policy("db", &[], &[&rule]);
        let mut desired = live.clone();
        desired["spec"]["policyTypes"] = json!(["Ingress"]);
        assert_eq!(narrowed(&desired, &live), Some(policy("db", &[], &[])));
    }

    #[test]
    fn of_very_large_policies_only_whole_rules_stay() {
        let rules = |other: &str| -> Vec<Value> {
            let names = (0..1_001).map(|index| index.to_string());
            let peers = names.map(|name| json!({"from": [pods(&name), pods(other)]}));
            peers.collect()
        };
        let (mut live, mut desired) = (policy("db", &[], &[]), policy("db", &[], &[]));
        live["spec"]["ingress"] = rules("a").into();
        desired["spec"]["ingress"] = rules("b").into();
        desired["spec"]["ingress"][7] = live["spec"]["ingress"][7].clone();
        let narrowed = narrowed(&desired, &live).unwrap();
        assert_eq!(narrowed["spec"]["ingress"], json!([live["spec"]["ingress"][7]]));
    }

    #[test]
    fn policies_of_earlier_releases_stay_until_it_is_their_turn() {
        let absent = json!({"key": "pod.berth.dev/old", "operator": "DoesNotExist"});
        let all_carried = json!({"key": labels::LABELS_LEFT_OUT, "operator": "DoesNotExist"});
        let with = |expressions: Value, others: &[Value]| {
            let selector = json!({ "matchExpressions": expressions });
            let from = [&[json!({ "podSelector": selector })][..], others].concat();
            let mut policy = policy("db", &[&json!({ "from": from })], &[]);
            policy["spec"]["podSelector"] = selector;
            policy
        };
        let (earlier, now) = (json!([absent]), json!([absent, all_carried]));
        assert_eq!(narrowed(&with(now.clone(), &[]), &with(earlier.clone(), &[])), None);
        assert_eq!(
            narrowed(&with(now, &[]), &with(earlier.clone(), &[pods("a")])),
            Some(with(earlier, &[])),
            "what is lost is as ever"
        );
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
