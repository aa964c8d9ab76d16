//! Whose pod gets the next place: namespaces take turns, and in each of them its groups. What comes to wait joins at the end, and so does what has had its
//! turn. So each pod comes to its turn, whatever comes after it, and neither how many pods are alike nor how they are called decides.

use super::{Shape, ring::Ring};
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
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

/// The shape whose places the first pod of a group takes. None if it may have a turn whatever places pods that are alike have.
pub(super) type Class = Option<Shape>;

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
    groups: HashMap<Arc<str>, Ring<Group, Class>>,
}

impl Order {
    /// A group takes turns, with others whose first pods have this priority.
    pub(super) fn join(&mut self, group: &Group, priority: i64, class: Class) {
        let rank = group.rank(priority);
        if self.ranks.get(group) != Some(&rank) {
            self.leave(group);
            self.ranks.insert(group.clone(), rank);
        }
        let level = self.levels.entry(rank).or_default();
        let namespace = group.namespace();
        level.namespaces.join(namespace, ());
        level
            .groups
            .entry(Arc::clone(namespace))
            .or_default()
            .join(group, class);
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

    /// The group whose turn it is, of those classes that may have one.
    pub(super) fn next(&self, mut may_have_turn: impl FnMut(&Class) -> bool) -> Option<&Group> {
        let mut groups = self.by_namespace();
        groups.find_map(|groups| groups.first(&mut may_have_turn))
    }

    /// The groups that may have a turn whatever places pods that are alike have, in the order of their turns.
    pub(super) fn unlimited(&self) -> impl Iterator<Item = &Group> {
        self.by_namespace().flat_map(|groups| groups.of_class(&None))
    }

    /// The groups of each rank and namespace, in the order of the turns of these.
    fn by_namespace(&self) -> impl Iterator<Item = &Ring<Group, Class>> {
        self.levels.values().flat_map(|level| {
            let namespaces = level.namespaces.of_class(&());
            namespaces.filter_map(move |namespace| level.groups.get(namespace))
        })
    }

    /// All groups, in the order of their turns.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<&Group> {
        self.by_namespace().flat_map(Ring::all).collect()
    }

    #[cfg(test)]
    pub(super) fn class(&self, group: &Group) -> Option<&Class> {
        let level = self.levels.get(self.ranks.get(group)?)?;
        level.groups.get(group.namespace())?.class(group)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.ranks.is_empty()
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
            let first = order.next(|_| true).unwrap().clone();
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
            order.join(group, 0, None);
        }
        let [one, two, other] = groups.clone();
        assert_eq!(take(&mut order, 4), [one.clone(), other.clone(), two, other.clone()]);
        // What comes later waits for one turn of each of the others at most.
        order.join(&alike("c", "0"), 0, None);
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
        order.join(&gang, 0, None);
        order.join(&alike("b", "1"), 100, None);
        order.join(&Group::Returning("c".into(), "1".into()), -1, None);
        assert_eq!(
            order.all(),
            [&Group::Returning("c".into(), "1".into()), &alike("b", "1"), &gang]
        );
        order.join(&gang, 200, None);
        assert_eq!(order.all()[1], &gang, "its first pod is another one now");
    }

    #[test]
    fn groups_whose_pods_are_alike_are_passed_over_together() {
        let mut order = Order::default();
        let gangs: Vec<_> = (0..5000)
            .map(|number| Group::Gang(Name::new("a", &format!("g{number}"))))
            .collect();
        for gang in &gangs {
            order.join(gang, 0, Some("full".into()));
        }
        order.join(&alike("a", "other"), 0, Some("other".into()));
        let mut looks = 0;
        let next = order.next(|class| {
            looks += 1;
            class.as_deref() != Some("full")
        });
        assert_eq!((next, looks), (Some(&alike("a", "other")), 2));
        // All pods that one of them lacks have come.
        order.join(&gangs[7], 0, None);
        assert_eq!(order.unlimited().collect::<Vec<_>>(), [&gangs[7]]);
        assert_eq!(order.next(Option::is_none), Some(&gangs[7]));
        assert_eq!(order.all()[7], &gangs[7], "it keeps its position");
    }
}
