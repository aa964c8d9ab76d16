//! The rules that every plan must keep, checked separately from the code that makes plans: by property tests, by
//! `berth simulate`, and by control, which counts violations.

use crate::{
    Action, ActionKind, ActionReason, Amounts, Fleet, GpuScope, Node, NodeGroup, NodeState, Phase, Plan, Pool, Quota,
    Tenant,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two actions for one node.
    SeveralActions {
        /// Name of the node.
        node: String,
    },
    /// An action that the state of its node does not allow: a node is reserved that is not free, or released that has no owner.
    ImpossibleAction {
        /// Name of the node.
        node: String,
    },
    /// A node group gets more nodes than it may have.
    OverMaximum {
        /// `namespace/name` of the tenant.
        tenant: String,
        /// Name of the node group.
        node_group: String,
        /// Nodes that it would have.
        held: u32,
        /// The most that it may have.
        max_nodes: u32,
    },
    /// A node group loses nodes of its minimum, although no quota is over its limit.
    BelowMinimum {
        /// `namespace/name` of the tenant.
        tenant: String,
        /// Name of the node group.
        node_group: String,
        /// Nodes that would stay.
        staying: u32,
        /// The minimum.
        min_nodes: u32,
    },
    /// A node is reserved together with others that are missing.
    IncompleteReservation {
        /// Name of the node.
        node: String,
        /// Nodes that its group must have.
        required: u32,
        /// Nodes that its group would have.
        staying: u32,
    },
    /// A quota gets more GPUs than its limit.
    OverQuota {
        /// Name of the quota.
        quota: String,
        /// Which GPUs are limited.
        scope: GpuScope,
        /// GPUs that it would have.
        gpus: u64,
        /// Its limit.
        limit: u64,
    },
    /// More nodes of a pool are reclaimed than requests wait for.
    NeedlessReclaim {
        /// Name of the pool.
        pool: String,
        /// Nodes that are reclaimed.
        reclaimed: u32,
        /// Nodes that requests wait for.
        waiting: u32,
    },
}

impl Violation {
    /// Its kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SeveralActions { .. } => "SeveralActions",
            Self::ImpossibleAction { .. } => "ImpossibleAction",
            Self::OverMaximum { .. } => "OverMaximum",
            Self::BelowMinimum { .. } => "BelowMinimum",
            Self::IncompleteReservation { .. } => "IncompleteReservation",
            Self::OverQuota { .. } => "OverQuota",
            Self::NeedlessReclaim { .. } => "NeedlessReclaim",
        }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeveralActions { node } => write!(f, "node {node} has several actions"),
            Self::ImpossibleAction { node } => write!(f, "the state of node {node} does not allow its action"),
            Self::OverMaximum {
                tenant,
                node_group,
                held,
                max_nodes,
            } => write!(
                f,
                "group {node_group} of {tenant} gets {held} nodes, but may have at most {max_nodes}"
            ),
            Self::BelowMinimum {
                tenant,
                node_group,
                staying,
                min_nodes,
            } => write!(
                f,
                "group {node_group} of {tenant} keeps {staying} nodes and its minimum is {min_nodes}"
            ),
            Self::IncompleteReservation {
                node,
                required,
                staying,
            } => write!(f, "node {node} waits for {required} nodes, but its group has {staying}"),
            Self::OverQuota {
                quota,
                scope,
                gpus,
                limit,
            } => write!(f, "{quota} gets {gpus} GPUs of {scope} and its limit is {limit}"),
            Self::NeedlessReclaim {
                pool,
                reclaimed,
                waiting,
            } => write!(
                f,
                "{reclaimed} nodes of pool {pool} are reclaimed, but requests wait for only {waiting}"
            ),
        }
    }
}

