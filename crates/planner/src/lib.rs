//! Decides which node serves which tenant. Pure: a plan depends only on the [`Fleet`] that it is made for, which includes
//! the time, so control and `berth simulate` run the same code.
//!
//! Pools are planned one by one, in the order of their names. A limit of several pools together counts what the other pools have
//! at that moment. Each pool is planned in these steps; the first of all pools comes before the others:
//! 1. Nodes without a node group are released ([`release`]), those that are not Ready for too long ([`repair`]), and those over a limit
//!    ([`over_limit`]).
//! 2. Waiting pods are placed on nodes that their groups have already ([`placement`]).
//! 3. Private groups, and minimums of others, get the nodes that they lack within their nominal quotas, then requests within theirs; then
//!    minimums and requests get what they borrow ([`minimum`], [`serve`]).
//! 4. Requests are served by nominal quota, priority and fair share ([`serve_pods`], [`serve_gang`]). They wait for
//!    nodes that are not free yet ([`wait_for_gang`], [`starvation`]); borrowed ones are reclaimed where allowed ([`reclaim`]). Tenants that
//!    left nodes unused come last. Nodes that pods keep for too long without using them go to others that still lack them ([`unused`]).
//! 5. Idle nodes are released; reservations and releases that no request needs are cancelled ([`release`]).
//! 6. Nodes that a pool still lacks are listed if an autoscaler extends it ([`scale_up`]).
//!
//! Reasons are typed ([`ActionReason`], [`WaitReason`]); `render` turns them into text. [`check`] finds the rules that a plan
//! breaks. docs/adr/0011 says which rules were chosen, and why.

#![warn(missing_docs)]

mod alike;
mod available;
mod check;
mod first_gang;
mod fleet;
mod health;
mod impossible;
mod incoming;
mod kept_by_pods;
mod load;
mod minimum;
mod minimums_first;
mod names;
mod over_limit;
mod pass;
mod placement;
mod plan;
mod publish;
mod reason;
mod reclaim;
mod release;
mod render;
mod repair;
mod scale_up;
mod selection;
mod serve;
mod serve_gang;
mod serve_pods;
#[cfg(test)]
mod several_pools_tests;
mod shared_pauses;
mod stage;
mod starvation;
mod staying;
mod taking;
mod tree;
mod unused;
mod unused_nodes;
mod victims;
mod view;
mod wait_for_gang;
mod waiting_time;

pub use check::{Violation, check};
pub use fleet::*;
pub use health::{PoolHealth, RepairPolicy};
pub use plan::*;
pub use reason::*;
pub use selection::pool_of;
pub use unused::remember_unused_nodes;
pub use unused_nodes::{UnusedNodes, UnusedNodesByTenant};
pub use waiting_time::{LEAST_PATIENCE, WaitingTime};

use pass::PlanningPass;
use std::borrow::Cow;
use tree::Tree;
use view::Catalog;

/// Decides what to change. Once the plan is applied, the next plan has no actions, or one of the next few: a plan can change
/// which request is next for incoming nodes, and what a quota of several pools has left in another pool.
pub fn plan(fleet: &Fleet) -> Plan {
    let mut plan = Plan {
        unused_nodes: unused::carry_over(fleet),
        ..Plan::default()
    };
    let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
    let pools: Vec<Cow<'_, Pool>> = catalog.pools().into_iter().map(|name| find_pool(fleet, name)).collect();
    let mut passes: Vec<PlanningPass<'_>> = pools
        .iter()
        .map(|pool| {
            let tree = Tree::new(pool, &fleet.quotas, &catalog.tenants);
            let mut pass = PlanningPass::new(catalog.view(fleet.now, pool), tree);
            pass.share_pauses(&catalog.tenants, &fleet.quotas);
            pass
        })
        .collect();
    for pass in &mut passes {
        pass.release_orphans(&catalog);
    }
    for at in 0..passes.len() {
        count_elsewhere(&mut passes, at, &[]).release_not_ready();
    }
    for pass in &mut passes {
        pass.release_over_maximum();
    }
    // The minimum of a node group is taken last.
    for with_minimum in [false, true] {
        for at in 0..passes.len() {
            count_elsewhere(&mut passes, at, &[]).release_over_quota(with_minimum);
        }
    }
    for at in 0..passes.len() {
        let pass = count_elsewhere(&mut passes, at, &[]);
        pass.reject_impossible_requests();
        pass.place_on_held_nodes();
        pass.keep_nodes_of_other_pods();
        pass.release_idle_of_satisfied_groups();
        pass.serve_minimums_and_requests();
        pass.release_unused();
        pass.release_idle();
        pass.cancel_unneeded_reservations();
        let keeping = pass.cancel_unneeded_releases();
        if !keeping.is_empty() {
            // With the nodes that they keep, groups may have idle ones beyond their minimums.
            pass.release_idle();
            pass.serve_again(&keeping);
        }
        pass.remember_waiting();
    }
    let mut published = Vec::with_capacity(passes.len());
    while !passes.is_empty() {
        count_elsewhere(&mut passes, 0, &published);
        let pass = passes.remove(0);
        published.push(pass.publish(&mut plan));
    }
    unused::remove_empty(&mut plan.unused_nodes);
    plan.actions.sort_by(|a, b| a.node.cmp(&b.node));
    plan
}

/// The pool of a name. Nodes of a pool that no longer exists stay with their tenants.
fn find_pool<'a>(fleet: &'a Fleet, name: &str) -> Cow<'a, Pool> {
    let known = fleet.pools.iter().find(|pool| pool.name == name);
    known.map_or_else(
        || {
            Cow::Owned(Pool {
                name: name.to_owned(),
                idle_timeout: Seconds::MAX / 4,
                reclaim: Reclaim::Never,
                ..Pool::default()
            })
        },
        Cow::Borrowed,
    )
}

/// The pass of a pool. Its tree knows what quotas have in the other pools now: those of `passes` and of the trees of passes that are
/// over.
fn count_elsewhere<'p, 'a>(
    passes: &'p mut [PlanningPass<'a>],
    at: usize,
    over: &[Tree<'_>],
) -> &'p mut PlanningPass<'a> {
    let (before, from) = passes.split_at_mut(at);
    let (pass, after) = from.split_at_mut(1);
    let others = before.iter().chain(&*after).map(|other| &other.tree);
    let others: Vec<&Tree<'_>> = others.chain(over).collect();
    let pass = &mut pass[0];
    pass.tree.count_elsewhere(&others);
    pass
}
