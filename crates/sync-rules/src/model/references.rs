//! Which objects use which ConfigMaps, Secrets and the like. Only objects in use are synced to the host, and only as
//! long as they are used.

use crate::model::{
    KindId,
    resource::{Key, Name},
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The index, both ways.
#[derive(Debug, Default)]
pub struct References {
    /// Sorted; most pods use one or two, for which a set would be far larger.
    by_user: HashMap<Key, Box<[Target]>>,
    by_target: HashMap<Key, Users>,
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
    /// Sets what an object uses now; nothing once it is gone. Returns the targets that got their first user or lost
    /// their last one: they must be synced to the host or removed from it.
    pub fn set(&mut self, user: &Key, targets: BTreeSet<Target>) -> Vec<Key> {
        let targets: Box<[Target]> = targets.into_iter().collect();
        let before = self.by_user.remove(user).unwrap_or_default();
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
        let mut references = References::default();
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
        let mut references = References::default();
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

    #[test]
    fn setting_the_same_targets_again_changes_nothing() {
        let mut references = References::default();
        let pod = KindId::Pod.key(Name::new("a", "one"));
        references.set(&pod, [target("x")].into());
        assert_eq!(references.set(&pod, [target("x")].into()), []);
    }
}
