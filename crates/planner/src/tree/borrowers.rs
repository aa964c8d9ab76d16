//! Which tenants hold more than their nominal quota and have to give nodes back.

use super::standing::{Ratio, Standing};
use super::{Branch, QuotaLimit, TenantSet, Tree};
use std::cmp::Reverse;

/// A claim on nodes that other tenants borrowed.
#[derive(Clone, Copy)]
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

/// Branches below the same one that may have to give something.
#[derive(Clone, Copy)]
struct Givers<'h> {
    parent: usize,
    /// The one of them that is the claimant's.
    without: Option<usize>,
    /// The tenants below them that may have something.
    holders: &'h TenantSet,
    /// One of them gives nothing if it then had less of its fair share than this.
    least_ratio: u64,
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
        self.is_beyond_nominal_quotas(claimant, holder, gpus, |branch| branch.used)
    }

    /// The same for a node that a group of its holder has as its minimum. Each nominal quota covers minimums first, and what the quotas
    /// below it grant: other nodes of the holder's side, which may be reclaimed a little later, make no minimum borrowed.
    pub fn is_minimum_borrowed(&self, claimant: usize, holder: usize, gpus: u64) -> bool {
        self.is_beyond_nominal_quotas(claimant, holder, gpus, |branch| branch.minimum)
    }

    /// Whether each branch from the holder up to the fork has its nominal quota without `gpus` of what is `counted`.
    fn is_beyond_nominal_quotas(
        &self,
        claimant: usize,
        holder: usize,
        gpus: u64,
        counted: impl Fn(&Branch<'a>) -> u64,
    ) -> bool {
        let Some((_, top)) = self.find_fork(claimant, holder) else {
            return false;
        };
        let to_top = self.path(holder).position(|number| number == top).unwrap_or(0);
        self.path(holder).take(to_top + 1).all(|number| {
            let branch = &self.branches[number];
            counted(branch) >= branch.nominal_quota + gpus
        })
    }

    /// GPUs that a tenant has for minimums and that others can be owed: those beyond its nominal quotas, up to the first level at which
    /// others have a nominal quota. 0 if nobody else has one.
    pub fn borrowed_minimum_gpus(&self, tenant: usize) -> u64 {
        let mut beyond = u64::MAX;
        for number in self.path(tenant) {
            let branch = &self.branches[number];
            beyond = beyond.min(branch.borrowed_minimum());
            if self.branches[branch.parent].nominal_below > branch.nominal_quota {
                return beyond;
            }
        }
        0
    }

    /// GPUs that others have for minimums beyond their nominal quotas, on the levels at which a tenant is owed more.
    pub fn minimum_gpus_owed_to(&self, claimant: usize) -> u64 {
        let owed = self.path(claimant).filter(|number| self.branches[*number].has_room(1));
        owed.map(|number| {
            let siblings = self.branches[self.branches[number].parent].children.iter();
            let others = siblings.filter(|sibling| **sibling != number);
            others
                .map(|sibling| self.branches[*sibling].borrowed_minimum())
                .sum::<u64>()
        })
        .sum()
    }

    /// Whether the claimant's side of the tree would, with `additional_gpus` more, be within its nominal quota.
    pub fn is_owed(&self, claimant: usize, holder: usize, additional_gpus: u64) -> bool {
        self.find_fork(claimant, holder)
            .is_some_and(|(side, _)| self.branches[side].has_room(additional_gpus))
    }

    /// Whether the claimant's side with `additional_gpus` more has no more of its fair share than the holder's side without `gpus`.
    pub fn is_fairer(&self, claimant: usize, holder: usize, additional_gpus: u64, gpus: u64) -> bool {
        self.find_fork(claimant, holder).is_some_and(|(side, other)| {
            let ratio = self.branches[side].borrowed_ratio_with(additional_gpus);
            ratio <= self.standings[other].borrowed_ratio_without(gpus)
        })
    }

    /// Calls `take` for the tenants in `holders`, the one furthest above its quota as seen from the claimant first, until
    /// `take` returns something. Tenants that need not give anything are left out; of those that would give something for fairness alone, those that are
    /// not in `fair`.
    pub fn take_from_richest<T>(
        &self,
        claimant: usize,
        [holders, fair]: [&TenantSet; 2],
        claim: &ReclaimClaim,
        take: &mut impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let levels = self.paths[claimant].iter().copied().filter_map(|number| {
            let side = &self.branches[number];
            let is_due = claim.urgent || side.has_room(claim.additional_gpus);
            (is_due || claim.fair).then(|| Givers {
                parent: side.parent,
                without: Some(number),
                holders: if is_due { holders } else { fair },
                least_ratio: if is_due {
                    0
                } else {
                    side.borrowed_ratio_with(claim.additional_gpus)
                },
            })
        });
        self.richest_first(levels, claim, take)
    }

    /// Whether a branch is one of `givers`, and has to give something.
    fn has_to_give(&self, number: usize, givers: &Givers<'_>, claim: &ReclaimClaim) -> bool {
        let standing = &self.standings[number];
        debug_assert_eq!(*standing, Standing::of(&self.branches[number]));
        givers.holders.below[number] > 0
            && givers.without != Some(number)
            && standing.can_give(claim.least)
            && (givers.least_ratio == 0 || givers.least_ratio <= standing.borrowed_ratio_without(claim.least))
    }

    fn take_from<T>(
        &self,
        number: usize,
        givers: &Givers<'_>,
        claim: &ReclaimClaim,
        take: &mut dyn FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        if let Some(tenant) = self.branches[number].tenant {
            return take(tenant);
        }
        let below = Givers {
            parent: number,
            without: None,
            least_ratio: 0,
            ..*givers
        };
        self.richest_first(std::iter::once(below), claim, take)
    }

    /// Calls `take` for the tenants below those branches that have to give something, the branch furthest above its quota first, until it returns something.
    fn richest_first<'h, T>(
        &self,
        levels: impl Iterator<Item = Givers<'h>> + Clone,
        claim: &ReclaimClaim,
        take: &mut dyn FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let rank = |number: usize| (self.standings[number].held, Reverse(number));
        // Usually the first has something to give: the others are not put in order.
        let mut first: Option<(usize, Givers<'_>)> = None;
        for level in levels.clone() {
            let richest = self.find_richest_giver(&level, claim);
            if let Some(number) = richest.filter(|number| first.is_none_or(|(other, _)| rank(*number) > rank(other))) {
                first = Some((number, level));
            }
        }
        let (first, level) = first?;
        if let Some(found) = self.take_from(first, &level, claim, take) {
            return Some(found);
        }
        let others = levels.flat_map(|level| {
            let children = self.branches[level.parent].children.iter().copied();
            children.map(move |number| (number, level))
        });
        let others = others.filter(|(number, level)| *number != first && self.has_to_give(*number, level, claim));
        let mut others: Vec<(usize, Givers<'_>)> = others.collect();
        others.sort_by_cached_key(|(number, _)| Reverse(rank(*number)));
        let mut others = others.into_iter();
        others.find_map(|(number, level)| self.take_from(number, &level, claim, take))
    }

    /// The branch furthest above its quota of those that have to give something, of several that are equal the first.
    fn find_richest_giver(&self, givers: &Givers<'_>, claim: &ReclaimClaim) -> Option<usize> {
        // Most of them rank below one that was seen before, which is a shorter look than whether they have to give something.
        let (mut richest, mut highest) = (None, Ratio::MIN);
        for number in self.branches[givers.parent].children.iter().rev().copied() {
            let held = self.standings[number].held;
            if held >= highest && self.has_to_give(number, givers, claim) {
                (richest, highest) = (Some(number), held);
            }
        }
        richest
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
            number = holding.max_by_key(|child| (self.standings[*child].held, Reverse(*child)))?;
        }
    }
}
