//! An index of host objects of one kind by node. It keeps only a value for each object.

use crate::by_node::{ByNode, OnNode};
use std::collections::BTreeMap;

/// A value for each object, by the node that the object is on.
pub type NodeIndex<V> = ByNode<BTreeMap<String, V>>;

impl<V: PartialEq> OnNode for BTreeMap<String, V> {
    type Value = V;

    fn set(&mut self, _: &str, object: &str, value: V) -> bool {
        if self.get(object) == Some(&value) {
            return false;
        }
        self.insert(object.to_owned(), value);
        true
    }

    fn forget(&mut self, object: &str) {
        self.remove(object);
    }

    fn has_none(&self) -> bool {
        self.is_empty()
    }
}

impl<V: Clone + PartialEq> NodeIndex<V> {
    /// The values of a node by object.
    pub fn of(&self, node: &str) -> BTreeMap<String, V> {
        self.read(node, Clone::clone).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    fn on(node: &str, value: u32) -> (String, u32) {
        (node.into(), value)
    }

    fn nodes(changed: BTreeSet<String>) -> Vec<String> {
        changed.into_iter().collect()
    }

    #[test]
    fn changes_are_reported_once_and_by_node() {
        let index = NodeIndex::default();
        assert_eq!(nodes(index.put("a", Some(on("n1", 1)))), ["n1"]);
        assert!(index.put("a", Some(on("n1", 1))).is_empty());
        assert_eq!(nodes(index.put("a", Some(on("n1", 2)))), ["n1"]);
        assert_eq!(nodes(index.put("a", Some(on("n2", 2)))), ["n1", "n2"]);
        assert_eq!(index.of("n2"), BTreeMap::from([("a".into(), 2)]));
        assert!(index.of("n1").is_empty());
        assert_eq!(nodes(index.put("a", None)), ["n2"]);
        assert!(index.put("a", None).is_empty());
    }

    #[test]
    fn objects_missing_in_a_new_list_are_removed() {
        let index = NodeIndex::default();
        index.put("a", Some(on("n1", 1)));
        index.put("b", Some(on("n2", 1)));
        assert_eq!(nodes(index.retain(&HashSet::from(["b".to_owned()]))), ["n1"]);
        assert!(index.of("n1").is_empty() && !index.of("n2").is_empty());
    }
}
