//! Which objects use which ConfigMaps, Secrets and the like. Only objects in use are synced to the host, and only as
//! long as they are used.
//!
//! A name in a pod takes a few bytes in etcd, and [`BYTES_OF_REFERENCE`](berth_api::BYTES_OF_REFERENCE) here, so their number is limited. Of an object
//! for which there is no room only what it used before is known: it does not come to the host. If it is there already, nothing leaves the host because
//! nobody seems to use it.
//!
//! The objects of a namespace have at most four times as many as there is room left for: one namespace alone four fifths of all. So those who fill their
//! own leave room for others.

use crate::model::{
    KindId,
    resource::{Key, Name},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// How many the users of a namespace may have for each that there is room left for.
const SHARE: usize = 4;

/// The index, both ways.
#[derive(Debug)]
pub struct References {
    /// Sorted; most pods use one or two, for which a set would be far larger.
    by_user: HashMap<Key, Box<[Target]>>,
    by_target: HashMap<Key, Users>,
    /// Targets of all users.
    count: usize,
    /// Targets of the users of each namespace that have any.
    by_namespace: HashMap<Arc<str>, usize>,
    /// The most of them.
    most: usize,
    /// Users for whose targets there was no room, by their kinds. No kind is without any.
    left_out: HashMap<KindId, HashSet<Key>>,
    /// Those of them that are on the host: few, however many the tenant has.
    left_out_on_host: HashSet<Key>,
}

/// The objects that use another one.
#[derive(Debug, Default)]
struct Users {
    /// Most of them: thousands may use the same.
    pods: HashSet<Key>,
    others: HashSet<Key>,
}

impl Users {
    /// Those of the kind of a user.
    fn alike(&mut self, user: &Key) -> &mut HashSet<Key> {
        if user.kind == KindId::Pod {
            &mut self.pods
        } else {
            &mut self.others
        }
    }

    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.others.is_empty()
    }
}

/// An object that others use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Which kind.
    pub kind: KindId,
    /// Its name in the tenant.
    pub name: Name,
}

impl References {
    /// An empty index for at most so many targets of all users.
    pub fn new(most: usize) -> Self {
        Self {
            by_user: HashMap::new(),
            by_target: HashMap::new(),
            count: 0,
            by_namespace: HashMap::new(),
            most,
            left_out: HashMap::new(),
            left_out_on_host: HashSet::new(),
        }
    }

    /// Sets what an object uses now; nothing once it is gone. Returns the targets that got their first user or lost
    /// their last one: they must be synced to the host or removed from it. If there is no room for what is new, the object is left out.
    pub fn set(&mut self, user: &Key, mut targets: BTreeSet<Target>) -> Vec<Key> {
        let namespace = &user.name.namespace;
        let before = self.by_user.remove(user).unwrap_or_default();
        let is_known = |target: &Target| before.binary_search(target).is_ok();
        let kept = targets.iter().filter(|target| is_known(target)).count();
        self.recount(namespace, before.len(), kept);
        if targets.len() - kept > self.room(namespace) {
            // What it used before has room, and others rely on it.
            targets.retain(is_known);
            self.left_out.entry(user.kind).or_default().insert(user.clone());
        } else {
            self.take_in(user);
        }
        self.recount(namespace, kept, targets.len());
        let targets: Box<[Target]> = targets.into_iter().collect();
        let mut changed = Vec::new();
        for target in before.iter().filter(|target| targets.binary_search(target).is_err()) {
            let key = target.kind.key(target.name.clone());
            if let Some(users) = self.by_target.get_mut(&key) {
                users.alike(user).remove(user);
                if users.is_empty() {
                    self.by_target.remove(&key);
                    changed.push(key);
                }
            }
        }
        for target in targets.iter().filter(|target| before.binary_search(target).is_err()) {
            let key = target.kind.key(target.name.clone());
            let users = self.by_target.entry(key.clone()).or_default();
            if users.is_empty() {
                changed.push(key);
            }
            users.alike(user).insert(user.clone());
        }
        if !targets.is_empty() {
            self.by_user.insert(user.clone(), targets);
        }
        changed
    }

    /// Notes that there is room for what an object uses.
    fn take_in(&mut self, user: &Key) {
        if let Some(alike) = self.left_out.get_mut(&user.kind) {
            alike.remove(user);
            if alike.is_empty() {
                self.left_out.remove(&user.kind);
            }
        }
        self.left_out_on_host.remove(user);
    }

