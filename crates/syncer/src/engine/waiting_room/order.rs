//! Whose pod gets the next place: namespaces take turns, in each of them its users if they have limits, and of these groups of pods. What comes to wait joins at
//! the end, and so does what has had its turn. So each pod comes to its turn, whatever comes after it, and neither how many pods are alike nor how they are
//! called decides.

use super::{
    Shape, User,
    ring::{Nested, Ring},
};
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Pods that wait in one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// Pods of a namespace that are alike, and have lent their places. Every second place is for these, while others wait as well.
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

/// The groups of one rank, by namespace and user.
type Level = Nested<Arc<str>, Nested<Option<User>, Ring<Group, Class>>>;

/// The shape whose places the first pod of a group takes. None if it may have a turn whatever places pods that are alike have.
pub(super) type Class = Option<Shape>;

/// The groups that may get the next place.
#[derive(Debug, Default)]
pub(super) struct Order {
    levels: BTreeMap<Rank, Level>,
    /// The rank of each group, and the user whose turn it takes.
    turns: HashMap<Group, (Rank, Option<User>)>,
    /// Whether the last turn was that of pods that have lent their places. Then the next one is that of others: thousands of pods lend theirs while the room is
    /// empty, and would be before all others for hours when they come back.
    others_are_next: bool,
}

impl Order {
    /// A group takes turns, with others whose first pods have this priority, as one of this user's.
    pub(super) fn join(&mut self, group: &Group, priority: i64, user: Option<User>, class: Class) {
        let turn = (group.rank(priority), user);
        if self.turns.get(group) != Some(&turn) {
            self.leave(group);
            self.turns.insert(group.clone(), turn.clone());
        }
        let (rank, user) = turn;
        let level = self.levels.entry(rank).or_default();
        level.join(group.namespace()).join(&user).join(group, class);
    }

    /// A group takes no turns any more.
    pub(super) fn leave(&mut self, group: &Group) {
        let Some((rank, user)) = self.turns.remove(group) else {
            return;
        };
        let Some(level) = self.levels.get_mut(&rank) else {
            return;
        };
        level.leave(group.namespace(), |users| {
            users.leave(&user, |groups| {
                groups.leave(group);
                groups.is_empty()
            });
            users.is_empty()
        });
        if level.is_empty() {
            self.levels.remove(&rank);
        }
    }

    /// A group has had its turn, and so have its namespace and its user.
    pub(super) fn pass(&mut self, group: &Group) {
        let Some((rank, user)) = self.turns.get(group) else {
            return;
        };
        self.others_are_next = matches!(group, Group::Returning(..));
        if let Some(level) = self.levels.get_mut(rank)
            && let Some(users) = level.pass(group.namespace())
            && let Some(groups) = users.pass(user)
        {
            groups.pass(group);
        }
    }

    /// The group whose turn it is, of those classes that may have one.
    pub(super) fn next(&self, mut may_have_turn: impl FnMut(&Class) -> bool) -> Option<&Group> {
        let mut groups = self.by_user();
        groups.find_map(|groups| groups.first(&mut may_have_turn))
    }

    /// The groups that may have a turn whatever places pods that are alike have, in the order of their turns.
    pub(super) fn unlimited(&self) -> impl Iterator<Item = &Group> {
        self.by_user().flat_map(|groups| groups.of_class(&None))
    }

    /// The groups of each rank, namespace and user, in the order of the turns of these.
    fn by_user(&self) -> impl Iterator<Item = &Ring<Group, Class>> {
        let levels = &self.levels;
        let of = move |others: bool| levels.iter().filter(move |((are_others, _), _)| *are_others == others);
        let levels = of(self.others_are_next).chain(of(!self.others_are_next));
        levels.flat_map(|(_, level)| level.all().flat_map(Nested::all))
    }

