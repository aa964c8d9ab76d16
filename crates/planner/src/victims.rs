//! Nodes that may be reclaimed from their tenants, and which tenants have such nodes at all. A request that can have none is not to look at each of them: a fleet
//! may have hundreds of tenants, and as many requests that wait.

use crate::load::Part;
use crate::pass::{Blocked, PlanningPass};
use crate::tree::{TenantSet, Tree};
use crate::view::PoolNode;
use crate::{Reclaim, Seconds};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Pods that wait, by the nodes that their selector names and what each requests: one that is alike, and the highest priority of all that are.
type WaitingPods<'d> = BTreeMap<(usize, &'d [u64]), (&'d Part, i32)>;

/// Nodes that may be reclaimed from their tenants. Each set counts a tenant once for each of its groups.
pub(crate) struct Victims {
    /// By node group, in the order in which they are taken, without those that were released since.
    pub of_group: Vec<Vec<usize>>,
    /// How many there were when they were listed.
    pub listed: usize,
    /// Node groups that had any, by tenant.
    pub groups: Vec<Vec<usize>>,
    /// Of these groups those that have nodes beyond their minimums now.
    pub with_spare: TenantSet,
    /// The others of them.
    pub without_spare: TenantSet,
    /// Those with nodes on which none of their requests counts.
    pub with_uncounted: TenantSet,
    /// The number of these nodes, by node group.
    uncounted: Vec<usize>,
    /// The lowest priority of the pods on any of them.
    pub lowest_priority: Option<i32>,
    /// The lowest priority of the pods that run on any of them, by node group, whatever waits for them.
    pub lowest_running: Vec<Option<i32>>,
    pub lowest_running_of_all: Option<i32>,
}

impl Victims {
    /// Whether a group has nodes on which none of its requests counts.
    pub fn has_uncounted(&self, group: usize) -> bool {
        self.uncounted[group] > 0
    }

    /// All tenants that had any.
    pub fn list_tenants(&self, tree: &Tree<'_>) -> TenantSet {
        let mut tenants = tree.empty_set();
        for (tenant, _) in self.groups.iter().enumerate().filter(|(_, groups)| !groups.is_empty()) {
            tree.insert_tenant(&mut tenants, tenant);
        }
        tenants
    }

    /// Notes that there is one node less on which no request of its group counts.
    fn remove_uncounted(&mut self, group: usize, tenant: usize, tree: &Tree<'_>) {
        self.uncounted[group] -= 1;
        if self.uncounted[group] == 0 {
            tree.remove_tenant(&mut self.with_uncounted, tenant);
        }
    }
}

impl PlanningPass<'_> {
    /// Lists nodes that may be reclaimed, by group: first idle ones, then those that other pods keep, then those in use; of these those with
    /// the lowest priority, then those of the smallest gang, then the emptiest, then the youngest. Those that requests of their group count on
    /// go last.
    pub fn list_victims(&mut self) {
        if self.victims.is_some() {
            return;
        }
        self.waiting_priorities = self.list_waiting_priorities();
        let mut next = None;
        let lists: Vec<Vec<usize>> = (0..self.view.node_groups.len())
            .map(|group| self.list_victims_of(group, &mut next))
            .collect();
        if let Some(next) = next {
            self.replan_by(next);
        }
        let in_use = lists
            .iter()
            .enumerate()
            .filter(|(group, _)| self.has_spare_nodes(*group))
            .flat_map(|(_, list)| list)
            .filter(|at| self.view.nodes[**at].object.has_users());
        let is_uncounted = |at: &&usize| !self.is_counted_on(**at);
        let lowest_running: Vec<Option<i32>> = lists.iter().map(|list| self.find_lowest_running(list)).collect();
        let mut victims = Victims {
            lowest_priority: in_use.map(|at| self.priority_of_use(*at)).min(),
            lowest_running_of_all: lowest_running.iter().flatten().min().copied(),
            lowest_running,
            uncounted: lists
                .iter()
                .map(|list| list.iter().filter(is_uncounted).count())
                .collect(),
            listed: lists.iter().map(Vec::len).sum(),
            of_group: lists,
            groups: vec![Vec::new(); self.tree.count_tenants()],
            with_spare: self.tree.empty_set(),
            without_spare: self.tree.empty_set(),
            with_uncounted: self.tree.empty_set(),
        };
        for (group, of) in self.view.node_groups.iter().enumerate() {
            if victims.of_group[group].is_empty() {
                continue;
            }
            let tenant = of.tenant;
            victims.groups[tenant].push(group);
            let by_spare = if self.has_spare_nodes(group) {
                &mut victims.with_spare
            } else {
                &mut victims.without_spare
            };
            self.tree.insert_tenant(by_spare, tenant);
            if victims.has_uncounted(group) {
                self.tree.insert_tenant(&mut victims.with_uncounted, tenant);
            }
        }
        self.victims = Some(victims);
    }

    /// The highest priority of the pods that wait in the group of a node and fit on what is left there, by node. Pods that no node of the pool can have are left out:
    /// by them a tenant would keep all nodes on which others of its pods wait.
    fn list_waiting_priorities(&self) -> Vec<Option<i32>> {
        // Many pods are alike: each kind is compared once.
        let mut pods: Vec<WaitingPods<'_>> = vec![BTreeMap::new(); self.view.node_groups.len()];
        for (request, progress) in self.view.requests.iter().zip(&self.progress) {
            if matches!(progress.blocked_by, Some(Blocked::Impossible(_))) {
                continue;
            }
            let priority = request.demand.priority;
            for part in &request.load.parts {
                let alike = pods[request.group].entry((request.selector, &*part.each));
                let (_, highest) = alike.or_insert((part, priority));
                *highest = priority.max(*highest);
            }
        }
        let find = |(at, node): (usize, &PoolNode<'_>)| {
            let pods = &pods[node.group?];
            let free = (!pods.is_empty()).then(|| self.view.free_capacity(at))?;
            let matches = &self.view.kinds[node.kind].matches;
            let fitting = pods
                .iter()
                .filter(|((selector, _), (part, _))| matches[*selector] && part.fit_on(&free) > 0);
            fitting.map(|(_, (_, priority))| *priority).max()
        };
        self.view.nodes.iter().enumerate().map(find).collect()
    }

    /// Counts the nodes that may be reclaimed for somebody, those included that were released since they were listed.
    pub fn count_victims(&mut self) -> usize {
        self.list_victims();
        self.victims.as_ref().map_or(0, |victims| victims.listed)
    }

    /// Notes that a node of a group is released.
    pub fn remove_victim(&mut self, group: usize, node: usize) {
        let is_counted_on = self.is_counted_on(node);
        let Some(victims) = &mut self.victims else { return };
        let list = &mut victims.of_group[group];
        if let Some(at) = list.iter().position(|other| *other == node) {
            list.remove(at);
            if !is_counted_on {
                victims.remove_uncounted(group, self.view.node_groups[group].tenant, &self.tree);
            }
        }
    }

    /// Notes that a request of its group counts on a node from now on.
    pub fn note_counted_on(&mut self, node: usize) {
        let (Some(victims), Some(group)) = (&mut self.victims, self.view.nodes[node].group) else {
            return;
        };
        if victims.of_group[group].contains(&node) {
            victims.remove_uncounted(group, self.view.node_groups[group].tenant, &self.tree);
        }
    }

    /// Notes that a group has nodes beyond its minimum now, or none any more.
    pub fn note_spare_nodes(&mut self, group: usize, had_spare: bool) {
        let has_spare = self.has_spare_nodes(group);
        let tenant = self.view.node_groups[group].tenant;
        let Some(victims) = self.victims.as_mut().filter(|_| has_spare != had_spare) else {
            return;
        };
        if !victims.groups[tenant].contains(&group) {
            return;
        }
        let (before, now) = if has_spare {
            (&mut victims.without_spare, &mut victims.with_spare)
        } else {
            (&mut victims.with_spare, &mut victims.without_spare)
        };
        self.tree.remove_tenant(before, tenant);
        self.tree.insert_tenant(now, tenant);
    }

    /// `next`: the earliest time at which a node may be reclaimed that may not be reclaimed now.
    fn list_victims_of(&self, group: usize, next: &mut Option<Seconds>) -> Vec<usize> {
        let (of, mut list) = (&self.view.node_groups[group], Vec::new());
        let may_lose_any = self.has_spare_nodes(group) || self.tree.has_nominal_quotas();
        if self.view.pool.reclaim == Reclaim::Never || !may_lose_any {
            return list;
        }
        // The last one first: where the nodes are alike, the list is in order then, and sorting it takes no time.
        for at in of.nodes.iter().rev().copied() {
            let node = &self.view.nodes[at];
            let Some(owner) = node.owner().filter(|_| node.is_serving()) else {
                continue;
            };
            if node.object.unusable || !self.stays(at) {
                continue;
            }
            // Cordoned now, it can be drained after the grace period; its minimum hold duration must be over by then.
            let grace_period = self.drain_time(at) - self.view.now;
            let from = owner.since + self.view.pool.min_hold_duration - grace_period;
            if from <= self.view.now {
                list.push(at);
            } else {
                *next = Some(next.map_or(from, |other| other.min(from)));
            }
        }
        let gang = self.largest_gangs(&list);
        list.sort_by_cached_key(|at| {
            let node = &self.view.nodes[*at];
            let since = node.owner().map_or(0, |owner| owner.since);
            let use_of_it = (
                node.object.idle_since.is_none(),
                self.priority_of_use(*at),
                gang(*at),
                node.object.pods,
            );
            (self.is_counted_on(*at), use_of_it, Reverse(since), Reverse(*at))
        });
        list
    }

    /// The lowest priority of the pods that run on any of some nodes, whatever waits for them.
    fn find_lowest_running(&self, nodes: &[usize]) -> Option<i32> {
        let objects = nodes.iter().map(|at| self.view.nodes[*at].object);
        objects.filter(|node| node.has_users()).map(|node| node.priority).min()
    }
}
