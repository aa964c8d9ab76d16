//! Which objects have, name or select something, kept as they change: to find them there costs the same however many others there are.

use super::resource::Name;
use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// The index, both ways.
#[derive(Debug)]
pub struct Index<K> {
    by_object: HashMap<Name, Box<[K]>>,
    by_key: HashMap<K, BTreeSet<Name>>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self {
            by_object: HashMap::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Index<K> {
    /// Sets the keys of an object; none once it is gone.
    pub fn set(&mut self, object: &Name, keys: BTreeSet<K>) {
        let before: &[K] = self.by_object.get(object).map_or(&[], |keys| &**keys);
        if before.iter().eq(&keys) {
            return;
        }
        for key in self.by_object.remove(object).unwrap_or_default() {
            if let Some(objects) = self.by_key.get_mut(&key) {
                objects.remove(object);
                if objects.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        for key in &keys {
            self.by_key.entry(key.clone()).or_default().insert(object.clone());
        }
        if !keys.is_empty() {
            self.by_object.insert(object.clone(), keys.into_iter().collect());
        }
    }

    /// The objects that have a key, in the order of their names.
    pub fn objects<Q>(&self, key: &Q) -> impl Iterator<Item = &Name>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.by_key.get(key).into_iter().flatten()
    }

    /// Whether any object has a key.
    pub fn has<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.by_key.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_the_keys_that_they_have_now() {
        let mut index = Index::<u8>::default();
        let (one, two) = (Name::new("a", "one"), Name::new("a", "two"));
        index.set(&two, [7, 8].into());
        index.set(&one, [7].into());
        assert!(index.objects(&7_u8).eq([&one, &two]));
        index.set(&two, [8, 9].into());
        assert!(index.objects(&7_u8).eq([&one]) && index.objects(&9_u8).eq([&two]));
        index.set(&one, [7].into());
        assert!(index.objects(&7_u8).eq([&one]), "nothing has changed");
        for name in [&one, &two, &one] {
            index.set(name, BTreeSet::new());
        }
        assert!(!index.has(&8_u8) && index.by_object.is_empty() && index.by_key.is_empty());
    }
}
