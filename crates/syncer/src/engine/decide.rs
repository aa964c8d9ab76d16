//! What to do about an object, given what is known of it on both sides. Pure; the table is in the tests.

use berth_sync_rules::model::{DesiredState, store::Deletion};
use std::time::Duration;

/// What the decision needs to know about the tenant's object.
#[derive(Clone, Copy, Debug)]
pub struct TenantFacts<'a> {
    pub uid: &'a str,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// What should be on the host for it.
    pub desired_state: DesiredState,
}

/// What the decision needs to know about the host's object.
#[derive(Clone, Copy, Debug)]
pub struct HostFacts<'a> {
    /// UID of the tenant object it was made for.
    pub origin_uid: Option<&'a str>,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// If its deletion is in its last step: the time that it may still take until it is gone by itself.
    pub ends_in: Duration,
    /// If it is a reservation: the time that is left for a tenant object to arrive.
    pub reserved: Option<Duration>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// A tenant object may still be created for the host object: reconcile again after this time.
    Wait(Duration),
    /// The host object is about to be gone: reconcile again after this time, if it is not.
    AwaitEnd(Duration),
    /// No tenant object was created for the host object: delete it.
    Sweep,
    /// Create the host object.
    Create,
    /// Bring the host object up to date and sync its status to the tenant.
    Update,
    /// Only sync the host object's status to the tenant. One that is being deleted is [closed](super::close_ending) as well.
    SyncStatus,
    /// Delete the host object, with this grace if the kind has any.
    Delete {
        grace_seconds: Option<u32>,
        /// Whether to sync its status as well.
        report: bool,
    },
    /// The host object is gone: end the deletion of the tenant's.
    Finish,
    /// The host object is gone for good though the tenant's is not, or is kept by finalizers: write that into its status.
    MarkLost,
}

/// The action. `orphan_grace` is the kind's grace for host objects that should no longer exist; `finishes` says whether
/// deletions in the tenant wait for the syncer.
pub fn decide(
    tenant: Option<TenantFacts<'_>>,
    host: Option<HostFacts<'_>>,
    orphan_grace: Option<u32>,
    finishes: bool,
) -> Action {
    let (tenant, host) = match (tenant, host) {
        (None, None) => return Action::Nothing,
        (None, Some(host)) => {
            return match host.reserved {
                Some(_) if host.deletion.is_some() => Action::Nothing,
                Some(Duration::ZERO) => Action::Sweep,
                Some(left) => Action::Wait(left),
                None => delete(host, orphan_grace, false),
            };
        }
        (Some(tenant), None) => return missing(tenant, finishes),
        (Some(tenant), Some(host)) => (tenant, host),
    };
    if host.origin_uid != Some(tenant.uid) && host.reserved.is_none() {
        return delete(host, orphan_grace, false);
    }
    if let Some(deletion) = tenant.deletion
        && finishes
    {
        let grace = deletion.grace_seconds.and_then(|seconds| u32::try_from(seconds).ok());
        return delete(host, grace.or(orphan_grace), true);
    }
    match tenant.desired_state {
        DesiredState::Absent => delete(host, orphan_grace, false),
        DesiredState::Leave => Action::SyncStatus,
        DesiredState::Sync | DesiredState::Once if host.deletion.is_some() => Action::SyncStatus,
        DesiredState::Sync | DesiredState::Once => Action::Update,
    }
}

fn missing(tenant: TenantFacts<'_>, finishes: bool) -> Action {
    match (tenant.deletion, tenant.desired_state) {
        (Some(deletion), _) if finishes => {
            // Its finalizers are somebody else's to remove. They may wait for it to have ended.
            if deletion.grace_seconds == Some(0) && deletion.held {
                Action::MarkLost
            } else {
                Action::Finish
            }
        }
        (_, DesiredState::Sync) => Action::Create,
        (_, DesiredState::Once) => Action::MarkLost,
        (_, DesiredState::Leave | DesiredState::Absent) => Action::Nothing,
    }
}

