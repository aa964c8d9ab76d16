//! What was decided last about the quotas of each tenant.
//!
//! One decision is made at a time, for all tenants, and it is kept here before anything is written. So a decision knows all earlier ones
//! of this process even if the watches do not show them yet; those of an earlier process are in the status of each TenantCluster.
//! A tenant is created only after its reservation is in its status, so that losing this loses nothing.

mod left_project;

pub use left_project::{LEFT_PROJECT, NO_PROJECT, decide_without_project};

use crate::stores::Stores;
use berth_api::{ControlPlaneServiceType, QuotaReservation, TenantCluster, TenantLimits, TreeResource};
use berth_quota::{Amounts, OverQuota};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// GPUs of nodes that tenants have, by UID and pool.
pub type GpuUse = BTreeMap<String, BTreeMap<String, u64>>;

/// What a tenant really uses of what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantUse {
    /// Amounts by resource, in whole units. What is not measured is missing.
    pub amounts: Amounts,
    /// GPUs that its pods have, by pool; nodes with pods, in a pool without GPUs.
    pub gpus: BTreeMap<String, u64>,
    /// Whether no Project names its namespace. Its use counts when one does, and is not shown before.
    pub has_no_project: bool,
}

/// What all tenants use, by UID.
pub type MeasuredUse = BTreeMap<String, TenantUse>;

/// The last measurement of what tenants use.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// What they use.
    pub tenants: Arc<MeasuredUse>,
    /// Number of measurements; 0: nothing was measured yet.
    pub number: u64,
    /// How often one differed from that before.
    pub changes: u64,
}

/// What was decided about a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No Project names its namespace: no quota applies.
    NoProject,
    /// It has what it requests.
    Reserved {
        /// What is reserved.
        reservation: QuotaReservation,
        /// Of which resources it has more than the quotas allow now.
        over: OverQuota,
    },
    /// It does not get what it requests.
    Waiting {
        /// What it has. None: nothing may be created for it.
        kept: Option<QuotaReservation>,
        /// Of which resources it has more than the quotas allow now.
        over: OverQuota,
        /// CamelCase reason.
        reason: &'static str,
        /// What is missing and what to do.
        message: String,
    },
}

impl Verdict {
    /// What is reserved for the tenant.
    pub const fn reservation(&self) -> Option<&QuotaReservation> {
        match self {
            Self::NoProject => None,
            Self::Reserved { reservation, .. } => Some(reservation),
            Self::Waiting { kept, .. } => kept.as_ref(),
        }
    }

    /// Resources of which the tenant has more than the quotas allow now, with what they allow.
    pub fn over(&self) -> OverQuota {
        match self {
            Self::NoProject => OverQuota::new(),
            Self::Reserved { over, .. } | Self::Waiting { over, .. } => over.clone(),
        }
    }

    /// Whether the tenant may run with these limits and this Service of its API server. What grew needs another decision first.
    pub fn allows(&self, limits: &TenantLimits, service: ControlPlaneServiceType) -> bool {
        match self {
            Self::NoProject => true,
            Self::Reserved { reservation, .. } => {
                let mut resources = TreeResource::listed_in([limits]);
                resources.extend(reservation.reserved.keys().cloned().map(TreeResource::from));
                resources.into_iter().all(|resource| {
                    let reserved = reservation.reserved.get(resource.as_str());
                    match resource.reserved_by(limits, service) {
                        Some(amount) => reserved.is_some_and(|reserved| amount <= *reserved),
                        None => reserved.is_none(),
                    }
                })
            }
            Self::Waiting { .. } => false,
        }
    }

    /// Whether a tenant may do the same by both, whatever they say about others.
    fn means_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Waiting {
                    kept,
                    over,
                    reason,
                    message: _,
                },
                Self::Waiting {
                    kept: other_kept,
                    over: other_over,
                    reason: other_reason,
                    message: _,
                },
            ) => (kept, over, reason) == (other_kept, other_over, other_reason),
            _ => self == other,
        }
    }

    /// Whether the tenant may have nodes: all that it requests is reserved, or it runs with what it has.
    pub const fn may_have_nodes(&self) -> bool {
        matches!(
            self,
            Self::NoProject | Self::Reserved { .. } | Self::Waiting { kept: Some(_), .. }
        )
    }
}

/// The last decision, and what it is made from besides the watches.
#[derive(Debug, Default)]
pub struct QuotaLedger {
    decided: Mutex<Decided>,
    gpus: Mutex<GpuUse>,
    measured: Mutex<Measurement>,
}

#[derive(Debug, Default)]
struct Decided {
    verdicts: BTreeMap<String, Verdict>,
    /// See [`berth_quota::Claim::at_most`], by UID, each with the number of its report.
    at_most: BTreeMap<String, (u64, Amounts)>,
    reports: u64,
}

/// What a decision is made from: the one before, and what may exist of tenants.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    /// What was decided last, by UID.
    pub verdicts: BTreeMap<String, Verdict>,
    at_most: BTreeMap<String, (u64, Amounts)>,
}

impl Basis {
    /// The most that can exist of a tenant, see [`berth_quota::Claim::at_most`].
    pub fn at_most(&self, uid: &str) -> Amounts {
        let known = self.at_most.get(uid).map(|(_, amounts)| amounts.clone());
        known.unwrap_or_default()
    }
}

