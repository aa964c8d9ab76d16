//! The host objects that mirrored objects come from, where their names do not say it.

use crate::model::resource::Key;
use std::collections::HashMap;

/// The index, both ways.
#[derive(Debug, Default)]
pub struct MirrorSources {
    by_source: HashMap<Key, Box<[Key]>>,
    sources: HashMap<Key, Key>,
}

impl MirrorSources {
    /// Sets what an object of the host is mirrored as; nothing once it is gone. Returns every key to reconcile.
    pub fn set(&mut self, source: &Key, mirrored: Vec<Key>) -> Vec<Key> {
        let mut changed: Vec<Key> = self.by_source.remove(source).unwrap_or_default().into();
        for key in &changed {
            if self.sources.get(key) == Some(source) {
                self.sources.remove(key);
            }
        }
        for key in &mirrored {
            self.sources.insert(key.clone(), source.clone());
            if !changed.contains(key) {
                changed.push(key.clone());
            }
        }
        if !mirrored.is_empty() {
            self.by_source.insert(source.clone(), mirrored.into());
        }
        changed
    }

    /// The object of the host that is mirrored as this one.
    pub fn source(&self, mirrored: &Key) -> Option<Key> {
        self.sources.get(mirrored).cloned()
    }

    /// Whether nothing is mirrored.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What an object of the host is mirrored as.
    pub fn of(&self, source: &Key) -> Vec<Key> {
        self.by_source.get(source).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{KindId, resource::Name};

    fn key(name: &str) -> Key {
        KindId::ResourceSlice.key(Name::new("", name))
    }

    #[test]
    fn added_and_removed_mirrors_are_returned() {
        let mut mirrored = MirrorSources::default();
        let node = KindId::Node.key(Name::new("", "n"));
        assert_eq!(mirrored.set(&node, vec![key("a"), key("b")]), [key("a"), key("b")]);
        assert_eq!(mirrored.set(&node, vec![key("b"), key("c")]).len(), 3);
        assert_eq!(
            (mirrored.source(&key("a")), mirrored.source(&key("c"))),
            (None, Some(node.clone()))
        );
        assert_eq!(mirrored.of(&node), [key("b"), key("c")]);
        assert_eq!(mirrored.set(&node, Vec::new()), [key("b"), key("c")]);
        assert!(mirrored.by_source.is_empty() && mirrored.sources.is_empty());
    }

    #[test]
    fn a_mirror_stays_with_its_latest_source() {
        let mut mirrored = MirrorSources::default();
        let [one, two] = ["one", "two"].map(|name| KindId::Node.key(Name::new("", name)));
        mirrored.set(&one, vec![key("a")]);
        mirrored.set(&two, vec![key("a")]);
        mirrored.set(&one, Vec::new());
        assert_eq!(mirrored.source(&key("a")), Some(two));
    }
}
