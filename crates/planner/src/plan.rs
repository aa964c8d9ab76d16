//! The output of the planner.

use crate::{ActionReason, PodSet, PoolHealth, ScaleUpLimited, Seconds, Unplanned, UnusedNodesByTenant, Wait};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the planner decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Sorted by node; at most one for each node.
    pub actions: Vec<Action>,
    /// What is planned for each node group, by tenant UID and group name.
    pub node_groups: BTreeMap<String, BTreeMap<String, NodeGroupPlan>>,
    /// When to plan again even if nothing changes: the next end of a hold duration, an idle timeout or a grace period.
    pub replan_at: Option<Seconds>,
    /// Nodes that an autoscaler is to add, by pool.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scale_ups: BTreeMap<String, ScaleUp>,
    /// How many nodes are not Ready, by pool; only pools that repair their nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pool_health: BTreeMap<String, PoolHealth>,
    /// What is known of nodes that tenants did not use, by tenant UID and pool. The next plan needs it, see
    /// [`remember_unused_nodes`](crate::remember_unused_nodes).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unused_nodes: UnusedNodesByTenant,
    /// The same without the releases of this plan, of tenants of which it releases nodes that no pod used: some releases may fail.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unused_before: UnusedNodesByTenant,
}

/// One change of one node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// Name of the node.
    pub node: String,
    /// What to do with it.
    pub kind: ActionKind,
    /// Why.
    pub reason: ActionReason,
}

/// What to do with a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do")]
pub enum ActionKind {
    /// Reserve a free node for a node group. On a node that is already reserved for this group: change `required_nodes`.
    Reserve {
        /// UID of the tenant.
        tenant: String,
        /// Name of the tenant's node group.
        node_group: String,
        /// See [`Phase::Reserved`](crate::Phase::Reserved).
        required_nodes: u32,
    },
    /// Free a reserved node that has not joined yet.
    CancelReservation,
    /// Take a node from its tenant: cordon it now, drain it from `drain_at` on. A node that is cordoned already gets the
    /// earlier time.
    Release {
        /// Now for an idle node; after the grace period for one in use.
        drain_at: Seconds,
    },
    /// Leave a cordoned node to its tenant after all.
    CancelRelease,
}

/// What is planned for a node group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeGroupPlan {
    /// Name of its pool.
    pub pool: String,
    /// Nodes that it should have now: its minimum, and what its requests need and its quota allows.
    pub desired: u32,
    /// Nodes that it has, reserved and cordoned ones included.
    pub held: u32,
    /// Nodes that its requests need beyond what it holds or gets by this plan.
    pub waiting: u32,
    /// Nodes that it holds beyond its nominal quota. Those of its minimum only if others may be owed them.
    pub borrowed: u32,
    /// What it waits for: two entries at most.
    pub waits: Vec<Wait>,
    /// How many more requests wait.
    pub more_waits: u32,
    /// Nodes that are requested from an autoscaler for this group.
    pub requested_nodes: u32,
    /// Pods for which no nodes are planned.
    pub unplanned: BTreeSet<Unplanned>,
    /// It waits, and until then other tenants are served first: its tenant did not use nodes that it had. None: it has its turn.
    pub served_last_until: Option<Seconds>,
    /// It waits, and until then nothing is reclaimed for it: another tenant of its quota did not use nodes that it had.
    pub reclaims_none_until: Option<Seconds>,
}

/// Nodes that an autoscaler is to add to a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScaleUp {
    /// How many nodes, as far as their size is known.
    pub nodes: u32,
    /// The pods that need them.
    pub shortages: Vec<Shortage>,
    /// Why no more nodes are requested.
    pub limited_by: Option<ScaleUpLimited>,
}

impl ScaleUp {
    /// Counts the pods for which nodes are requested.
    pub fn count_pods(&self) -> u32 {
        let pod_sets = self.shortages.iter().flat_map(|shortage| &shortage.pod_sets);
        pod_sets.fold(0, |sum, pods| sum.saturating_add(pods.count))
    }
}

/// Pods for which a pool has too few nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Shortage {
    /// UID of the tenant.
    pub tenant: String,
    /// Name of the tenant's node group.
    pub node_group: String,
    /// Name of the pod or the gang; empty for the minimum of a node group.
    pub name: String,
    /// Whether the pods start together or not at all.
    pub gang: bool,
    /// Whether each pod needs a node of its own.
    pub whole_nodes: bool,
    /// Whether all nodes must be in one topology domain.
    pub single_domain: bool,
    /// The pods; for the minimum of a node group, one for each node.
    pub pod_sets: Vec<PodSet>,
    /// Labels that the nodes must carry.
    pub selector: BTreeMap<String, String>,
}
