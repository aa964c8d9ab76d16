//! `TenantNode`s as control keeps them: only whether one is as it should be matters. What is in their status comes from kubelets and drivers, 1.5 MiB for
//! each node, which would take fifty times as much as a tree of JSON.

use berth_api::{TenantNode, TenantNodeSpec};
use berth_runtime::hashes::hash_of;
use kube::{Resource, core::ObjectMeta};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, SeqAccess, Visitor},
};
use std::{
    borrow::Cow,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A `TenantNode` with a digest in place of its status.
#[derive(Clone, Debug, Deserialize)]
pub struct PublishedNode {
    /// As of every object.
    pub metadata: ObjectMeta,
    /// What the tenant sees of the Node, besides its status.
    pub spec: TenantNodeSpec,
    /// None: it has none yet.
    #[serde(default)]
    pub status: Option<Digest>,
}

impl Resource for PublishedNode {
    type DynamicType = ();
    type Scope = <TenantNode as Resource>::Scope;

    fn kind(kind: &()) -> Cow<'_, str> {
        TenantNode::kind(kind)
    }

    fn group(kind: &()) -> Cow<'_, str> {
        TenantNode::group(kind)
    }

    fn version(kind: &()) -> Cow<'_, str> {
        TenantNode::version(kind)
    }

    fn plural(kind: &()) -> Cow<'_, str> {
        TenantNode::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A hash of JSON, whatever the order of the keys in its maps. It is the same for the same content as long as the process runs.
///
/// Nobody gains from two statuses with one digest: a tenant sees an older state of its own node then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// That of a value.
    ///
    /// # Errors
    /// It cannot be JSON.
    pub fn of(value: &impl Serialize) -> serde_json::Result<Self> {
        serde_json::from_str(&serde_json::to_string(value)?)
    }

    fn hash(value: &impl Hash) -> Self {
        Self(hash_of(value))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DigestVisitor)
    }
}

/// Computes a digest while JSON is parsed, without a tree of it.
struct DigestVisitor;

impl<'de> Visitor<'de> for DigestVisitor {
    type Value = Digest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Digest, E> {
        Ok(Digest::hash(&()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Digest, E> {
        Ok(Digest::hash(&("bool", value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Digest, E> {
        Ok(Digest::hash(&("number", value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Digest, E> {
        Ok(Digest::hash(&("negative", value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Digest, E> {
        Ok(Digest::hash(&("fraction", value.to_bits())))
    }

    fn visit_str<E>(self, value: &str) -> Result<Digest, E> {
        Ok(Digest::hash(&("text", value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Digest, A::Error> {
        let mut hasher = DefaultHasher::new();
        "list".hash(&mut hasher);
        while let Some(Digest(item)) = items.next_element()? {
            item.hash(&mut hasher);
        }
        Ok(Digest(hasher.finish()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Digest, A::Error> {
        let mut sum = 0_u64;
        while let Some((key, Digest(value))) = entries.next_entry::<String, Digest>()? {
            sum = sum.wrapping_add(Digest::hash(&(key, value)).0);
        }
        Ok(Digest::hash(&("map", sum)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(text: &str) -> Digest {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        assert_eq!(
            digest(r#"{"a":1,"b":{"c":[],"d":"\u003c"}}"#),
            digest(r#"{ "b": {"d": "<", "c": []}, "a": 1 }"#)
        );
    }

    #[test]
    fn other_content_has_another_digest() {
        let texts = [
            "null",
            "true",
            "1",
            "-1",
            "1.5",
            r#""1""#,
            "[]",
            "[1]",
            "[1,2]",
            "[2,1]",
            "{}",
            r#"{"a":1}"#,
            r#"{"a":2}"#,
            r#"{"b":1}"#,
            r#"{"a":null}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":1,"b":1}"#,
        ];
        for (number, text) in texts.iter().enumerate() {
            for other in &texts[number + 1..] {
                assert_ne!(digest(text), digest(other), "{text} {other}");
            }
        }
    }

    #[test]
    fn a_node_is_read_as_the_api_server_sends_it() {
        let spec = json!({"nodeName": "n1", "poolName": "h100", "nodeGroupName": "train"});
        let status =
            json!({"node": {"capacity": {"cpu": "8"}}, "resourceSlices": [{"name": "s", "spec": {"devices": []}}]});
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantNode", "metadata": {"name": "n1"}, "spec": spec, "status": status,
        });
        let node: PublishedNode = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(node.spec.pool_name, "h100");
        assert_eq!(node.status, Some(Digest::of(&status).unwrap()));
        assert_eq!(PublishedNode::plural(&()), "tenantnodes");
    }
}
