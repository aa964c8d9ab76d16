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
        let claim = Claim::of(node);
        let next = match action {
            Some(action) => claim.after(action).unwrap_or_else(|| {
                violations.push(Violation::ImpossibleAction {
                    node: node.name.clone(),
                });
                claim
            }),
            None => claim,
        };
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
    violations
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
