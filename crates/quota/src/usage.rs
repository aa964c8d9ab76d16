//! How much each level of the tree has reserved, and how much more it may: Kueue's rules for a tree of cohorts.
//!
//! A level keeps what it does not lend and gives the rest of its nominal quota to the level above. What its
//! tenants reserve beyond what it keeps counts there, and can be borrowed there as far as the levels beside it lend. An Organization that
//! does not exist keeps everything to itself.
//!
//! What tenants use of what they reserved is summed up beside it. Nothing depends on that: it is for people.

use crate::tree::{Key, LevelKind, Limits, ROOT, Tree};
use berth_api::TreeResource;
use std::collections::{BTreeMap, BTreeSet};

/// Use of one quota of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// What is limited.
    pub key: Key,
    /// The nominal quota; at least the sum of the nominal quotas below.
    pub nominal: u64,
    /// What its tenants have reserved. Of GPUs: those of the nodes that they have.
    pub reserved: u64,
    /// What its tenants use, as far as that was added with [`Usage::add_used`].
    pub used: u64,
    /// The most that its tenants may have: the nominal quota and what the level may borrow. None: as much as others lend.
    pub limit: Option<u64>,
}

impl QuotaUse {
    /// What is reserved beyond the nominal quota.
    pub const fn borrowed(&self) -> u64 {
        self.reserved.saturating_sub(self.nominal)
    }

    /// Whether more is reserved than the level may have, whatever others lend: its limit was lowered.
    pub fn is_over_limit(&self) -> bool {
        self.limit.is_some_and(|limit| self.reserved > limit)
    }
}

/// What all levels of a tree have.
#[derive(Debug)]
pub struct Usage<'t> {
    tree: &'t Tree,
    by_key: BTreeMap<Key, Vec<Amounts>>,
}

/// Amounts of one key at one level.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    /// The nominal quota, or the sum of those below it if that is more.
    nominal: u64,
    /// The part of it that is available at this level: without what the levels below keep.
    offered: u64,
    /// The part of `offered` that is not lent to others.
    kept: u64,
    /// What is reserved at this level: without what the levels below reserve of what they keep.
    reserved: u64,
    /// What all tenants below have reserved.
    total: u64,
    /// What all tenants below use.
    used: u64,
}

impl<'t> Usage<'t> {
    /// Of a tree in which no tenant has anything.
    pub fn new(tree: &'t Tree) -> Self {
        let of_key = |key: Key| {
            let mut amounts = vec![Amounts::default(); tree.levels.len()];
            fill(tree, &key, ROOT, &mut amounts);
            (key, amounts)
        };
        Self {
            tree,
            by_key: tree.keys().into_iter().map(of_key).collect(),
        }
    }

    /// Adds what a tenant of a Project has reserved. Nothing is checked: what exists counts.
    pub fn add(&mut self, project: &str, key: &Key, amount: u64) {
        let tree = self.tree;
        let Some((level, amounts)) = self.find(project, key) else {
            return;
        };
        let (mut number, mut up) = (level, amount);
        loop {
            let kept = amounts[number].free_of_kept();
            amounts[number].reserved = amounts[number].reserved.saturating_add(up);
            amounts[number].total = amounts[number].total.saturating_add(amount);
            up = up.saturating_sub(kept);
            if tree.levels[number].is_missing {
                up = 0;
            }
            if number == ROOT {
                return;
            }
            number = tree.levels[number].parent;
        }
    }

    /// Takes away what a tenant of a Project no longer reserves.
    pub fn remove(&mut self, project: &str, key: &Key, amount: u64) {
        let tree = self.tree;
        let Some((level, amounts)) = self.find(project, key) else {
            return;
        };
        let (mut number, mut up) = (level, amount);
        loop {
            let above_kept = amounts[number].reserved.saturating_sub(amounts[number].kept);
            amounts[number].reserved = amounts[number].reserved.saturating_sub(up);
            amounts[number].total = amounts[number].total.saturating_sub(amount);
            up = up.min(above_kept);
            if tree.levels[number].is_missing {
                up = 0;
            }
            if number == ROOT {
                return;
            }
            number = tree.levels[number].parent;
        }
    }

    /// Adds what a tenant of a Project uses of what it has reserved.
    pub fn add_used(&mut self, project: &str, key: &Key, amount: u64) {
        let tree = self.tree;
        let Some((level, amounts)) = self.find(project, key) else {
            return;
        };
        for number in tree.path(level).chain([ROOT]) {
            amounts[number].used = amounts[number].used.saturating_add(amount);
        }
    }

    /// Whether any level limits a key for a Project.
    pub fn is_limited(&self, project: &str, key: &Key) -> bool {
        let level = self.tree.project(project);
        level.is_some_and(|level| self.tree.is_limited(level, key))
    }

    /// The resources that a level limits for a Project.
    pub(crate) fn limited_resources(&self, project: &str) -> Vec<TreeResource> {
        let keys = self.by_key.keys();
        let limited = keys.filter(|key| self.is_limited(project, key));
        let resources: BTreeSet<&TreeResource> = limited.map(|key| &key.resource).collect();
        resources.into_iter().cloned().collect()
    }

