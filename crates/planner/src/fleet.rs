//! What goes into the planner: a snapshot of the fleet.

use crate::{RepairPolicy, UnusedNodes};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A time in seconds since the epoch, or a duration in seconds.
pub type Seconds = i64;

/// Whole units of resources by name: `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `dra:gpu.nvidia.com`, …
pub type Amounts = BTreeMap<String, u64>;

/// Everything that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Fleet {
    /// The time at which the plan is made.
    pub now: Seconds,
    /// Each pool is planned separately.
    pub pools: Vec<Pool>,
    /// A node belongs to one pool at most.
    pub nodes: Vec<Node>,
    /// All tenants, those without any node included.
    pub tenants: Vec<Tenant>,
    /// The quota tree above the tenants. A tenant whose `quota` names none of these is below the root, with weight 1.
    pub quotas: Vec<Quota>,
}

/// Nodes of one product, and the policy by which they are assigned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pool {
    /// Unique in the fleet.
    pub name: String,
    /// The resource that counts GPUs, which is the unit of quotas. None: each node counts as one GPU, and the pool has none.
    pub gpu_resource_name: Option<String>,
    /// GPUs that a node counts for at least in quotas: what it has once it is assigned, which may be more than while it is free. 0: what
    /// it has.
    pub least_gpus: u64,
    /// Product of its GPUs, by which quotas limit several pools together. None: no limit of a product counts it.
    pub product: Option<String>,
    /// Whether the pool has a topology key, so that whole topology domains are kept together.
    pub has_domains: bool,
    /// Whether nodes have other resources once they serve a tenant: a MIG layout is set, or GPUs are shared. What pods need is counted by what
    /// free nodes have, so a tenant may get more nodes than its pods use.
    pub divides_nodes: bool,
    /// The minimum time that a node stays with a tenant, unless the tenant itself gives it back.
    pub min_hold_duration: Seconds,
    /// How long a node must be idle before it is released.
    pub idle_timeout: Seconds,
    /// Time between the decision to reclaim a borrowed node and the start of its drain.
    pub reclaim_grace_period: Seconds,
    /// Which request is served first.
    pub order: Order,
    /// When borrowed nodes are reclaimed.
    pub reclaim: Reclaim,
    /// How long smaller requests may overtake a gang that is next. After that, free nodes are kept for the gang. None: ten
    /// minutes.
    pub starvation_limit: Option<Seconds>,
    /// How far an autoscaler may extend the pool. None: the pool is not scaled.
    pub scale_up: Option<ScaleUpLimits>,
    /// When nodes that are not Ready are taken from their tenants. None: never.
    pub repair: Option<RepairPolicy>,
}

impl Pool {
    /// GPUs that a node of the pool counts for in quotas.
    pub fn count_gpus(&self, node: &Node) -> u64 {
        let reported = self.gpu_resource_name.as_ref().and_then(|name| node.capacity.get(name));
        self.count_reported(reported.copied().unwrap_or_default().max(node.recorded_gpus))
    }

    /// GPUs that a node counts for in quotas which has this many of the pool's resource. A node without any counts as one.
    pub(crate) fn count_reported(&self, gpus: u64) -> u64 {
        self.gpu_resource_name
            .as_ref()
            .map_or(1, |_| gpus.max(self.least_gpus).clamp(1, MAX_NODE_GPUS))
    }
}

/// How far an autoscaler may extend a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScaleUpLimits {
    /// The most nodes that the pool may have in all. None: the autoscaler decides.
    pub max_nodes: Option<u32>,
    /// Capacity of a new node, used while the pool has no node to learn it from. A resource that is missing here does not
    /// limit what fits. None: unknown.
    pub node_capacity: Option<Amounts>,
    /// The most pods for which nodes are requested at the same time. None: no limit.
    pub max_pods: Option<u32>,
}

/// When a borrowed node is reclaimed for another tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reclaim {
    /// Never: a node stays until its tenant no longer uses it.
    Never,
    /// For a request within its nominal quota, and for a request of higher priority than the pods on the node.
    #[default]
    NominalQuota,
    /// Also for a tenant below its fair share, from a tenant above its own.
    FairShare,
}

/// In which order waiting requests of a pool are served, after nominal quotas and priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// The tenant with the least of its fair share first.
    #[default]
    FairShare,
    /// The request that waits longest first.
    Fifo,
}