    /// All groups, in the order of their turns.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<&Group> {
        self.by_user().flat_map(Ring::all).collect()
    }

    #[cfg(test)]
    pub(super) fn class(&self, group: &Group) -> Option<&Class> {
        let (rank, user) = self.turns.get(group)?;
        let users = self.levels.get(rank)?.get(group.namespace())?;
        users.get(user)?.class(group)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(namespace: &str, shape: &str) -> Group {
        Group::Alike(namespace.into(), shape.into())
    }

    fn returning(namespace: &str) -> Group {
        Group::Returning(namespace.into(), "1".into())
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
            order.join(group, 0, None, None);
        }
        let [one, two, other] = groups.clone();
        assert_eq!(take(&mut order, 4), [one.clone(), other.clone(), two, other.clone()]);
        // What comes later waits for one turn of each of the others at most.
        order.join(&alike("c", "0"), 0, None, None);
        assert_eq!(take(&mut order, 3), [one, other, alike("c", "0")]);
        for group in groups.iter().chain([&alike("c", "0")]) {
            order.leave(group);
        }
        assert!(order.is_empty());
    }

    #[test]
    fn users_take_turns_in_their_namespace_and_in_no_other() {
        let mut order = Order::default();
        let join = |order: &mut Order, group: &Group, user: &str| order.join(group, 0, Some(user.into()), None);
        for shape in ["1", "2", "3"] {
            join(&mut order, &alike("a", shape), "alice");
        }
        join(&mut order, &alike("b", "1"), "alice");
        join(&mut order, &alike("a", "4"), "bob");
        assert_eq!(
            take(&mut order, 5),
            [
                alike("a", "1"),
                alike("b", "1"),
                alike("a", "4"),
                alike("b", "1"),
                alike("a", "2")
            ]
        );
        // The first pod of a group is another user's now.
        join(&mut order, &alike("a", "3"), "carol");
        assert_eq!(order.all().len(), 5);
        for group in [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "1")] {
            order.leave(&alike(group.0, group.1));
        }
        assert!(order.is_empty());
    }

    #[test]
    fn who_has_lent_a_place_has_every_second_turn_while_others_wait() {
        let mut order = Order::default();
        for namespace in ["a", "b"] {
            order.join(&returning(namespace), -1, None, None);
        }
        order.join(&alike("c", "1"), 100, None, None);
        let expected = [
            returning("a"),
            alike("c", "1"),
            returning("b"),
            alike("c", "1"),
            returning("a"),
        ];
        assert_eq!(take(&mut order, 5), expected);
        order.leave(&alike("c", "1"));
        assert_eq!(take(&mut order, 2), [returning("b"), returning("a")]);
    }

    #[test]
    fn who_has_lent_a_place_comes_first_and_then_higher_priorities() {
        let mut order = Order::default();
        let gang = Group::Gang(Name::new("a", "train"));
        order.join(&gang, 0, None, None);
        order.join(&alike("b", "1"), 100, None, None);
        order.join(&returning("c"), -1, None, None);
        assert_eq!(order.all(), [&returning("c"), &alike("b", "1"), &gang]);
        order.join(&gang, 200, None, None);
        assert_eq!(order.all()[1], &gang, "its first pod is another one now");
    }

    #[test]
    fn groups_whose_pods_are_alike_are_passed_over_together() {
        let mut order = Order::default();
        let gangs: Vec<_> = (0..5000)
            .map(|number| Group::Gang(Name::new("a", &format!("g{number}"))))
            .collect();
        for gang in &gangs {
            order.join(gang, 0, None, Some("full".into()));
        }
        order.join(&alike("a", "other"), 0, None, Some("other".into()));
        let mut looks = 0;
        let next = order.next(|class| {
            looks += 1;
            class.as_deref() != Some("full")
        });
        assert_eq!((next, looks), (Some(&alike("a", "other")), 2));
        // All pods that one of them lacks have come.
        order.join(&gangs[7], 0, None, None);
        assert_eq!(order.unlimited().collect::<Vec<_>>(), [&gangs[7]]);
        assert_eq!(order.next(Option::is_none), Some(&gangs[7]));
        assert_eq!(order.all()[7], &gangs[7], "it keeps its position");
    }
}
