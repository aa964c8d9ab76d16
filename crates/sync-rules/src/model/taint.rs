//! Taints of nodes, and whether a pod tolerates them.

use crate::model::json;
use serde_json::Value;

/// The taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// What the keys begin with that only Kubernetes itself sets.
const KUBERNETES_PREFIX: &str = "node.kubernetes.io/";

/// A taint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: Box<str>,
    /// Its value, or nothing.
    pub value: Box<str>,
    /// What it does: `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: Box<str>,
}

impl Taint {
    /// Reads a taint.
    pub fn new(taint: &Value) -> Self {
        let field = |name| json::text(taint, &[name]).unwrap_or_default().into();
        Self {
            key: field("key"),
            value: field("value"),
            effect: field("effect"),
        }
    }

    /// The taints of a Node or of a TenantNode.
    pub fn all_of(node: &Value) -> Box<[Self]> {
        json::items(node, &["spec", "taints"]).iter().map(Self::new).collect()
    }

    /// The taint of a cordoned node.
    pub fn of_cordon() -> Self {
        Self {
            key: UNSCHEDULABLE.into(),
            value: "".into(),
            effect: "NoSchedule".into(),
        }
    }

    /// Whether Kubernetes sets it, for a condition or a cordon.
    pub fn is_of_kubernetes(&self) -> bool {
        self.key.starts_with(KUBERNETES_PREFIX)
    }

    /// Whether both can be the same taint of a node: it has at most one of a key and an effect.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    /// Whether new pods without a toleration stay away from the node.
    pub fn repels(&self) -> bool {
        &*self.effect != "PreferNoSchedule"
    }

    /// Whether one of a pod's tolerations is for it; the rules are those of `Toleration.ToleratesTaint` in Kubernetes.
    pub fn is_tolerated(&self, tolerations: &[Value]) -> bool {
        tolerations.iter().any(|toleration| {
            let field = |name| json::text(toleration, &[name]).unwrap_or_default();
            let (key, effect) = (field("key"), field("effect"));
            (effect.is_empty() || effect == &*self.effect)
                && (key.is_empty() || key == &*self.key)
                && match field("operator") {
                    "Exists" => true,
                    "" | "Equal" => key == &*self.key && field("value") == &*self.value,
                    _ => false,
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations_match_as_in_kubernetes() {
        let taint = Taint::new(&json!({"key": "team", "value": "a", "effect": "NoSchedule"}));
        let rows = [
            (json!({"key": "team", "value": "a"}), true),
            (
                json!({"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}),
                true,
            ),
            (json!({"key": "team", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "team", "value": "b"}), false),
            (json!({"key": "team"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"value": "a"}), false),
            (json!({"key": "team", "operator": "Lt", "value": "a"}), false),
        ];
        for (toleration, expected) in rows {
            assert_eq!(
                taint.is_tolerated(std::slice::from_ref(&toleration)),
                expected,
                "{toleration}"
            );
        }
        assert!(!taint.is_tolerated(&[]));
    }
}
