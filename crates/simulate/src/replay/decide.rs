//! The planner's view of the replay, kept up to date, and the execution of its plans.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_planner::{
    Action, ActionKind, Amounts, Demand, Fleet, Node, NodeGroup, NodeGroupPlan, NodeState, Order, Owner, Phase, Plan,
    PodSet, Pool, Quota, Seconds, Tenant, Violation, check, plan, remember_unused_nodes,
};

use super::cluster::{Cluster, NodePhase};
use super::events::Events;
use crate::options::Options;
use crate::trace::Trace;

const POOL: &str = "gpus";
const GROUP: &str = "jobs";
const RESOURCE: &str = "nvidia.com/gpu";

/// Makes plans for the replay.
pub(super) struct Decisions {
    fleet: Fleet,
    nodes: HashMap<String, usize>,
    tenants: HashMap<String, usize>,
    per_node: u32,
    /// When to make the next plan.
    pub(super) due: Option<Seconds>,
    asked: Option<Seconds>,
    last: Plan,
    pub(super) plans: u64,
}

impl Decisions {
    pub(super) fn new(trace: &Trace, options: &Options, partitions: &[u32]) -> Self {
        let per_node = options.gpus_per_node;
        let pool = Pool {
            name: POOL.into(),
            gpu_resource_name: Some(RESOURCE.into()),
            product: None,
            has_domains: false,
            divides_nodes: false,
            least_gpus: 0,
            min_hold_duration: options.min_hold_duration,
            idle_timeout: options.idle_timeout,
            reclaim_grace_period: options.reclaim_grace_period,
            order: Order::FairShare,
            reclaim: options.reclaim,
            starvation_limit: Some(options.starvation_limit),
            scale_up: None,
            repair: None,
        };
        let node = |number: u32| Node {
            name: format!("node-{:04}", number + 1),
            pool: POOL.into(),
            capacity: gpus(per_node.into()),
            used: gpus(0),
            idle_since: Some(0),
            free_since: Some(0),
            ..Node::default()
        };
        // A tenant's nominal quota and weight are the size of its static partition.
        let quota = |(name, nodes): (&String, &u32)| Quota {
            name: name.clone(),
            weight: *nodes,
            nominal_quota: BTreeMap::from([(POOL.into(), u64::from(*nodes) * u64::from(per_node))]),
            ..Quota::default()
        };
        let tenant = |name: &String| Tenant {
            uid: name.clone(),
            name: name.clone(),
            quota: Some(name.clone()),
            weight: 1,
            node_groups: vec![NodeGroup {
                name: GROUP.into(),
                pool: POOL.into(),
                min_nodes: 0,
                max_nodes: options.nodes,
                ..NodeGroup::default()
            }],
            ..Tenant::default()
        };
        let fleet = Fleet {
            now: 0,
            pools: vec![pool],
            nodes: (0..options.nodes).map(node).collect(),
            tenants: trace.tenants.iter().map(tenant).collect(),
            quotas: trace.tenants.iter().zip(partitions).map(quota).collect(),
        };
        let number = |(at, name): (usize, &String)| (name.clone(), at);
        Self {
            nodes: fleet
                .nodes
                .iter()
                .map(|node| &node.name)
                .enumerate()
                .map(number)
                .collect(),
            tenants: trace.tenants.iter().enumerate().map(number).collect(),
            fleet,
            per_node,
            due: None,
            asked: None,
            last: Plan::default(),
            plans: 0,
        }
    }

    /// Whether to make a plan now: something has changed, or the last plan set this time; and the last plan is at least `every`
    /// seconds old.
    pub(super) fn is_due(&mut self, cluster: &mut Cluster<'_>, now: Seconds, every: Seconds) -> bool {
        if std::mem::take(&mut cluster.plan_outdated) {
            let earliest = self.asked.map_or(now, |asked| now.max(asked + every));
            self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
        }
        self.due.is_some_and(|due| due <= now)
    }

    /// Makes a plan, and checks that it keeps the rules.
    pub(super) fn make_plan(&mut self, cluster: &mut Cluster<'_>, now: Seconds) -> Result<Vec<Action>, Violation> {
        for node in std::mem::take(&mut cluster.nodes_changed) {
            self.update_node(cluster, node);
        }
        for tenant in std::mem::take(&mut cluster.demand_changed) {
            self.fleet.tenants[tenant].node_groups[0].demand = list_demand(cluster, tenant, self.per_node);
        }
        self.fleet.now = now;
        self.asked = Some(now);
        self.plans += 1;
        self.last = plan(&self.fleet);
        if let Some(violation) = check(&self.fleet, &self.last).into_iter().next() {
            return Err(violation);
        }
        // All actions are carried out.
        let mut unused = remember_unused_nodes(&self.fleet, &self.last, &BTreeSet::new());
        for tenant in &mut self.fleet.tenants {
            tenant.unused = unused.remove(&tenant.uid).unwrap_or_default();
        }
        self.due = self.last.replan_at.map(|at| at.max(now + 1));
        Ok(std::mem::take(&mut self.last.actions))
    }

