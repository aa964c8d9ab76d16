//! Keys that take turns, and keys in which others do.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Keys that take turns. Each is of a class, and classes that may have no turn are passed over as a whole: there can be thousands of keys, and there is a look
/// at each change of a pod.
#[derive(Debug)]
pub(super) struct Ring<K, C = ()> {
    positions: HashMap<K, (u64, C)>,
    classes: HashMap<C, BTreeMap<u64, K>>,
    /// The first position of each class.
    firsts: BTreeMap<u64, C>,
    next_position: u64,
}

impl<K, C> Default for Ring<K, C> {
    fn default() -> Self {
        Self {
            positions: HashMap::new(),
            classes: HashMap::new(),
            firsts: BTreeMap::new(),
            next_position: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, C: Clone + Eq + Hash> Ring<K, C> {
    /// Adds a key of a class at the end. One that is there keeps its position, and is of this class now.
    pub(super) fn join(&mut self, key: &K, class: C) {
        let position = match self.positions.get(key) {
            Some((_, known)) if *known == class => return,
            Some((position, _)) => *position,
            None => {
                self.next_position += 1;
                self.next_position
            }
        };
        self.leave(key);
        self.positions.insert(key.clone(), (position, class.clone()));
        self.change_class(class, |keys| {
            keys.insert(position, key.clone());
        });
    }

    /// Removes a key. Returns the class that it was of, if it was there.
    pub(super) fn leave(&mut self, key: &K) -> Option<C> {
        let (position, class) = self.positions.remove(key)?;
        self.change_class(class.clone(), |keys| {
            keys.remove(&position);
        });
        Some(class)
    }

    /// A key has had its turn: it comes to the end.
    pub(super) fn pass(&mut self, key: &K) {
        if let Some(class) = self.leave(key) {
            self.join(key, class);
        }
    }

    /// The first key of those classes that may have a turn.
    pub(super) fn first(&self, mut may_have_turn: impl FnMut(&C) -> bool) -> Option<&K> {
        let (position, class) = self.firsts.iter().find(|(_, class)| may_have_turn(class))?;
        self.classes.get(class)?.get(position)
    }

    /// The keys of a class, in the order of their turns.
    pub(super) fn of_class<'a>(&'a self, class: &C) -> impl Iterator<Item = &'a K> + use<'a, K, C> {
        self.classes.get(class).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// All keys, in the order of their turns.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<&K> {
        let mut keys: Vec<_> = self.positions.iter().collect();
        keys.sort_by_key(|(_, (position, _))| *position);
        keys.into_iter().map(|(key, _)| key).collect()
    }

    #[cfg(test)]
    pub(super) fn class(&self, key: &K) -> Option<&C> {
        self.positions.get(key).map(|(_, class)| class)
    }

    /// Changes the keys of a class, and notes which of them is the first one then.
    fn change_class(&mut self, class: C, change: impl FnOnce(&mut BTreeMap<u64, K>)) {
        let keys = self.classes.entry(class.clone()).or_default();
        if let Some(first) = keys.keys().next() {
            self.firsts.remove(first);
        }
        change(keys);
        match keys.keys().next() {
            Some(first) => {
                self.firsts.insert(*first, class);
            }
            None => {
                self.classes.remove(&class);
            }
        }
    }
}

/// Keys that take turns. In each of them other keys do, of which `T` knows.
#[derive(Debug)]
pub(super) struct Nested<K, T> {
    keys: Ring<K>,
    of: HashMap<K, T>,
}

impl<K, T> Default for Nested<K, T> {
    fn default() -> Self {
        Self {
            keys: Ring::default(),
            of: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, T: Default> Nested<K, T> {
    /// Adds a key at the end, unless it is there. Returns what takes turns in it.
    pub(super) fn join(&mut self, key: &K) -> &mut T {
        self.keys.join(key, ());
        self.of.entry(key.clone()).or_default()
    }

    /// Removes something from what takes turns in a key, and the key if nothing of it is left, as `remove` says.
    pub(super) fn leave(&mut self, key: &K, remove: impl FnOnce(&mut T) -> bool) {
        if self.of.get_mut(key).is_some_and(remove) {
            self.of.remove(key);
            self.keys.leave(key);
        }
    }

    /// A key has had its turn: it comes to the end. Returns what takes turns in it.
    pub(super) fn pass(&mut self, key: &K) -> Option<&mut T> {
        self.keys.pass(key);
        self.of.get_mut(key)
    }

    /// What takes turns in each key, in the order of the turns of the keys.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.keys.of_class(&()).filter_map(|key| self.of.get(key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[cfg(test)]
    pub(super) fn get(&self, key: &K) -> Option<&T> {
        self.of.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_turns_and_classes_are_passed_over_as_a_whole() {
        let mut ring = Ring::default();
        for number in 0..5000 {
            ring.join(&number, "full");
        }
        ring.join(&5000, "other");
        ring.join(&5001, "other");
        let mut looks = 0;
        let mut first = |ring: &Ring<i32, &str>| {
            let first = ring.first(|class| {
                looks += 1;
                *class == "other"
            });
            first.copied()
        };
        assert_eq!(first(&ring), Some(5000));
        ring.pass(&5000);
        assert_eq!(first(&ring), Some(5001));
        ring.leave(&5001);
        assert_eq!(first(&ring), Some(5000));
        assert_eq!(looks, 6, "one for each class");
        assert_eq!(ring.first(|_| true), Some(&0));
    }

    #[test]
    fn a_key_of_another_class_keeps_its_position() {
        let mut ring = Ring::default();
        for key in ["a", "b", "c"] {
            ring.join(&key, 1);
        }
        ring.join(&"b", 2);
        assert_eq!(ring.all(), [&"a", &"b", &"c"]);
        assert_eq!(ring.of_class(&2).collect::<Vec<_>>(), [&"b"]);
        ring.join(&"a", 2);
        assert_eq!(ring.first(|class| *class == 2), Some(&"a"));
        assert_eq!(ring.first(|class| *class == 1), Some(&"c"));
        for key in ["a", "b", "c"] {
            assert!(ring.leave(&key).is_some() && ring.leave(&key).is_none());
        }
        assert!(ring.is_empty() && ring.classes.is_empty() && ring.firsts.is_empty());
    }
    #[test]
    fn keys_in_which_others_take_turns_come_and_go_with_these() {
        let mut nested: Nested<&str, Ring<i32>> = Nested::default();
        for (key, number) in [("a", 1), ("a", 2), ("b", 3)] {
            nested.join(&key).join(&number, ());
        }
        let first =
            |nested: &Nested<&str, Ring<i32>>| nested.all().next().and_then(|ring| ring.first(|()| true).copied());
        let mut turns = Vec::new();
        for _ in 0..4 {
            let number = first(&nested).unwrap();
            turns.push(number);
            nested
                .pass(if number == 3 { &"b" } else { &"a" })
                .unwrap()
                .pass(&number);
        }
        assert_eq!(turns, [1, 3, 2, 3]);
        for (key, number) in [("a", 1), ("a", 2), ("b", 3)] {
            assert!(!nested.is_empty());
            nested.leave(&key, |ring| {
                ring.leave(&number);
                ring.is_empty()
            });
        }
        assert!(nested.is_empty() && nested.of.is_empty());
    }
}
