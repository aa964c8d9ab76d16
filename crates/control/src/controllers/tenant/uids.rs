//! Which TenantClusters had a name, as long as something may be remembered of them.

use crate::key::Key;
use berth_runtime::locks::lock;
use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Mutex,
};

/// UIDs of TenantClusters, by their names.
#[derive(Debug, Default)]
pub(super) struct Uids(Mutex<HashMap<Key, OfName>>);

#[derive(Debug, Default)]
struct OfName {
    /// Of the one that was reconciled last.
    current: Option<String>,
    /// Of those that had the name before.
    former: BTreeSet<String>,
}

impl Uids {
    /// Notes which TenantCluster has a name. Returns the UID of another one, if that had it until now.
    pub(super) fn note(&self, key: Key, uid: &str) -> Option<String> {
        let mut all = lock(&self.0);
        let of_name = all.entry(key).or_default();
        // A view that is late may show an earlier one again.
        of_name.former.remove(uid);
        let before = of_name.current.replace(uid.to_owned());
        let before = before.filter(|before| before != uid)?;
        of_name.former.insert(before.clone());
        Some(before)
    }

    /// Notes another one that had the name before, and of which something is left on the host.
    pub(super) fn note_former(&self, key: Key, uid: &str) {
        lock(&self.0).entry(key).or_default().former.insert(uid.to_owned());
    }

    /// Takes those that had the name before. Nothing of them is left on the host.
    pub(super) fn take_former(&self, key: &Key) -> BTreeSet<String> {
        let mut all = lock(&self.0);
        let former = all.get_mut(key).map(|of_name| mem::take(&mut of_name.former));
        former.unwrap_or_default()
    }

    /// Takes all that had the name: none has it now, and nothing of them is left on the host.
    pub(super) fn take_all(&self, key: &Key) -> BTreeSet<String> {
        let OfName { current, mut former } = lock(&self.0).remove(key).unwrap_or_default();
        former.extend(current);
        former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::Tenant {
            namespace: "team".into(),
            name: "vision".into(),
        }
    }

    fn set<const N: usize>(uids: [&str; N]) -> BTreeSet<String> {
        uids.map(ToOwned::to_owned).into()
    }

    #[test]
    fn another_one_with_the_name_is_noted_until_nothing_is_left_of_it() {
        let uids = Uids::default();
        assert_eq!(uids.note(key(), "1"), None);
        assert_eq!(uids.note(key(), "1"), None);
        assert_eq!(uids.note(key(), "2").as_deref(), Some("1"));
        // Another control has seen it.
        uids.note_former(key(), "0");
        assert_eq!(uids.note(key(), "2"), None);
        assert_eq!(uids.take_former(&key()), set(["0", "1"]));
        assert_eq!(uids.take_former(&key()), set([]));
        assert_eq!(uids.take_all(&key()), set(["2"]));
        assert_eq!(uids.take_all(&key()), set([]));
        assert!(lock(&uids.0).is_empty());
    }

    #[test]
    fn the_one_that_has_the_name_is_not_among_those_that_had_it() {
        let uids = Uids::default();
        uids.note(key(), "1");
        uids.note(key(), "2");
        assert_eq!(uids.note(key(), "1").as_deref(), Some("2"));
        assert_eq!(uids.take_former(&key()), set(["2"]));
        assert_eq!(uids.note(key(), "2").as_deref(), Some("1"));
        assert_eq!(uids.take_former(&key()), set(["1"]));
    }
}
