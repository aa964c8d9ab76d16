//! The objects of a fleet by name, and the limits of groups and quotas.

use super::{Violation, counts::Counts};
use crate::{Fleet, GpuScope, NodeGroup, Pool, Quota, Tenant};
use std::collections::{HashMap, HashSet};

/// A node group that the planner serves.
pub(super) struct CheckedGroup<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) spec: &'a NodeGroup,
}

/// Objects that are looked up by name.
pub(super) struct Index<'a> {
    pub(super) groups: Vec<CheckedGroup<'a>>,
    pub(super) by_name: HashMap<(&'a str, &'a str), usize>,
    /// By the UID of a tenant: its quota and those above, by number.
    pub(super) quotas_of_tenant: HashMap<&'a str, Vec<usize>>,
    pub(super) quotas: Vec<&'a Quota>,
    pub(super) pools: Vec<&'a Pool>,
    pub(super) pool_numbers: HashMap<&'a str, usize>,
}

impl<'a> Index<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        let numbers: HashMap<&str, usize> = (0..fleet.quotas.len())
            .rev()
            .map(|at| (fleet.quotas[at].name.as_str(), at))
            .collect();
        let (mut groups, mut by_name, mut quotas_of_tenant) = (Vec::new(), HashMap::new(), HashMap::new());
        for tenant in fleet.tenants.iter().filter(|tenant| !tenant.terminated) {
            quotas_of_tenant
                .entry(tenant.uid.as_str())
                .or_insert_with(|| list_quotas_above(tenant, &fleet.quotas, &numbers));
            for spec in &tenant.node_groups {
                by_name
                    .entry((tenant.uid.as_str(), spec.name.as_str()))
                    .or_insert(groups.len());
                groups.push(CheckedGroup { tenant, spec });
            }
        }
        Self {
            groups,
            by_name,
            quotas_of_tenant,
            quotas: fleet.quotas.iter().collect(),
            pools: fleet.pools.iter().collect(),
            pool_numbers: fleet
                .pools
                .iter()
                .enumerate()
                .map(|(at, pool)| (pool.name.as_str(), at))
                .collect(),
        }
    }

    pub(super) fn check_group(&self, number: usize, before: &Counts, after: &Counts, violations: &mut Vec<Violation>) {
        let group = &self.groups[number];
        let (tenant, node_group) = (&group.tenant.name, &group.spec.name);
        let max_nodes = group.spec.max_nodes.max(group.spec.min_nodes);
        let (was, is) = (&before.of_group[number], &after.of_group[number]);
        if is.held > max_nodes && is.held > was.held {
            violations.push(Violation::OverMaximum {
                tenant: tenant.clone(),
                node_group: node_group.clone(),
                held: is.held,
                max_nodes,
            });
        }
        let mut quotas = self.quotas_of_tenant[group.tenant.uid.as_str()].iter();
        let over_quota = quotas.any(|quota| self.is_over_limit(*quota, &group.spec.pool, before));
        // A reservation whose other nodes have vanished may be cancelled.
        let complete = was.staying - was.count_incomplete();
        let is_below = is.staying < complete.min(group.spec.min_nodes);
        if is_below && !over_quota && !self.may_be_owed_to_others(group, before, after) {
            violations.push(Violation::BelowMinimum {
                tenant: tenant.clone(),
                node_group: node_group.clone(),
                staying: is.staying,
                min_nodes: group.spec.min_nodes,
            });
        }
        for (node, required) in is.reserved.iter().filter(|(_, required)| *required > is.staying) {
            violations.push(Violation::IncompleteReservation {
                node: node.clone(),
                required: *required,
                staying: is.staying,
            });
        }
    }

    /// Whether others may be owed nodes of a group's minimum: they have a nominal quota in its pool, and the quota of its tenant keeps its
    /// own. A quota that has others below it may lose nodes of its own tenants to these.
    fn may_be_owed_to_others(&self, group: &CheckedGroup<'_>, before: &Counts, after: &Counts) -> bool {
        let nominal = |quota: usize| self.quotas[quota].nominal_quota.get(&group.spec.pool).copied();
        let own = self.quotas_of_tenant[group.tenant.uid.as_str()].first().copied();
        let mut others = (0..self.quotas.len()).filter(|other| Some(*other) != own && nominal(*other) > Some(0));
        let (Some(own), Some(pool)) = (own, self.pool_numbers.get(group.spec.pool.as_str())) else {
            return others.next().is_some();
        };
        let nominal_of_own = nominal(own).unwrap_or(0);
        let has = |counts: &Counts| counts.staying_of_quota[own][*pool];
        let keeps_own = has(before) > nominal_of_own || has(after) >= nominal_of_own;
        others.any(|other| keeps_own || self.is_below(other, own))
    }

    /// Whether a quota is below another one.
    fn is_below(&self, quota: usize, above: usize) -> bool {
        let mut at = quota;
        // A cycle ends.
        for _ in 0..self.quotas.len() {
            let parent = self.quotas[at].parent.as_ref();
            let Some(next) = parent.and_then(|name| self.quotas.iter().position(|quota| quota.name == *name)) else {
                return false;
            };
            if next == above {
                return true;
            }
            at = next;
        }
        false
    }

    /// Whether the nodes of groups alone exceed a limit: for those that are being drained, no other node is taken.
    fn is_over_limit(&self, quota: usize, pool: &str, counts: &Counts) -> bool {
        let Some(pool) = self.pool_numbers.get(pool).map(|at| self.pools[*at]) else {
            return false;
        };
        let limits = list_limits(self.quotas[quota]).into_iter();
        limits
            .filter(|(scope, _)| scope.counts(pool))
            .any(|(scope, limit)| self.sum_gpus(&scope, &counts.of_quota[quota]) > limit)
    }

    /// GPUs of the pools in a scope, from those by pool.
    fn sum_gpus(&self, scope: &GpuScope, by_pool: &[u64]) -> u64 {
        let pools = self.pools.iter().zip(by_pool);
        pools.filter(|(pool, _)| scope.counts(pool)).map(|(_, gpus)| gpus).sum()
    }

    pub(super) fn check_quotas(&self, before: &Counts, after: &Counts, violations: &mut Vec<Violation>) {
        let names: HashSet<&str> = self.quotas.iter().map(|quota| quota.name.as_str()).collect();
        for (number, quota) in self.quotas.iter().enumerate() {
            let missing = quota.parent.as_deref().filter(|parent| !names.contains(parent));
            let gpus = |counts: &Counts| -> u64 {
                let counted = [&counts.of_quota, &counts.without_group];
                counted.iter().flat_map(|of| &of[number]).sum()
            };
            if let Some(missing) = missing.filter(|_| gpus(after) > gpus(before)) {
                violations.push(Violation::BelowMissingQuota {
                    quota: quota.name.clone(),
                    missing: missing.to_owned(),
                    gpus: gpus(after),
                });
            }
            for (scope, limit) in list_limits(quota) {
                let gpus = |counts: &Counts| {
                    let counted = [&counts.of_quota, &counts.without_group];
                    counted.map(|of| self.sum_gpus(&scope, &of[number])).iter().sum()
                };
                let (was, is) = (gpus(before), gpus(after));
                if is > limit && is > was {
                    violations.push(Violation::OverQuota {
                        quota: quota.name.clone(),
                        scope,
                        gpus: is,
                        limit,
                    });
                }
            }
        }
    }
}