    /// Counts `after` targets of a user in place of `before`.
    fn recount(&mut self, namespace: &Arc<str>, before: usize, after: usize) {
        if before == after {
            return;
        }
        self.count = self.count + after - before;
        let of_namespace = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        *of_namespace = *of_namespace + after - before;
        if *of_namespace == 0 {
            self.by_namespace.remove(namespace);
        }
    }

    /// How many targets more the users of a namespace may have.
    fn room(&self, namespace: &str) -> usize {
        let left = self.most.saturating_sub(self.count);
        let own = self.by_namespace.get(namespace).copied().unwrap_or_default();
        SHARE.saturating_mul(left).saturating_sub(own) / (SHARE + 1)
    }

    /// Whether there was no room for what an object uses.
    pub fn is_left_out(&self, user: &Key) -> bool {
        let alike = self.left_out.get(&user.kind);
        alike.is_some_and(|alike| alike.contains(user))
    }

    /// The objects for which there was no room.
    pub fn left_out(&self) -> Vec<Key> {
        self.left_out.values().flatten().cloned().collect()
    }

    /// Notes whether an object is on the host. To be called after it was set, and when it comes there or goes.
    pub fn note_on_host(&mut self, user: &Key, is_on_host: bool) {
        if is_on_host && self.is_left_out(user) {
            self.left_out_on_host.insert(user.clone());
        } else {
            self.left_out_on_host.remove(user);
        }
    }

    /// Those of the objects for which there was no room that are on the host.
    pub fn left_out_on_host(&self) -> impl Iterator<Item = &Key> {
        self.left_out_on_host.iter()
    }

    /// Whether there was no room for an object of one of these kinds.
    pub fn has_left_out(&self, kinds: &[KindId]) -> bool {
        kinds.iter().any(|kind| self.left_out.contains_key(kind))
    }

    /// What an object uses.
    pub fn targets(&self, user: &Key) -> Vec<Key> {
        let targets = self.by_user.get(user).into_iter().flatten();
        targets.map(|target| target.kind.key(target.name.clone())).collect()
    }

    /// Whether anything uses this object.
    pub fn is_used(&self, target: &Key) -> bool {
        self.by_target.contains_key(target)
    }

    /// The objects that use this one.
    pub fn users(&self, target: &Key) -> Vec<Key> {
        let users = self.by_target.get(target).into_iter();
        users
            .flat_map(|users| users.pods.iter().chain(&users.others))
            .cloned()
            .collect()
    }

    /// The pods that use this one.
    pub fn users_that_are_pods(&self, target: &Key) -> impl Iterator<Item = &Key> {
        self.by_target.get(target).into_iter().flat_map(|users| &users.pods)
    }

    /// The objects that use this one and are no pods. However many pods use it, that costs nothing.
    pub fn users_besides_pods(&self, target: &Key) -> impl Iterator<Item = &Key> {
        self.by_target.get(target).into_iter().flat_map(|users| &users.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Target {
        Target {
            kind: KindId::ConfigMap,
            name: Name::new("a", name),
        }
    }

    fn key(name: &str) -> Key {
        KindId::ConfigMap.key(Name::new("a", name))
    }

    #[test]
    fn first_and_last_users_are_reported() {
        let mut references = References::new(10);
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("a", name)));
        assert_eq!(
            references.set(&one, [target("x"), target("y")].into()),
            [key("x"), key("y")]
        );
        assert_eq!(references.set(&two, [target("x")].into()), []);
        assert_eq!(references.set(&one, [target("y")].into()), [], "two still uses x");
        assert_eq!(references.users(&key("x")), std::slice::from_ref(&two));
        assert_eq!(references.set(&two, BTreeSet::new()), [key("x")]);
        assert!(!references.is_used(&key("x")) && references.is_used(&key("y")));
        references.set(&one, BTreeSet::new());
        assert!(references.by_user.is_empty() && references.by_target.is_empty());
    }