/// Finds the rules that a plan for a fleet breaks; none for a plan of [`plan`](crate::plan).
pub fn check(fleet: &Fleet, plan: &Plan) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut actions: HashMap<&str, &Action> = HashMap::new();
    for action in &plan.actions {
        if actions.insert(&action.node, action).is_some() {
            violations.push(Violation::SeveralActions {
                node: action.node.clone(),
            });
        }
    }
    let index = Index::new(fleet);
    let (mut before, mut after) = (Counts::new(&index), Counts::new(&index));
    for node in &fleet.nodes {
        let action = actions.remove(node.name.as_str());
        let claim = Claim::of(node);
        let next = match action {
            Some(action) => claim.after(action).unwrap_or_else(|| {
                violations.push(Violation::ImpossibleAction {
                    node: node.name.clone(),
                });
                claim
            }),
            None => claim,
        };
        before.add(&index, node, &claim);
        after.add(&index, node, &next);
    }
    violations.extend(
        actions
            .into_keys()
            .map(|node| Violation::ImpossibleAction { node: node.into() }),
    );
    for group in 0..index.groups.len() {
        index.check_group(group, &before, &after, &mut violations);
    }
    index.check_quotas(&before, &after, &mut violations);
    check_reclaims(fleet, plan, &index, &mut violations);
    violations
}

/// The node group that has a node, and how far the assignment has come.
#[derive(Clone, Copy)]
enum Claim<'a> {
    None,
    /// Without an owner, whether free or not.
    Free,
    Owned {
        tenant: &'a str,
        node_group: &'a str,
        /// See [`Phase::Reserved`].
        required: Option<u32>,
        cordoned: bool,
    },
}

impl<'a> Claim<'a> {
    fn of(node: &'a Node) -> Self {
        match &node.state {
            NodeState::Free => Self::Free,
            NodeState::Owned(owner) => Self::Owned {
                tenant: &owner.tenant,
                node_group: &owner.node_group,
                required: match owner.phase {
                    Phase::Reserved { required_nodes } => Some(required_nodes),
                    _ => None,
                },
                cordoned: matches!(owner.phase, Phase::Cordoned { .. }),
            },
            NodeState::Unavailable { .. } | NodeState::Recycling { .. } => Self::None,
        }
    }

    /// The claim after an action; `None`: the action is not possible.
    fn after(self, action: &'a Action) -> Option<Self> {
        match (&action.kind, self) {
            (
                ActionKind::Reserve {
                    tenant,
                    node_group,
                    required_nodes,
                },
                was,
            ) => {
                let may_reserve = match was {
                    Claim::Free => true,
                    Claim::Owned {
                        tenant: owner,
                        node_group: group,
                        required: Some(_),
                        ..
                    } => owner == tenant && group == node_group,
                    _ => false,
                };
                may_reserve.then_some(Self::Owned {
                    tenant,
                    node_group,
                    required: Some(*required_nodes),
                    cordoned: false,
                })
            }
            (ActionKind::CancelReservation, Claim::Owned { required: Some(_), .. }) => Some(Self::Free),
            (ActionKind::Release { .. }, Claim::Owned { tenant, node_group, .. }) => Some(Self::Owned {
                tenant,
                node_group,
                required: None,
                cordoned: true,
            }),
            (
                ActionKind::CancelRelease,
                Claim::Owned {
                    tenant,
                    node_group,
                    cordoned: true,
                    ..
                },
            ) => Some(Self::Owned {
                tenant,
                node_group,
                required: None,
                cordoned: false,
            }),
            _ => None,
        }
    }
}

/// A node group that the planner serves.
struct CheckedGroup<'a> {
    tenant: &'a Tenant,
    spec: &'a NodeGroup,
    /// Its quota and those above, by number.
    quotas: Vec<usize>,
}

/// Objects that are looked up by name.
struct Index<'a> {
    groups: Vec<CheckedGroup<'a>>,
    by_name: HashMap<(&'a str, &'a str), usize>,
    quotas: Vec<&'a Quota>,
    pools: Vec<&'a Pool>,
    pool_numbers: HashMap<&'a str, usize>,
}

impl<'a> Index<'a> {
    fn new(fleet: &'a Fleet) -> Self {
        let numbers: HashMap<&str, usize> = (0..fleet.quotas.len())
            .rev()
            .map(|at| (fleet.quotas[at].name.as_str(), at))
            .collect();
        let (mut groups, mut by_name) = (Vec::new(), HashMap::new());
        for tenant in fleet.tenants.iter().filter(|tenant| !tenant.terminated) {
            let quotas = list_quotas_above(tenant, &fleet.quotas, &numbers);
            for spec in &tenant.node_groups {
                by_name
                    .entry((tenant.uid.as_str(), spec.name.as_str()))
                    .or_insert(groups.len());
                groups.push(CheckedGroup {
                    tenant,
                    spec,
                    quotas: quotas.clone(),
                });
            }
        }
        Self {
            groups,
            by_name,
            quotas: fleet.quotas.iter().collect(),
            pools: fleet.pools.iter().collect(),
            pool_numbers: fleet
                .pools
                .iter()
                .enumerate()
                .map(|(at, pool)| (pool.name.as_str(), at))
                .collect(),
        }
    }