/// A node as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Node {
    /// Unique in the fleet.
    pub name: String,
    /// Name of the pool that it belongs to.
    pub pool: String,
    /// Topology domain within the pool: an NVLink clique, a rack.
    pub domain: Option<String>,
    /// Labels that requests may select.
    pub labels: BTreeMap<String, String>,
    /// Capacity of the node when it is empty.
    pub capacity: Amounts,
    /// GPUs that quotas count at least: the most that it had since its tenant has it. 0 without a tenant. What a kubelet of a tenant's node
    /// reports cannot be trusted: with fewer GPUs, the tenant would get further nodes.
    pub recorded_gpus: u64,
    /// Resources that running pods of its tenant use. The rest is free for the tenant.
    pub used: Amounts,
    /// Pods of its tenant on it.
    pub pods: u32,
    /// Since when no pod with GPUs runs on it. None: it is in use.
    pub idle_since: Option<Seconds>,
    /// Since when it is free. None: it is not, or that is not known.
    pub free_since: Option<Seconds>,
    /// Only pods that use none of its devices keep it: they would come again if it were released as idle. It is idle all the same, and
    /// goes to others that lack it.
    pub kept_by_pods: bool,
    /// The highest priority among the pods that use it.
    pub priority: i32,
    /// Gangs that run on this node and on others. A gang that loses one of its nodes stops on all of them.
    pub gangs: BTreeSet<String>,
    /// It has an owner and cannot run pods now (not Ready, cordoned by an administrator, or idle and closed for new pods by the platform): it
    /// counts as held, but no pods are placed on it.
    pub unusable: bool,
    /// It has an owner, and would go to no other tenant if it were free now: it has little memory, for example. Pods that wait for it may be
    /// unable to start for the same reason.
    pub closed: bool,
    /// Since when it is not Ready. None: it is Ready.
    pub not_ready_since: Option<Seconds>,
    /// It stays with its tenant although it is not Ready: people have cordoned it, or its tenant gets no other node now.
    pub exempt_from_repair: bool,
    /// It has no owner and is too new to be assigned yet.
    pub starting: bool,
    /// Whether it is free, and which tenant has it.
    pub state: NodeState,
}

impl Node {
    /// Whether pods run there for which its tenant needs it: they use its devices, or keep it without using them.
    pub(crate) fn has_users(&self) -> bool {
        self.idle_since.is_none() || self.kept_by_pods
    }

    /// The node group that it is assigned to or reserved for.
    pub fn owner(&self) -> Option<&Owner> {
        match &self.state {
            NodeState::Owned(owner) => Some(owner),
            _ => None,
        }
    }
}

/// The state of a node: free, or at some point of its way from one tenant to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum NodeState {
    /// No owner, clean and Ready: can be assigned to any tenant.
    #[default]
    Free,
    /// No owner, and cannot be assigned: not Ready, cordoned by an administrator, quarantined.
    Unavailable {
        /// A message for people.
        reason: String,
    },
    /// Assigned to a tenant, or reserved for it.
    Owned(Owner),
    /// Taken from its tenant, whose pods may still run there: it counts for the limits of the tenant until they have ended. Cannot be
    /// left to the tenant any more.
    Draining {
        /// UID of the tenant.
        tenant: String,
        /// When its drain began.
        since: Seconds,
    },
    /// Between two tenants: being scrubbed or validated. Free soon.
    Recycling {
        /// Slug of the tenant that had it.
        previous_tenant: String,
        /// When that began.
        since: Seconds,
    },
}

/// The node group that a node is assigned to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Owner {
    /// UID of the tenant.
    pub tenant: String,
    /// Name of the tenant's node group.
    pub node_group: String,
    /// When it was reserved.
    pub since: Seconds,
    /// How far the assignment has come.
    pub phase: Phase,
}

/// How far the assignment of a node has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum Phase {
    /// Reserved; pods cannot come yet. It joins as soon as the node group has `required_nodes` nodes that are Reserved, Joining
    /// or Assigned, this one included. The reservation is cancelled if the others do not come.
    Reserved {
        /// All nodes of the gang that the node is reserved for; 1 for a request without a gang.
        required_nodes: u32,
    },
    /// Being prepared for the tenant.
    Joining,
    /// Serves the tenant.
    #[default]
    Assigned,
    /// Cordoned before its release: no new pods, but running ones may stay until `drain_at`. The release can still be
    /// cancelled.
    Cordoned {
        /// When the drain begins.
        drain_at: Seconds,
    },
}

