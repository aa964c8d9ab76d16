//! The quota tree of one pool, in GPUs: how many GPUs each tenant holds, and which tenants may have more.

mod borrowers;
mod limits;
mod standing;

#[cfg(test)]
mod tests;

pub(crate) use borrowers::ReclaimClaim;
pub(crate) use limits::QuotaLimit;

use crate::{Pool, Quota, Tenant};
use limits::Limit;
use standing::{Ratio, Standing};
use std::collections::{BTreeSet, HashMap};

/// Number of the root.
const ROOT: usize = 0;

/// The tree. Its leaves are tenants.
pub(crate) struct Tree<'a> {
    branches: Vec<Branch<'a>>,
    /// By branch.
    standings: Vec<Standing>,
    /// By tenant: from the tenant's own branch up to, but without, the root.
    paths: Vec<Vec<usize>>,
    /// By tenant: whether a quota above it has a limit, or does not exist.
    is_limited: Vec<bool>,
    /// Whether any quota does not lend all of its nominal quota.
    has_lending_limits: bool,
}

struct Branch<'a> {
    name: &'a str,
    /// Number of the tenant, if this is a leaf.
    tenant: Option<usize>,
    parent: usize,
    /// The quota above it, if there is none of that name. Nobody knows what that would allow.
    missing_parent: Option<&'a str>,
    children: Vec<usize>,
    weight: u64,
    nominal_quota: u64,
    /// The sum of the nominal quotas below it.
    nominal_below: u64,
    /// The part of its nominal quota that others may not borrow.
    not_lendable: u64,
    limits: Vec<Limit<'a>>,
    /// GPUs held, reserved and kept for requests.
    used: u64,
    /// The part of it that its nominal quota covers first: what a tenant's node groups have as their minimums; of a quota, what is
    /// `firm` in those below it.
    minimum: u64,
    /// What the nominal quota of the branch above covers first: its `minimum`, and all that is within its own nominal quota.
    firm: u64,
    /// Unused GPUs in its nominal quota, or in those below it if these are more, that others may not borrow.
    not_lent: u64,
    /// The sum of `not_lent` of the branches below it.
    not_lent_below: u64,
    /// GPUs of cordoned nodes, which are no longer counted as used.
    leaving: u64,
    /// GPUs of nodes that cannot be kept, and on which pods may still run.
    draining: u64,
    /// GPUs of nodes that one of its tenants loses and that are kept for another one: they count twice until they are gone.
    moving: u64,
}

