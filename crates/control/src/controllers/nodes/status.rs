//! What a plan says of tenants and pools, for their status.

use super::{NodesContext, gone_tenants, requested::UnavailableNodes};
use crate::key::Key;
use berth_planner::{Fleet, NodeState, Plan, UnusedNodesByTenant, remember_unused_nodes};
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Keeps what the plan says of each node group, and reconciles the tenants for which that changed.
pub fn update_group_status(context: &NodesContext, plan: &Plan) {
    reconcile_tenants(context, &context.tenants.set_node_group_plans(&plan.node_groups));
}

/// Keeps what is known of nodes that tenants did not use, after the plan was carried out except the release of the nodes `kept`. For the tenants
/// `without_turn`, by UID, nothing new counts.
pub fn update_unused_nodes(
    context: &NodesContext,
    fleet: &Fleet,
    plan: &Plan,
    kept: &BTreeSet<String>,
    without_turn: &BTreeSet<String>,
) {
    let mut unused = remember_unused_nodes(fleet, plan, kept);
    restore(&mut unused, fleet, without_turn);
    let in_shared_pause = gone_tenants::list_in_shared_pause(fleet, &unused);
    context.tenants.set_in_shared_pause(in_shared_pause);
    reconcile_tenants(context, &context.tenants.set_unused_nodes(unused));
}

/// Restores what was known of tenants before the plan. The selectors of their claims had no turn, so that they got nodes which their pods cannot use.
fn restore(unused: &mut UnusedNodesByTenant, fleet: &Fleet, uids: &BTreeSet<String>) {
    for tenant in fleet.tenants.iter().filter(|tenant| uids.contains(&tenant.uid)) {
        if tenant.unused.is_empty() {
            unused.remove(&tenant.uid);
        } else {
            unused.insert(tenant.uid.clone(), tenant.unused.clone());
        }
    }
}

/// Pause before the status of a pool says which nodes cannot be assigned: pods come and go there.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(1);

/// Keeps which nodes cannot be assigned, and why, and reconciles the pools for which that changed.
pub fn update_unavailable_nodes(context: &NodesContext, fleet: &Fleet) {
    for pool in context.unavailable.update(list_unavailable(fleet)) {
        context.queue.add_after(Key::Pool(pool), UNAVAILABLE_PAUSE);
    }
}

/// Keeps how many nodes of pools are not Ready, and reconciles the pools for which that changed.
pub fn update_pool_health(context: &NodesContext, plan: &Plan) {
    context.metrics.repair.record(&plan.pool_health);
    for pool in context.health.update(plan.pool_health.clone()) {
        context.queue.add(Key::Pool(pool));
    }
}

/// Each pool has an entry, so that the first plan of a new control corrects also what the status says of a pool without such nodes.
fn list_unavailable(fleet: &Fleet) -> BTreeMap<String, UnavailableNodes> {
    let pools = fleet
        .pools
        .iter()
        .map(|pool| (pool.name.clone(), UnavailableNodes::new()));
    let mut found: BTreeMap<String, UnavailableNodes> = pools.collect();
    for node in &fleet.nodes {
        if let NodeState::Unavailable { reason } = &node.state {
            let of_pool = found.entry(node.pool.clone()).or_default();
            of_pool.insert(node.name.clone(), reason.clone());
        }
    }
    found
}

fn reconcile_tenants(context: &NodesContext, uids: &BTreeSet<String>) {
    if uids.is_empty() {
        return;
    }
    for cluster in context.stores.tenants.state() {
        if cluster.uid().is_some_and(|uid| uids.contains(&uid)) {
            context.queue.add(Key::of_tenant(&cluster));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::nodes::requested::UnavailableTracker;
    use berth_planner::{Node, Pool, Tenant, UnusedNodes};

    #[test]
    fn the_first_plan_says_of_each_pool_which_nodes_cannot_be_assigned() {
        let pool = |name: &str| Pool {
            name: name.into(),
            ..Pool::default()
        };
        let mut fleet = Fleet {
            pools: vec![pool("h100"), pool("l40s")],
            ..Fleet::default()
        };
        let known = UnavailableTracker::default();
        assert_eq!(known.update(list_unavailable(&fleet)), ["h100", "l40s"]);
        assert!(known.update(list_unavailable(&fleet)).is_empty());
        let reason = "it is in use: shop/web-1 runs there".to_owned();
        fleet.nodes.push(Node {
            name: "n1".into(),
            pool: "l40s".into(),
            state: NodeState::Unavailable { reason },
            ..Node::default()
        });
        assert_eq!(known.update(list_unavailable(&fleet)), ["l40s"]);
    }

    #[test]
    fn nodes_are_not_unused_by_a_tenant_whose_selectors_had_no_turn() {
        let times = |times| {
            let unused = UnusedNodes {
                times,
                ..UnusedNodes::default()
            };
            BTreeMap::from([("h100".to_owned(), unused)])
        };
        let tenant = |uid: &str, unused| Tenant {
            uid: uid.into(),
            unused,
            ..Tenant::default()
        };
        let fleet = Fleet {
            tenants: vec![
                tenant("a", times(1)),
                tenant("b", BTreeMap::new()),
                tenant("c", times(1)),
            ],
            ..Fleet::default()
        };
        let mut unused: UnusedNodesByTenant = ["a", "b", "c"].map(|uid| (uid.to_owned(), times(2))).into();
        restore(&mut unused, &fleet, &["a".to_owned(), "b".to_owned()].into());
        let expected: UnusedNodesByTenant = [("a".to_owned(), times(1)), ("c".to_owned(), times(2))].into();
        assert_eq!(unused, expected);
    }
}
