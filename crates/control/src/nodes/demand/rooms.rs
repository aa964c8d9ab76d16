//! Room on the nodes that a tenant has or may still get: where its pods are placed in thought.

use super::{
    translate::{GroupOf, HostNode, allows},
    workload::Workload,
};
use berth_planner::Amounts;
use std::collections::BTreeMap;

/// What is free on a node.
struct Room<'a> {
    group: &'a str,
    node: &'a HostNode<'a>,
    free: Amounts,
    /// Whether pods can come already.
    serves: bool,
}

/// Room on nodes, and how many nodes each group may still get.
#[derive(Default)]
pub(super) struct Rooms<'a> {
    all: Vec<Room<'a>>,
    left: BTreeMap<&'a str, u32>,
    /// Nodes that may still be looked at for this tenant.
    looks: usize,
}

/// Nodes that are looked at in all for the pods of a tenant with several groups: some tenths of a second. What comes after
/// that waits in the first group that could serve it.
const MOST_LOOKS: usize = 200_000;

impl<'a> Rooms<'a> {
    pub(super) fn new(groups: &[GroupOf<'a>]) -> Self {
        Self {
            all: Vec::new(),
            left: groups.iter().map(|group| (group.name, group.left)).collect(),
            looks: MOST_LOOKS,
        }
    }

    /// Adds a node, and what pods hold of it.
    pub(super) fn add(&mut self, group: &'a str, node: &'a HostNode<'a>, used: &Amounts, serves: bool) {
        let free = left(&node.capacity, used);
        self.all.push(Room {
            group,
            node,
            free,
            serves,
        });
    }

    /// Takes room for all pods on nodes of other groups that serve the tenant now, if there is enough.
    pub(super) fn take_elsewhere(&mut self, pods: &[&Workload], group: &str, groups: &[GroupOf<'a>]) -> bool {
        let mut taken = Vec::new();
        let found = pods.iter().all(|pod| {
            let spot = self.all.iter_mut().enumerate().find(|(_, room)| {
                room.serves
                    && room.group != group
                    && pod.apart().next().is_none()
                    && groups
                        .iter()
                        .any(|other| other.name == room.group && allows(&pod.rules, other, room.node))
                    && holds(&room.free, &pod.amounts)
            });
            take(spot, &pod.amounts, &mut taken)
        });
        if !found {
            self.give_back(&taken);
        }
        found
    }

    /// Takes room for pods on nodes that the group has or may still get, if there is enough.
    pub(super) fn take_in(&mut self, pods: &[&'a Workload], group: &GroupOf<'a>, pool: &'a [HostNode<'a>]) -> bool {
        let mut taken = Vec::new();
        let (rooms, nodes_left) = (self.all.len(), self.left.get(group.name).copied().unwrap_or_default());
        for pod in pods {
            self.looks = self.looks.saturating_sub(self.all.len() + pool.len());
            let fits = |room: &Room<'_>| {
                room.group == group.name
                    && allows(&pod.rules, group, room.node)
                    && room.node.has_room(&room.free, &pod.amounts)
            };
            let spot = self.all.iter_mut().enumerate().find(|(_, room)| fits(room));
            if take(spot, &pod.amounts, &mut taken) {
                continue;
            }
            let new = pool
                .iter()
                .find(|node| allows(&pod.rules, group, node) && node.has_room(&node.capacity, &pod.amounts));
            match (new, self.left.get_mut(group.name)) {
                (Some(node), Some(nodes)) if *nodes > 0 && self.looks > 0 => {
                    *nodes -= 1;
                    self.add(group.name, node, &pod.amounts, false);
                }
                _ => {
                    self.give_back(&taken);
                    self.all.truncate(rooms);
                    self.left.insert(group.name, nodes_left);
                    return false;
                }
            }
        }
        true
    }

    fn give_back(&mut self, taken: &[(usize, &Amounts)]) {
        for (index, amounts) in taken {
            for (resource, amount) in *amounts {
                *self.all[*index].free.entry(resource.clone()).or_default() += amount;
            }
        }
    }
}

fn take<'p>(spot: Option<(usize, &mut Room<'_>)>, amounts: &'p Amounts, taken: &mut Vec<(usize, &'p Amounts)>) -> bool {
    let Some((index, room)) = spot else { return false };
    room.free = left(&room.free, amounts);
    taken.push((index, amounts));
    true
}

/// Whether what is asked for is there.
pub(super) fn holds(capacity: &Amounts, asked: &Amounts) -> bool {
    let has = |resource: &String| capacity.get(resource).copied().unwrap_or_default();
    asked.iter().all(|(resource, amount)| has(resource) >= *amount)
}

/// What is left.
pub(super) fn left(capacity: &Amounts, used: &Amounts) -> Amounts {
    let taken = |resource: &String| used.get(resource).copied().unwrap_or_default();
    capacity
        .iter()
        .map(|(resource, amount)| (resource.clone(), amount.saturating_sub(taken(resource))))
        .collect()
}
