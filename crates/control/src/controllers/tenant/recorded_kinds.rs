//! The further kinds (`sync.kinds`) that a tenant has and had, as its record says, and which of them were withdrawn.

use berth_api::sync_policy::SyncedKind;
use berth_sync_rules::registry;

/// The further kinds in the record of a tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedKinds {
    /// Those that the class lists.
    pub(super) listed: Vec<SyncedKind>,
    /// Those that it has listed before, and of which the host may have objects.
    pub(super) withdrawn: Vec<SyncedKind>,
    /// Whether this process has taken the syncer's rights on the withdrawn ones away since.
    pub(super) is_revoked: bool,
}

/// Kinds that the class does not list any more.
#[derive(Debug, Default)]
pub(super) struct WithdrawnKinds {
    /// The syncer may have rights on them until now: a last write of it may be under way.
    pub(super) newly: Vec<SyncedKind>,
    /// Those on which it has had none for a while.
    pub(super) earlier: Vec<SyncedKind>,
}

impl WithdrawnKinds {
    /// Those of a record that are not among `listed`, the kinds of now. Kinds that the syncer has rules of its own for are none: with another name of the
    /// kind a class could list them before, as it could before Berth knew them. What control deletes of them the syncer would make again, without end.
    pub(super) fn of(recorded: &RecordedKinds, listed: &[SyncedKind]) -> Self {
        let without = |kinds: &[SyncedKind], others: &[SyncedKind]| -> Vec<SyncedKind> {
            let is_other = |kind: &SyncedKind| others.iter().any(|other| is_same(kind, other));
            let withdrawn = { kinds.iter() }.filter(|kind| !is_other(kind) && !registry::is_built_in(kind));
            withdrawn.cloned().collect()
        };
        let mut newly = without(&recorded.listed, listed);
        let mut earlier = without(&without(&recorded.withdrawn, listed), &newly);
        if !recorded.is_revoked {
            newly.append(&mut earlier);
        }
        Self { newly, earlier }
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<SyncedKind> {
        self.newly.iter().chain(&self.earlier).cloned().collect()
    }
}

/// Whether two kinds have the same objects. Versions are views of them.
fn is_same(kind: &SyncedKind, other: &SyncedKind) -> bool {
    kind.group == other.group && kind.resource == other.resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(resource: &str, version: &str) -> SyncedKind {
        SyncedKind {
            group: "example.com".into(),
            version: version.into(),
            resource: resource.into(),
            ..SyncedKind::default()
        }
    }

    #[test]
    fn kinds_are_withdrawn_until_the_class_lists_them_again() {
        let recorded = RecordedKinds {
            listed: vec![kind("kept", "v1"), kind("gone", "v1"), kind("twice", "v1")],
            withdrawn: vec![kind("back", "v1"), kind("old", "v1"), kind("twice", "v1")],
            is_revoked: true,
        };
        let now = [kind("kept", "v2"), kind("back", "v1")];
        let withdrawn = WithdrawnKinds::of(&recorded, &now);
        assert_eq!(withdrawn.newly, [kind("gone", "v1"), kind("twice", "v1")]);
        assert_eq!(withdrawn.earlier, [kind("old", "v1")]);
        assert!(WithdrawnKinds::of(&RecordedKinds::default(), &now).all().is_empty());
        // Another process has noted them, and may have ended before it took the rights away.
        let of_another = RecordedKinds {
            is_revoked: false,
            ..recorded
        };
        let withdrawn = WithdrawnKinds::of(&of_another, &now);
        assert_eq!(
            withdrawn.newly,
            [kind("gone", "v1"), kind("twice", "v1"), kind("old", "v1")]
        );
        assert!(withdrawn.earlier.is_empty());
    }

    #[test]
    fn what_the_syncer_has_rules_of_its_own_for_is_not_withdrawn() {
        let of_network = |resource: &str| SyncedKind {
            group: "networking.k8s.io".into(),
            ..kind(resource, "v1")
        };
        let recorded = RecordedKinds {
            listed: vec![of_network("ingresses")],
            withdrawn: vec![of_network("networkpolicies")],
            is_revoked: true,
        };
        assert!(WithdrawnKinds::of(&recorded, &[]).all().is_empty());
    }
}