    fn check_group(&self, number: usize, before: &Counts, after: &Counts, violations: &mut Vec<Violation>) {
        let group = &self.groups[number];
        let (tenant, node_group) = (&group.tenant.name, &group.spec.name);
        let max_nodes = group.spec.max_nodes.max(group.spec.min_nodes);
        let (was, is) = (&before.of_group[number], &after.of_group[number]);
        if is.held > max_nodes && is.held > was.held {
            violations.push(Violation::OverMaximum {
                tenant: tenant.clone(),
                node_group: node_group.clone(),
                held: is.held,
                max_nodes,
            });
        }
        let over_quota = group
            .quotas
            .iter()
            .any(|quota| self.is_over_limit(*quota, &group.spec.pool, before));
        // A reservation whose other nodes have vanished may be cancelled.
        let complete = was.staying - was.count_incomplete();
        if is.staying < complete.min(group.spec.min_nodes) && !over_quota {
            violations.push(Violation::BelowMinimum {
                tenant: tenant.clone(),
                node_group: node_group.clone(),
                staying: is.staying,
                min_nodes: group.spec.min_nodes,
            });
        }
        for (node, required) in is.reserved.iter().filter(|(_, required)| *required > is.staying) {
            violations.push(Violation::IncompleteReservation {
                node: node.clone(),
                required: *required,
                staying: is.staying,
            });
        }
    }

    fn is_over_limit(&self, quota: usize, pool: &str, counts: &Counts) -> bool {
        let Some(pool) = self.pool_numbers.get(pool).map(|at| self.pools[*at]) else {
            return false;
        };
        let limits = list_limits(self.quotas[quota]).into_iter();
        limits
            .filter(|(scope, _)| scope.counts(pool))
            .any(|(scope, limit)| self.sum_gpus(&scope, &counts.of_quota[quota]) > limit)
    }

    /// GPUs of the pools in a scope, from those by pool.
    fn sum_gpus(&self, scope: &GpuScope, by_pool: &[u64]) -> u64 {
        let pools = self.pools.iter().zip(by_pool);
        pools.filter(|(pool, _)| scope.counts(pool)).map(|(_, gpus)| gpus).sum()
    }

    fn check_quotas(&self, before: &Counts, after: &Counts, violations: &mut Vec<Violation>) {
        for (number, quota) in self.quotas.iter().enumerate() {
            for (scope, limit) in list_limits(quota) {
                let gpus = |counts: &Counts| self.sum_gpus(&scope, &counts.of_quota[number]);
                let (was, is) = (gpus(before), gpus(after));
                if is > limit && is > was {
                    violations.push(Violation::OverQuota {
                        quota: quota.name.clone(),
                        scope,
                        gpus: is,
                        limit,
                    });
                }
            }
        }
    }
}

/// All limits of a quota.
fn list_limits(quota: &Quota) -> Vec<(GpuScope, u64)> {
    let of_pools = quota.limit.iter();
    let of_pools = of_pools.map(|(pool, limit)| (GpuScope::Pool(pool.clone()), *limit));
    let of_products = quota.product_limit.iter();
    let of_products = of_products.map(|(product, limit)| (GpuScope::Product(product.clone()), *limit));
    let of_all = quota.total_limit.map(|limit| (GpuScope::AllPools, limit));
    of_pools.chain(of_products).chain(of_all).collect()
}

impl GpuScope {
    /// Whether the GPUs of a pool are among those.
    fn counts(&self, pool: &Pool) -> bool {
        match self {
            Self::Pool(name) => pool.name == *name,
            Self::AllPools => pool.gpu_resource_name.is_some(),
            Self::Product(product) => pool.product.as_ref() == Some(product),
        }
    }
}

/// The quota of a tenant and those above it, as far as they are known; a cycle ends where it closes.
fn list_quotas_above(tenant: &Tenant, quotas: &[Quota], numbers: &HashMap<&str, usize>) -> Vec<usize> {
    let mut path = Vec::new();
    let mut name = tenant.quota.as_deref();
    while let Some(number) = name.and_then(|name| numbers.get(name)).copied() {
        if path.contains(&number) {
            break;
        }
        path.push(number);
        name = quotas[number].parent.as_deref();
    }
    path
}

