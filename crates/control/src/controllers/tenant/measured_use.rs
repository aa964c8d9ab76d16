//! What the status of a tenant says about its use of quotas. Use changes all the time, so the status follows at intervals.

use super::{context::TenantContext, target::Tenant};
use crate::quota_ledger::TenantUse;
use berth_api::{PoolUsage, TenantUsage};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

/// Measurements after which the status follows: five minutes.
const EVERY: u64 = 5;

/// What the status says from now on; none for a tenant without a Project.
pub(super) fn publish(context: &TenantContext, tenant: &Tenant, uid: &str) -> Option<TenantUsage> {
    let before = tenant.cluster.status.as_ref().and_then(|status| status.usage.clone());
    let measured = context.quotas.measured();
    if measured.number == 0 {
        return before;
    }
    let used = measured.tenants.get(uid).filter(|used| !used.has_no_project)?;
    let now = build(used, &context.quotas.gpus_of(uid));
    let published = tenant.memory.published_use.load(Ordering::Relaxed);
    let is_due = before.is_none() || published == 0 || measured.number >= published.saturating_add(EVERY);
    if !is_due || before.as_ref() == Some(&now) {
        return before;
    }
    tenant.memory.published_use.store(measured.number, Ordering::Relaxed);
    Some(now)
}

/// `reserved` has the GPUs of the tenant's nodes, by pool.
fn build(used: &TenantUse, reserved: &BTreeMap<String, u64>) -> TenantUsage {
    let amounts = used.amounts.iter();
    let resources = amounts.map(|(resource, amount)| (resource.as_str().to_owned(), *amount));
    let pools: BTreeSet<&String> = reserved.keys().chain(used.gpus.keys()).collect();
    let of = |amounts: &BTreeMap<String, u64>, pool: &String| amounts.get(pool).copied().unwrap_or_default();
    let gpus = pools.into_iter().map(|pool| PoolUsage {
        pool_name: pool.clone(),
        reserved: of(reserved, pool),
        used: of(&used.gpus, pool),
    });
    TenantUsage {
        resources: resources.collect(),
        gpus: gpus.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TreeResource;

    #[test]
    fn gpus_that_are_reserved_and_not_used_are_shown() {
        let used = TenantUse {
            amounts: [(TreeResource::Pods, 3)].into(),
            gpus: [("h100".to_owned(), 4)].into(),
            ..TenantUse::default()
        };
        let reserved = [("h100".to_owned(), 8), ("l40s".to_owned(), 4)].into();
        let usage = build(&used, &reserved);
        assert_eq!(usage.resources, [("pods".to_owned(), 3)].into());
        let gpus: Vec<(&str, u64, u64)> = usage
            .gpus
            .iter()
            .map(|pool| (pool.pool_name.as_str(), pool.reserved, pool.used))
            .collect();
        assert_eq!(gpus, [("h100", 8, 4), ("l40s", 4, 0)]);
    }
}
