//! Simulated placement of pods on the nodes that a tenant has or may still get.

use super::{
    translate::{HostNode, NodeGroupDemand, allows},
    workload::Workload,
};
use berth_planner::Amounts;
use std::collections::BTreeMap;

/// The capacity that is left on a node.
struct SpareCapacity<'a> {
    group: &'a str,
    node: &'a HostNode<'a>,
    free: Amounts,
    /// Whether pods can be scheduled on it already.
    serves: bool,
}

/// Capacity that is left on nodes, and how many nodes each group may still get.
#[derive(Default)]
pub(super) struct PlacementSimulation<'a> {
    all: Vec<SpareCapacity<'a>>,
    left: BTreeMap<&'a str, u32>,
    /// Checks of nodes that are left for this tenant, of nodes that a group has or may get.
    checks_left: usize,
    /// The same of nodes of other groups.
    checks_elsewhere: usize,
}

/// Checks of nodes for all pods of a tenant with several groups, in other groups and in its own: some tenths of a second each. Pods beyond
/// that wait in the first group that could serve them.
const MAX_NODE_CHECKS: usize = 200_000;

impl<'a> PlacementSimulation<'a> {
    pub(super) fn new(groups: &[NodeGroupDemand<'a>]) -> Self {
        Self {
            all: Vec::new(),
            left: groups.iter().map(|group| (group.name, group.left)).collect(),
            checks_left: MAX_NODE_CHECKS,
            checks_elsewhere: MAX_NODE_CHECKS,
        }
    }

    /// Adds a node, and what its pods use.
    pub(super) fn add(&mut self, group: &'a str, node: &'a HostNode<'a>, used: &Amounts, serves: bool) {
        let free = subtract(&node.capacity, used);
        self.all.push(SpareCapacity {
            group,
            node,
            free,
            serves,
        });
    }

    /// Places all pods on nodes of other groups that serve the tenant now, or none.
    pub(super) fn place_in_other_groups(
        &mut self,
        pods: &[&Workload],
        group: &str,
        groups: &[NodeGroupDemand<'a>],
    ) -> bool {
        let others: BTreeMap<&str, &NodeGroupDemand<'_>> = groups
            .iter()
            .filter(|other| other.name != group)
            .map(|other| (other.name, other))
            .collect();
        if others.is_empty() || pods.iter().any(|pod| pod.anti_affinity_resources().next().is_some()) {
            return false;
        }
        let (mut taken, known_nodes) = (Vec::new(), self.all.len());
        let found = pods.iter().all(|pod| {
            let serves = |node_capacity: &SpareCapacity<'_>| {
                let other = others.get(node_capacity.group);
                node_capacity.serves
                    && other.is_some_and(|other| allows(&pod.rules, other, node_capacity.node))
                    && fits(&node_capacity.free, &pod.amounts)
            };
            let mut all = self.all.iter_mut().enumerate().take(self.checks_elsewhere);
            let candidate = all.find(|(_, node_capacity)| serves(node_capacity));
            let checks = candidate.as_ref().map_or(known_nodes, |(index, _)| index + 1);
            self.checks_elsewhere = self.checks_elsewhere.saturating_sub(checks);
            reserve_capacity(candidate, &pod.amounts, &mut taken)
        });
        if !found {
            self.undo_placements(&taken);
        }
        found
    }

    /// Places all pods on nodes that the group has or may still get, or none.
    pub(super) fn place_in_group(
        &mut self,
        pods: &[&'a Workload],
        group: &NodeGroupDemand<'a>,
        pool: &'a [HostNode<'a>],
    ) -> bool {
        let mut taken = Vec::new();
        let (known_nodes, nodes_left) = (self.all.len(), self.left.get(group.name).copied().unwrap_or_default());
        for pod in pods {
            self.checks_left = self.checks_left.saturating_sub(self.all.len() + pool.len());
            let fits = |node_capacity: &SpareCapacity<'_>| {
                node_capacity.group == group.name
                    && allows(&pod.rules, group, node_capacity.node)
                    && node_capacity.node.has_capacity(&node_capacity.free, &pod.amounts)
            };
            let candidate = self
                .all
                .iter_mut()
                .enumerate()
                .find(|(_, node_capacity)| fits(node_capacity));
            if reserve_capacity(candidate, &pod.amounts, &mut taken) {
                continue;
            }
            let new = pool
                .iter()
                .find(|node| allows(&pod.rules, group, node) && node.has_capacity(&node.capacity, &pod.amounts));
            match (new, self.left.get_mut(group.name)) {
                (Some(node), Some(nodes)) if *nodes > 0 && self.checks_left > 0 => {
                    *nodes -= 1;
                    self.add(group.name, node, &pod.amounts, false);
                }
                _ => {
                    self.undo_placements(&taken);
                    self.all.truncate(known_nodes);
                    self.left.insert(group.name, nodes_left);
                    return false;
                }
            }
        }
        true
    }

