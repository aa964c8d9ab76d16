//! Decides which node serves which tenant. Pure: the result depends on nothing but the [`Fleet`] that goes in, time included,
//! so that control, `berth simulate` and `berth explain` all run the very same code.
//!
//! Pools are planned one by one, each in these steps:
//! 1. Nodes that nobody asks for any more go back ([`release`]), and those beyond what somebody may have ([`excess`]).
//! 2. Waiting pods are placed on what their groups have already ([`rooms`]).
//! 3. Private groups and floors get what they lack ([`floors`]).
//! 4. Demand is served, by guarantee, priority and fair share ([`serve`], [`claim`]); what cannot be had now is waited for, and
//!    taken back from borrowers where that is due ([`reclaim`], [`gather`]).
//! 5. Idle nodes, promises that came to nothing and reclaims that nobody waits for any more are undone ([`release`]).
//! 6. What is still missing in a pool to which somebody may add nodes is listed ([`growth`]).
//!
//! docs/adr/0011 says which rules were chosen, and why.

mod claim;
mod excess;
mod fleet;
mod floors;
mod gather;
mod growth;
mod packing;
mod patience;
mod plan;
mod reclaim;
mod release;
mod rooms;
mod round;
mod selection;
mod serve;
mod supply;
mod tree;
mod view;
mod words;

pub use fleet::*;
pub use plan::*;
pub use selection::pool_of;

use round::Round;
use tree::Tree;
use view::Catalog;

/// Decides what to change. Applying the plan and planning again gives no action, or after a few rounds: what was done can
/// change who is next among those who wait for nodes that are on their way.
pub fn plan(fleet: &Fleet) -> Plan {
    let mut plan = Plan::default();
    let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
    for name in catalog.pools() {
        let unknown;
        let pool = if let Some(pool) = fleet.pools.iter().find(|pool| pool.name == name) {
            pool
        } else {
            // Nodes of a pool that is gone stay with those who have them.
            unknown = Pool {
                name: name.to_string(),
                idle_timeout: Seconds::MAX / 4,
                reclaim: Reclaim::Never,
                ..Pool::default()
            };
            &unknown
        };
        let tree = Tree::new(&pool.name, &fleet.quotas, &catalog.tenants);
        let mut round = Round::new(catalog.view(fleet.now, pool), tree);
        round.release_orphans(&catalog);
        round.take_excess();
        round.refuse_what_never_fits();
        round.place_on_own();
        round.release_idle(true);
        round.fill_floors();
        round.serve_demand();
        round.release_idle(false);
        round.take_promises_back();
        let keeping = round.keep_unclaimed();
        if !keeping.is_empty() {
            round.serve_again(&keeping);
        }
        round.conclude(&mut plan);
    }
    plan.actions.sort_by(|a, b| a.node.cmp(&b.node));
    plan
}
