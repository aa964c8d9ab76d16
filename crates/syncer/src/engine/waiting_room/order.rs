//! Whose pod gets the next place: namespaces take turns, and in each of them its groups. What comes to wait joins at the end, and so does what has had its
//! turn. So each pod comes to its turn, whatever comes after it, and neither how many pods are alike nor how they are called decides.

use super::Shape;
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

/// Pods that wait in one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// Pods of a namespace that are alike, and have lent their places: they come before all others.
    Returning(Arc<str>, Shape),
    /// Other pods of a namespace that are alike, and of no gang.
    Alike(Arc<str>, Shape),
    /// Members of a gang.
    Gang(Name),
}

impl Group {
    fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Returning(namespace, _) | Self::Alike(namespace, _) => namespace,
            Self::Gang(gang) => &gang.namespace,
        }
    }

    /// Its rank, if its first pod has this priority.
    fn rank(&self, priority: i64) -> Rank {
        (!matches!(self, Self::Returning(..)), Reverse(priority))
    }
}

/// Groups of one rank take turns, and the least rank comes first: whether the pods have lent no places, and their priority.
type Rank = (bool, Reverse<i64>);

/// The groups that may get the next place.
#[derive(Debug, Default)]
pub(super) struct Order {
    levels: BTreeMap<Rank, Level>,
    ranks: HashMap<Group, Rank>,
}

/// The groups of one rank.
#[derive(Debug, Default)]
struct Level {
    namespaces: Ring<Arc<str>>,
    groups: HashMap<Arc<str>, Ring<Group>>,
}

impl Order {
    /// A group takes turns, with others whose first pods have this priority.
    pub(super) fn join(&mut self, group: &Group, priority: i64) {
        let rank = group.rank(priority);
        if self.ranks.get(group) == Some(&rank) {
            return;
        }
        self.leave(group);
        self.ranks.insert(group.clone(), rank);
        let level = self.levels.entry(rank).or_default();
        let namespace = group.namespace();
        level.namespaces.join(namespace);
        level.groups.entry(Arc::clone(namespace)).or_default().join(group);
    }

    /// A group takes no turns any more.
    pub(super) fn leave(&mut self, group: &Group) {
        let Some(rank) = self.ranks.remove(group) else { return };
        let Some(level) = self.levels.get_mut(&rank) else {
            return;
        };
        let namespace = group.namespace();
        if let Some(groups) = level.groups.get_mut(namespace) {
            groups.leave(group);
            if groups.is_empty() {
                level.groups.remove(namespace);
                level.namespaces.leave(namespace);
            }
        }
        if level.groups.is_empty() {
            self.levels.remove(&rank);
        }
    }

    /// A group has had its turn, and so has its namespace.
    pub(super) fn pass(&mut self, group: &Group) {
        let level = self.ranks.get(group).and_then(|rank| self.levels.get_mut(rank));
        let Some(level) = level else { return };
        let namespace = group.namespace();
        level.namespaces.pass(namespace);
        if let Some(groups) = level.groups.get_mut(namespace) {
            groups.pass(group);
        }
    }

    /// All groups, in the order of their turns.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.levels.values().flat_map(|level| {
            let namespaces = level.namespaces.iter();
            namespaces.flat_map(move |namespace| level.groups.get(namespace).into_iter().flat_map(Ring::iter))
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.ranks.is_empty()
    }
}

/// Keys that take turns.
#[derive(Debug)]
pub(super) struct Ring<K> {
    order: BTreeMap<u64, K>,
    positions: HashMap<K, u64>,
    next_position: u64,
}

impl<K> Default for Ring<K> {
    fn default() -> Self {
        Self {
            order: BTreeMap::new(),
            positions: HashMap::new(),
            next_position: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Ring<K> {
    /// Adds a key at the end, unless it is there.
    pub(super) fn join(&mut self, key: &K) {
        if !self.positions.contains_key(key) {
            self.order.insert(self.next_position, key.clone());
            self.positions.insert(key.clone(), self.next_position);
            self.next_position += 1;
        }
    }

    /// Removes a key. Returns whether it was there.
    pub(super) fn leave(&mut self, key: &K) -> bool {
        let position = self.positions.remove(key);
        position.is_some_and(|position| self.order.remove(&position).is_some())
    }

    /// A key has had its turn: it comes to the end.
    fn pass(&mut self, key: &K) {
        if self.leave(key) {
            self.join(key);
        }
    }

    /// All keys, in the order of their turns.
    pub(super) fn iter(&self) -> impl Iterator<Item = &K> {
        self.order.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(namespace: &str, shape: &str) -> Group {
        Group::Alike(namespace.into(), shape.into())
    }

    /// Gives so many places. Returns who got them, one after another.
    fn take(order: &mut Order, places: usize) -> Vec<Group> {
        let mut taken = Vec::new();
        for _ in 0..places {
            let first = order.iter().next().unwrap().clone();
            order.pass(&first);
            taken.push(first);
        }
        taken
    }

    #[test]
    fn namespaces_take_turns_and_in_each_of_them_its_groups() {
        let mut order = Order::default();
        let groups = [alike("a", "1"), alike("a", "2"), alike("b", "1")];
        for group in &groups {
            order.join(group, 0);
        }
        let [one, two, other] = groups.clone();
        assert_eq!(take(&mut order, 4), [one.clone(), other.clone(), two, other.clone()]);
        // What comes later waits for one turn of each of the others at most.
        order.join(&alike("c", "0"), 0);
        assert_eq!(take(&mut order, 3), [one, other, alike("c", "0")]);
        for group in groups.iter().chain([&alike("c", "0")]) {
            order.leave(group);
        }
        assert!(order.is_empty());
    }

    #[test]
    fn who_has_lent_a_place_comes_first_and_then_higher_priorities() {
        let mut order = Order::default();
        let gang = Group::Gang(Name::new("a", "train"));
        order.join(&gang, 0);
        order.join(&alike("b", "1"), 100);
        order.join(&Group::Returning("c".into(), "1".into()), -1);
        let all: Vec<_> = order.iter().cloned().collect();
        assert_eq!(
            all,
            [Group::Returning("c".into(), "1".into()), alike("b", "1"), gang.clone()]
        );
        order.join(&gang, 200);
        assert_eq!(order.iter().nth(1), Some(&gang), "its first pod is another one now");
    }
}
