//! What goes into the planner and what comes out. Times are seconds since the epoch, spans are seconds.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds since the epoch, or a span of seconds.
pub type Seconds = i64;

/// Whole units of resources by name: `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`, `dra:gpu.nvidia.com`, …
pub type Amounts = BTreeMap<String, u64>;

/// Everything that a decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Fleet {
    /// The time of the decision.
    pub now: Seconds,
    /// Pools. A node belongs to one of them at most.
    pub pools: Vec<Pool>,
    /// Nodes of the pools.
    pub nodes: Vec<Node>,
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// The quota tree above the tenants. Tenants whose `share` names none of these stand below the root, with weight 1.
    pub shares: Vec<Share>,
}

/// Nodes of one product, and how they are handed out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pool {
    /// Name.
    pub name: String,
    /// The resource that counts GPUs: what shares are measured in. None: each node counts as one.
    pub resource: Option<String>,
    /// Whether whole topology domains are to be kept together (the pool has a topology key).
    pub has_domains: bool,
    /// How long a node stays with a tenant at least, unless the tenant gives it back itself.
    pub minimum_tenure: Seconds,
    /// How long a node must have been idle before it goes back to the pool.
    pub idle_after: Seconds,
    /// Warning time between the decision to reclaim a node from a borrower and its draining.
    pub reclaim_grace: Seconds,
    /// How long it takes to hand a node on, as far as known: cordon to free. Used in explanations only.
    pub handover: Seconds,
    /// In which order tenants that wait are served.
    pub order: Order,
    /// For whom borrowed nodes are taken back.
    pub reclaim: Reclaim,
    /// How long a gang that is next may be overtaken by smaller demand before free nodes are kept for it. None: ten
    /// minutes.
    pub patience: Option<Seconds>,
    /// Whether, and how far, somebody adds nodes to the pool who sees what it lacks. None: nobody does.
    pub growth: Option<Growth>,
}

/// How far a pool may grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Growth {
    /// Nodes that it may have in all. None: as many as whoever adds them allows.
    pub most_nodes: Option<u32>,
    /// What a new node holds, as long as there is none to look at; what is not named it holds in plenty. None: nobody
    /// knows.
    pub node: Option<Amounts>,
    /// Pods that may be asked for at the same time. None: no limit.
    pub most_pods: Option<u32>,
}

/// For whom nodes are taken back from those who hold more than they are guaranteed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reclaim {
    /// For nobody: a node stays until its tenant no longer uses it.
    Never,
    /// For demand within its guarantee, and for demand of higher priority than what runs there.
    #[default]
    Guaranteed,
    /// Also for whoever has less than its fair share, from whoever has more.
    FairShare,
}

/// In which order waiting demand is served within a pool, after guarantees and priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Whoever has the least of its fair share first.
    #[default]
    FairShare,
    /// Whoever waits longest first.
    Fifo,
}

/// A node as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Node {
    /// Name, unique.
    pub name: String,
    /// Name of its pool.
    pub pool: String,
    /// Topology domain (NVLink clique, rack) within the pool.
    pub domain: Option<String>,
    /// Labels that selectors of demand may ask for.
    pub labels: BTreeMap<String, String>,
    /// What an empty node of its kind can hold.
    pub capacity: Amounts,
    /// What running pods of its tenant hold. The rest is free for the tenant.
    pub used: Amounts,
    /// Pods of its tenant on it.
    pub pods: u32,
    /// Since when no pod that asks for GPUs is on it. None: it is in use.
    pub idle_since: Option<Seconds>,
    /// The highest priority among the pods that use it.
    pub priority: i32,
    /// Gangs that run on it and on other nodes. A gang that loses one of its nodes stops on all of them.
    pub gangs: BTreeSet<String>,
    /// It has an owner and is of no use now (not Ready, cordoned by people): it counts, but nothing can be placed on it.
    pub broken: bool,
    /// It has no owner, and cannot be given yet because it came a short while ago.
    pub starting: bool,
    /// Where it stands.
    pub state: NodeState,
}

/// Where a node stands in its life.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum NodeState {
    /// No owner, clean, Ready: can be given to anybody.
    #[default]
    Free,
    /// No owner, and cannot be given: not Ready, cordoned by people, quarantined. The words say why.
    Unavailable {
        /// Why, in words.
        why: String,
    },
    /// Belongs to a tenant or is promised to it.
    Owned(Owner),
    /// On its way back: being drained for good, scrubbed or validated. Nobody's, and Free soon.
    Returning {
        /// Who had it.
        from: String,
        /// When it began to return.
        since: Seconds,
    },
}

/// Whom a node belongs to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Owner {
    /// UID of the tenant.
    pub tenant: String,
    /// The tenant's node group.
    pub group: String,
    /// Since when.
    pub since: Seconds,
    /// How far.
    pub phase: Phase,
}

/// How far an owned node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum Phase {
    /// Promised; no pod can come yet. It joins as soon as the tenant's group has `of` nodes, counting those that are
    /// Reserved, Joining and Assigned, this one included. Taken back if the others do not come.
    Reserved {
        /// How many nodes the group must have before this one joins: all of a gang's; 1 where nothing is awaited.
        of: u32,
    },
    /// Being prepared for the tenant.
    Joining,
    /// Serves the tenant.
    #[default]
    Assigned,
    /// Cordoned, to be released: no new pods, running ones may stay until `until`. Can still be kept.
    Cordoned {
        /// When draining begins.
        until: Seconds,
    },
}

