//! Whom a policy may allow. All pods of a tenant are in one namespace of the host, so every selector becomes one of pods
//! there:
//!
//! | peer | on the host |
//! |---|---|
//! | `podSelector` | those pods of the policy's namespace |
//! | `namespaceSelector` | the pods whose namespace has these labels; an empty one means every pod of the tenant |
//! | both | pods for which both hold |
//! | `ipBlock` | the range without what no policy of a tenant may open |
//!
//! A selector that asks for a label which host pods do not carry is left out: what is missing there would match as well
//! as what is absent here.

use super::blocks;
use crate::{
    json,
    kinds::{fields::Findings, metadata, namespace, networks, pod::scoped, selector},
    world::World,
};
use ipnet::IpNet;
use serde_json::{Value, json};

/// What peers of the policies of a namespace are translated with.
pub struct Peers<'a> {
    world: &'a World,
    namespace: &'a str,
    blocked: Vec<IpNet>,
}

/// Why a selector of pods cannot be one on the host, if so.
pub fn not_on_host(selector: &Value) -> Option<String> {
    let key = selector::keys(selector).find(|key| !metadata::crosses(key))?;
    Some(format!(
        "the label {key} is the platform's: policies cannot select by it, so nothing is allowed here"
    ))
}

impl<'a> Peers<'a> {
    pub fn new(world: &'a World, namespace: &'a str) -> Self {
        let blocked = networks::blocked(&world.tenant.policy.network.blocked_cidrs);
        Self {
            world,
            namespace,
            blocked,
        }
    }

    /// Everyone whom a tenant may allow.
    pub fn everyone(&self) -> Vec<Value> {
        let pods = json!({"podSelector": scoped(self.world, &json!({}), None)});
        let ranges = [networks::ALL_V4, networks::ALL_V6];
        let ranges = ranges
            .into_iter()
            .filter_map(|range| blocks::clipped(range, Vec::new(), &self.blocked))
            .map(|block| json!({"ipBlock": block}));
        std::iter::once(pods).chain(ranges).collect()
    }

    /// One peer, or nothing and words for the tenant.
    pub fn peer(&self, peer: &Value, path: &str, findings: &mut Findings) -> Option<Value> {
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
                    findings.refuse(format!("{path}.{key}"), "this field is not known here");
                    return None;
                }
            }
        }
        if let Some(block) = block {
            return match blocks::clip(block, &self.blocked) {
                Ok(block) => Some(json!({"ipBlock": block})),
                Err(why) => {
                    findings.refuse(format!("{path}.ipBlock"), format!("{why}, so nothing is allowed here"));
                    None
                }
            };
        }
        if let Some(why) = pods.and_then(not_on_host) {
            findings.refuse(format!("{path}.podSelector"), why);
            return None;
        }
        let everything = json!({});
        let pods = pods.unwrap_or(&everything);
        let selector = match namespaces {
            None => scoped(self.world, pods, Some(&[self.namespace])),
            Some(namespaces) => both(scoped(self.world, pods, None), &namespace::selector(namespaces)),
        };
        Some(json!({ "podSelector": selector }))
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
