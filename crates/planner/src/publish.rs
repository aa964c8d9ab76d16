//! From decisions to the plan: actions, and what is planned for each node group.

use crate::pass::{Blocked, Decision, PlanningPass};
use crate::scale_up::RequestedNodes;
use crate::tree::Tree;
use crate::{
    Action, ActionKind, ActionReason, Capacity, NodeGroupPlan, Phase, Plan, RequestName, Seconds, Wait, WaitReason,
    Waiting,
};
use std::collections::BTreeSet;

/// How many waits of a node group are described; the others are counted.
const MAX_WAITS: usize = 2;
/// How many of the tenants from which nodes are taken are named.
const MAX_TENANTS: usize = 3;

/// Nodes without an owner after this plan.
#[derive(Default)]
struct UnassignedNodes {
    free: usize,
    /// Free, and kept for a request or minimum that waits.
    earmarked: usize,
    recycling: usize,
}

impl<'a> PlanningPass<'a> {
    /// Adds what was decided to the plan. Returns the tree with the GPUs that tenants have after it.
    pub fn publish(mut self, plan: &mut Plan) -> Tree<'a> {
        let unassigned = self.count_unassigned_nodes();
        let requested = self.request_nodes();
        for group in 0..self.view.node_groups.len() {
            let group_plan = self.describe_group(group, &unassigned, requested.as_ref());
            let of = &self.view.node_groups[group];
            let of_tenant = plan.node_groups.entry(of.owner.uid.clone()).or_default();
            of_tenant.entry(of.spec.name.clone()).or_insert(group_plan);
        }
        if let Some(requested) = requested {
            plan.scale_ups.insert(self.view.pool.name.clone(), requested.scale_up);
        }
        for node in 0..self.view.nodes.len() {
            if let Some((kind, reason)) = self.decided_action(node) {
                plan.actions.push(Action {
                    node: self.view.nodes[node].object.name.clone(),
                    kind,
                    reason,
                });
            }
        }
        let health = self.health.map(|health| (self.view.pool.name.clone(), health));
        plan.pool_health.extend(health);
        self.publish_unused(plan);
        plan.replan_at = [plan.replan_at, self.replan_at].into_iter().flatten().min();
        self.tree
    }

    /// The action that a decision about a node calls for, if any.
    fn decided_action(&mut self, node: usize) -> Option<(ActionKind, ActionReason)> {
        let reason = self.reasons[node].take();
        let of = &self.view.nodes[node];
        let kind = match self.decisions[node] {
            Decision::Reserve { together: false } => self.reserve_action(of.group?, 1),
            Decision::Reserve { together: true } => self.reserve_action(of.group?, self.groups[of.group?].staying),
            // A gang member has vanished, or others were reserved since: it waits for another number of nodes now.
            Decision::Needed => {
                let (staying, required) = (self.groups[of.group?].staying, of.required_nodes()?);
                if required <= self.count_joining_nodes(of.group?) || required == staying {
                    return None;
                }
                let reason = ActionReason::RequiredNodesChanged {
                    required_nodes: staying,
                };
                return Some((self.reserve_action(of.group?, staying), reason));
            }
            Decision::CancelReservation => ActionKind::CancelReservation,
            Decision::Release { drain_at } => match of.owner()?.phase {
                Phase::Cordoned { drain_at: already } if already <= drain_at => return None,
                Phase::Reserved { .. } => ActionKind::CancelReservation,
                _ => ActionKind::Release { drain_at },
            },
            Decision::CancelRelease => ActionKind::CancelRelease,
            Decision::Undecided | Decision::Earmarked | Decision::AssumedReleased { .. } => return None,
        };
        Some((kind, reason?))
    }

    fn reserve_action(&self, group: usize, required_nodes: u32) -> ActionKind {
        let group = &self.view.node_groups[group];
        ActionKind::Reserve {
            tenant: group.owner.uid.clone(),
            node_group: group.spec.name.clone(),
            required_nodes,
        }
    }

    /// Counts the nodes of a group that count for its reservations before this plan, without those that it loses at once.
    fn count_joining_nodes(&self, group: usize) -> u32 {
        let is_lost = |at: usize| matches!(self.decisions[at], Decision::Release { .. }) && self.is_broken(at);
        let nodes = self.view.node_groups[group]
            .nodes
            .iter()
            .copied()
            .filter(|at| !is_lost(*at));
        let counting = nodes.filter(|at| self.view.nodes[*at].owner().is_some() && !self.view.nodes[*at].is_cordoned());
        u32::try_from(counting.count()).unwrap_or(u32::MAX)
    }

    fn count_unassigned_nodes(&self) -> UnassignedNodes {
        let mut unassigned = UnassignedNodes::default();
        for (at, (node, decision)) in self.view.nodes.iter().zip(&self.decisions).enumerate() {
            match decision {
                Decision::Earmarked if node.is_free() => unassigned.earmarked += 1,
                Decision::Undecided if node.is_free() => unassigned.free += 1,
                _ if node.is_recycling() && !self.is_broken(at) => unassigned.recycling += 1,
                _ => {}
            }
        }
        unassigned
    }

    fn describe_group(
        &self,
        group: usize,
        unassigned: &UnassignedNodes,
        requested: Option<&RequestedNodes>,
    ) -> NodeGroupPlan {
        let (state, spec) = (&self.groups[group], self.view.node_groups[group].spec);
        let mut plan = NodeGroupPlan {
            pool: self.view.pool.name.clone(),
            desired: state.staying + state.missing,
            held: state.held,
            waiting: state.missing,
            borrowed: self.count_borrowed_nodes(group),
            requested_nodes: requested.map_or(0, |requested| requested.by_group[group]),
            unplanned: spec.unplanned.clone(),
            ..NodeGroupPlan::default()
        };
        if let Some(blocked) = state.minimum_blocked_by.as_ref().filter(|_| state.missing > 0) {
            plan.waits.push(Wait {
                waiting: Waiting::Minimum {
                    min_nodes: spec.min_nodes,
                },
                missing_nodes: state.missing,
                reason: self.describe_blocked(blocked, &[], unassigned),
            });
        }
        // Those that come first are described, whatever the order of the input.
        for request in self.view.requests_by_group[self.requests_of(group)].iter().copied() {
            let progress = &self.progress[request];
            let Some(blocked) = &progress.blocked_by else { continue };
            let earmarked = u32::try_from(progress.earmarked.len()).unwrap_or(u32::MAX);
            let missing_nodes = self.count_nodes_for(request, &progress.unplaced) + earmarked;
            plan.desired += earmarked;
            if !matches!(blocked, Blocked::Impossible(_)) {
                plan.waiting += missing_nodes;
            }
            if plan.waits.len() >= MAX_WAITS {
                plan.more_waits += 1;
                continue;
            }
            plan.waits.push(Wait {
                waiting: Waiting::Request(self.request_name(request)),
                missing_nodes,
                reason: self.describe_blocked(blocked, &progress.earmarked, unassigned),
            });
        }
        if !plan.waits.is_empty() {
            let tenant = self.view.node_groups[group].tenant;
            plan.served_last_until = self.find_pause(tenant);
            plan.reclaims_none_until = self.find_shared_pause(tenant);
        }
        plan
    }

    fn requests_of(&self, group: usize) -> std::ops::Range<usize> {
        let requests = &self.view.requests;
        let from = requests.partition_point(|request| request.group < group);
        from..requests.partition_point(|request| request.group <= group)
    }

    /// The name of a request in messages.
    pub fn request_name(&self, request: usize) -> RequestName {
        let demand = self.view.requests[request].demand;
        RequestName {
            name: demand.name.clone(),
            gang: demand.gang,
        }
    }

    /// Counts the nodes of a group beyond nominal quotas: those beyond its minimum, and those of its minimum that others can be owed.
    fn count_borrowed_nodes(&self, group: usize) -> u32 {
        let of = &self.view.node_groups[group];
        let count = |nodes: u64| u32::try_from(nodes).unwrap_or(u32::MAX);
        let minimum = |group: usize| {
            self.groups[group]
                .staying
                .min(self.view.node_groups[group].spec.min_nodes)
        };
        let gpus = of.nodes.first().map_or(1, |at| self.view.gpus(*at));
        let borrowed = self.tree.borrowed_gpus(of.tenant).div_ceil(gpus);
        let beyond_minimum = (self.groups[group].staying - minimum(group)).min(count(borrowed));
        // Of several groups, the first give nodes of their minimums first.
        let first = self.view.node_groups.partition_point(|other| other.tenant < of.tenant);
        let before: u32 = (first..group).map(minimum).sum();
        let of_minimums = count(self.tree.borrowed_minimum_gpus(of.tenant) / gpus);
        beyond_minimum + of_minimums.saturating_sub(before).min(minimum(group))
    }

    fn describe_blocked(&self, blocked: &Blocked<'_>, earmarked: &[usize], unassigned: &UnassignedNodes) -> WaitReason {
        match blocked {
            Blocked::Impossible(impossible) => WaitReason::Impossible(impossible.clone()),
            Blocked::MaxNodes { max_nodes } => WaitReason::MaxNodes { max_nodes: *max_nodes },
            Blocked::QuotaLimit(limit) => WaitReason::QuotaLimit {
                quota: limit.quota.to_owned(),
                limit: limit.gpus,
                scope: limit.scope.describe(&self.view.pool.name),
                draining: limit.draining,
            },
            Blocked::MissingQuota(quota) => WaitReason::MissingQuota {
                quota: (*quota).to_owned(),
            },
            Blocked::NotLent { gpus } => WaitReason::NotLent { gpus: *gpus },
            Blocked::NoFreeNodes => WaitReason::NoFreeNodes(self.describe_capacity(earmarked, unassigned)),
            Blocked::NodesComing => WaitReason::NodesComing(self.describe_capacity(earmarked, unassigned)),
        }
    }

    /// Describes the nodes of the pool, and those on their way to a request that waits.
    fn describe_capacity(&self, earmarked: &[usize], unassigned: &UnassignedNodes) -> Capacity {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let own = earmarked.iter().filter(|at| self.view.nodes[**at].is_free()).count();
        let taken: Vec<(Seconds, &str)> = earmarked.iter().filter_map(|at| self.taken_from(*at)).collect();
        let tenants: BTreeSet<&str> = taken.iter().map(|(_, name)| *name).collect();
        let first_drain = taken.iter().map(|(time, _)| *time).min();
        Capacity {
            pool_is_empty: unassigned.free + own == 0 && self.view.nodes.is_empty(),
            free: count(unassigned.free + own),
            kept_for_others: count(unassigned.earmarked.saturating_sub(own)),
            recycling: count(unassigned.recycling),
            reclaimed: count(taken.len()),
            reclaimed_from: tenants.into_iter().take(MAX_TENANTS).map(ToOwned::to_owned).collect(),
            drain_at: first_drain.filter(|time| *time > self.view.now),
        }
    }

    /// When a node is drained, and the name of the tenant that loses it.
    fn taken_from(&self, at: usize) -> Option<(Seconds, &str)> {
        let node = &self.view.nodes[at];
        let drain_at = match self.decisions[at] {
            Decision::Release { drain_at } => drain_at,
            _ => node.cordoned_until()?,
        };
        let tenant = node.group.map(|group| self.view.node_groups[group].owner.name.as_str());
        Some((drain_at, tenant.unwrap_or_default()))
    }
}