    #[test]
    fn users_that_are_pods_and_users_that_are_none_are_found_apart() {
        let mut references = References::new(10);
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("a", name)));
        let ingress = KindId::Ingress.key(Name::new("a", "one"));
        for user in [&one, &ingress, &two] {
            references.set(user, [target("x")].into());
        }
        let others = |references: &References| references.users_besides_pods(&key("x")).cloned().collect::<Vec<_>>();
        assert_eq!(others(&references), std::slice::from_ref(&ingress));
        assert_eq!(references.users(&key("x")).len(), 3);
        let pods: HashSet<&Key> = references.users_that_are_pods(&key("x")).collect();
        assert_eq!(pods, HashSet::from([&one, &two]));
        for (user, changed) in [(&one, 0), (&ingress, 0), (&two, 1)] {
            assert_eq!(references.set(user, BTreeSet::new()).len(), changed);
        }
        assert!(others(&references).is_empty() && references.by_target.is_empty());
    }

    fn names(names: &[&str]) -> BTreeSet<Target> {
        names.iter().map(|name| target(name)).collect()
    }

    #[test]
    fn objects_beyond_the_limit_are_left_out_until_there_is_room() {
        let mut references = References::new(4);
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("a", name)));
        references.set(&one, names(&["x", "y"]));
        assert_eq!(references.set(&two, names(&["x", "z"])), []);
        assert!(references.is_left_out(&two) && !references.is_left_out(&one));
        assert!(
            references.has_left_out(&[KindId::Ingress, KindId::Pod]) && !references.has_left_out(&[KindId::Ingress])
        );
        assert_eq!(references.users(&key("x")), std::slice::from_ref(&one));
        // What it has already counts once.
        assert_eq!(references.set(&one, names(&["x", "y", "v"])), [key("v")]);
        assert_eq!(references.set(&one, names(&["x"])).len(), 2);
        assert_eq!(references.left_out(), std::slice::from_ref(&two));
        assert_eq!(references.set(&two, names(&["x", "z"])), [key("z")]);
        assert!(references.left_out().is_empty());
        // One that is gone is not left out.
        references.set(&one, names(&["1", "2", "3", "4"]));
        assert_eq!((references.is_left_out(&one), references.count), (true, 2));
        for user in [&one, &two] {
            references.set(user, BTreeSet::new());
        }
        assert!(references.left_out.is_empty() && references.by_target.is_empty());
        assert_eq!((references.count, references.by_namespace.len()), (0, 0));
    }

    #[test]
    fn objects_without_room_that_are_on_the_host_are_known_apart() {
        let mut references = References::new(1);
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("a", name)));
        references.set(&one, names(&["x", "y"]));
        references.set(&two, names(&["x", "y"]));
        let on_host = |references: &References| references.left_out_on_host().cloned().collect::<Vec<_>>();
        assert_eq!(on_host(&references), []);
        references.note_on_host(&one, true);
        assert_eq!(on_host(&references), std::slice::from_ref(&one));
        references.note_on_host(&one, false);
        references.note_on_host(&two, true);
        assert_eq!(on_host(&references), std::slice::from_ref(&two));
        references.set(&two, BTreeSet::new());
        references.note_on_host(&two, true);
        assert_eq!(on_host(&references), [], "it names nothing");
    }

    #[test]
    fn what_was_known_of_an_object_stays_known_when_it_names_too_many() {
        let mut references = References::new(10);
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("a", name)));
        references.set(&one, names(&["x", "y"]));
        references.set(&two, names(&["1", "2", "3", "4", "5", "6"]));
        assert_eq!(
            references.set(&one, names(&["x", "v", "w"])),
            [key("y")],
            "it does not name y any more"
        );
        assert!(references.is_left_out(&one) && references.is_used(&key("x")) && !references.is_used(&key("v")));
        assert_eq!(references.set(&two, names(&["1"])).len(), 5);
        assert_eq!(references.set(&one, names(&["x", "v", "w"])), [key("v"), key("w")]);
        assert!(!references.is_left_out(&one));
        // However little is left, the same again fits.
        references.most = 0;
        assert_eq!(references.set(&one, names(&["x", "v", "w"])), []);
        assert!(!references.is_left_out(&one));
    }

    #[test]
    fn a_namespace_leaves_room_for_others() {
        let mut references = References::new(1000);
        let mut fill = |namespace: &str| {
            let user = |number: usize| KindId::Pod.key(Name::new(namespace, &number.to_string()));
            let fits = |number: &usize| {
                references.set(&user(*number), names(&["x"]));
                !references.is_left_out(&user(*number))
            };
            (0..1000).filter(fits).count()
        };
        assert_eq!(fill("greedy"), 800);
        assert_eq!(fill("other"), 160);
    }

    #[test]
    fn setting_the_same_targets_again_changes_nothing() {
        let mut references = References::new(10);
        let pod = KindId::Pod.key(Name::new("a", "one"));
        references.set(&pod, [target("x")].into());
        assert_eq!(references.set(&pod, [target("x")].into()), []);
    }
}
