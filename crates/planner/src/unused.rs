//! Nodes that a tenant gets for its pods and that none of them uses.
//!
//! A pod can wait for ever although a node has room for it: because of an affinity to pods that do not exist, or as the first of a
//! gang. The planner does not see why, only that nodes stay idle. It finds them in two ways:
//! - nodes that are idle for too long and that only pods which wait keep. If a tenant has such nodes without a break for as long as the
//!   planner has patience, those that are idle for as long beyond that are released once others lack nodes, and there is a pause for the
//!   tenant. As long as nobody lacks them, they stay: the same pods would get them again, after they were recycled for nothing.
//! - nodes that no pod ever used and that are released as idle: their pods were deleted before. That happens to everybody at times, so
//!   some are spared.
//!
//! In a pause nothing is refused: requests of the tenant are served after those of all others, and nothing is reclaimed for them.
//!
//! The memory is by tenant and pool, not by request: who deletes a pod and creates it again, or renames a node group, has the same
//! tenant. It ends when the tenant uses as many new nodes as it left unused. docs/adr/0051 says why.

use crate::pass::{Blocked, Decision, PlanningPass};
use crate::placement::Placement;
use crate::{ActionKind, ActionReason, Fleet, Plan, Seconds, Topology, UnusedNodes, UnusedNodesByTenant};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The shortest time after which a node is idle for too long, and for which pods may keep it then. The scheduler itself may wait for
/// volumes for ten minutes (`bindTimeoutSeconds`) before it binds a pod.
const LEAST_PATIENCE: Seconds = 660;
/// A node that is idle from this time after its assignment on was never used.
const NOTICED_WITHIN: Seconds = 15;

