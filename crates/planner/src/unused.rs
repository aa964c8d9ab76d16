//! Nodes that a tenant gets for its pods and that none of them uses.
//!
//! A pod can wait for ever although a node has room for it: because of an affinity to pods that do not exist, or as the first of a
//! gang. The planner does not see why, only that nodes stay idle. It finds them in two ways:
//! - nodes that are idle for too long and that only pods which wait keep. If a tenant has such nodes without a break for as long as the
//!   planner has patience, they are released, and the tenant gets no more for a while.
//! - nodes that no pod ever used and that are released as idle: their pods were deleted before. That happens to everybody at times, so
//!   some are spared.
//!
//! The memory is by tenant and pool, not by request: who deletes a pod and creates it again, or renames a node group, has the same
//! tenant. It ends when the tenant uses as many new nodes as it left unused. docs/adr/0051 says why.

use crate::pass::{Blocked, Decision, PlanningPass};
use crate::placement::Placement;
use crate::{ActionReason, Fleet, Plan, Seconds, Topology, UnusedNodes};
use std::collections::{BTreeMap, HashMap};

/// The shortest time after which a node is idle for too long, and for which pods may keep it then.
const LEAST_PATIENCE: Seconds = 120;
/// A node that is idle from this time after its assignment on was never used.
const NOTICED_WITHIN: Seconds = 15;

/// What a plan says of tenants before its pools are planned.
pub(crate) fn carry_over(fleet: &Fleet) -> BTreeMap<String, BTreeMap<String, UnusedNodes>> {
    let recall = |(pool, unused): (&String, &UnusedNodes)| {
        let unused = UnusedNodes {
            kept_since: None,
            ..unused.recall(fleet.now)
        };
        (pool.clone(), unused)
    };
    let of_tenant = |pools: &BTreeMap<String, UnusedNodes>| pools.iter().map(recall).collect();
    let tenants = fleet.tenants.iter().filter(|tenant| !tenant.unused.is_empty());
    tenants
        .map(|tenant| (tenant.uid.clone(), of_tenant(&tenant.unused)))
        .collect()
}

/// Removes what says nothing.
pub(crate) fn remove_empty(plan: &mut Plan) {
    for pools in plan.unused_nodes.values_mut() {
        pools.retain(|_, unused| *unused != UnusedNodes::default());
    }
    plan.unused_nodes.retain(|_, pools| !pools.is_empty());
}

impl<'a> PlanningPass<'a> {
    /// Recalls which tenants did not use their nodes. One that uses as many new nodes as it left unused starts anew.
    pub fn recall_unused_nodes(&mut self) {
        let mut recalled = HashMap::new();
        for group in &self.view.node_groups {
            let Some(known) = group.owner.unused.get(&self.view.pool.name) else {
                continue;
            };
            let known = known.recall(self.view.now);
            let (used, _) = self.count_new_nodes(group.tenant, known.released_at);
            let released = if used < known.nodes {
                known
            } else {
                UnusedNodes::default()
            };
            let unused = UnusedNodes {
                kept_since: known.kept_since,
                ..released
            };
            recalled.insert(group.tenant, unused);
        }
        for unused in recalled.values() {
            self.replan_for(unused);
        }
        self.unused = recalled;
    }

    fn replan_for(&mut self, unused: &UnusedNodes) {
        for time in [unused.trial_from(), unused.paused_until()].into_iter().flatten() {
            self.replan_by(time);
        }
    }

    /// The nodes of a tenant that came after `since`: those that its pods use, and the others.
    fn count_new_nodes(&self, tenant: usize, since: Seconds) -> (u32, u32) {
        let groups = self.view.node_groups.iter().filter(|group| group.tenant == tenant);
        let nodes = groups
            .flat_map(|group| &group.nodes)
            .map(|at| (*at, &self.view.nodes[*at]));
        let (mut used, mut others) = (0, 0);
        for (_, node) in nodes.filter(|(at, _)| !self.is_leaving(*at)) {
            if node.owner().is_some_and(|owner| owner.since <= since) {
                continue;
            }
            if at_work(node.is_serving(), node.object.idle_since) {
                used += 1;
            } else {
                others += 1;
            }
        }
        (used, others)
    }

    /// What is known of a tenant whose pause is not over.
    pub fn find_pause(&self, tenant: usize) -> Option<UnusedNodes> {
        self.unused
            .get(&tenant)
            .copied()
            .filter(|unused| unused.is_paused(self.view.now))
    }