impl<'a> Tree<'a> {
    /// The tree of `pool`. The number of a tenant is its position in `tenants`.
    pub fn new(pool: &Pool, quotas: &'a [Quota], tenants: &[&'a Tenant]) -> Self {
        let mut branches = vec![Branch::new("", ROOT, 1)];
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut sorted: Vec<&Quota> = quotas.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for quota in &sorted {
            if numbers.contains_key(quota.name.as_str()) {
                continue;
            }
            numbers.insert(&quota.name, branches.len());
            let nominal_quota = quota.nominal_quota.get(&pool.name).copied().unwrap_or(0);
            let lendable = quota.lending_limit.get(&pool.name).copied().unwrap_or(nominal_quota);
            branches.push(Branch {
                nominal_quota,
                not_lendable: nominal_quota.saturating_sub(lendable),
                limits: limits::list_limits(quota, pool),
                ..Branch::new(&quota.name, ROOT, quota.weight)
            });
        }
        for quota in &sorted {
            let number = numbers[quota.name.as_str()];
            let above = quota.parent.as_deref();
            let known = above.and_then(|name| numbers.get(name)).copied();
            branches[number].missing_parent = above.filter(|_| known.is_none());
            let parent = known.unwrap_or(ROOT);
            let mut above = parent;
            while above != ROOT && above != number {
                above = branches[above].parent;
            }
            // A quota that is its own ancestor is placed below the root.
            branches[number].parent = if above == number { ROOT } else { parent };
        }
        let mut paths = Vec::with_capacity(tenants.len());
        for (number, tenant) in tenants.iter().enumerate() {
            let quota = tenant.quota.as_deref().and_then(|name| numbers.get(name));
            let mut path = vec![branches.len()];
            let mut above = quota.copied().unwrap_or(ROOT);
            branches.push(Branch {
                tenant: Some(number),
                ..Branch::new(&tenant.name, above, tenant.weight)
            });
            while above != ROOT {
                path.push(above);
                above = branches[above].parent;
            }
            paths.push(path);
        }
        for number in 1..branches.len() {
            let parent = branches[number].parent;
            branches[parent].children.push(number);
        }
        let may_limit = |number: &usize| {
            let branch: &Branch<'_> = &branches[*number];
            !branch.limits.is_empty() || branch.missing_parent.is_some()
        };
        let mut tree = Self {
            is_limited: paths.iter().map(|path| path.iter().any(may_limit)).collect(),
            has_lending_limits: branches.iter().any(|branch| branch.not_lendable > 0),
            branches,
            paths,
            standings: Vec::new(),
        };
        tree.add_up_nominal_quotas(ROOT);
        tree.standings = tree.branches.iter().map(Standing::of).collect();
        tree
    }

    /// Raises each nominal quota to the sum of the nominal quotas below it, and adds up what is not lent while nothing is used.
    fn add_up_nominal_quotas(&mut self, number: usize) -> u64 {
        let below: u64 = (0..self.branches[number].children.len())
            .map(|child| self.add_up_nominal_quotas(self.branches[number].children[child]))
            .sum();
        let children = self.branches[number].children.iter();
        let not_lent_below = children.map(|child| self.branches[*child].not_lent).sum();
        let branch = &mut self.branches[number];
        branch.nominal_below = below;
        branch.nominal_quota = branch.nominal_quota.max(below);
        branch.not_lent_below = not_lent_below;
        branch.not_lent = branch.not_lendable.max(not_lent_below);
        branch.nominal_quota
    }

    fn path(&self, tenant: usize) -> impl Iterator<Item = usize> {
        self.paths[tenant].iter().copied()
    }

    fn change(&mut self, tenant: usize, change: impl Fn(&mut Branch<'_>)) {
        for number in &self.paths[tenant] {
            let branch = &mut self.branches[*number];
            change(branch);
            self.standings[*number] = Standing::of(branch);
        }
    }

    /// GPUs that a tenant holds, or that are kept for it.
    pub fn add_used(&mut self, tenant: usize, gpus: u64) {
        self.change_used(tenant, |used| used + gpus);
    }

    /// The reverse of [`Self::add_used`].
    pub fn remove_used(&mut self, tenant: usize, gpus: u64) {
        self.change_used(tenant, |used| used.saturating_sub(gpus));
    }

    fn change_used(&mut self, tenant: usize, change: impl Fn(u64) -> u64) {
        for number in self.paths[tenant].iter().copied() {
            let branch = &mut self.branches[number];
            branch.used = change(branch.used);
            self.standings[number] = Standing::of(branch);
            count_again(&mut self.branches, number);
        }
    }

    /// Counts `after` of the GPUs in use as a part of minimums where `before` were counted.
    pub fn change_minimum(&mut self, tenant: usize, before: u64, after: u64) {
        let leaf = &mut self.branches[self.paths[tenant][0]];
        leaf.minimum = (leaf.minimum + after).saturating_sub(before);
        for number in self.paths[tenant].iter().copied() {
            if !count_again(&mut self.branches, number) {
                break;
            }
        }
    }

    /// What tenants use, for [`Self::restore`].
    pub fn save(&self) -> SavedTree {
        let counted = self.branches.iter().map(|branch| Counted {
            used: branch.used,
            minimum: branch.minimum,
            firm: branch.firm,
            not_lent: branch.not_lent,
            not_lent_below: branch.not_lent_below,
        });
        SavedTree {
            counted: counted.collect(),
            standings: self.standings.clone(),
        }
    }

    /// Undoes all changes of what tenants use, and of their minimums. After many of them this takes less time than to undo one after the other.
    pub fn restore(&mut self, saved: SavedTree) {
        for (branch, counted) in self.branches.iter_mut().zip(saved.counted) {
            branch.used = counted.used;
            branch.minimum = counted.minimum;
            branch.firm = counted.firm;
            branch.not_lent = counted.not_lent;
            branch.not_lent_below = counted.not_lent_below;
        }
        self.standings = saved.standings;
    }

    /// GPUs of a node that is cordoned but still there.
    pub fn add_leaving(&mut self, tenant: usize, gpus: u64) {
        self.change(tenant, |branch| branch.leaving += gpus);
    }

    /// The reverse of [`Self::add_leaving`].
    pub fn remove_leaving(&mut self, tenant: usize, gpus: u64) {
        self.change(tenant, |branch| branch.leaving = branch.leaving.saturating_sub(gpus));
    }

    /// GPUs of a node that the tenant cannot keep, and on which its pods may still run.
    pub fn add_draining(&mut self, tenant: usize, gpus: u64) {
        self.change(tenant, |branch| branch.draining += gpus);
    }

    /// GPUs of a node that a tenant loses and that is kept for another one, or for another group of the same.
    pub fn add_moving(&mut self, tenant: usize, holder: usize, gpus: u64) {
        for number in &self.paths[tenant] {
            if self.paths[holder].contains(number) {
                self.branches[*number].moving += gpus;
            }
        }
    }

    /// The reverse of [`Self::add_moving`].
    pub fn remove_moving(&mut self, tenant: usize, holder: usize, gpus: u64) {
        for number in &self.paths[tenant] {
            if self.paths[holder].contains(number) {
                self.branches[*number].moving -= gpus;
            }
        }
    }

    /// Whether `gpus` more are within the nominal quota of a quota that the tenant belongs to.
    pub fn is_within_nominal_quota(&self, tenant: usize, gpus: u64) -> bool {
        self.path(tenant).any(|number| self.branches[number].has_room(gpus))
    }

    /// The same for quotas at this depth of the tree, or deeper.
    pub fn is_within_nominal_quota_at(&self, tenant: usize, depth: usize, gpus: u64) -> bool {
        self.path_at(tenant, depth)
            .any(|number| self.branches[number].has_room(gpus))
    }

    /// The same if some of them are those of nodes that others have now. `moved`: these tenants, and the GPUs of each node. A quota that both tenants belong to has
    /// no more with such a node, however long it counts for both.
    pub fn is_within_nominal_quota_after(
        &self,
        tenant: usize,
        depth: usize,
        gpus: u64,
        moved: &[(usize, u64)],
    ) -> bool {
        self.path_at(tenant, depth)
            .any(|number| self.has_room_after(number, gpus, moved))
    }

    /// Whether `gpus` more are within the nominal quota of a quota that the tenant belongs to, besides what the quotas below that one do not lend. `moved`: as above.
    pub fn is_lent_within_nominal_quota(&self, tenant: usize, gpus: u64, moved: &[(usize, u64)]) -> bool {
        let mut not_lent = 0;
        self.path(tenant).any(|number| {
            let has_room = self.has_room_after(number, gpus + not_lent, moved);
            not_lent += self.gpus_not_lent_beside(number);
            has_room
        })
    }

    fn has_room_after(&self, number: usize, gpus: u64, moved: &[(usize, u64)]) -> bool {
        let of_quota = moved.iter().filter(|(holder, _)| self.paths[*holder].contains(&number));
        let moved: u64 = of_quota.map(|(_, gpus)| gpus).sum();
        self.branches[number].has_room_with(gpus, moved)
    }

    /// How many GPUs more would be within a nominal quota at this depth of the tree, or deeper.
    pub fn nominal_quota_left_at(&self, tenant: usize, depth: usize) -> u64 {
        let left = |branch: &Branch<'_>| branch.nominal_quota.saturating_sub(branch.used + branch.losing());
        let branches = self.path_at(tenant, depth).map(|number| &self.branches[number]);
        branches.map(left).max().unwrap_or(0)
    }

    /// Whether a cordoned node of `gpus` that stays would be within a nominal quota at this depth of the tree, or deeper. Other nodes
    /// that the tenant loses do not count, as in [`Self::may_stay`].
    pub fn may_stay_within_nominal_quota_at(&self, tenant: usize, depth: usize, gpus: u64) -> bool {
        self.path_at(tenant, depth)
            .any(|number| self.branches[number].used + gpus <= self.branches[number].nominal_quota)
    }

    /// The part of a tenant's path at this depth of the tree, or deeper.
    fn path_at(&self, tenant: usize, depth: usize) -> impl Iterator<Item = usize> {
        let deep = (self.paths[tenant].len() + 1).saturating_sub(depth);
        self.path(tenant).take(deep)
    }

    /// Depths at which there are nominal quotas, the deepest first. A child of the root has depth 1.
    pub fn nominal_quota_depths(&self) -> impl Iterator<Item = usize> + use<> {
        let nominal_quota = (1..self.branches.len()).filter(|number| self.branches[*number].nominal_quota > 0);
        let depths: BTreeSet<usize> = nominal_quota.map(|number| self.depth(number)).collect();
        depths.into_iter().rev()
    }

    /// Whether any quota has a nominal quota: nobody is owed anything otherwise.
    pub fn has_nominal_quotas(&self) -> bool {
        self.branches[ROOT].nominal_below > 0
    }

    fn depth(&self, number: usize) -> usize {
        let above = |number: &usize| Some(self.branches[*number].parent).filter(|above| *above != ROOT);
        std::iter::successors(Some(number), above).count()
    }

    /// GPUs that a tenant has borrowed: the smallest excess over a nominal quota that applies to it.
    pub fn borrowed_gpus(&self, tenant: usize) -> u64 {
        self.path(tenant)
            .map(|number| self.branches[number].borrowed())
            .min()
            .unwrap_or(0)
    }

    /// Unused GPUs in the nominal quotas of others that these do not lend.
    pub fn gpus_not_lent_by_others(&self, tenant: usize) -> u64 {
        self.path(tenant).map(|number| self.gpus_not_lent_beside(number)).sum()
    }

    /// The same of those below the same quota as this branch.
    fn gpus_not_lent_beside(&self, number: usize) -> u64 {
        let branch = &self.branches[number];
        self.branches[branch.parent].not_lent_below - branch.not_lent
    }

    /// Whether a tenant has nodes that are leaving it and that it may still keep.
    pub fn is_giving_up_nodes(&self, tenant: usize) -> bool {
        self.branches[self.paths[tenant][0]].leaving > 0
    }

    /// Whether a limit, or a quota that does not exist, may forbid a tenant to have more.
    pub fn is_limited(&self, tenant: usize) -> bool {
        self.is_limited[tenant]
    }

    /// Whether any quota does not lend all of its nominal quota.
    pub fn has_lending_limits(&self) -> bool {
        self.has_lending_limits
    }

    /// Number of tenants.
    pub fn count_tenants(&self) -> usize {
        self.paths.len()
    }

    /// The waiting tenant to serve next: on each level the branch with the least of its fair share.
    pub fn next_tenant(&self, tenants: &TenantSet) -> Option<usize> {
        let mut number = ROOT;
        loop {
            if let Some(tenant) = self.branches[number].tenant {
                return Some(tenant);
            }
            // Most of them come after one that was seen before, which is a shorter look than whether a tenant below waits. Of those that are equal the first
            // is next, so the last one is seen first.
            let (mut next, mut least) = (None, Ratio::MAX);
            for child in self.branches[number].children.iter().rev().copied() {
                let order = self.standings[child].serving_order;
                if order <= least && tenants.below[child] > 0 {
                    (next, least) = (Some(child), order);
                }
            }
            number = next?;
        }
    }

    /// A set without tenants.
    pub fn empty_set(&self) -> TenantSet {
        TenantSet {
            below: vec![0; self.branches.len()],
        }
    }

    /// Adds a tenant to the set.
    pub fn insert_tenant(&self, tenants: &mut TenantSet, tenant: usize) {
        for number in self.path(tenant) {
            tenants.below[number] += 1;
        }
    }

    /// Removes a tenant from the set.
    pub fn remove_tenant(&self, tenants: &mut TenantSet, tenant: usize) {
        for number in self.path(tenant) {
            tenants.below[number] -= 1;
        }
    }
}