/// A part of the quota tree: an organization, a project, a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Share {
    /// Name, unique in the tree.
    pub name: String,
    /// Name of the share above. None: the root.
    pub parent: Option<String>,
    /// Its weight among its siblings where they compete for what nobody is guaranteed. 0 counts as 1.
    pub weight: u32,
    /// GPUs of each pool that are its own: it gets them back from borrowers whenever it asks.
    pub guaranteed: BTreeMap<String, u64>,
    /// How many of its guaranteed GPUs others may borrow while it does not use them; absent: all of them.
    pub lendable: BTreeMap<String, u64>,
    /// GPUs of each pool that it may have at most, borrowed ones included; absent: no limit.
    pub limit: BTreeMap<String, u64>,
}

/// A tenant as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tenant {
    /// UID of the `TenantCluster`.
    pub uid: String,
    /// `namespace/name`, for words.
    pub name: String,
    /// When it was made: the last tie-breaker.
    pub created: Seconds,
    /// The share it belongs to.
    pub share: Option<String>,
    /// Its weight among the tenants of its share. 0 counts as 1.
    pub weight: u32,
    /// What it asks for.
    pub groups: Vec<Group>,
    /// Whether it is being deleted and nothing of it runs, so that its nodes can be released at once.
    pub gone: bool,
}

/// A node group of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Group {
    /// Name, unique within the tenant.
    pub name: String,
    /// Pool that its nodes come from.
    pub pool: String,
    /// Nodes that it has whatever happens: a private group's count, a dynamic one's floor.
    pub min: u32,
    /// Nodes that it has at most. Equal to `min` for a private group.
    pub max: u32,
    /// What waits for nodes of this group, in the order in which it began to wait.
    pub demand: Vec<Demand>,
}

/// Pods that wait together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Demand {
    /// Name for words: the pod's or the gang's.
    pub name: String,
    /// Higher goes first; pods of higher priority reclaim what lower ones borrowed.
    pub priority: i32,
    /// Since when it waits.
    pub since: Seconds,
    /// Pods that are alike, with their number. More than one entry only for gangs.
    pub pods: Vec<Pods>,
    /// All of its pods or none of them: a gang. Without it each pod is served by itself.
    pub gang: bool,
    /// All of its nodes in one topology domain.
    pub one_domain: Domain,
    /// Labels that its nodes must carry.
    pub selector: BTreeMap<String, String>,
    /// It is served by nodes that are there, and none is asked for in a pool that grows: nobody could say what node it needs.
    pub only_known_nodes: bool,
}

/// Pods that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pods {
    /// How many.
    pub count: u32,
    /// What each asks for.
    pub each: Amounts,
}

/// What a gang wants of topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Domain {
    /// Wherever there is room; still as few domains as possible.
    #[default]
    Any,
    /// One domain or wait.
    Required,
}

/// One change of one node, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// The node.
    pub node: String,
    /// What to do with it.
    #[serde(rename = "do")]
    pub step: Step,
    /// Why, in words for people.
    pub why: String,
}

/// What to do with a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub enum Step {
    /// Promise a free node to a tenant. On a node that is Reserved for this very group already: `of` is another now.
    Reserve {
        /// UID of the tenant.
        tenant: String,
        /// Its node group.
        group: String,
        /// What becomes [`Phase::Reserved`]'s `of`.
        of: u32,
    },
    /// Take a promise back.
    Unreserve,
    /// Take a node from its tenant: cordon it now, drain it from `until` on. A node that is cordoned already gets the
    /// earlier time.
    Release {
        /// When draining begins: now for an idle node, later for one whose borrower is warned.
        until: Seconds,
    },
    /// Leave a cordoned node to its tenant after all.
    Keep,
}

/// What the planner decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Changes, in a stable order; one a node at most.
    pub actions: Vec<Action>,
    /// Where each node group stands, by tenant UID and group name.
    pub groups: BTreeMap<String, BTreeMap<String, Standing>>,
    /// When to plan again although nothing changes: the next time at which a span (tenure, idleness, grace) ends.
    pub again_at: Option<Seconds>,
    /// What pools that may grow lack, by pool.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub asks: BTreeMap<String, Ask>,
}

/// What a pool that may grow lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ask {
    /// Nodes that have to come, as far as their size is known.
    pub nodes: u32,
    /// For what.
    pub shortages: Vec<Shortage>,
    /// Why more is not asked for, in words for people.
    pub held_back: Option<String>,
}

impl Ask {
    /// Pods that are asked for.
    pub fn pods(&self) -> u32 {
        let pods = self.shortages.iter().flat_map(|shortage| &shortage.pods);
        pods.fold(0, |sum, pods| sum.saturating_add(pods.count))
    }
}

/// Pods for which there are not enough nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Shortage {
    /// UID of the tenant.
    pub tenant: String,
    /// Its node group.
    pub group: String,
    /// The pod's name, or the gang's; empty for nodes that the group has whatever happens.
    pub name: String,
    /// All of them or none.
    pub gang: bool,
    /// Each needs a node of its own: whole nodes are asked for.
    pub whole_nodes: bool,
    /// All in one topology domain.
    pub one_domain: bool,
    /// Pods that are alike, with their number.
    pub pods: Vec<Pods>,
    /// Labels that their nodes must carry.
    pub selector: BTreeMap<String, String>,
}

/// Where a node group stands, in numbers and words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Standing {
    /// Nodes that it should have now: its floor, and what its demand needs and its share allows.
    pub desired: u32,
    /// Nodes that it has (promised ones and those being cordoned included).
    pub held: u32,
    /// Nodes that its demand needs beyond what it holds or is given by this plan.
    pub waiting: u32,
    /// Nodes that it holds beyond its guarantee.
    pub borrowed: u32,
    /// Why it has what it has and waits for what it waits for, in words for people. Empty: nothing to say.
    pub why: String,
}
