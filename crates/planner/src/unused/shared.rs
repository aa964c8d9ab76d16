//! Pauses of tenants that belong together: tenants of a Project must not take turns at reclaiming nodes that none of them uses.

use crate::pass::PlanningPass;
use crate::{Quota, Seconds, Tenant};
use std::collections::BTreeSet;

impl<'a> PlanningPass<'a> {
    /// Notes which tenants share their pauses, and recalls what is known of those of them that have no group in the pool any more.
    /// `tenants`: all tenants, by number.
    pub fn share_pauses(&mut self, tenants: &[&'a Tenant], quotas: &[Quota]) {
        let sharing: BTreeSet<&str> = quotas
            .iter()
            .filter(|quota| quota.shares_pauses)
            .map(|quota| quota.name.as_str())
            .collect();
        let planned: BTreeSet<usize> = self.view.node_groups.iter().map(|group| group.tenant).collect();
        for (number, tenant) in tenants.iter().enumerate() {
            let Some(quota) = tenant.quota.as_deref().filter(|quota| sharing.contains(quota)) else {
                continue;
            };
            self.sharing.insert(number, quota);
            let known = tenant.unused.get(&self.view.pool.name);
            if let Some(known) = known.filter(|_| !planned.contains(&number)) {
                let known = known.recall(self.view.now, self.view.pool.reclaim_grace_period);
                self.replan_for(&known);
                self.unused.insert(number, known);
            }
            self.update_shared_pause(number, None);
        }
    }

    /// Notes that there may be another pause for a tenant than the one until `before`.
    pub(super) fn update_shared_pause(&mut self, tenant: usize, before: Option<Seconds>) {
        let after = self.find_pause(tenant);
        let quota = self.sharing.get(&tenant).copied();
        if let Some(quota) = quota.filter(|_| after != before) {
            let of_quota = self.shared_pauses.entry(quota).or_default();
            of_quota.replace(tenant, before, after);
        }
    }

    /// Until when nothing is reclaimed for a tenant because of others with which it shares pauses; `None`: there is no pause for them.
    pub fn find_shared_pause(&self, tenant: usize) -> Option<Seconds> {
        let of_quota = self.shared_pauses.get(self.sharing.get(&tenant)?)?;
        of_quota.find_last_of_others(tenant)
    }
}
