//! Which tenants hold more than their nominal quota and have to give nodes back.

use super::{QuotaLimit, TenantSet, Tree};
use std::cmp::Reverse;

/// A claim on nodes that other tenants borrowed.
pub(crate) struct ReclaimClaim {
    /// GPUs that the claimant is about to have more.
    pub additional_gpus: u64,
    /// GPUs of the smallest node.
    pub least: u64,
    /// Whether nodes are also reclaimed for fairness alone.
    pub fair: bool,
    /// Whether pods of lower priority run on any node that may be reclaimed.
    pub urgent: bool,
}

impl<'a> Tree<'a> {
    /// The two branches below the lowest common ancestor of two tenants: the claimant's and the holder's.
    fn find_fork(&self, claimant: usize, holder: usize) -> Option<(usize, usize)> {
        let ways = self.paths[claimant].iter().rev().zip(self.paths[holder].iter().rev());
        ways.map(|(a, b)| (*a, *b)).find(|(a, b)| a != b)
    }

    /// Whether a node of `gpus` is borrowed by its holder as seen from the claimant: without it, each branch from the holder
    /// up to the fork still has its nominal quota.
    pub fn is_borrowed(&self, claimant: usize, holder: usize, gpus: u64) -> bool {
        let Some((_, top)) = self.find_fork(claimant, holder) else {
            return false;
        };
        let to_top = self.path(holder).position(|number| number == top).unwrap_or(0);
        self.path(holder).take(to_top + 1).all(|number| {
            let branch = &self.branches[number];
            branch.used >= branch.nominal_quota + gpus
        })
    }

    /// Whether the claimant's side of the tree would, with `additional_gpus` more, be within its nominal quota.
    pub fn is_owed(&self, claimant: usize, holder: usize, additional_gpus: u64) -> bool {
        self.find_fork(claimant, holder)
            .is_some_and(|(side, _)| self.branches[side].has_room(additional_gpus))
    }

    /// Whether the claimant's side with `additional_gpus` more has no more of its fair share than the holder's side without `gpus`.
    pub fn is_fairer(&self, claimant: usize, holder: usize, additional_gpus: u64, gpus: u64) -> bool {
        self.find_fork(claimant, holder).is_some_and(|(side, other)| {
            let side = &self.branches[side];
            side.borrowed_ratio(side.losing() + additional_gpus, 0) <= self.branches[other].borrowed_ratio(0, gpus)
        })
    }

    /// Calls `take` for the tenants in `holders`, the one furthest above its quota as seen from the claimant first, until
    /// `take` returns something. Tenants that need not give anything are left out.
    pub fn take_from_richest<T>(
        &self,
        claimant: usize,
        holders: &TenantSet,
        claim: &ReclaimClaim,
        take: &mut impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let mut others = Vec::new();
        for number in self.path(claimant) {
            let side = &self.branches[number];
            let due = claim.urgent || side.has_room(claim.additional_gpus);
            let ratio = side.borrowed_ratio(side.losing() + claim.additional_gpus, 0);
            let siblings = self.branches[side.parent].children.iter().copied();
            others.extend(siblings.filter(|sibling| {
                *sibling != number
                    && self.has_to_give(*sibling, holders, claim)
                    && (due || claim.fair && ratio <= self.branches[*sibling].borrowed_ratio(0, claim.least))
            }));
        }
        self.richest(others, holders, claim, take)
    }

    fn has_to_give(&self, number: usize, holders: &TenantSet, claim: &ReclaimClaim) -> bool {
        holders.below[number] > 0 && self.branches[number].used >= self.branches[number].nominal_quota + claim.least
    }

    fn richest<T>(
        &self,
        mut branches: Vec<usize>,
        holders: &TenantSet,
        claim: &ReclaimClaim,
        take: &mut impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        branches.sort_by_cached_key(|number| (Reverse(self.branches[*number].ratio(0)), *number));
        branches.into_iter().find_map(|number| {
            if let Some(tenant) = self.branches[number].tenant {
                return take(tenant);
            }
            let children = self.branches[number].children.iter().copied();
            let giving = children.filter(|child| self.has_to_give(*child, holders, claim));
            self.richest(giving.collect(), holders, claim, take)
        })
    }

    /// The lowest quota over its limit that has tenants of `holders` below it, with its limit.
    pub fn find_quota_over_limit(&self, holders: &TenantSet) -> Option<(usize, QuotaLimit<'a>)> {
        let branches = self.branches.iter().enumerate();
        let beyond = branches.filter_map(|(number, branch)| {
            let limit = branch.find_limit(|limit| branch.used + limit.elsewhere.used > limit.gpus)?;
            (holders.below[number] > 0).then_some((number, limit))
        });
        beyond.max_by_key(|(number, ..)| (self.depth(*number), Reverse(*number)))
    }

    /// The tenant in `holders` below a quota that is the furthest above its own quota.
    pub fn find_richest_tenant(&self, quota: usize, holders: &TenantSet) -> Option<usize> {
        let mut number = quota;
        loop {
            if let Some(tenant) = self.branches[number].tenant {
                return Some(tenant);
            }
            let children = self.branches[number].children.iter().copied();
            let holding = children.filter(|child| holders.below[*child] > 0);
            number = holding.max_by_key(|child| (self.branches[*child].ratio(0), Reverse(*child)))?;
        }
    }
}