/// What tenants used, see [`Tree::save`].
pub(crate) struct SavedTree {
    counted: Vec<Counted>,
    standings: Vec<Standing>,
}

/// What changes of a branch with what tenants use.
struct Counted {
    used: u64,
    minimum: u64,
    firm: u64,
    not_lent: u64,
    not_lent_below: u64,
}

/// Counts again what follows from the use of a branch: what its nominal quota covers first, and what is not lent. Returns whether this changes something for the
/// branch above. If each branch is counted upwards from a tenant, no look at the tree has to visit all of it.
fn count_again(branches: &mut [Branch<'_>], number: usize) -> bool {
    let branch = &mut branches[number];
    let firm = branch.minimum.max(branch.used.min(branch.nominal_quota));
    let not_lent = branch.not_lendable.saturating_sub(branch.used);
    let not_lent = not_lent.max(branch.not_lent_below);
    if (firm, not_lent) == (branch.firm, branch.not_lent) {
        return false;
    }
    let firm_before = std::mem::replace(&mut branch.firm, firm);
    let not_lent_before = std::mem::replace(&mut branch.not_lent, not_lent);
    let above = branch.parent;
    let above = &mut branches[above];
    above.minimum = above.minimum + firm - firm_before;
    above.not_lent_below = above.not_lent_below + not_lent - not_lent_before;
    true
}

/// How many tenants are counted below each branch.
pub(crate) struct TenantSet {
    below: Vec<u32>,
}

impl<'a> Branch<'a> {
    fn new(name: &'a str, parent: usize, weight: u32) -> Self {
        Self {
            name,
            tenant: None,
            parent,
            missing_parent: None,
            children: Vec::new(),
            weight: u64::from(weight.max(1)),
            nominal_quota: 0,
            nominal_below: 0,
            not_lendable: 0,
            limits: Vec::new(),
            used: 0,
            minimum: 0,
            firm: 0,
            not_lent: 0,
            not_lent_below: 0,
            leaving: 0,
            draining: 0,
            moving: 0,
        }
    }

    /// GPUs of nodes that it loses. It has them until no pod of its tenants can run there: otherwise a tenant would get other nodes
    /// while its pods go on.
    fn losing(&self) -> u64 {
        self.leaving + self.draining
    }

    /// Whether `gpus` more are within its nominal quota. A node that moves from one of its tenants to another counts once.
    fn has_room(&self, gpus: u64) -> bool {
        self.has_room_with(gpus, 0)
    }

    /// The same if `moved` of them are those of nodes that its tenants have now.
    fn has_room_with(&self, gpus: u64, moved: u64) -> bool {
        self.nominal_quota > 0 && self.used + self.losing() + gpus <= self.nominal_quota + self.moving + moved
    }

    fn borrowed(&self) -> u64 {
        self.used.saturating_sub(self.nominal_quota)
    }

    fn borrowed_minimum(&self) -> u64 {
        self.minimum.saturating_sub(self.nominal_quota)
    }
}
