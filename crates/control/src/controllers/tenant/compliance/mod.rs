//! What runs for a tenant and is no longer allowed, and when it is withdrawn: pure.
//!
//! The condition Accepted is about the spec; [`COMPLIANT`](berth_api::conditions::COMPLIANT) is about what runs. A class or a pool may forbid later what a tenant was
//! accepted with. Each such [`Forbidden`] thing is reported at once. When the grace period of the class or the pool is over it is
//! withdrawn. Since when it is forbidden is kept in the status of the TenantCluster ([`Violation`]).

mod forbidden;
mod report;
#[cfg(test)]
mod tests;
mod withdraw;

pub(super) use forbidden::{
    MODE_NOT_OFFERED, Rules, Running, find_forbidden, find_forbidden_storage, groups_without_mode, pool_forbids,
    pool_of,
};
pub(super) use report::{condition, events, until_next_deadline};
pub(super) use withdraw::withdraw;

use berth_api::{StorageOffer, Violation, whole_seconds};
use forbidden::is_of_storage;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What is withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// Nothing: Berth only reports it.
    Nothing,
    /// All nodes, shared ones too.
    AllNodes,
    /// The nodes of some groups. The planner releases them: see [`super::Validator::withdrawn_nodes`].
    OwnNodes,
    /// The nodes of a shared pool.
    SharedPool(String),
    /// Networks outside the tenant.
    Networks,
    /// Type and annotations of the Service of the API server.
    Service,
    /// Issuers whose tokens the API server accepts.
    Issuers,
    /// The registration in Argo CD.
    ArgoCd,
    /// Pods that use something of the host's storage. Claims and their volumes stay.
    Storage(StorageOffer),
}

/// Something that runs and that a class or a pool does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forbidden {
    reason: &'static str,
    /// The class or the pool, or what of storage the class no longer offers.
    object: String,
    message: String,
    withdrawal: Withdrawal,
    /// Seconds until it is withdrawn.
    grace: i64,
}

/// What is forbidden now, and what of it is withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) violations: Vec<Violation>,
    pub(super) withdrawals: Vec<Withdrawal>,
}

/// Since when each thing is forbidden, and whether its grace period is over. Something that the status does not have yet is not
/// withdrawn: it must be reported first.
pub(super) fn assess(found: Vec<Forbidden>, recorded: &[Violation], now: Timestamp) -> Assessment {
    assess_from(found, recorded, |_| now, now)
}

/// The same for storage of a tenant that has just come from another class. What this class does not offer counts as forbidden since the first violation of
/// storage that is recorded: otherwise a team that may use two classes changes between them before each deadline, and keeps what either of them forbids.
pub(super) fn assess_in_new_class(found: Vec<Forbidden>, recorded: &[Violation], now: Timestamp) -> Assessment {
    let began = |grace: i64| {
        let before = { recorded.iter() }.filter(|violation| is_of_storage(violation));
        let before = before.filter(|violation| !is_long_withdrawn(violation, grace, now));
        before.map(|violation| violation.since.0).min().unwrap_or(now).min(now)
    };
    assess_from(found, recorded, began, now)
}

/// Whether something has been withdrawn for as long as a grace period. Claims that nobody deletes are violations for ever: if these counted, a change of the
/// class would end pods without a warning.
fn is_long_withdrawn(violation: &Violation, grace: i64, now: Timestamp) -> bool {
    let deadline = violation.deadline.as_ref().filter(|_| violation.enforced);
    deadline.is_some_and(|deadline| deadline_after(deadline.0, grace) <= now)
}

/// What the status does not have yet is forbidden since `began`, by its grace period.
fn assess_from(
    found: Vec<Forbidden>,
    recorded: &[Violation],
    began: impl Fn(i64) -> Timestamp,
    now: Timestamp,
) -> Assessment {
    let mut assessment = Assessment::default();
    for forbidden in found {
        let Forbidden {
            reason,
            object,
            message,
            withdrawal,
            grace,
        } = forbidden;
        let earlier = recorded
            .iter()
            .find(|earlier| earlier.reason == reason && earlier.object == object);
        // Whole seconds, as they are stored.
        let since = earlier.map_or_else(|| whole_seconds(began(grace)), |earlier| earlier.since.0);
        let deadline = (withdrawal != Withdrawal::Nothing).then(|| deadline_after(since, grace));
        let enforced = earlier.is_some() && deadline.is_some_and(|deadline| deadline <= now);
        if enforced {
            assessment.withdrawals.push(withdrawal);
        }
        assessment.violations.push(Violation {
            reason: reason.into(),
            object,
            message,
            since: Time(since),
            deadline: deadline.map(Time),
            enforced,
        });
    }
    assessment
}

/// The end of a grace period of so many seconds.
pub(super) fn deadline_after(since: Timestamp, grace: i64) -> Timestamp {
    since.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(since)
}
