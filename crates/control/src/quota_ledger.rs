//! What was decided last about the quotas of each tenant.
//!
//! One decision is made at a time, for all tenants, and it is kept here before anything is written. So a decision knows all earlier ones
//! of this process even if the watches do not show them yet; those of an earlier process are in the status of each TenantCluster.
//! A tenant is created only after its reservation is in its status, so that losing this loses nothing.

use crate::stores::Stores;
use berth_api::{QuotaReservation, TenantLimits, TreeResource};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// GPUs of nodes that tenants have, by UID and pool.
pub type GpuUse = BTreeMap<String, BTreeMap<String, u64>>;

/// What was decided about a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No Project names its namespace: no quota applies.
    NoProject,
    /// It has what it requests.
    Reserved {
        /// What is reserved.
        reservation: QuotaReservation,
        /// Resources of which it has more than the quotas allow now.
        over: Vec<TreeResource>,
    },
    /// It does not get what it requests.
    Waiting {
        /// What it has. None: nothing may be created for it.
        kept: Option<QuotaReservation>,
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

    /// Whether the tenant may run with these limits. Limits that grew need another decision first.
    pub fn allows(&self, limits: &TenantLimits) -> bool {
        match self {
            Self::NoProject => true,
            Self::Reserved { reservation, .. } => {
                let mut resources = TreeResource::listed_in([limits]);
                resources.extend(reservation.reserved.keys().cloned().map(TreeResource::from));
                resources.into_iter().all(|resource| {
                    let reserved = reservation.reserved.get(resource.as_str());
                    match resource.reserved_by(limits) {
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
                Self::Waiting { kept, reason, .. },
                Self::Waiting {
                    kept: other_kept,
                    reason: other_reason,
                    ..
                },
            ) => (kept, reason) == (other_kept, other_reason),
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

/// The last decision.
#[derive(Debug, Default)]
pub struct QuotaLedger {
    verdicts: Mutex<BTreeMap<String, Verdict>>,
    gpus: Mutex<GpuUse>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QuotaLedger {
    /// What was decided about a tenant. None: nothing yet, or its spec was not accepted then.
    pub fn verdict(&self, stores: &Stores, uid: &str) -> Option<Verdict> {
        if stores.projects.is_empty() {
            return Some(Verdict::NoProject);
        }
        lock(&self.verdicts).get(uid).cloned()
    }

    /// All decisions.
    pub fn verdicts(&self) -> BTreeMap<String, Verdict> {
        lock(&self.verdicts).clone()
    }

    /// Keeps a decision. Returns the UIDs of the tenants for which something changed. The message of one that waits says how much is
    /// used, which changes with every other tenant: alone it is no reason to reconcile all that wait. They show it a minute later.
    pub fn replace(&self, verdicts: BTreeMap<String, Verdict>) -> BTreeSet<String> {
        let mut known = lock(&self.verdicts);
        let uids = known.keys().chain(verdicts.keys());
        let is_same = |uid: &str| match (known.get(uid), verdicts.get(uid)) {
            (Some(before), Some(after)) => before.means_the_same_as(after),
            (before, after) => before == after,
        };
        let changed = uids.filter(|uid| !is_same(uid)).cloned().collect();
        *known = verdicts;
        changed
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::ResourceLimit;

    #[test]
    fn limits_by_name_are_allowed_as_far_as_they_are_reserved() {
        let with_cpu = |quantity: Option<u32>| {
            let limit = |quantity: u32| ResourceLimit {
                resource: "requests.cpu".into(),
                quantity: quantity.into(),
            };
            TenantLimits {
                resources: quantity.map(limit).into_iter().collect(),
                ..TenantLimits::default()
            }
        };
        let reserved = |limits: &TenantLimits| Verdict::Reserved {
            reservation: QuotaReservation {
                project_name: "vision".into(),
                reserved: TreeResource::listed_in([limits])
                    .into_iter()
                    .filter_map(|resource| Some((resource.as_str().to_owned(), resource.reserved_by(limits)?)))
                    .collect(),
            },
            over: Vec::new(),
        };
        let verdict = reserved(&with_cpu(Some(64)));
        assert!(verdict.allows(&with_cpu(Some(64))));
        assert!(verdict.allows(&with_cpu(Some(32))));
        assert!(!verdict.allows(&with_cpu(Some(65))));
        assert!(!verdict.allows(&with_cpu(None)), "no limit is more than 64");
        assert!(!reserved(&with_cpu(None)).allows(&with_cpu(Some(1))));
    }

    #[test]
    fn tenants_that_wait_are_not_woken_by_each_change_of_what_others_use() {
        let ledger = QuotaLedger::default();
        let waiting = |kept: Option<QuotaReservation>, message: &str| {
            let verdict = Verdict::Waiting {
                kept,
                reason: "QuotaExceeded",
                message: message.into(),
            };
            BTreeMap::from([("a".to_owned(), verdict)])
        };
        let a = BTreeSet::from(["a".to_owned()]);
        assert_eq!(ledger.replace(waiting(None, "3 of 3 are used")), a);
        assert!(ledger.replace(waiting(None, "4 of 4 are used")).is_empty());
        let Verdict::Waiting { message, .. } = &ledger.verdicts()["a"] else {
            panic!("it waits")
        };
        assert_eq!(message, "4 of 4 are used");
        let kept = QuotaReservation {
            project_name: "vision".into(),
            reserved: BTreeMap::new(),
        };
        assert_eq!(ledger.replace(waiting(Some(kept), "4 of 4 are used")), a);
        assert_eq!(ledger.replace(BTreeMap::new()), a);
    }
}
