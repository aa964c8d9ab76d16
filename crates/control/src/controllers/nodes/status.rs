//! What a plan says of tenants, for their status.

use super::NodesContext;
use crate::key::Key;
use berth_planner::{Fleet, Plan, remember_unused_nodes};
use kube::ResourceExt;
use std::collections::BTreeSet;

/// Keeps what the plan says of each node group, and reconciles the tenants for which that changed.
pub fn update_group_status(context: &NodesContext, plan: &Plan) {
    reconcile_tenants(context, &context.tenants.set_node_group_plans(&plan.node_groups));
}

/// Keeps what is known of nodes that tenants did not use, after the plan was carried out except the release of the nodes `kept`.
pub fn update_unused_nodes(context: &NodesContext, fleet: &Fleet, plan: &Plan, kept: &BTreeSet<String>) {
    let unused = remember_unused_nodes(fleet, plan, kept);
    reconcile_tenants(context, &context.tenants.set_unused_nodes(unused));
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
