//! Limits of the quotas in a tree: of its pool, and of several pools together.
//!
//! Each pool has a tree of its own, and all trees have the same branches. A limit of several pools together counts what the same
//! branch has in the trees of the other pools.

use super::{Branch, Tree};
use crate::{GpuScope, Pool, Quota};

/// A limit of a branch.
pub(super) struct Limit<'a> {
    scope: Scope<'a>,
    pub(super) gpus: u64,
    pub(super) elsewhere: Elsewhere,
}

/// What a branch has in other pools that the same limit counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elsewhere {
    pub(super) used: u64,
    losing: u64,
    draining: u64,
}

/// The GPUs that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    /// Those of the pool of the tree.
    Pool,
    /// Those of all pools.
    AllPools,
    /// Those of all pools of a product.
    Product(&'a str),
}

/// A limit that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaLimit<'a> {
    /// Name of the quota.
    pub quota: &'a str,
    /// The most GPUs that it may have.
    pub gpus: u64,
    /// Which GPUs count.
    pub scope: Scope<'a>,
    /// How many of these GPUs it has on nodes that are being drained.
    pub draining: u64,
}

/// The limits of a quota that count the GPUs of a pool.
pub(super) fn list_limits<'a>(quota: &'a Quota, pool: &Pool) -> Vec<Limit<'a>> {
    let of_pool = quota.limit.get(&pool.name).map(|gpus| (Scope::Pool, *gpus));
    let has_gpus = pool.gpu_resource_name.is_some();
    let of_all = quota
        .total_limit
        .filter(|_| has_gpus)
        .map(|gpus| (Scope::AllPools, gpus));
    let product = pool.product.as_ref();
    let of_product = product
        .and_then(|product| quota.product_limit.get_key_value(product))
        .map(|(product, gpus)| (Scope::Product(product), *gpus));
    let limits = [of_pool, of_product, of_all].into_iter().flatten();
    limits
        .map(|(scope, gpus)| Limit {
            scope,
            gpus,
            elsewhere: Elsewhere::default(),
        })
        .collect()
}

impl<'a> Tree<'a> {
    /// Counts what the branches have in the trees of other pools, for the limits of several pools together.
    pub fn count_elsewhere(&mut self, others: &[&Tree<'_>]) {
        for (number, branch) in self.branches.iter_mut().enumerate() {
            for limit in branch.limits.iter_mut().filter(|limit| limit.scope != Scope::Pool) {
                let counted = others
                    .iter()
                    .map(|other| &other.branches[number])
                    .filter(|other| other.limits.iter().any(|counted| counted.scope == limit.scope));
                limit.elsewhere = counted.fold(Elsewhere::default(), |sum, other| Elsewhere {
                    used: sum.used + other.used,
                    losing: sum.losing + other.losing(),
                    draining: sum.draining + other.draining,
                });
            }
        }
    }

    /// The quota above those of a tenant that does not exist. The tenant keeps what it has, and gets no more.
    pub fn missing_quota(&self, tenant: usize) -> Option<&'a str> {
        self.path(tenant)
            .find_map(|number| self.branches[number].missing_parent)
    }

    /// The limit that `gpus` more would exceed.
    pub fn exceeded_limit(&self, tenant: usize, gpus: u64) -> Option<QuotaLimit<'a>> {
        self.path(tenant).find_map(|number| {
            let branch = &self.branches[number];
            let here = branch.used + branch.losing() + gpus;
            branch.find_limit(|limit| here + limit.elsewhere.used + limit.elsewhere.losing > limit.gpus)
        })
    }

    /// Whether no limit is in the way of a cordoned node of `gpus` staying. Other nodes that the tenant loses do not count: it has fewer
    /// soon, and gets none now.
    pub fn may_stay(&self, tenant: usize, gpus: u64) -> bool {
        self.path(tenant).all(|number| {
            let branch = &self.branches[number];
            let is_exceeded = |limit: &Limit<'_>| branch.used + gpus + limit.elsewhere.used > limit.gpus;
            branch.find_limit(is_exceeded).is_none()
        })
    }

    /// The limit that `gpus` alone would break.
    pub fn limit_below(&self, tenant: usize, gpus: u64) -> Option<QuotaLimit<'a>> {
        self.path(tenant)
            .find_map(|number| self.branches[number].find_limit(|limit| gpus > limit.gpus))
    }
}

impl<'a> Branch<'a> {
    /// The first limit for which this holds.
    pub(super) fn find_limit(&self, is_wanted: impl Fn(&Limit<'a>) -> bool) -> Option<QuotaLimit<'a>> {
        let limit = self.limits.iter().find(|limit| is_wanted(limit))?;
        Some(QuotaLimit {
            quota: self.name,
            gpus: limit.gpus,
            scope: limit.scope,
            draining: self.draining + limit.elsewhere.draining,
        })
    }
}

impl Scope<'_> {
    /// For people. `pool` is the pool of the tree.
    pub(crate) fn describe(self, pool: &str) -> GpuScope {
        match self {
            Self::Pool => GpuScope::Pool(pool.to_owned()),
            Self::AllPools => GpuScope::AllPools,
            Self::Product(product) => GpuScope::Product(product.to_owned()),
        }
    }
}
