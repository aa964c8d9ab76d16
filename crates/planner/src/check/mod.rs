//! The rules that every plan must keep, checked separately from the code that makes plans: by property tests, by
//! `berth simulate`, and by control, which counts violations.

mod claim;
mod counts;
mod index;
#[cfg(test)]
mod tests;
mod violation;

pub use violation::Violation;

use crate::{Action, ActionReason, Fleet, Plan};
use claim::Claim;
use counts::Counts;
use index::Index;
use std::collections::{BTreeSet, HashMap};

/// Finds the rules that a plan for a fleet breaks; none for a plan of [`plan`](crate::plan).
pub fn check(fleet: &Fleet, plan: &Plan) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut actions: HashMap<&str, &Action> = HashMap::new();
    for action in &plan.actions {
        if actions.insert(&action.node, action).is_some() {
            violations.push(Violation::SeveralActions {
                node: action.node.clone(),
            });
        }
    }
    let index = Index::new(fleet);
    let (mut before, mut after) = (Counts::new(&index), Counts::new(&index));
    for node in &fleet.nodes {
        let action = actions.remove(node.name.as_str());
        let mut claim = Claim::of(node);
        let mut next = match action {
            Some(action) => claim.after(action).unwrap_or_else(|| {
                violations.push(Violation::ImpossibleAction {
                    node: node.name.clone(),
                });
                claim
            }),
            None => claim,
        };
        if action.is_some_and(is_repair) {
            // Its group has lost it, whatever the plan says.
            (claim, next) = (claim.without_group(), next.without_group());
        }
        before.add(&index, node, &claim);
        after.add(&index, node, &next);
    }
    violations.extend(
        actions
            .into_keys()
            .map(|node| Violation::ImpossibleAction { node: node.into() }),
    );
    for group in 0..index.groups.len() {
        index.check_group(group, &before, &after, &mut violations);
    }
    index.check_quotas(&before, &after, &mut violations);
    check_reclaims(fleet, plan, &index, &mut violations);
    check_repairs(fleet, plan, &mut violations);
    violations
}

/// Whether an action takes a node that is not Ready.
fn is_repair(action: &Action) -> bool {
    matches!(action.reason, ActionReason::NotReady { .. })
}

fn check_repairs(fleet: &Fleet, plan: &Plan, violations: &mut Vec<Violation>) {
    for action in plan.actions.iter().filter(|action| is_repair(action)) {
        if !may_repair(fleet, &action.node) {
            violations.push(Violation::NeedlessRepair {
                node: action.node.clone(),
            });
        }
    }
}

/// Whether a node is not Ready for so long that it may be taken, and not too many others of its pool are not Ready, or were a short while ago.
fn may_repair(fleet: &Fleet, name: &str) -> bool {
    let Some(node) = fleet.nodes.iter().find(|node| node.name == name) else {
        return false;
    };
    let pool = fleet.pools.iter().find(|pool| pool.name == node.pool);
    let (Some(policy), Some(since)) = (pool.and_then(|pool| pool.repair), node.not_ready_since) else {
        return false;
    };
    let of_pool = fleet.nodes.iter().filter(|other| other.pool == node.pool);
    let not_ready = of_pool.filter(|other| other.not_ready_since.is_some() && !other.starting);
    !node.exempt_from_repair
        && since.max(policy.allowed_since.unwrap_or(since)) + policy.not_ready_after <= fleet.now
        && not_ready.count() <= policy.max_unhealthy as usize
}

fn check_reclaims(fleet: &Fleet, plan: &Plan, index: &Index<'_>, violations: &mut Vec<Violation>) {
    let is_reclaimed = |action: &&Action| {
        matches!(
            action.reason,
            ActionReason::Reclaimed { .. } | ActionReason::ReclaimedForMinimum { .. }
        )
    };
    let reclaimed: BTreeSet<&str> = plan
        .actions
        .iter()
        .filter(is_reclaimed)
        .map(|action| action.node.as_str())
        .collect();
    if reclaimed.is_empty() {
        return;
    }
    for pool in &index.pools {
        let of_pool = fleet.nodes.iter().filter(|node| node.pool == pool.name);
        let taken = of_pool.filter(|node| reclaimed.contains(node.name.as_str())).count();
        let groups = plan.node_groups.values().flat_map(|groups| groups.values());
        let waiting: u32 = groups
            .filter(|group| group.pool == pool.name)
            .map(|group| group.waiting)
            .sum();
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        if taken > waiting {
            violations.push(Violation::NeedlessReclaim {
                pool: pool.name.clone(),
                reclaimed: taken,
                waiting,
            });
        }
    }
}
