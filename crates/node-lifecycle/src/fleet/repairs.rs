//! What decides about nodes that are not Ready and does not show on each of them: how many others of their pool are not Ready, and what their tenant may have.

use super::{SnapshotInput, growth::is_starting, nodes::ObservedNode, tenants::gets_no_nodes};
use crate::{
    assignment::is_cordoned_by_people,
    repair::{broken_since, repair_policy},
};
use berth_api::{HostNodePool, is_node_ready};
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::collections::BTreeSet;

/// Which nodes that are not Ready are left as they are.
pub(super) struct Repairs {
    /// Names of pools of which more nodes are not Ready than may be.
    outages: BTreeSet<String>,
    /// UIDs of tenants that get no nodes.
    keeping: BTreeSet<String>,
}

impl Repairs {
    pub(super) fn observe(input: &SnapshotInput<'_>, pools: &[&HostNodePool], observed: &[ObservedNode<'_>]) -> Self {
        let outages = pools.iter().filter(|pool| is_outage(pool, observed, input.now));
        let keeping = input.tenants.iter().filter(|tenant| gets_no_nodes(tenant));
        Self {
            outages: outages.map(|pool| pool.name_any()).collect(),
            keeping: keeping.filter_map(|tenant| tenant.cluster.uid()).collect(),
        }
    }

    /// Whether a node is repaired: it is not Ready for too long, and that is no outage. Once it is drained its tenant does not get it back.
    pub(super) fn is_repaired(&self, node: &ObservedNode<'_>, pool: &HostNodePool, now: Timestamp) -> bool {
        !self.outages.contains(&node.pool) && broken_since(node.object, &pool.spec, now).is_some()
    }

    /// Whether a node stays with its tenant although it is not Ready: people work on it, or its tenant would get no other one in its place.
    pub(super) fn is_exempt(&self, node: &ObservedNode<'_>) -> bool {
        let assignment = node.assignment.as_ref();
        is_cordoned_by_people(node.object)
            || assignment.is_some_and(|assignment| self.keeping.contains(&assignment.uid))
    }
}

/// Whether more nodes of a pool are not Ready than may be.
fn is_outage(pool: &HostNodePool, observed: &[ObservedNode<'_>], now: Timestamp) -> bool {
    let name = pool.name_any();
    let of_pool = || observed.iter().filter(|node| node.pool == name);
    let Some(policy) = repair_policy(pool, of_pool().count(), now) else {
        return false;
    };
    let not_ready = of_pool().filter(|node| !is_node_ready(node.object) && !is_starting(node, now.as_second()));
    not_ready.count() > policy.max_unhealthy as usize
}