/// Nodes of a node group.
#[derive(Clone, Default)]
struct GroupCounts {
    held: u32,
    /// Those of them that are not cordoned.
    staying: u32,
    /// Reserved ones, with the number of nodes that their group must have.
    reserved: Vec<(String, u32)>,
}

impl GroupCounts {
    fn count_incomplete(&self) -> u32 {
        let incomplete = self.reserved.iter().filter(|(_, required)| *required > self.staying);
        u32::try_from(incomplete.count()).unwrap_or(u32::MAX)
    }
}

/// Nodes of node groups and GPUs of quotas.
struct Counts {
    of_group: Vec<GroupCounts>,
    /// GPUs by quota and pool.
    of_quota: Vec<Vec<u64>>,
}

impl Counts {
    fn new(index: &Index<'_>) -> Self {
        Self {
            of_group: vec![GroupCounts::default(); index.groups.len()],
            of_quota: vec![vec![0; index.pools.len()]; index.quotas.len()],
        }
    }

    fn add(&mut self, index: &Index<'_>, node: &Node, claim: &Claim<'_>) {
        let Claim::Owned {
            tenant,
            node_group,
            required,
            cordoned,
        } = claim
        else {
            return;
        };
        // A node of a group that no longer exists is released, and does not count.
        let Some(number) = index.by_name.get(&(*tenant, *node_group)).copied() else {
            return;
        };
        let group = &index.groups[number];
        if group.spec.pool != node.pool {
            return;
        }
        let counts = &mut self.of_group[number];
        counts.held += 1;
        counts.staying += u32::from(!cordoned);
        counts
            .reserved
            .extend(required.map(|required| (node.name.clone(), required)));
        let Some(pool) = index.pool_numbers.get(node.pool.as_str()).copied() else {
            return;
        };
        let gpus = count_gpus(&node.capacity, index.pools[pool]);
        for quota in &group.quotas {
            self.of_quota[*quota][pool] += gpus;
        }
    }
}

/// GPUs that a node counts for in quotas: a node without any counts as one.
fn count_gpus(capacity: &Amounts, pool: &Pool) -> u64 {
    let gpus = pool.gpu_resource_name.as_ref().and_then(|name| capacity.get(name));
    gpus.copied().unwrap_or_default().max(1)
}

