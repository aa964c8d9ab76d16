//! Host objects of one kind, by the node that they are on. [`OnNode`] decides what is kept of those on one node.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Objects by the node that they are on.
pub struct ByNode<N>(Mutex<Index<N>>);

struct Index<N> {
    nodes: HashMap<String, N>,
    /// The node of each object.
    places: HashMap<String, String>,
}

/// What is kept of the objects on one node.
pub trait OnNode: Default {
    /// What is read of an object.
    type Value;

    /// Sets an object of the node of this name. Returns whether anything changed.
    fn set(&mut self, node: &str, object: &str, value: Self::Value) -> bool;

    /// Removes an object.
    fn forget(&mut self, object: &str);

    /// Whether the node has no objects.
    fn has_none(&self) -> bool;
}

impl<N> Default for ByNode<N> {
    fn default() -> Self {
        Self(Mutex::new(Index {
            nodes: HashMap::new(),
            places: HashMap::new(),
        }))
    }
}

impl<N: OnNode> ByNode<N> {
    fn lock(&self) -> MutexGuard<'_, Index<N>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the node of an object, and what is read of it; none if it is gone or on no node. Returns the nodes of which something changed.
    pub fn put(&self, object: &str, place: Option<(String, N::Value)>) -> BTreeSet<String> {
        self.lock().put(object, place)
    }

    /// Removes all objects except these. Returns the nodes of which something changed.
    pub fn retain(&self, objects: &HashSet<String>) -> BTreeSet<String> {
        let mut index = self.lock();
        let known = index.places.keys();
        let gone: Vec<String> = known.filter(|object| !objects.contains(*object)).cloned().collect();
        gone.iter().flat_map(|object| index.put(object, None)).collect()
    }

    /// Nodes that have objects.
    pub fn nodes(&self) -> Vec<String> {
        self.lock().nodes.keys().cloned().collect()
    }

    /// What is kept, by node.
    pub fn all(&self) -> HashMap<String, N>
    where
        N: Clone,
    {
        self.lock().nodes.clone()
    }

    /// Whether something holds for what is kept of any node.
    pub(crate) fn any(&self, holds: impl Fn(&N) -> bool) -> bool {
        self.lock().nodes.values().any(holds)
    }

    /// Reads what is kept of a node; none if it has no objects.
    pub(crate) fn read<T>(&self, node: &str, read: impl FnOnce(&N) -> T) -> Option<T> {
        self.lock().nodes.get(node).map(read)
    }
}

impl<N: OnNode> Index<N> {
    fn put(&mut self, object: &str, place: Option<(String, N::Value)>) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let now = place.as_ref().map(|(node, _)| node);
        if let Some(before) = self.places.get(object)
            && now != Some(before)
        {
            let before = before.clone();
            self.places.remove(object);
            if let Some(on_node) = self.nodes.get_mut(&before) {
                on_node.forget(object);
                if on_node.has_none() {
                    self.nodes.remove(&before);
                }
            }
            changed.insert(before);
        }
        if let Some((node, value)) = place {
            let on_node = self.nodes.entry(node.clone()).or_default();
            if on_node.set(&node, object, value) {
                changed.insert(node.clone());
            }
            self.places.insert(object.to_owned(), node);
        }
        changed
    }
}
