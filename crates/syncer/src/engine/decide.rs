//! What to do about an object, given what is known of it on both sides. Pure; the table is in the tests.

use berth_sync_rules::{kinds::Want, store::Deletion};
use std::time::Duration;

/// What matters of the tenant's object.
#[derive(Clone, Copy, Debug)]
pub struct TenantFacts<'a> {
    /// UID.
    pub uid: &'a str,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// What it asks of the host.
    pub want: Want,
}

/// What matters of the host's object.
#[derive(Clone, Copy, Debug)]
pub struct HostFacts<'a> {
    /// UID of the tenant object it was made for.
    pub origin_uid: Option<&'a str>,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// If it was made before the tenant's object and is not that object's yet: the time that is left for one to come.
    pub reserved: Option<Duration>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// A tenant object may still come for the host object: look again after this time.
    Wait(Duration),
    /// No tenant object came for the host object: delete it.
    Sweep,
    /// Create the host object.
    Create,
    /// Bring the host object up to date and report its state.
    Update,
    /// Only report the host object's state.
    Report,
    /// Delete the host object, with this grace if the kind has any.
    Delete {
        /// Seconds.
        grace_seconds: Option<u32>,
        /// Whether to report its state as well.
        report: bool,
    },
    /// The host object is gone: end the deletion of the tenant's.
    Finish,
    /// The host object is gone for good though the tenant's is not: say so.
    Lost,
}

/// The action. `orphan_grace` is the kind's grace for host objects that nobody wants any more; `finishes` says whether
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
    match tenant.want {
        Want::Absent => delete(host, orphan_grace, false),
        Want::Leave => Action::Report,
        Want::Sync | Want::Once if host.deletion.is_some() => Action::Report,
        Want::Sync | Want::Once => Action::Update,
    }
}

fn missing(tenant: TenantFacts<'_>, finishes: bool) -> Action {
    match (tenant.deletion, tenant.want) {
        (Some(deletion), _) if finishes => {
            if deletion.grace_seconds == Some(0) && deletion.held {
                Action::Nothing
            } else {
                Action::Finish
            }
        }
        (_, Want::Sync) => Action::Create,
        (_, Want::Once) => Action::Lost,
        (_, Want::Leave | Want::Absent) => Action::Nothing,
    }
}

/// Deletes, unless a deletion with at most this grace is on its way and can end by itself.
fn delete(host: HostFacts<'_>, grace_seconds: Option<u32>, report: bool) -> Action {
    let sooner = |known: Deletion| match (known.grace_seconds, grace_seconds) {
        (Some(known), Some(wanted)) => known <= i64::from(wanted),
        _ => true,
    };
    match host.deletion {
        Some(known) if sooner(known) && !known.is_cut_off() => {
            if report {
                Action::Report
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

    #[allow(clippy::unnecessary_wraps)] // as `decide` takes it
    fn tenant(deletion: Option<Deletion>, want: Want) -> Option<TenantFacts<'static>> {
        Some(TenantFacts {
            uid: "u",
            deletion,
            want,
        })
    }

    #[allow(clippy::unnecessary_wraps)] // as `decide` takes it
    fn host(origin: &'static str, deletion: Option<Deletion>) -> Option<HostFacts<'static>> {
        Some(HostFacts {
            origin_uid: Some(origin),
            deletion,
            reserved: None,
        })
    }

    #[test]
    fn a_reservation_waits_for_its_object_and_becomes_it() {
        let reserved = |left, deletion| {
            Some(HostFacts {
                origin_uid: None,
                deletion,
                reserved: Some(Duration::from_secs(left)),
            })
        };
        let decide = |tenant, host| decide(tenant, host, None, false);
        assert_eq!(decide(None, reserved(5, None)), Action::Wait(Duration::from_secs(5)));
        assert_eq!(decide(None, reserved(0, None)), Action::Sweep);
        assert_eq!(decide(None, reserved(0, DELETING)), Action::Nothing);
        assert_eq!(decide(tenant(None, Want::Sync), reserved(0, None)), Action::Update);
        assert_eq!(
            decide(tenant(None, Want::Absent), reserved(5, None)),
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
            (tenant(None, Want::Sync), None, Action::Create),
            (tenant(None, Want::Once), None, Action::Lost),
            (tenant(None, Want::Leave), None, Action::Nothing),
            (tenant(DELETING, Want::Once), None, Action::Finish),
            (tenant(DELETING, Want::Leave), None, Action::Finish),
            (tenant(ENDED, Want::Once), None, Action::Nothing),
            (tenant(CUT_OFF, Want::Once), None, Action::Finish),
            (tenant(None, Want::Sync), host("other", None), delete(1, false)),
            (tenant(None, Want::Sync), host("u", None), Action::Update),
            (tenant(None, Want::Once), host("u", None), Action::Update),
            (tenant(None, Want::Once), host("u", DELETING), Action::Report),
            (tenant(None, Want::Leave), host("u", None), Action::Report),
            (tenant(None, Want::Absent), host("u", None), delete(1, false)),
            (tenant(DELETING, Want::Once), host("u", None), delete(30, true)),
            (tenant(DELETING, Want::Once), host("u", DELETING), Action::Report),
            (tenant(ENDED, Want::Once), host("u", DELETING), delete(0, true)),
        ];
        for (tenant, host, expected) in cases {
            assert_eq!(decide(tenant, host, Some(1), true), expected, "{tenant:?} {host:?}");
        }
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
            decide(tenant(gone, Want::Sync), host("u", None), None, false),
            Action::Update
        );
    }
}
