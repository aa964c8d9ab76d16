//! The peers that a policy may allow. All pods of a tenant are in one namespace of the host, so every selector becomes
//! a selector of pods there:
//!
//! | peer | on the host |
//! |---|---|
//! | `podSelector` | those pods of the policy's namespace |
//! | `namespaceSelector` | the pods whose namespace has these labels; an empty one means every pod of the tenant |
//! | both | pods for which both hold |
//! | `ipBlock` | the range as far as it is declared for the tenant, see `limits`; DNS and the API server see `services` |
//! | `ipBlock`s of all addresses | also every pod of the tenant |
//!
//! A selector that asks for the absence of a label selects only pods that carry all of their labels on the host.
//!
//! The addresses of pods are not looked at: they change, and a smaller range would open and close pods by and by. Selectors are for pods.

use super::{
    blocks::Block,
    cost::Cost,
    limits::{Allowed, Limits, Peer},
    services::Service,
};
use crate::{
    model::{Cache, json},
    translation::{
        fields::FieldIssues,
        namespace_labels,
        pod_selector::{of_pods_with_all_labels, scoped},
        sizes::{MOST_EXCEPTED, MOST_PEERS},
    },
};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// The label that every API server puts on namespaces: their name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Translates the peers of the policies of a namespace.
pub struct Peers<'a> {
    cache: &'a Cache,
    namespace: &'a str,
    limits: Limits,
}

/// The peers of a rule of the tenant.
#[derive(Default)]
pub struct RulePeers {
    /// Selectors of the tenant's pods, as peers on the host.
    pods: Vec<Value>,
    /// Ranges of addresses.
    blocks: Vec<Block>,
    /// Whether every pod of the tenant is among `pods`.
    has_every_pod: bool,
    /// Whether the rule names no peer, which means every peer.
    is_everyone: bool,
}

/// How much of what is outside of the tenant was made of the rules of a policy: a rule for everyone is short in the tenant, and can have hundreds of ranges on
/// the host.
#[derive(Clone, Copy, Default)]
pub struct Made {
    /// Peers by ports, at most as many as the host counts.
    entries: usize,
    /// Ranges that are excepted from them.
    excepted: usize,
}

impl Made {
    /// Whether they are more than a policy may have. None of its rules stays then, and no more need be made.
    pub fn are_too_many(self) -> bool {
        self.entries > MOST_PEERS || self.excepted > MOST_EXCEPTED
    }

    fn add(&mut self, block: &Value) {
        self.entries += 1;
        self.excepted += json::items(block, &["except"]).len();
    }
}

impl<'a> Peers<'a> {
    /// The peers of policies in a namespace of the tenant.
    pub fn new(cache: &'a Cache, namespace: &'a str) -> Self {
        Self {
            cache,
            namespace,
            limits: Limits::new(&cache.tenant.network),
        }
    }

    fn allowed(&self, side: &str) -> &[Allowed] {
        if side == "to" {
            &self.limits.egress
        } else {
            &self.limits.ingress
        }
    }

    /// What peers on this side cost the host's admission policy.
    pub fn cost(&self, side: &str) -> Cost {
        Cost::new(&self.limits, side)
    }

    /// All pods of the tenant, as a peer on the host.
    fn every_pod(&self) -> Value {
        json!({"podSelector": scoped(self.cache, &json!({}), None)})
    }

    /// All peers that a tenant may allow.
    pub fn everyone(&self) -> RulePeers {
        RulePeers {
            pods: vec![self.every_pod()],
            blocks: Block::everything().into(),
            has_every_pod: true,
            is_everyone: true,
        }
    }

    /// The listed peers, without those that are not allowed.
    pub fn listed(&self, peers: &[Value], side: &str, path: &str, issues: &mut FieldIssues) -> RulePeers {
        let mut rule_peers = RulePeers::default();
        if self.hold_every_pod(peers) {
            rule_peers.pods.push(self.every_pod());
            rule_peers.has_every_pod = true;
        }
        for (index, peer) in peers.iter().enumerate() {
            self.add(&mut rule_peers, peer, side, &format!("{path}.{side}[{index}]"), issues);
        }
        rule_peers
    }

    /// Whether the `ipBlock`s of these peers have all addresses that a pod can have.
    fn hold_every_pod(&self, peers: &[Value]) -> bool {
        let blocks: Vec<Block> = peers.iter().filter_map(only_block).collect();
        let are_held = |family: &IpNet| blocks.iter().any(|block| block.holds_pods_of(*family));
        self.limits.families.iter().all(are_held)
    }

    /// Whether a peer is an `ipBlock` with all addresses of a family.
    fn holds_pods(&self, peer: &Value) -> bool {
        let families = &self.limits.families;
        only_block(peer).is_some_and(|block| families.iter().any(|family| block.holds_pods_of(*family)))
    }

