//! Decides which node serves which tenant. Pure: a plan depends only on the [`Fleet`] that it is made for, which includes
//! the time, so control and `berth simulate` run the same code.
//!
//! Pools are planned one by one, each in these steps:
//! 1. Nodes without a node group are released ([`release`]), and those over a limit ([`over_limit`]).
//! 2. Waiting pods are placed on nodes that their groups have already ([`placement`]).
//! 3. Private groups, and minimums of others, get the nodes that they lack ([`minimum`]).
//! 4. Requests are served, by nominal quota, priority and fair share ([`serve`], [`serve_pods`], [`serve_gang`]). They wait for
//!    nodes that are not free yet ([`wait_for_gang`], [`starvation`]); borrowed ones are reclaimed where allowed ([`reclaim`]).
//! 5. Idle nodes are released; reservations and releases that no request needs are cancelled ([`release`]).
//! 6. Nodes that a pool still lacks are listed if an autoscaler extends it ([`scale_up`]).
//!
//! Reasons are typed ([`ActionReason`], [`WaitReason`]); `render` turns them into text. [`check`] finds the rules that a plan
//! breaks. docs/adr/0011 says which rules were chosen, and why.

#![warn(missing_docs)]

mod available;
mod check;
mod fleet;
mod impossible;
mod load;
mod minimum;
mod over_limit;
mod pass;
mod placement;
mod plan;
mod publish;
mod reason;
mod reclaim;
mod release;
mod render;
mod scale_up;
mod selection;
mod serve;
mod serve_gang;
mod serve_pods;
mod stage;
mod starvation;
mod tree;
mod view;
mod wait_for_gang;

pub use check::{Violation, check};
pub use fleet::*;
pub use plan::*;
pub use reason::*;
pub use selection::pool_of;

use pass::PlanningPass;
use tree::Tree;
use view::Catalog;

/// Decides what to change. Once the plan is applied, the next plan has no actions, or one of the next few: a plan can change
/// which request is next for incoming nodes.
pub fn plan(fleet: &Fleet) -> Plan {
    let mut plan = Plan::default();
    let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
    for name in catalog.pools() {
        let unknown;
        let pool = if let Some(pool) = fleet.pools.iter().find(|pool| pool.name == name) {
            pool
        } else {
            // Nodes of a pool that no longer exists stay with their tenants.
            unknown = Pool {
                name: name.to_string(),
                idle_timeout: Seconds::MAX / 4,
                reclaim: Reclaim::Never,
                ..Pool::default()
            };
            &unknown
        };
        let tree = Tree::new(&pool.name, &fleet.quotas, &catalog.tenants);
        let mut pass = PlanningPass::new(catalog.view(fleet.now, pool), tree);
        pass.release_orphans(&catalog);
        pass.release_over_limit();
        pass.reject_impossible_requests();
        pass.place_on_held_nodes();
        pass.release_idle_of_satisfied_groups();
        pass.fill_minimums();
        pass.serve_requests();
        pass.release_idle();
        pass.cancel_unneeded_reservations();
        let keeping = pass.cancel_unneeded_releases();
        if !keeping.is_empty() {
            pass.serve_again(&keeping);
        }
        pass.publish(&mut plan);
    }
    plan.actions.sort_by(|a, b| a.node.cmp(&b.node));
    plan
}
