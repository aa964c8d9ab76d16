//! What is remembered of nodes that tenants left unused, from plan to plan, and the pauses that follow from it.

use crate::pass::PlanningPass;
use crate::unused_nodes::LeftUnused;
use crate::{ActionKind, ActionReason, Fleet, Plan, Seconds, UnusedNodes, UnusedNodesByTenant};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a plan says of tenants before its pools are planned.
pub(crate) fn carry_over(fleet: &Fleet) -> UnusedNodesByTenant {
    let recall = |(name, unused): (&String, &UnusedNodes)| {
        let pool = fleet.pools.iter().find(|pool| pool.name == *name);
        let recalled = unused.recall(fleet.now, pool.map_or(0, |pool| pool.reclaim_grace_period));
        let unused = UnusedNodes {
            kept_since: None,
            waiting: recalled.waiting.go_on(false, fleet.now),
            ..recalled
        };
        (name.clone(), unused)
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
            waiting: planned.waiting,
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
            let known = known.recall(self.view.now, self.view.pool.reclaim_grace_period);
            let used = self.count_new_nodes_in_use(group.tenant, known.released_at);
            let released = if used < known.nodes {
                known
            } else {
                UnusedNodes::default()
            };
            let unused = UnusedNodes {
                kept_since: known.kept_since,
                waiting: known.waiting,
                ..released
            };
            recalled.insert(group.tenant, unused);
        }
        for unused in recalled.values() {
            self.replan_for(unused);
        }
        self.unused = recalled;
        self.note_waiting_for_too_long();
    }

    pub(super) fn replan_for(&mut self, unused: &UnusedNodes) {
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
            is_new && !self.is_leaving(**at) && node.is_in_use()
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

    /// Remembers that a node is released that no pod of its tenant used, or in use but not by those that waited for it. `pods_wait`: for this node. `drain_at`:
    /// when it is drained.
    pub fn remember_unused(&mut self, node: usize, pods_wait: bool, drain_at: Seconds) {
        let of = &self.view.nodes[node];
        let (Some(group), Some(since)) = (of.group, of.owner().map(|owner| owner.since)) else {
            return;
        };
        let tenant = self.view.node_groups[group].tenant;
        let paused_until = self.find_pause(tenant);
        let known = self.unused.entry(tenant).or_default();
        let (before, left) = self
            .left_unused
            .entry(tenant)
            .or_insert((*known, LeftUnused::default()));
        left.add_node(since, pods_wait);
        left.drain_at(drain_at);
        *known = UnusedNodes {
            kept_since: known.kept_since,
            waiting: known.waiting,
            ..before.add(*left, self.view.now)
        };
        let known = *known;
        self.replan_for(&known);
        self.update_shared_pause(tenant, paused_until);
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