/// All limits of a quota.
fn list_limits(quota: &Quota) -> Vec<(GpuScope, u64)> {
    let of_pools = quota.limit.iter();
    let of_pools = of_pools.map(|(pool, limit)| (GpuScope::Pool(pool.clone()), *limit));
    let of_products = quota.product_limit.iter();
    let of_products = of_products.map(|(product, limit)| (GpuScope::Product(product.clone()), *limit));
    let of_all = quota.total_limit.map(|limit| (GpuScope::AllPools, limit));
    of_pools.chain(of_products).chain(of_all).collect()
}

impl GpuScope {
    /// Whether the GPUs of a pool are among those.
    fn counts(&self, pool: &Pool) -> bool {
        match self {
            Self::Pool(name) => pool.name == *name,
            Self::AllPools => pool.gpu_resource_name.is_some(),
            Self::Product(product) => pool.product.as_ref() == Some(product),
        }
    }
}

/// The quota of a tenant and those above it, as far as they are known; a cycle ends where it closes.
fn list_quotas_above(tenant: &Tenant, quotas: &[Quota], numbers: &HashMap<&str, usize>) -> Vec<usize> {
    let mut path = Vec::new();
    let mut name = tenant.quota.as_deref();
    while let Some(number) = name.and_then(|name| numbers.get(name)).copied() {
        if path.contains(&number) {
            break;
        }
        path.push(number);
        name = quotas[number].parent.as_deref();
    }
    path
}