/// A node of the quota tree: an organization, a project, a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Quota {
    /// Unique in the tree.
    pub name: String,
    /// The quota above. None: the root. If there is no quota of this name, tenants keep what they have and get no more.
    pub parent: Option<String>,
    /// Its weight among its siblings where they compete for GPUs beyond nominal quotas. 0 counts as 1.
    pub weight: u32,
    /// GPUs of each pool that are its own: it gets them back from borrowers whenever it requests them.
    pub nominal_quota: BTreeMap<String, u64>,
    /// How many GPUs of its nominal quota others may borrow while it does not use them. Absent: all of them.
    pub lending_limit: BTreeMap<String, u64>,
    /// The most GPUs of each pool that it may have, borrowed ones included. Absent: no limit. Kueue's `borrowingLimit` is
    /// the same without the nominal quota.
    pub limit: BTreeMap<String, u64>,
    /// The most GPUs of all pools that have GPUs together. None: no limit.
    pub total_limit: Option<u64>,
    /// The most GPUs of all pools of a product together. Absent: no limit.
    pub product_limit: BTreeMap<String, u64>,
    /// Whether its tenants belong to one team: while there is a [pause](crate::UnusedNodes::paused_until) for one of them in a pool,
    /// nothing is reclaimed there for the others either.
    pub shares_pauses: bool,
}

/// A tenant as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tenant {
    /// UID of the `TenantCluster`.
    pub uid: String,
    /// `namespace/name`, for messages.
    pub name: String,
    /// When it was created: the last tie-breaker.
    pub created: Seconds,
    /// The quota that it belongs to.
    pub quota: Option<String>,
    /// Its weight among the tenants of its quota. 0 counts as 1.
    pub weight: u32,
    /// Its node groups, with their demand.
    pub node_groups: Vec<NodeGroup>,
    /// It is being deleted and none of its pods run: its nodes can be released at once.
    pub terminated: bool,
    /// What is remembered of nodes that it did not use, by pool. See [`remember_unused_nodes`](crate::remember_unused_nodes).
    pub unused: BTreeMap<String, UnusedNodes>,
}

/// Most GPUs of one node, shares of them included. A kubelet can report any number, and who is root on a node of a tenant can be its kubelet.
/// Sums of as many as a fleet has nodes, with the fractions of shares, stay within 64 bits.
pub const MAX_NODE_GPUS: u64 = 1 << 20;

/// A node group of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeGroup {
    /// Unique within the tenant.
    pub name: String,
    /// The pool that its nodes come from.
    pub pool: String,
    /// Nodes that it has without any demand: all nodes of a private group, `minReplicas` of a dynamic one. Those beyond the nominal quota
    /// of its tenant are borrowed, if others have one.
    pub min_nodes: u32,
    /// The most nodes that it may have. Equal to `min_nodes` for a private group.
    pub max_nodes: u32,
    /// Pods that wait for nodes of this group.
    pub demand: Vec<Demand>,
    /// Pods that wait for its nodes and are no part of its demand, for messages.
    pub unplanned: BTreeSet<Unplanned>,
}

/// Why pods that wait are no part of the demand of their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unplanned {
    /// More wait than are planned at a time.
    Later,
    /// One pod or gang has more constraints than all pods of a group may have.
    ManyConstraints,
    /// Their node selectors and node affinities are too large.
    LargeRules,
}

/// Pods that wait together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Demand {
    /// Name of the pod or the gang, for messages.
    pub name: String,
    /// Higher priorities are served first, and reclaim nodes that lower ones borrowed.
    pub priority: i32,
    /// When the first of its pods began to wait.
    pub waiting_since: Seconds,
    /// More than one entry only for gangs.
    pub pod_sets: Vec<PodSet>,
    /// All of its pods or none of them are placed. Otherwise each pod is served by itself.
    pub gang: bool,
    /// Whether all of its nodes must be in one domain.
    pub topology: Topology,
    /// Labels that its nodes must carry.
    pub selector: BTreeMap<String, String>,
    /// No new nodes are requested for it, because it is unknown whether a node that does not exist yet could serve it.
    pub existing_nodes_only: bool,
}

/// Pods that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSet {
    /// How many there are.
    pub count: u32,
    /// What each of them requests.
    pub requests: Amounts,
}

/// Which topology domains the nodes of a request may be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Topology {
    /// Any; still as few domains as possible.
    #[default]
    Any,
    /// All nodes in one domain.
    SingleDomain,
}