/// Deletes, unless a deletion with at most this grace is on its way and ends by itself.
fn delete(host: HostFacts<'_>, grace_seconds: Option<u32>, report: bool) -> Action {
    let sooner = |known: Deletion| match (known.grace_seconds, grace_seconds) {
        (Some(known), Some(wanted)) => known <= i64::from(wanted),
        _ => true,
    };
    match host.deletion {
        Some(known) if known.is_in_last_step() && !host.ends_in.is_zero() => Action::AwaitEnd(host.ends_in),
        Some(known) if sooner(known) && !known.is_in_last_step() => {
            if report {
                Action::SyncStatus
            } else {
                Action::Nothing
            }
        }
        _ => Action::Delete { grace_seconds, report },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELETING: Option<Deletion> = Some(Deletion {
        grace_seconds: Some(30),
        held: false,
    });
    const ENDED: Option<Deletion> = Some(Deletion {
        grace_seconds: Some(0),
        held: true,
    });
    const CUT_OFF: Option<Deletion> = Some(Deletion {
        grace_seconds: Some(0),
        held: false,
    });

    #[expect(clippy::unnecessary_wraps, reason = "`decide` takes it so")]
    fn tenant(deletion: Option<Deletion>, desired_state: DesiredState) -> Option<TenantFacts<'static>> {
        Some(TenantFacts {
            uid: "u",
            deletion,
            desired_state,
        })
    }

    #[expect(clippy::unnecessary_wraps, reason = "`decide` takes it so")]
    fn host(origin: &'static str, deletion: Option<Deletion>) -> Option<HostFacts<'static>> {
        Some(HostFacts {
            origin_uid: Some(origin),
            deletion,
            ends_in: Duration::ZERO,
            reserved: None,
        })
    }

    #[test]
    fn a_reservation_waits_for_its_object_and_is_swept_without_one() {
        let reserved = |left, deletion| {
            Some(HostFacts {
                origin_uid: None,
                deletion,
                ends_in: Duration::ZERO,
                reserved: Some(Duration::from_secs(left)),
            })
        };
        let decide = |tenant, host| decide(tenant, host, None, false);
        assert_eq!(decide(None, reserved(5, None)), Action::Wait(Duration::from_secs(5)));
        assert_eq!(decide(None, reserved(0, None)), Action::Sweep);
        assert_eq!(decide(None, reserved(0, DELETING)), Action::Nothing);
        assert_eq!(
            decide(tenant(None, DesiredState::Sync), reserved(0, None)),
            Action::Update
        );
        assert_eq!(
            decide(tenant(None, DesiredState::Absent), reserved(5, None)),
            Action::Delete {
                grace_seconds: None,
                report: false
            }
        );
    }

    #[test]
    fn the_table_for_pods() {
        let delete = |grace, report| Action::Delete {
            grace_seconds: Some(grace),
            report,
        };
        let cases = [
            (None, None, Action::Nothing),
            (None, host("u", None), delete(1, false)),
            (None, host("u", DELETING), delete(1, false)),
            (None, host("u", ENDED), Action::Nothing),
            (None, host("u", CUT_OFF), delete(1, false)),
            (tenant(None, DesiredState::Sync), None, Action::Create),
            (tenant(None, DesiredState::Once), None, Action::MarkLost),
            (tenant(None, DesiredState::Leave), None, Action::Nothing),
            (tenant(DELETING, DesiredState::Once), None, Action::Finish),
            (tenant(DELETING, DesiredState::Leave), None, Action::Finish),
            (tenant(ENDED, DesiredState::Once), None, Action::MarkLost),
            (tenant(CUT_OFF, DesiredState::Once), None, Action::Finish),
            (tenant(None, DesiredState::Sync), host("other", None), delete(1, false)),
            (tenant(None, DesiredState::Sync), host("u", None), Action::Update),
            (tenant(None, DesiredState::Once), host("u", None), Action::Update),
            (
                tenant(None, DesiredState::Once),
                host("u", DELETING),
                Action::SyncStatus,
            ),
            (tenant(None, DesiredState::Leave), host("u", None), Action::SyncStatus),
            (tenant(None, DesiredState::Absent), host("u", None), delete(1, false)),
            (tenant(DELETING, DesiredState::Once), host("u", None), delete(30, true)),
            (
                tenant(DELETING, DesiredState::Once),
                host("u", DELETING),
                Action::SyncStatus,
            ),
            (tenant(ENDED, DesiredState::Once), host("u", DELETING), delete(0, true)),
        ];
        for (tenant, host, expected) in cases {
            assert_eq!(decide(tenant, host, Some(1), true), expected, "{tenant:?} {host:?}");
        }
    }

    #[test]
    fn the_last_step_of_a_deletion_has_its_time() {
        let left = Duration::from_secs(2);
        let ending = |deletion| host("u", deletion).map(|facts| HostFacts { ends_in: left, ..facts });
        for of_tenant in [
            None,
            tenant(DELETING, DesiredState::Once),
            tenant(ENDED, DesiredState::Once),
            tenant(None, DesiredState::Absent),
        ] {
            let action = decide(of_tenant, ending(CUT_OFF), Some(1), true);
            assert_eq!(action, Action::AwaitEnd(left), "{of_tenant:?}");
        }
        // Finalizers keep it: it takes as long as they do.
        assert_eq!(decide(None, ending(ENDED), Some(1), true), Action::Nothing);
    }

    #[test]
    fn kinds_without_grace_are_deleted_once() {
        let gone = Some(Deletion {
            grace_seconds: None,
            held: false,
        });
        assert_eq!(
            decide(None, host("u", None), None, false),
            Action::Delete {
                grace_seconds: None,
                report: false
            }
        );
        assert_eq!(decide(None, host("u", gone), None, false), Action::Nothing);
        // Finalizers in the tenant do not end an object's life on the host before it is gone in the tenant.
        assert_eq!(
            decide(tenant(gone, DesiredState::Sync), host("u", None), None, false),
            Action::Update
        );
    }
}
