//! An index of host objects of one kind by node. It keeps only a value for each object.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A value for each object, by the node that the object is on.
pub struct NodeIndex<V>(Mutex<Index<V>>);

struct Index<V> {
    nodes: HashMap<String, BTreeMap<String, V>>,
    places: HashMap<String, String>,
}

impl<V> Default for NodeIndex<V> {
    fn default() -> Self {
        Self(Mutex::new(Index {
            nodes: HashMap::new(),
            places: HashMap::new(),
        }))
    }
}

impl<V: Clone + PartialEq> NodeIndex<V> {
    fn lock(&self) -> MutexGuard<'_, Index<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the node and the value of an object; none if it is gone or on no node. Returns the nodes whose values changed.
    pub fn put(&self, object: &str, place: Option<(&str, V)>) -> BTreeSet<String> {
        self.lock().put(object, place)
    }

    /// Removes all objects except these. Returns the nodes whose values changed.
    pub fn retain(&self, objects: &HashSet<String>) -> BTreeSet<String> {
        let mut index = self.lock();
        let gone: Vec<String> = index
            .places
            .keys()
            .filter(|object| !objects.contains(*object))
            .cloned()
            .collect();
        gone.iter().flat_map(|object| index.put(object, None)).collect()
    }

    /// Everything, by node and then by object.
    pub fn all(&self) -> HashMap<String, BTreeMap<String, V>> {
        self.lock().nodes.clone()
    }

    /// Nodes that have objects.
    pub fn nodes(&self) -> Vec<String> {
        self.lock().nodes.keys().cloned().collect()
    }

    /// The values of a node by object.
    pub fn of(&self, node: &str) -> BTreeMap<String, V> {
        self.lock().nodes.get(node).cloned().unwrap_or_default()
    }
}

impl<V: PartialEq> Index<V> {
    fn put(&mut self, object: &str, place: Option<(&str, V)>) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let now = place.as_ref().map(|(node, _)| *node);
        if let Some(before) = self.places.get(object)
            && now != Some(before)
        {
            let before = before.clone();
            self.places.remove(object);
            if let Some(on_node) = self.nodes.get_mut(&before) {
                on_node.remove(object);
                if on_node.is_empty() {
                    self.nodes.remove(&before);
                }
            }
            changed.insert(before);
        }
        if let Some((node, value)) = place {
            let on_node = self.nodes.entry(node.to_owned()).or_default();
            if on_node.get(object) != Some(&value) {
                on_node.insert(object.to_owned(), value);
                changed.insert(node.to_owned());
            }
            self.places.insert(object.to_owned(), node.to_owned());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(changed: BTreeSet<String>) -> Vec<String> {
        changed.into_iter().collect()
    }

    #[test]
    fn changes_are_reported_once_and_by_node() {
        let index = NodeIndex::default();
        assert_eq!(nodes(index.put("a", Some(("n1", 1)))), ["n1"]);
        assert!(index.put("a", Some(("n1", 1))).is_empty());
        assert_eq!(nodes(index.put("a", Some(("n1", 2)))), ["n1"]);
        assert_eq!(nodes(index.put("a", Some(("n2", 2)))), ["n1", "n2"]);
        assert_eq!(index.of("n2"), BTreeMap::from([("a".into(), 2)]));
        assert!(index.of("n1").is_empty());
        assert_eq!(nodes(index.put("a", None)), ["n2"]);
        assert!(index.put("a", None).is_empty());
    }

    #[test]
    fn objects_missing_in_a_new_list_are_removed() {
        let index = NodeIndex::default();
        index.put("a", Some(("n1", 1)));
        index.put("b", Some(("n2", 1)));
        assert_eq!(nodes(index.retain(&HashSet::from(["b".to_owned()]))), ["n1"]);
        assert!(index.of("n1").is_empty() && !index.of("n2").is_empty());
    }
}