    /// Whether a tenant may get so many nodes. During a pause it gets one as a trial, and each that is used allows another.
    pub fn check_pause(&self, tenant: usize, nodes: usize) -> Result<(), Blocked<'a>> {
        let Some(unused) = self.find_pause(tenant).filter(|_| nodes > 0) else {
            return Ok(());
        };
        let (used, others) = self.count_new_nodes(tenant, unused.released_at);
        let is_too_early = used == 0 && unused.trial_from().is_some_and(|from| self.view.now < from);
        let allowed = if is_too_early { 0 } else { 1 + used as usize };
        if others as usize + nodes > allowed {
            return Err(Blocked::Unused(unused));
        }
        Ok(())
    }

    /// Lets requests wait that had their chance: those that waited already when their tenant's nodes were released unused.
    pub fn pause_requests(&mut self) {
        for request in 0..self.view.requests.len() {
            let progress = &self.progress[request];
            if progress.blocked_by.is_some() || progress.unplaced.is_empty() {
                continue;
            }
            let waiting_since = self.view.requests[request].demand.waiting_since;
            let pause = self.find_pause(self.view.tenant_of(request));
            if let Some(unused) = pause.filter(|unused| waiting_since <= unused.released_at) {
                self.progress[request].blocked_by = Some(Blocked::Unused(unused));
            }
        }
    }

    /// Notes nodes whose request also waits for a node that pods cannot use yet: they are not idle for lack of use.
    pub fn note_awaited_nodes(&mut self, request: usize, placement: &Placement) {
        let demand = self.view.requests[request].demand;
        let together = demand.gang || demand.topology == Topology::SingleDomain;
        let mut nodes = placement.on_held.iter();
        if together && nodes.any(|(at, _)| !self.view.nodes[*at].is_serving()) {
            for (at, _) in &placement.on_held {
                self.awaited[*at] = true;
            }
        }
    }

    /// Releases nodes that pods which wait have kept for too long without using them.
    pub fn release_unused(&mut self) {
        let mut kept: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for group in 0..self.view.node_groups.len() {
            let of_group = self.list_kept_too_long(group);
            if !of_group.is_empty() {
                let tenant = self.view.node_groups[group].tenant;
                kept.entry(tenant).or_default().extend(of_group);
            }
        }
        for (tenant, unused) in &mut self.unused {
            if !kept.contains_key(tenant) {
                unused.kept_since = None;
            }
        }
        let (now, patience) = (self.view.now, self.patience());
        for (tenant, nodes) in kept {
            let known = self.unused.entry(tenant).or_default();
            let until = *known.kept_since.get_or_insert(now) + patience;
            if now < until {
                self.replan_by(until);
                continue;
            }
            self.remember_unused(tenant, nodes.len(), true);
            for at in nodes {
                let since = self.view.nodes[at].object.idle_since.unwrap_or(now);
                self.release(at, now, ActionReason::Unused { idle: now - since });
            }
        }
    }

    /// Nodes of a group beyond its minimum that are idle for too long, and stay only because requests count on them.
    fn list_kept_too_long(&mut self, group: usize) -> Vec<usize> {
        let of = &self.view.node_groups[group];
        let spare = self.groups[group].staying.saturating_sub(of.spec.min_nodes);
        if spare == 0 {
            return Vec::new();
        }
        let kept = of.nodes.iter().copied();
        let kept = kept.filter(|at| self.decisions[*at] == Decision::Needed && !self.awaited[*at]);
        let kept: Vec<(Seconds, usize)> = kept.filter_map(|at| Some((self.too_long_from(at)?, at))).collect();
        let now = self.view.now;
        for (from, _) in &kept {
            self.replan_by(*from);
        }
        let too_long = kept.into_iter().filter(|(from, _)| *from <= now);
        too_long.map(|(_, at)| at).take(spare as usize).collect()
    }

    /// From when on a node that serves its tenant is idle for too long, whatever waits for it; `None`: it is in use.
    fn too_long_from(&self, node: usize) -> Option<Seconds> {
        let of = &self.view.nodes[node];
        let since = of.object.idle_since.filter(|_| of.is_serving())?;
        Some(self.idle_until(node)?.max(since + self.patience()))
    }

    fn patience(&self) -> Seconds {
        self.view.pool.idle_timeout.max(LEAST_PATIENCE)
    }

    /// Whether no pod of its tenant ever used a node.
    pub fn is_never_used(&self, node: usize) -> bool {
        let of = &self.view.nodes[node];
        let owner = of.owner().filter(|_| of.is_serving());
        owner
            .zip(of.object.idle_since)
            .is_some_and(|(owner, idle)| idle <= owner.since + NOTICED_WITHIN)
    }

    /// Remembers that nodes are released which no pod used and for which none waits, unless the tenant uses as many others: a pod may find
    /// another place while a node joins.
    pub fn remember_never_used(&mut self, tenant: usize, nodes: usize) {
        let groups = self.view.node_groups.iter().filter(|group| group.tenant == tenant);
        let (mut used, mut never_used) = (0, 0);
        for at in groups.flat_map(|group| &group.nodes) {
            let node = &self.view.nodes[*at];
            used += u32::from(at_work(node.is_serving(), node.object.idle_since));
            never_used += u32::from(self.is_never_used(*at));
        }
        if never_used > used {
            self.remember_unused(tenant, nodes, false);
        }
    }

    fn remember_unused(&mut self, tenant: usize, nodes: usize, pods_wait: bool) {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let known = self.unused.entry(tenant).or_default();
        *known = known.add(nodes, self.view.now, pods_wait);
        let known = *known;
        self.replan_for(&known);
    }

    /// Adds to the plan what is known of the tenants of the pool.
    pub fn publish_unused(&self, plan: &mut Plan) {
        let pool = &self.view.pool.name;
        for group in &self.view.node_groups {
            if let Some(unused) = self.unused.get(&group.tenant) {
                let pools = plan.unused_nodes.entry(group.owner.uid.clone()).or_default();
                pools.insert(pool.clone(), *unused);
            }
        }
    }
}

/// Whether pods use a node.
fn at_work(is_serving: bool, idle_since: Option<Seconds>) -> bool {
    is_serving && idle_since.is_none()
}
