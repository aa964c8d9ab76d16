//! Whom a policy may allow. All pods of a tenant are in one namespace of the host, so every selector becomes one of pods
//! there:
//!
//! | peer | on the host |
//! |---|---|
//! | `podSelector` | those pods of the policy's namespace |
//! | `namespaceSelector` | the pods whose namespace has these labels; an empty one means every pod of the tenant |
//! | both | pods for which both hold |
//! | `ipBlock` | the range as far as it is declared for the tenant, see `limits`; DNS and the API server see `services` |
//!
//! A selector that asks for a label which host pods do not carry is left out: what is missing there would match as well
//! as what is absent here.

use super::{
    blocks::Block,
    limits::{Allowed, Limits, Peer},
    services::Service,
};
use crate::{
    model::{Cache, json},
    translation::{fields::FieldIssues, metadata, namespace_labels, pod_selector::scoped, selector},
};
use serde_json::{Map, Value, json};

/// The label that every API server puts on namespaces: their name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// What peers of the policies of a namespace are translated with.
pub struct Peers<'a> {
    cache: &'a Cache,
    namespace: &'a str,
    limits: Limits,
}

/// Whom a rule of the tenant is about.
#[derive(Default)]
pub struct Whom {
    /// Selectors of the tenant's pods, as peers on the host.
    pods: Vec<Value>,
    /// Ranges of addresses.
    blocks: Vec<Block>,
    /// Whether the rule names no peer, which means every peer.
    is_everyone: bool,
}

/// Why a selector of pods cannot be one on the host, if so.
pub fn not_on_host(selector: &Value) -> Option<String> {
    let key = selector::keys(selector).find(|key| !metadata::crosses(key))?;
    Some(format!(
        "the label {key} is the platform's: policies cannot select by it, so nothing is allowed here"
    ))
}

impl<'a> Peers<'a> {
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

    /// Everyone whom a tenant may allow.
    pub fn everyone(&self) -> Whom {
        Whom {
            pods: vec![json!({"podSelector": scoped(self.cache, &json!({}), None)})],
            blocks: Block::everything().into(),
            is_everyone: true,
        }
    }

    /// The listed peers, without those that cannot be had.
    pub fn listed(&self, peers: &[Value], side: &str, path: &str, issues: &mut FieldIssues) -> Whom {
        let mut whom = Whom::default();
        for (index, peer) in peers.iter().enumerate() {
            self.add(&mut whom, peer, side, &format!("{path}.{side}[{index}]"), issues);
        }
        whom
    }

    /// The rules on the host for `whom` at these ports: one for what is open at every port, and one for each thing outside of
    /// which only some ports are.
    pub fn rules(&self, whom: Whom, side: &str, ports: &[Map<String, Value>]) -> Vec<Value> {
        let Whom {
            pods,
            blocks,
            is_everyone,
        } = whom;
        let mut plain = pods;
        let mut limited = Vec::new();
        for allowed in self.allowed(side) {
            let peers: Vec<Value> = match &allowed.peer {
                Peer::Network(network) => blocks
                    .iter()
                    .filter_map(|block| block.within(*network, &self.limits.blocked))
                    .map(|block| json!({ "ipBlock": block }))
                    .collect(),
                Peer::Namespace(name) if is_everyone => {
                    vec![json!({"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}})]
                }
                Peer::Namespace(_) => Vec::new(),
            };
            if peers.is_empty() {
            } else if allowed.is_every_port() {
                plain.extend(peers);
            } else if let Some(ports) = allowed.ports(ports) {
                limited.push(json!({side: peers, "ports": ports}));
            }
        }
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

    /// Adds one peer, or a message for the tenant.
    fn add(&self, whom: &mut Whom, peer: &Value, side: &str, path: &str, issues: &mut FieldIssues) {
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
                    issues.deny(format!("{path}.{key}"), "this field is not known here");
                    return;
                }
            }
        }
        if let Some(block) = block {
            match self.block(block, side) {
                Ok(block) => whom.blocks.push(block),
                Err(why) => issues.deny(format!("{path}.ipBlock"), format!("{why}, so nothing is allowed here")),
            }
            return;
        }
        if let Some(why) = pods.and_then(not_on_host) {
            issues.deny(format!("{path}.podSelector"), why);
            return;
        }
        let everything = json!({});
        let pods = pods.unwrap_or(&everything);
        let selector = match namespaces {
            None => scoped(self.cache, pods, Some(&[self.namespace])),
            Some(namespaces) => both(scoped(self.cache, pods, None), &namespace_labels::selector(namespaces)),
        };
        whom.pods.push(json!({ "podSelector": selector }));
    }

    /// A range of which something can be had.
    fn block(&self, block: &Value, side: &str) -> Result<Block, String> {
        let block = Block::read(block)?;
        let is_open = |allowed: &Allowed| match &allowed.peer {
            Peer::Network(network) => block.within(*network, &self.limits.blocked).is_some(),
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

/// A selector of what both select. The keys of the two are never the same.
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