/// What a plan says of tenants before its pools are planned.
pub(crate) fn carry_over(fleet: &Fleet) -> UnusedNodesByTenant {
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

/// What to remember for the next plan after `plan` was carried out, except the release of the nodes `kept`. A tenant that still has
/// such a node has what it had before: the next plan releases the node again, and counts it.
pub fn remember_unused_nodes(fleet: &Fleet, plan: &Plan, kept: &BTreeSet<String>) -> UnusedNodesByTenant {
    let is_counted = |reason: &ActionReason| matches!(reason, ActionReason::Unused { .. } | ActionReason::Idle { .. });
    let released = plan.actions.iter().filter(|action| {
        matches!(action.kind, ActionKind::Release { .. }) && is_counted(&action.reason) && kept.contains(&action.node)
    });
    let names: BTreeSet<&str> = released.map(|action| action.node.as_str()).collect();
    let nodes = fleet.nodes.iter().filter(|node| names.contains(node.name.as_str()));
    let uids: BTreeSet<&str> = nodes.filter_map(|node| Some(node.owner()?.tenant.as_str())).collect();
    let mut remembered = plan.unused_nodes.clone();
    for tenant in fleet.tenants.iter().filter(|tenant| uids.contains(tenant.uid.as_str())) {
        remembered.insert(tenant.uid.clone(), tenant.unused.clone());
    }
    remembered.retain(|_, pools| !pools.is_empty());
    remembered
}

/// Removes what says nothing.
pub(crate) fn remove_empty(plan: &mut Plan) {
    for pools in plan.unused_nodes.values_mut() {
        pools.retain(|_, unused| *unused != UnusedNodes::default());
    }
    plan.unused_nodes.retain(|_, pools| !pools.is_empty());
}

impl PlanningPass<'_> {
    /// Recalls which tenants did not use their nodes. One that uses as many new nodes as it left unused starts anew.
    pub fn recall_unused_nodes(&mut self) {
        let mut recalled = HashMap::new();
        for group in &self.view.node_groups {
            let Some(known) = group.owner.unused.get(&self.view.pool.name) else {
                continue;
            };
            let known = known.recall(self.view.now);
            let used = self.count_new_nodes_in_use(group.tenant, known.released_at);
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
        if let Some(until) = unused.paused_until() {
            self.replan_by(until);
        }
    }

    /// Counts the nodes of a tenant that came after `since` and that its pods use.
    fn count_new_nodes_in_use(&self, tenant: usize, since: Seconds) -> u32 {
        let groups = self.view.node_groups.iter().filter(|group| group.tenant == tenant);
        let used = groups.flat_map(|group| &group.nodes).filter(|at| {
            let node = &self.view.nodes[**at];
            let is_new = node.owner().is_none_or(|owner| owner.since > since);
            is_new && !self.is_leaving(**at) && at_work(node.is_serving(), node.object.idle_since)
        });
        u32::try_from(used.count()).unwrap_or(u32::MAX)
    }

    /// Until when there is a pause for a tenant; `None`: there is none now.
    pub fn find_pause(&self, tenant: usize) -> Option<Seconds> {
        self.unused.get(&tenant)?.find_pause(self.view.now)
    }

    /// Whether a node is idle since before its tenant left nodes unused, and there is a pause. Such a node goes back once it is to be released:
    /// otherwise the pods that left it unused would take it again before it is drained.
    pub fn was_left_unused(&self, node: usize, tenant: usize) -> bool {
        let (idle_since, known) = (self.view.nodes[node].object.idle_since, self.unused.get(&tenant));
        let is_older = idle_since
            .zip(known)
            .is_some_and(|(idle, known)| idle <= known.released_at);
        is_older && self.find_pause(tenant).is_some()
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

    /// Releases nodes that pods which wait have kept for too long without using them, as many as requests of others lack.
    pub fn release_unused(&mut self) {
        let mut kept: BTreeMap<usize, Vec<(Seconds, usize)>> = BTreeMap::new();
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
        let mut released = 0;
        for (tenant, nodes) in kept {
            let kept_since = *self.unused.entry(tenant).or_default().kept_since.get_or_insert(now);
            // Nodes of one pod have no less time because those of another are kept for longer.
            let until = |from: Seconds| from.max(kept_since) + patience;
            let (mut due, rest): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|(from, _)| until(*from) <= now);
            for (from, _) in &rest {
                self.replan_by(until(*from));
            }
            let lacking = self.count_lacking(tenant).saturating_sub(released);
            let stay = due.split_off(due.len().min(lacking));
            if due.is_empty() {
                continue;
            }
            released += due.len();
            self.remember_unused(tenant, due.len(), true);
            if rest.is_empty() && stay.is_empty() {
                self.unused.entry(tenant).or_default().kept_since = None;
            }
            for (_, at) in due {
                let since = self.view.nodes[at].object.idle_since.unwrap_or(now);
                self.release(at, now, ActionReason::Unused { idle: now - since });
            }
        }
    }

    /// How many nodes other tenants lack. Those in a pause do not count: of two tenants whose pods never start, each would have nodes taken from
    /// the other. None, if there are free nodes that the pods of the tenant would get in place of those that are released.
    fn count_lacking(&self, tenant: usize) -> usize {
        let mut own = (0..self.progress.len()).filter(|at| self.view.tenant_of(*at) == tenant);
        if own.any(|at| self.available.fits(at, &self.view)) {
            return 0;
        }
        let is_other = |other: usize| other != tenant && self.find_pause(other).is_none();
        let blocked = (0..self.progress.len()).filter(|at| {
            is_other(self.view.tenant_of(*at)) && self.progress[*at].blocked_by == Some(Blocked::NoFreeNodes)
        });
        let requests = blocked.map(|at| self.count_nodes_for(at, &self.progress[at].unplaced));
        let groups = self.view.node_groups.iter().zip(&self.groups);
        let minimums = groups
            .filter(|(group, state)| is_other(group.tenant) && state.minimum_blocked_by == Some(Blocked::NoFreeNodes));
        let nodes = requests.chain(minimums.map(|(_, state)| state.missing));
        nodes.fold(0, |sum, nodes| sum.saturating_add(nodes as usize))
    }

    /// Nodes of a group beyond its minimum that are idle for too long, and since when. They stay only because requests count on them.
    fn list_kept_too_long(&mut self, group: usize) -> Vec<(Seconds, usize)> {
        let of = &self.view.node_groups[group];
        let spare = self.groups[group].staying.saturating_sub(of.spec.min_nodes);
        if spare == 0 {
            return Vec::new();
        }
        let kept = of.nodes.iter().copied();
        let kept = kept.filter(|at| self.decisions[*at] == Decision::Needed && !self.awaited[*at]);
        let mut kept: Vec<(Seconds, usize)> = kept.filter_map(|at| Some((self.too_long_from(at)?, at))).collect();
        let now = self.view.now;
        for (from, _) in &kept {
            self.replan_by(*from);
        }
        kept.retain(|(from, _)| *from <= now);
        // Those that are idle the longest.
        kept.sort_unstable();
        kept.truncate(spare as usize);
        kept
    }

    /// Since when no pod uses a node that serves its tenant; `None`: it is in use, or no pod could use it now.
    fn left_idle_since(&self, node: usize) -> Option<Seconds> {
        let of = &self.view.nodes[node];
        of.object.idle_since.filter(|_| of.is_serving() && !of.object.unusable)
    }

    /// From when on such a node is idle for too long, whatever waits for it; `None`: it is no such node.
    fn too_long_from(&self, node: usize) -> Option<Seconds> {
        let since = self.left_idle_since(node)?;
        Some(self.idle_until(node)?.max(since + self.patience()))
    }

    fn patience(&self) -> Seconds {
        self.view.pool.idle_timeout.max(LEAST_PATIENCE)
    }

    /// Whether no pod of its tenant ever used a node, although it could.
    pub fn is_never_used(&self, node: usize) -> bool {
        let owner = self.view.nodes[node].owner();
        owner
            .zip(self.left_idle_since(node))
            .is_some_and(|(owner, idle)| idle <= owner.since + NOTICED_WITHIN)
    }

    /// Remembers that nodes are released which no pod used and for which none waits, unless the tenant uses as many others: a pod may find
    /// another place while a node joins.
    pub fn remember_never_used(&mut self, tenant: usize, nodes: usize) {
        let groups = self.view.node_groups.iter().filter(|group| group.tenant == tenant);
        let (mut used, mut never_used) = (0, 0);
        for group in groups {
            let mut never_used_of_group = 0_u32;
            for at in &group.nodes {
                let node = &self.view.nodes[*at];
                used += u32::from(at_work(node.is_serving(), node.object.idle_since));
                never_used_of_group += u32::from(self.is_never_used(*at));
            }
            // It has these nodes without any pod.
            never_used += never_used_of_group.saturating_sub(group.spec.min_nodes);
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