impl QuotaLedger {
    /// What was decided about a tenant. None: nothing yet, or its spec was not accepted then.
    pub fn verdict(&self, stores: &Stores, cluster: &TenantCluster, now: Timestamp) -> Option<Verdict> {
        let known = lock(&self.decided).verdicts.get(&cluster.uid()?).cloned();
        if stores.projects.is_empty() {
            return Some(decide_without_project(cluster, known.as_ref(), now));
        }
        known
    }

    /// As [`QuotaLedger::verdict`], for a reconcile that may raise the limits of the tenant: what was known to exist of it counts no more,
    /// so that no decision gives back meanwhile what this reconcile lets the tenant have.
    pub fn begin_reconcile(&self, stores: &Stores, cluster: &TenantCluster, now: Timestamp) -> Option<Verdict> {
        lock(&self.decided).at_most.remove(&cluster.uid()?);
        self.verdict(stores, cluster, now)
    }

    /// Reports the most that can exist of a tenant, at the end of the reconcile that has enforced its limits. Returns whether a decision
    /// would give something back.
    pub fn report_at_most(&self, uid: &str, amounts: Amounts) -> bool {
        let mut decided = lock(&self.decided);
        let reservation = decided.verdicts.get(uid).and_then(Verdict::reservation);
        let gives_back = reservation.is_some_and(|reservation| {
            amounts.iter().any(|(resource, amount)| {
                let of = |amounts: &BTreeMap<String, u64>| amounts.get(resource.as_str()).copied().unwrap_or(0);
                let reserved = of(&reservation.reserved);
                let requested = reserved.saturating_sub(of(&reservation.above_limits));
                reserved > requested.max(*amount)
            })
        });
        decided.reports += 1;
        let number = decided.reports;
        decided.at_most.insert(uid.to_owned(), (number, amounts));
        gives_back
    }

    /// What the next decision is made from.
    pub fn basis(&self) -> Basis {
        let decided = lock(&self.decided);
        Basis {
            verdicts: decided.verdicts.clone(),
            at_most: decided.at_most.clone(),
        }
    }

    /// All decisions.
    #[cfg(test)]
    pub(crate) fn verdicts(&self) -> BTreeMap<String, Verdict> {
        lock(&self.decided).verdicts.clone()
    }

    /// Keeps a decision. Returns the UIDs of the tenants for which something changed. The message of one that waits says how much is
    /// used, which changes with every other tenant: alone it is no reason to reconcile all that wait. They show it a minute later.
    ///
    /// None: a tenant is reconciled that would have less by this decision. The decision is not kept, and has to be made again.
    pub fn replace(&self, verdicts: BTreeMap<String, Verdict>, basis: &Basis) -> Option<BTreeSet<String>> {
        let mut decided = lock(&self.decided);
        let is_outdated = |uid: &String| {
            let number = |known: &BTreeMap<String, (u64, Amounts)>| known.get(uid).map(|(number, _)| *number);
            number(&decided.at_most) != number(&basis.at_most) && is_less(decided.verdicts.get(uid), verdicts.get(uid))
        };
        if basis.at_most.keys().any(is_outdated) {
            return None;
        }
        let known = &decided.verdicts;
        let uids = known.keys().chain(verdicts.keys());
        let is_same = |uid: &str| match (known.get(uid), verdicts.get(uid)) {
            (Some(before), Some(after)) => before.means_the_same_as(after),
            (before, after) => before == after,
        };
        let changed = uids.filter(|uid| !is_same(uid)).cloned().collect();
        decided.at_most.retain(|uid, _| verdicts.contains_key(uid));
        decided.verdicts = verdicts;
        Some(changed)
    }

    /// Keeps what tenants have of each pool. Returns whether that changed.
    pub fn set_gpu_use(&self, gpus: GpuUse) -> bool {
        let mut known = lock(&self.gpus);
        let is_new = *known != gpus;
        *known = gpus;
        is_new
    }

    /// What tenants have of each pool.
    pub fn gpu_use(&self) -> GpuUse {
        lock(&self.gpus).clone()
    }

    /// What one tenant has of each pool.
    pub fn gpus_of(&self, uid: &str) -> BTreeMap<String, u64> {
        lock(&self.gpus).get(uid).cloned().unwrap_or_default()
    }

    /// Keeps what tenants use. Returns whether that changed, or was not known before.
    pub fn set_measured(&self, tenants: MeasuredUse) -> bool {
        let mut known = lock(&self.measured);
        let is_new = known.number == 0 || *known.tenants != tenants;
        known.number += 1;
        if is_new {
            known.changes += 1;
            known.tenants = Arc::new(tenants);
        }
        is_new
    }

    /// What was measured last.
    pub fn measured(&self) -> Measurement {
        lock(&self.measured).clone()
    }
}

/// Whether less of a resource is reserved after a decision than before.
fn is_less(before: Option<&Verdict>, after: Option<&Verdict>) -> bool {
    let amounts = |verdict: Option<&Verdict>| {
        verdict
            .and_then(Verdict::reservation)
            .cloned()
            .unwrap_or_default()
            .reserved
    };
    let after = amounts(after);
    amounts(before)
        .iter()
        .any(|(resource, amount)| after.get(resource).is_none_or(|left| left < amount))
}

#[cfg(test)]
mod tests;