    fn undo_placements(&mut self, taken: &[(usize, &Amounts)]) {
        for (index, amounts) in taken {
            for (resource, amount) in *amounts {
                *self.all[*index].free.entry(resource.clone()).or_default() += amount;
            }
        }
    }
}

fn reserve_capacity<'p>(
    candidate: Option<(usize, &mut SpareCapacity<'_>)>,
    amounts: &'p Amounts,
    taken: &mut Vec<(usize, &'p Amounts)>,
) -> bool {
    let Some((index, node_capacity)) = candidate else {
        return false;
    };
    node_capacity.free = subtract(&node_capacity.free, amounts);
    taken.push((index, amounts));
    true
}

/// Whether the capacity is enough for what is requested.
pub(super) fn fits(capacity: &Amounts, requested: &Amounts) -> bool {
    let has = |resource: &String| capacity.get(resource).copied().unwrap_or_default();
    requested.iter().all(|(resource, amount)| has(resource) >= *amount)
}

pub(super) fn subtract(capacity: &Amounts, used: &Amounts) -> Amounts {
    let taken = |resource: &String| used.get(resource).copied().unwrap_or_default();
    capacity
        .iter()
        .map(|(resource, amount)| (resource.clone(), amount.saturating_sub(taken(resource))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn gpus(count: u64) -> Amounts {
        [(GPU.to_owned(), count)].into()
    }

    #[test]
    fn pods_that_fit_nowhere_cost_a_bounded_number_of_checks() {
        let group = |name, is_dynamic| NodeGroupDemand {
            name,
            pool: "h100",
            is_dynamic,
            left: 4,
        };
        let groups = [group("fix", false), group("burst", true)];
        let node = HostNode {
            name: "n",
            capacity: gpus(8),
            ..HostNode::default()
        };
        let mut simulation = PlacementSimulation::new(&groups);
        for _ in 0..999 {
            simulation.add("fix", &node, &gpus(8), true);
        }
        simulation.add("fix", &node, &gpus(0), true);
        let pod = |count| Workload {
            amounts: gpus(count),
            ..Workload::default()
        };
        let (small, large) = (pod(1), pod(16));
        let mut is_elsewhere = |pods: &[&Workload]| simulation.place_in_other_groups(pods, "burst", &groups);
        // One after the other, and as a gang whose other member fits nowhere.
        assert!((0..4).all(|_| is_elsewhere(&[&small])));
        assert!(!is_elsewhere(&[&small, &large]));
        assert!((0..4).all(|_| is_elsewhere(&[&small])));
        assert!(!is_elsewhere(&[&small]), "the node has 8 GPUs");
        for _ in 0..MAX_NODE_CHECKS / 1_000 {
            is_elsewhere(&[&large]);
        }
        assert_eq!(simulation.checks_elsewhere, 0);
        simulation.add("fix", &node, &gpus(0), true);
        assert!(!simulation.place_in_other_groups(&[&small], "burst", &groups));
    }
}