    fn update_node(&mut self, cluster: &Cluster<'_>, node: usize) {
        let current = &cluster.nodes[node];
        let planned = &mut self.fleet.nodes[node];
        let owned = |tenant: usize, phase| {
            NodeState::Owned(Owner {
                tenant: cluster.trace().tenants[tenant].clone(),
                node_group: GROUP.into(),
                since: current.owned_since,
                phase,
            })
        };
        planned.state = match current.phase {
            NodePhase::Free => NodeState::Free,
            NodePhase::Reserved { tenant, of } => owned(tenant, Phase::Reserved { required_nodes: of }),
            NodePhase::Joining { tenant } => owned(tenant, Phase::Joining),
            NodePhase::Open { tenant } => owned(tenant, Phase::Assigned),
            NodePhase::Cordoned { tenant, until } => owned(tenant, Phase::Cordoned { drain_at: until }),
            NodePhase::Returning { from, since } => NodeState::Recycling {
                previous_tenant: cluster.trace().tenants[from].clone(),
                since,
            },
        };
        if let Some(used) = planned.used.get_mut(RESOURCE) {
            *used = current.used.into();
        }
        planned.gangs = cluster.gangs_on(node).map(|job| format!("job-{job}")).collect();
        planned.pods = u32::try_from(current.jobs.len()).unwrap_or(u32::MAX);
        planned.idle_since = (current.used == 0).then_some(current.idle_since);
        planned.free_since = (current.phase == NodePhase::Free).then_some(current.idle_since);
    }

    /// Why a tenant waits, by the last plan.
    pub(super) fn describe_wait(&self, tenant: usize) -> String {
        let uid = &self.fleet.tenants[tenant].uid;
        let group = self.last.node_groups.get(uid).and_then(|groups| groups.get(GROUP));
        group.map(NodeGroupPlan::message).unwrap_or_default()
    }
}

/// Carries out the actions of a plan.
pub(super) fn apply_actions(
    actions: &[Action],
    of: &Decisions,
    cluster: &mut Cluster<'_>,
    now: Seconds,
    events: &mut Events,
) {
    for Action { node, kind, reason: _ } in actions {
        let Some(node) = of.nodes.get(node).copied() else {
            continue;
        };
        match kind {
            ActionKind::Reserve {
                tenant,
                required_nodes: count,
                ..
            } => {
                if let Some(tenant) = of.tenants.get(tenant) {
                    cluster.reserve(node, *tenant, *count, now);
                }
            }
            ActionKind::CancelReservation => cluster.cancel_reservation(node, now),
            ActionKind::Release { drain_at: until } => cluster.release(node, *until, now, events),
            ActionKind::CancelRelease => cluster.cancel_release(node),
        }
    }
    cluster.join_complete(now, events);
}

fn gpus(count: u64) -> Amounts {
    Amounts::from([(RESOURCE.into(), count)])
}

/// The demand of waiting jobs. Gangs are listed one by one, in order; jobs that fit on one node are grouped by size, with the name
/// and the wait of the first. Jobs beyond what the whole fleet could run at once are left out.
fn list_demand(cluster: &Cluster<'_>, tenant: usize, per_node: u32) -> Vec<Demand> {
    let mut result: Vec<Demand> = Vec::new();
    let mut of_size: Vec<Option<usize>> = vec![None; per_node as usize + 1];
    let mut listed_gpus = 0;
    let fleet = cluster.nodes.len() * per_node as usize;
    for job in &cluster.queues[tenant] {
        let size = cluster.trace().jobs[*job].gpus;
        listed_gpus += size as usize;
        if listed_gpus > fleet && !result.is_empty() {
            break;
        }
        let gang = size > per_node;
        if !gang
            && let Some(same) = of_size[size as usize].and_then(|at| result.get_mut(at))
            && let Some(pods) = same.pod_sets.first_mut()
        {
            pods.count += 1;
            continue;
        }
        if !gang {
            of_size[size as usize] = Some(result.len());
        }
        let pods = |(count, each): (u32, u32)| PodSet {
            count,
            requests: gpus(each.into()),
        };
        let parts = [(size / per_node, per_node), (1, size % per_node)];
        let parts = parts.into_iter().filter(|(count, each)| count * each > 0);
        result.push(Demand {
            name: format!("job-{job}"),
            waiting_since: cluster.runs_since(*job),
            pod_sets: parts.map(pods).collect(),
            gang,
            ..Demand::default()
        });
    }
    result
}
