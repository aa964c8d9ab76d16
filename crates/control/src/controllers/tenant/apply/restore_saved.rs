//! Whether what a tenant stores before a restore is saved: pure.

use berth_api::{SnapshotPhase, SnapshotTrigger, TenantSnapshot, conditions::COMPLETED};

/// What a snapshot must be that has what a tenant stores before a restore.
pub(super) struct Expected<'e> {
    /// Name of the TenantCluster.
    pub(super) tenant: &'e str,
    pub(super) uid: &'e str,
    /// Revision of etcd at which nothing of the tenant wrote any more.
    pub(super) after: i64,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// It is there.
    Yes,
    /// It may still be taken.
    Waits,
    /// It will never be there, for a reason.
    Never(String),
}

/// Whether a snapshot with the name that a restore has chosen is its own, whatever became of it. Nobody but control says that a snapshot is of a restore; one
/// that somebody has created, or that is of an earlier restore, only has the name.
pub(super) fn is_of_restore(expected: &Expected<'_>, found: &TenantSnapshot) -> bool {
    found.trigger() == SnapshotTrigger::BeforeRestore
        && found.spec.tenant_cluster_name == expected.tenant
        && found.spec.ttl.is_none()
        && (found.phase() != SnapshotPhase::Completed || has_everything(expected, found))
}

/// Whether a completed snapshot has everything that the tenant has stored.
fn has_everything(expected: &Expected<'_>, found: &TenantSnapshot) -> bool {
    let status = found.status.as_ref();
    let is_of_tenant = status.and_then(|status| status.tenant_uid.as_deref()) == Some(expected.uid);
    let revision = status.and_then(|status| status.revision);
    is_of_tenant && revision.is_some_and(|revision| revision >= expected.after)
}

/// How far the snapshot of what is there is. Somebody may have created another one of its name before, or have deleted it: that saves nothing. Neither does
/// one that is deleted after a time: control sets none.
pub(super) fn judge(expected: &Expected<'_>, found: Option<&TenantSnapshot>, was_seen: bool) -> Saved {
    let never = |why: &str| Saved::Never(why.into());
    let Some(snapshot) = found else {
        return if was_seen {
            never("the TenantSnapshot was deleted")
        } else {
            Saved::Waits
        };
    };
    if snapshot.metadata.deletion_timestamp.is_some() {
        return never("the TenantSnapshot is being deleted");
    }
    if snapshot.spec.tenant_cluster_name != expected.tenant {
        return never("the TenantSnapshot of this name is of another tenant");
    }
    if snapshot.spec.ttl.is_some() {
        return never(
            "the TenantSnapshot of this name is not that of the restore, or was changed: it has a ttl, after which it is deleted",
        );
    }
    let status = snapshot.status.as_ref();
    match snapshot.phase() {
        SnapshotPhase::Pending | SnapshotPhase::Running => Saved::Waits,
        SnapshotPhase::Failed => {
            let conditions = status.iter().flat_map(|status| &status.conditions);
            let mut completed = conditions.filter(|condition| condition.type_ == COMPLETED);
            Saved::Never({ completed.next() }.map_or_else(String::new, |condition| condition.message.clone()))
        }
        SnapshotPhase::Completed => {
            if has_everything(expected, snapshot) {
                Saved::Yes
            } else {
                never("the TenantSnapshot of this name was taken before the control plane was stopped")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::labels;
    use serde_json::{Value, json};

    fn judged(change: impl FnOnce(&mut Value)) -> Saved {
        judge(&expected(), Some(&snapshot(change)), true)
    }

    fn snapshot(change: impl FnOnce(&mut Value)) -> TenantSnapshot {
        let mut snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "saved", "namespace": "team"}, "spec": {"tenantClusterName": "vision"},
            "status": {"phase": "Completed", "tenantUID": "6f2c", "revision": 100},
        });
        change(&mut snapshot);
        serde_json::from_value(snapshot).unwrap()
    }

    fn expected() -> Expected<'static> {
        Expected {
            tenant: "vision",
            uid: "6f2c",
            after: 100,
        }
    }

    #[test]
    fn only_a_snapshot_of_all_that_the_tenant_has_stored_saves_it() {
        assert_eq!(judged(|_| ()), Saved::Yes);
        let is_refused = |change: fn(&mut Value)| matches!(judged(change), Saved::Never(_));
        assert!(is_refused(|found| found["status"]["revision"] = 99.into()));
        assert!(is_refused(|found| found["status"]["revision"] = Value::Null));
        assert!(is_refused(|found| found["status"]["tenantUID"] = "0000".into()));
        assert!(is_refused(|found| found["spec"]["tenantClusterName"] = "speech".into()));
        assert!(is_refused(|found| found["spec"]["ttl"] = "1m".into()));
        assert!(is_refused(
            |found| found["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z".into()
        ));
    }

    #[test]
    fn a_snapshot_of_the_same_name_is_that_of_the_restore_only_if_control_has_created_it_for_that() {
        let is_ours = |change: fn(&mut Value)| {
            let found = snapshot(|found| {
                found["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "before-restore"});
                change(found);
            });
            is_of_restore(&expected(), &found)
        };
        assert!(is_ours(|_| ()));
        // Also if it was not taken, or is being deleted: its end is the end of the restore.
        assert!(is_ours(|found| found["status"] = Value::Null));
        assert!(is_ours(|found| found["status"] = json!({"phase": "Failed"})));
        assert!(is_ours(
            |found| found["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z".into()
        ));
        assert!(!is_ours(|found| found["metadata"]["labels"] = json!({})));
        assert!(!is_ours(|found| {
            found["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "schedule"});
        }));
        assert!(!is_ours(|found| found["spec"]["tenantClusterName"] = "speech".into()));
        assert!(!is_ours(|found| found["spec"]["ttl"] = "1m".into()));
        // That of an earlier restore.
        assert!(!is_ours(|found| found["status"]["revision"] = 99.into()));
        assert!(!is_ours(|found| found["status"]["tenantUID"] = "0000".into()));
    }

    #[test]
    fn one_that_is_not_there_yet_is_waited_for_and_one_that_is_gone_is_not() {
        assert_eq!(judge(&expected(), None, false), Saved::Waits);
        assert!(matches!(judge(&expected(), None, true), Saved::Never(_)));
        for phase in ["Pending", "Running"] {
            assert_eq!(judged(|found| found["status"]["phase"] = phase.into()), Saved::Waits);
        }
    }

    #[test]
    fn one_that_has_failed_says_why() {
        let failed = judged(|found| {
            found["status"] = json!({"phase": "Failed", "conditions": [{"type": "Completed", "status": "False", "reason": "StoreError",
                "message": "no answer", "lastTransitionTime": "2026-11-30T00:00:00Z"}]});
        });
        assert_eq!(failed, Saved::Never("no answer".into()));
    }
}