    /// The rules on the host for these peers and ports: one for peers that are open at every port, and one for each
    /// external peer that is open at some ports only. Once too many are made, the rest is left out.
    pub fn rules(
        &self,
        rule_peers: RulePeers,
        side: &str,
        ports: &[Map<String, Value>],
        made: &mut Made,
    ) -> Vec<Value> {
        let mut limited = Vec::new();
        let mut outside = Vec::new();
        for allowed in self.allowed(side) {
            let before = *made;
            let peers = self.outside(allowed, &rule_peers, made);
            if peers.is_empty() {
            } else if allowed.is_every_port() {
                outside.extend(peers);
            } else if let Some(ports) = allowed.ports(ports) {
                made.entries += peers.len() * ports.len().saturating_sub(1);
                limited.push(json!({side: peers, "ports": ports}));
            } else {
                *made = before;
            }
        }
        let mut plain = rule_peers.pods;
        plain.extend(outside);
        let mut rules = Vec::new();
        if !plain.is_empty() {
            let mut rule = json!({ side: plain });
            if !ports.is_empty() {
                rule["ports"] = ports.iter().cloned().map(Value::Object).collect();
            }
            rules.push(rule);
        }
        rules.extend(limited);
        rules
    }

    /// The part of a rule's peers that is in a declared one.
    fn outside(&self, allowed: &Allowed, rule_peers: &RulePeers, made: &mut Made) -> Vec<Value> {
        let mut peers = Vec::new();
        match &allowed.peer {
            Peer::Network(network) => {
                for block in &rule_peers.blocks {
                    if made.are_too_many() {
                        break;
                    }
                    if let Some(block) = block.within(*network, &self.limits.blocked) {
                        made.add(&block);
                        peers.push(json::object([("ipBlock", block)]));
                    }
                }
            }
            Peer::Namespace(name) if rule_peers.is_everyone => {
                made.entries += 1;
                peers.push(json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}}));
            }
            Peer::Namespace(_) => {}
        }
        peers
    }

    /// Adds one peer, or a message for the tenant.
    fn add(&self, rule_peers: &mut RulePeers, peer: &Value, side: &str, path: &str, issues: &mut FieldIssues) {
        let mut pods = None;
        let mut namespaces = None;
        let mut block = None;
        for (key, value) in peer.as_object().into_iter().flatten() {
            match key.as_str() {
                _ if value.is_null() => {}
                "podSelector" => pods = Some(value),
                "namespaceSelector" => namespaces = Some(value),
                "ipBlock" => block = Some(value),
                _ => {
                    issues.deny(format!("{path}.{key}"), "this field is not supported");
                    return;
                }
            }
        }
        if let Some(block) = block {
            match self.block(block, side) {
                Ok(block) => rule_peers.blocks.push(block),
                // It opens pods, if nothing else.
                Err(_) if rule_peers.has_every_pod && self.holds_pods(peer) => {}
                Err(why) => issues.deny(format!("{path}.ipBlock"), format!("{why}, so nothing is allowed here")),
            }
            return;
        }
        let everything = json!({});
        let pods = pods.unwrap_or(&everything);
        let selector = match namespaces {
            None => scoped(self.cache, pods, Some(&[self.namespace])),
            Some(namespaces) => both(scoped(self.cache, pods, None), &namespace_labels::selector(namespaces)),
        };
        let selector = of_pods_with_all_labels(selector);
        rule_peers.pods.push(json!({ "podSelector": selector }));
    }

    /// A range, if a part of it may be opened.
    fn block(&self, block: &Value, side: &str) -> Result<Block, String> {
        let block = Block::read(block)?;
        let is_open = |allowed: &Allowed| match &allowed.peer {
            Peer::Network(network) => block.common(*network, &self.limits.blocked).is_some(),
            Peer::Namespace(_) => false,
        };
        let is_service = || side == "to" && Service::ALL.iter().any(|service| service.is_in(self.cache, &block));
        if self.allowed(side).iter().any(is_open) || is_service() {
            Ok(block)
        } else if block.is_blocked(&self.limits.blocked) {
            Err("these addresses belong to the platform".into())
        } else {
            Err("these addresses are not declared in spec.network of the TenantCluster".into())
        }
    }
}

/// The block of a peer that has nothing else.
fn only_block(peer: &Value) -> Option<Block> {
    let mut fields = peer.as_object()?.iter().filter(|(_, value)| !value.is_null());
    match (fields.next(), fields.next()) {
        (Some((key, block)), None) if key == "ipBlock" => Block::read(block).ok(),
        _ => None,
    }
}

/// A selector that requires both. The two have no key in common.
fn both(mut one: Value, other: &Value) -> Value {
    for (key, value) in json::strings(other, &["matchLabels"]) {
        one["matchLabels"][key] = value.into();
    }
    let of = |selector: &Value| json::items(selector, &["matchExpressions"]).to_vec();
    let expressions = [of(&one), of(other)].concat();
    if !expressions.is_empty() {
        one["matchExpressions"] = expressions.into();
    }
    one
}