    /// How much more a tenant of a Project may have. None: no level limits it.
    pub fn available(&self, project: &str, key: &Key) -> Option<u64> {
        let level = self.tree.project(project)?;
        if !self.tree.is_limited(level, key) {
            return None;
        }
        let available = self.available_at(level, key, self.by_key.get(key)?);
        Some(u64::try_from(available.max(0)).unwrap_or(u64::MAX))
    }

    fn available_at(&self, number: usize, key: &Key, amounts: &[Amounts]) -> i128 {
        let at = &amounts[number];
        let difference = |a: u64, b: u64| i128::from(a) - i128::from(b);
        if number == ROOT {
            return difference(at.offered, at.reserved);
        }
        let level = &self.tree.levels[number];
        if level.is_missing {
            // Its limits are not known. What its Projects have is not beyond them.
            return i128::from(u64::MAX);
        }
        let mut above = self.available_at(level.parent, key, amounts);
        if let Some(borrowing) = level.quotas.get(key).and_then(|limits| limits.borrowing) {
            let lent_and_unused = difference(at.offered - at.kept, at.reserved.saturating_sub(at.kept));
            above = above.min(lent_and_unused.saturating_add(i128::from(borrowing)));
        }
        i128::from(at.free_of_kept()) + above.max(0)
    }

    /// What a level has of every key that it or one above it lists.
    fn at(&self, level: usize) -> Vec<QuotaUse> {
        let limited = self.by_key.iter().filter(|(key, _)| self.tree.is_limited(level, key));
        limited
            .map(|(key, amounts)| self.use_of(level, key, &amounts[level]))
            .collect()
    }

    /// What a level has of a key.
    fn use_of(&self, level: usize, key: &Key, amounts: &Amounts) -> QuotaUse {
        let limits = self.tree.levels[level].quotas.get(key);
        let borrowing = limits.and_then(|limits| limits.borrowing);
        QuotaUse {
            key: key.clone(),
            nominal: amounts.nominal,
            reserved: amounts.total,
            used: amounts.used,
            limit: borrowing.map(|borrowing| amounts.nominal.saturating_add(borrowing)),
        }
    }

    /// What an Organization has of every key that it lists.
    pub fn of_organization(&self, name: &str) -> Vec<QuotaUse> {
        self.tree
            .organization(name)
            .map(|level| self.at(level))
            .unwrap_or_default()
    }

    /// What a Project has of every key that it or its Organization lists.
    pub fn of_project(&self, name: &str) -> Vec<QuotaUse> {
        self.tree.project(name).map(|level| self.at(level)).unwrap_or_default()
    }

    /// What all Organizations and Projects together have of every key that any of them lists. A tenant counts towards a key that its
    /// Project or its Organization lists.
    pub fn of_root(&self) -> Vec<QuotaUse> {
        let all = self.by_key.iter();
        all.map(|(key, amounts)| self.use_of(ROOT, key, &amounts[ROOT]))
            .collect()
    }

    /// The levels that limit a key for a Project, the Project first, with what they have of it.
    pub fn limiting_levels(&self, project: &str, key: &Key) -> Vec<(LevelKind, &'t str, QuotaUse)> {
        let (Some(level), Some(amounts)) = (self.tree.project(project), self.by_key.get(key)) else {
            return Vec::new();
        };
        let tree = self.tree;
        let limiting = tree
            .path(level)
            .filter(|number| tree.levels[*number].quotas.contains_key(key));
        limiting
            .map(|number| {
                let at = self.use_of(number, key, &amounts[number]);
                (tree.levels[number].kind, tree.levels[number].name.as_str(), at)
            })
            .collect()
    }

    /// The Organization that a Project names and that does not exist.
    pub(crate) fn missing_organization(&self, project: &str) -> Option<&'t str> {
        self.tree.missing_organization(project)
    }

    /// Amounts of a key with the number of the Project, if any level limits it there.
    fn find(&mut self, project: &str, key: &Key) -> Option<(usize, &mut Vec<Amounts>)> {
        let level = self.tree.project(project)?;
        let is_limited = self.tree.is_limited(level, key);
        let amounts = self.by_key.get_mut(key).filter(|_| is_limited)?;
        Some((level, amounts))
    }
}

impl Amounts {
    /// What is left of what the level keeps for itself.
    const fn free_of_kept(&self) -> u64 {
        self.kept.saturating_sub(self.reserved)
    }
}

/// Fills in the quotas of a level and of those below it.
fn fill(tree: &Tree, key: &Key, number: usize, amounts: &mut [Amounts]) {
    let level = &tree.levels[number];
    let (mut below, mut lent) = (0_u64, 0_u64);
    for child in &level.children {
        fill(tree, key, *child, amounts);
        below = below.saturating_add(amounts[*child].nominal);
        lent = lent.saturating_add(amounts[*child].offered - amounts[*child].kept);
    }
    let limits: Limits = level.quotas.get(key).copied().unwrap_or_default();
    let nominal = limits.nominal.max(below);
    let offered = (nominal - below).saturating_add(lent);
    let lending = limits.lending.or(level.is_missing.then_some(0));
    let kept = lending.map_or(0, |lending| offered.saturating_sub(lending));
    amounts[number] = Amounts {
        nominal,
        offered,
        kept,
        reserved: 0,
        total: 0,
        used: 0,
    };
}