fn check_reclaims(fleet: &Fleet, plan: &Plan, index: &Index<'_>, violations: &mut Vec<Violation>) {
    let is_reclaimed = |action: &&Action| matches!(action.reason, ActionReason::Reclaimed { .. });
    let reclaimed: BTreeSet<&str> = plan
        .actions
        .iter()
        .filter(is_reclaimed)
        .map(|action| action.node.as_str())
        .collect();
    if reclaimed.is_empty() {
        return;
    }
    for pool in &index.pools {
        let of_pool = fleet.nodes.iter().filter(|node| node.pool == pool.name);
        let taken = of_pool.filter(|node| reclaimed.contains(node.name.as_str())).count();
        let groups = plan.node_groups.values().flat_map(|groups| groups.values());
        let waiting: u32 = groups
            .filter(|group| group.pool == pool.name)
            .map(|group| group.waiting)
            .sum();
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        if taken > waiting {
            violations.push(Violation::NeedlessReclaim {
                pool: pool.name.clone(),
                reclaimed: taken,
                waiting,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeGroupPlan, Owner, RequestName};

    const POOL: &str = "h100";

    fn node(name: &str, phase: Option<Phase>) -> Node {
        let owner = |phase| Owner {
            tenant: "uid".into(),
            node_group: "train".into(),
            phase,
            ..Owner::default()
        };
        Node {
            name: name.into(),
            pool: POOL.into(),
            capacity: [("gpu".to_owned(), 8)].into(),
            state: phase.map_or(NodeState::Free, |phase| NodeState::Owned(owner(phase))),
            ..Node::default()
        }
    }

    /// A tenant with a group of one to two nodes and a quota of 16 GPUs, which has two nodes; a third one is free.
    fn fleet() -> Fleet {
        Fleet {
            pools: vec![Pool {
                name: POOL.into(),
                gpu_resource_name: Some("gpu".into()),
                ..Pool::default()
            }],
            nodes: vec![
                node("n1", Some(Phase::Assigned)),
                node("n2", Some(Phase::Assigned)),
                node("n3", None),
            ],
            tenants: vec![Tenant {
                uid: "uid".into(),
                name: "ml/vision".into(),
                quota: Some("gold".into()),
                node_groups: vec![NodeGroup {
                    name: "train".into(),
                    pool: POOL.into(),
                    min_nodes: 1,
                    max_nodes: 2,
                    ..NodeGroup::default()
                }],
                ..Tenant::default()
            }],
            quotas: vec![Quota {
                name: "gold".into(),
                limit: [(POOL.to_owned(), 16)].into(),
                ..Quota::default()
            }],
            ..Fleet::default()
        }
    }

    fn action(node: &str, kind: ActionKind) -> Action {
        Action {
            node: node.into(),
            kind,
            reason: ActionReason::StillInUse,
        }
    }

    fn reserve(node: &str, required_nodes: u32) -> Action {
        let kind = ActionKind::Reserve {
            tenant: "uid".into(),
            node_group: "train".into(),
            required_nodes,
        };
        action(node, kind)
    }

    fn release(node: &str) -> Action {
        action(node, ActionKind::Release { drain_at: 0 })
    }

    /// The kinds of violations of a plan with these actions.
    fn kinds(fleet: &Fleet, actions: Vec<Action>) -> Vec<&'static str> {
        let plan = Plan {
            actions,
            ..Plan::default()
        };
        check(fleet, &plan).iter().map(Violation::kind).collect()
    }

    #[test]
    fn a_plan_that_keeps_the_rules_has_no_violations() {
        assert!(kinds(&fleet(), vec![release("n1")]).is_empty());
        assert!(kinds(&fleet(), Vec::new()).is_empty());
    }

    #[test]
    fn actions_must_fit_the_states_of_their_nodes() {
        assert_eq!(kinds(&fleet(), vec![release("n3")]), ["ImpossibleAction"]);
        assert_eq!(kinds(&fleet(), vec![reserve("n1", 1)]), ["ImpossibleAction"]);
        assert_eq!(
            kinds(&fleet(), vec![release("n9")]),
            ["ImpossibleAction"],
            "no such node"
        );
        let keep = action("n1", ActionKind::CancelRelease);
        assert_eq!(kinds(&fleet(), vec![keep]), ["ImpossibleAction"], "it is not cordoned");
        assert_eq!(kinds(&fleet(), vec![release("n1"), release("n1")]), ["SeveralActions"]);
    }

    #[test]
    fn groups_and_quotas_stay_within_their_limits() {
        let mut fleet = fleet();
        assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), ["OverMaximum", "OverQuota"]);
        fleet.tenants[0].node_groups[0].max_nodes = 3;
        assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), ["OverQuota"]);
        fleet.quotas[0].limit.clear();
        assert!(kinds(&fleet, vec![reserve("n3", 1)]).is_empty());
        assert_eq!(kinds(&fleet, vec![reserve("n3", 4)]), ["IncompleteReservation"]);
    }

    #[test]
    fn a_minimum_is_taken_only_where_a_quota_is_over_its_limit() {
        let mut fleet = fleet();
        let all = || vec![release("n1"), release("n2")];
        assert_eq!(kinds(&fleet, all()), ["BelowMinimum"]);
        fleet.quotas[0].limit = [(POOL.to_owned(), 8)].into();
        assert!(kinds(&fleet, all()).is_empty());
    }

    #[test]
    fn no_more_nodes_are_reclaimed_than_are_waited_for() {
        let reason = ActionReason::Reclaimed {
            request: RequestName::default(),
            tenant: "ml/speech".into(),
            drain_at: None,
        };
        let mut plan = Plan {
            actions: vec![Action {
                reason,
                ..release("n1")
            }],
            ..Plan::default()
        };
        assert_eq!(check(&fleet(), &plan)[0].kind(), "NeedlessReclaim");
        let waiting = NodeGroupPlan {
            pool: POOL.into(),
            waiting: 1,
            ..NodeGroupPlan::default()
        };
        plan.node_groups = [("other".to_owned(), [("g".to_owned(), waiting)].into())].into();
        assert!(check(&fleet(), &plan).is_empty());
    }
}
