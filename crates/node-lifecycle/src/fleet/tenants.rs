//! Node groups of tenants: minimum, maximum, and the demand of their pods.

use super::{
    TenantInput,
    nodes::{NodesByPool, ObservedNode, host_node},
};
use crate::{
    AssignmentState,
    demand::{self, HostNode, NodeGroupDemand, SchedulingState, Share, TenantDemand, Workload},
};
use berth_api::{NodeGroup, NodeMode, ScheduleState};
use berth_planner::{self as planner, Amounts, Seconds};
use berth_schedules::groups::scheduled_group;
use kube_core::{Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// The node groups of a tenant, without demand, as its schedules let them be. A tenant that is being deleted, or whose spec is not
/// accepted, keeps its nodes: an error in a spec must not cost a running tenant its nodes, and must not keep them beyond a stop. Nor must
/// it keep what the tenant borrowed for its demand: beyond the minimum, idle nodes go, and others reclaim nodes, as if the spec were
/// accepted. Those that the platform withdraws are over the maximum of their group.
pub(super) fn planner_groups(
    tenant: &TenantInput,
    uid: &str,
    observed: &[ObservedNode<'_>],
) -> Vec<planner::NodeGroup> {
    let held = count_held(uid, observed);
    let is_deleted = tenant.cluster.meta().deletion_timestamp.is_some();
    if tenant.accepted && !is_deleted {
        let own = tenant.cluster.spec.node_groups.iter();
        return own
            .filter(|group| group.mode != NodeMode::Shared)
            .map(|group| {
                let held = held.get(&(group.name.as_str(), group.pool_name.as_str()));
                let group = scheduled_group(group, tenant.schedule, held.copied().unwrap_or_default());
                planner::NodeGroup {
                    min_nodes: group.minimum(),
                    max_nodes: group.maximum(),
                    name: group.name,
                    pool: group.pool_name,
                    ..planner::NodeGroup::default()
                }
            })
            .collect();
    }
    let is_stopped = tenant.schedule == ScheduleState::Stopped && !is_deleted;
    held.into_iter()
        .map(|((name, pool), count)| {
            let is_withdrawn = is_stopped || tenant.withdrawn.has(name, pool);
            let count = if is_withdrawn { 0 } else { count };
            // The pods of a tenant that is deleted end before its nodes go.
            let minimum = if is_deleted {
                count
            } else {
                requested_minimum(tenant, name)
            };
            planner::NodeGroup {
                name: name.into(),
                pool: pool.into(),
                min_nodes: minimum.min(count),
                max_nodes: count,
                ..planner::NodeGroup::default()
            }
        })
        .collect()
}

/// Whether a tenant keeps what it has and gets no nodes: its spec is not accepted, its schedules forbid that, or it is being deleted.
pub(super) fn gets_no_nodes(tenant: &TenantInput) -> bool {
    let is_deleted = tenant.cluster.meta().deletion_timestamp.is_some();
    !tenant.accepted || is_deleted || tenant.schedule != ScheduleState::Running
}

/// The minimum of a group in the spec of a tenant, whatever its pool there. A group that the spec does not have needs no node.
fn requested_minimum(tenant: &TenantInput, name: &str) -> u32 {
    let mut groups = tenant.cluster.spec.node_groups.iter();
    groups.find(|group| group.name == name).map_or(0, NodeGroup::minimum)
}

/// The nodes that a tenant has, without those that are being released, by group and pool.
fn count_held<'a>(uid: &str, observed: &'a [ObservedNode<'_>]) -> BTreeMap<(&'a str, &'a str), u32> {
    let mut held: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for node in observed {
        let Some(assignment) = &node.assignment else { continue };
        if assignment.uid == uid && assignment.state.is_kept() {
            *held.entry((&assignment.group, &assignment.pool)).or_default() += 1;
        }
    }
    held
}

/// The nodes that serve a tenant: the group of each, and what is not free for its pods.
fn list_own<'a>(
    uid: &str,
    observed: &'a [ObservedNode<'a>],
    pools: &NodesByPool<'_>,
) -> Vec<(&'a str, HostNode<'a>, Amounts)> {
    let mut own = Vec::new();
    for node in observed {
        let Some(assignment) = &node.assignment else { continue };
        let serves = assignment.uid == uid && assignment.state == AssignmentState::Assigned;
        if !serves || !node.is_usable(false) {
            continue;
        }
        let devices = pools.get(node.pool.as_str()).map(|pool| pool.devices);
        let is_idle = node.list_users(devices.unwrap_or_default()).is_empty();
        // Where no pod can start, nothing is free.
        let used = if node.is_usable(is_idle) {
            node.sum_used(&node.capacity)
        } else {
            node.capacity.clone()
        };
        own.push((assignment.group.as_str(), host_node(node), used));
    }
    own
}

