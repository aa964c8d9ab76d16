//! Nodes that a tenant gets for its pods and that none of them uses.
//!
//! A pod can wait for ever although a node has room for it: because of an affinity to pods that do not exist, or as the first of a
//! gang. The planner does not see why, only that nodes stay idle. It finds them in two ways:
//! - nodes that are idle for too long and that only pods which wait keep. If a tenant has such nodes without a break for as long as the
//!   planner has patience, those that are idle for as long beyond that are released once [others lack them](crate::lacking), and there is a
//!   pause for the tenant. As long as nobody lacks them, they stay: the same pods would get them again, after they were recycled for nothing.
//! - nodes that no pod ever used and that are released as idle: their pods were deleted before. That happens to everybody at times, so
//!   some are spared.
//!
//! In a pause nothing is refused: requests of the tenant are served after those of all others, and nothing is reclaimed for them.
//!
//! The memory is by tenant and pool, not by request: who deletes a pod and creates it again, or renames a node group, has the same
//! tenant. It ends when the tenant uses as many new nodes as it left unused. docs/adr/0051 says why.

use crate::pass::{Decision, PlanningPass};
use crate::placement::Placement;
use crate::unused_nodes::LeftUnused;
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

/// Releases of nodes of one tenant and pool that no pod used.
#[derive(Default)]
struct Releases {
    done: LeftUnused,
    has_failed: bool,
    /// Whether pods wait for a node whose release failed.
    pods_wait: bool,
}

/// What to remember for the next plan after `plan` was carried out, except the release of the nodes `kept`: the next plan releases these
/// again, and counts them.
pub fn remember_unused_nodes(fleet: &Fleet, plan: &Plan, kept: &BTreeSet<String>) -> UnusedNodesByTenant {
    let mut remembered = plan.unused_nodes.clone();
    if kept.is_empty() {
        return remembered;
    }
    for ((uid, pool), releases) in list_releases(fleet, plan, kept) {
        let before = plan.unused_before.get(uid).and_then(|pools| pools.get(pool));
        let Some(before) = before.copied().filter(|_| releases.has_failed) else {
            continue;
        };
        let pools = remembered.entry(uid.to_owned()).or_default();
        let planned = pools.get(pool).copied().unwrap_or_default();
        let unused = UnusedNodes {
            kept_since: if releases.pods_wait {
                before.kept_since
            } else {
                planned.kept_since
            },
            ..before.add(releases.done, fleet.now)
        };
        pools.insert(pool.to_owned(), unused);
    }
    remove_empty(&mut remembered);
    remembered
}

/// Releases of nodes that no pod used, by UID of the tenant and pool.
fn list_releases<'a>(fleet: &'a Fleet, plan: &Plan, kept: &BTreeSet<String>) -> BTreeMap<(&'a str, &'a str), Releases> {
    let released = plan.actions.iter().filter_map(|action| {
        let pods_wait = match action.reason {
            ActionReason::Unused { .. } => true,
            ActionReason::NeverUsed { .. } => false,
            _ => return None,
        };
        matches!(action.kind, ActionKind::Release { .. }).then_some((action.node.as_str(), pods_wait))
    });
    let released: HashMap<&str, bool> = released.collect();
    let mut releases: BTreeMap<(&str, &str), Releases> = BTreeMap::new();
    for node in &fleet.nodes {
        let (Some(pods_wait), Some(owner)) = (released.get(node.name.as_str()), node.owner()) else {
            continue;
        };
        let of_pool = releases.entry((&owner.tenant, &node.pool)).or_default();
        if kept.contains(&node.name) {
            of_pool.has_failed = true;
            of_pool.pods_wait |= pods_wait;
        } else {
            of_pool.done.add_node(owner.since, *pods_wait);
        }
    }
    releases
}

/// Removes what says nothing.
pub(crate) fn remove_empty(unused: &mut UnusedNodesByTenant) {
    for pools in unused.values_mut() {
        pools.retain(|_, unused| *unused != UnusedNodes::default());
    }
    unused.retain(|_, pools| !pools.is_empty());
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
            self.note_awaited(placement);
        }
    }

    /// Notes that the request on these nodes of its group waits for further ones.
    pub fn note_awaited(&mut self, placement: &Placement) {
        for (at, _) in &placement.on_held {
            self.awaited[*at] = true;
        }
    }

    /// Releases nodes that pods which wait have kept for too long without using them, as far as others lack them.
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
        let mut due: Vec<(Seconds, usize)> = Vec::new();
        for (tenant, nodes) in &kept {
            let kept_since = *self.unused.entry(*tenant).or_default().kept_since.get_or_insert(now);
            for (from, at) in nodes {
                // Nodes of one pod have no less time because those of another are kept for longer.
                let until = (*from).max(kept_since) + patience;
                if until <= now {
                    due.push((*from, *at));
                } else {
                    self.replan_by(until);
                }
            }
        }
        due.sort_unstable();
        let due: Vec<usize> = due.into_iter().map(|(_, at)| at).collect();
        self.give_to_others(&due);
        for (tenant, nodes) in kept {
            if nodes.iter().all(|(_, at)| self.is_leaving(*at)) {
                self.unused.entry(tenant).or_default().kept_since = None;
            }
        }
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
    fn is_never_used(&self, node: usize) -> bool {
        let owner = self.view.nodes[node].owner();
        owner
            .zip(self.left_idle_since(node))
            .is_some_and(|(owner, idle)| idle <= owner.since + NOTICED_WITHIN)
    }

    /// Whether no pod ever used a node and none needs it, and its tenant leaves more such nodes than it uses: a pod may find another place
    /// while a node joins.
    pub fn is_left_without_use(&mut self, node: usize) -> bool {
        let is_unneeded = self.decisions[node] == Decision::Undecided && self.is_never_used(node);
        let Some(group) = self.view.nodes[node].group.filter(|_| is_unneeded) else {
            return false;
        };
        let tenant = self.view.node_groups[group].tenant;
        let known = self.leaves_most_unused.get(&tenant).copied();
        known.unwrap_or_else(|| {
            let leaves_most = self.leaves_more_than_it_uses(tenant);
            self.leaves_most_unused.insert(tenant, leaves_most);
            leaves_most
        })
    }

    fn leaves_more_than_it_uses(&self, tenant: usize) -> bool {
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
        never_used > used
    }

    /// Remembers that a node is released that no pod of its tenant used. `pods_wait`: for this node.
    pub fn remember_unused(&mut self, node: usize, pods_wait: bool) {
        let of = &self.view.nodes[node];
        let (Some(group), Some(since)) = (of.group, of.owner().map(|owner| owner.since)) else {
            return;
        };
        let tenant = self.view.node_groups[group].tenant;
        let known = self.unused.entry(tenant).or_default();
        let (before, left) = self
            .left_unused
            .entry(tenant)
            .or_insert((*known, LeftUnused::default()));
        left.add_node(since, pods_wait);
        *known = UnusedNodes {
            kept_since: known.kept_since,
            ..before.add(*left, self.view.now)
        };
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
            if let Some((before, _)) = self.left_unused.get(&group.tenant) {
                let pools = plan.unused_before.entry(group.owner.uid.clone()).or_default();
                pools.insert(pool.clone(), *before);
            }
        }
    }
}

/// Whether pods use a node.
fn at_work(is_serving: bool, idle_since: Option<Seconds>) -> bool {
    is_serving && idle_since.is_none()
}
