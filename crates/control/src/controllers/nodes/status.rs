//! What a plan says of the node groups of tenants, for their status.

use super::NodesContext;
use crate::key::Key;
use berth_planner::Plan;
use kube::ResourceExt;

/// Keeps what the plan says of each tenant, and reconciles the tenants for which that changed.
pub fn update_group_status(context: &NodesContext, plan: &Plan) {
    let changed = context.tenants.set_plan(plan);
    if changed.is_empty() {
        return;
    }
    for cluster in context.stores.tenants.state() {
        if cluster.uid().is_some_and(|uid| changed.contains(&uid)) {
            context.queue.add(Key::of_tenant(&cluster));
        }
    }
}