/// How many groups of a tenant follow demand, if any of its pods is pending.
pub(super) fn count_groups_with_demand(tenant: &TenantInput, workloads: &[&Workload]) -> usize {
    let is_pending = |workload: &&Workload| workload.scheduling == SchedulingState::Pending;
    if !tenant.accepted || !workloads.iter().any(is_pending) {
        return 0;
    }
    let groups = tenant.cluster.spec.node_groups.iter();
    groups.filter(|group| group.mode == NodeMode::Dynamic).count()
}

/// The demand of all tenants, and the labels and resources of nodes that it mentions, by pool.
pub(super) struct DemandCollector {
    share: Share,
    now: Seconds,
    /// Labels that are selected by value.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Labels that represent affinities.
    affinities: BTreeMap<String, BTreeSet<String>>,
    pub(super) needs: TenantDemand,
    /// Resources that represent anti-affinity and spread, and how much of them every node has.
    pub(super) limits: BTreeMap<String, BTreeMap<String, u64>>,
}

impl DemandCollector {
    /// A collector without demand yet, of tenants that have so many groups whose nodes follow it.
    pub(super) fn new(groups: usize, now: Seconds) -> Self {
        Self {
            share: Share::of_one(groups),
            now,
            labels: BTreeMap::new(),
            affinities: BTreeMap::new(),
            needs: TenantDemand::default(),
            limits: BTreeMap::new(),
        }
    }

    pub(super) fn add_demand(
        &mut self,
        tenant: &TenantInput,
        uid: &str,
        workloads: &[&Workload],
        observed: &[ObservedNode<'_>],
        nodes: &NodesByPool<'_>,
        groups: &mut [planner::NodeGroup],
    ) {
        let spec = &tenant.cluster.spec.node_groups;
        if count_groups_with_demand(tenant, workloads) == 0 {
            return;
        }
        let own = list_own(uid, observed, nodes);
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        let mut coming: Vec<(&str, HostNode<'_>)> = Vec::new();
        for node in observed {
            let Some(assignment) = node.assignment.as_ref().filter(|assignment| assignment.uid == uid) else {
                continue;
            };
            let is_pending = matches!(assignment.state, AssignmentState::Reserved | AssignmentState::Joining);
            if is_pending {
                coming.push((&assignment.group, host_node(node)));
            }
            if is_pending || assignment.state == AssignmentState::Assigned {
                *held.entry(&assignment.group).or_default() += 1;
            }
        }
        let left = |group: &NodeGroup| {
            let held = held.get(group.name.as_str()).copied().unwrap_or_default();
            scheduled_group(group, tenant.schedule, held)
                .maximum()
                .saturating_sub(held)
        };
        let needs = demand::translate_demand(
            &demand::Tenant {
                groups: spec
                    .iter()
                    .map(|group| NodeGroupDemand {
                        name: &group.name,
                        pool: &group.pool_name,
                        is_dynamic: group.mode == NodeMode::Dynamic,
                        left: left(group),
                    })
                    .collect(),
                workloads: workloads.to_vec(),
                own: own
                    .iter()
                    .map(|(group, node, used)| (*group, node, used.clone()))
                    .collect(),
                coming: coming.iter().map(|(group, node)| (*group, node)).collect(),
                share: self.share,
                now: self.now,
                left_unused: { tenant.unused.iter() }
                    .map(|(pool, unused)| (pool.as_str(), unused.released_at))
                    .collect(),
            },
            nodes,
        );
        let TenantDemand {
            demand,
            affinities,
            limits,
            unplanned,
            again_at,
            without_turn: _,
        } = needs;
        self.needs.again_at = [self.needs.again_at, again_at].into_iter().flatten().min();
        for group in groups.iter_mut() {
            group.unplanned = unplanned.get(&group.name).cloned().unwrap_or_default();
        }
        for (name, demand) in demand {
            let Some(group) = groups.iter_mut().find(|group| group.name == name) else {
                continue;
            };
            for key in demand.iter().flat_map(|demand| demand.selector.keys()) {
                let keys = if affinities.contains_key(key) {
                    &mut self.affinities
                } else {
                    &mut self.labels
                };
                keys.entry(group.pool.clone()).or_default().insert(key.clone());
            }
            let of_pool = self.limits.entry(group.pool.clone()).or_default();
            of_pool.extend(limits.iter().map(|(resource, limit)| (resource.clone(), *limit)));
            group.demand = demand;
        }
        self.needs.affinities.extend(affinities);
    }

    /// The labels of a node that demand mentions.
    pub(super) fn labels(&self, node: &ObservedNode<'_>) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for key in self.labels.get(&node.pool).into_iter().flatten() {
            if let Some(value) = node.object.labels().get(key) {
                labels.insert(key.clone(), value.clone());
            }
        }
        let host = host_node(node);
        for key in self.affinities.get(&node.pool).into_iter().flatten() {
            if self.needs.satisfies(key, &node.pool, &host) {
                labels.insert(key.clone(), demand::SATISFIED.into());
            }
        }
        labels
    }
}

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod schedule_tests;
