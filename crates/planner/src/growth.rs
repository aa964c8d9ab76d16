//! What a pool lacks to which somebody may add nodes: pods and floors that wait only because there are not enough of them.
//!
//! Demand that counts on nodes which are on their way, that may not have more, or that no node could serve, is not listed.
//! A gang is listed as a whole, free nodes included: whoever adds nodes sees these, and must not take them away meanwhile.

use crate::packing::{Load, Part};
use crate::round::{Fate, Round};
use crate::words::{Why, nodes};
use crate::{Demand, PodSet, ScaleUp, ScaleUpLimits, Shortage, Topology};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What is asked for.
pub(crate) struct Asked {
    pub ask: ScaleUp,
    /// Nodes that have to come, by asker.
    pub by_asker: Vec<u32>,
}

/// What has been asked for so far.
struct Asking {
    growth: ScaleUpLimits,
    asked: Asked,
    /// Nodes that the pool may still get.
    left_nodes: u32,
    left_pods: u32,
    /// Machines that somebody counts on.
    used: Vec<bool>,
    /// What was added to the tree for the time being: tenant and GPUs.
    taken: Vec<(usize, u64)>,
    limited_by: usize,
}

/// A node that does not exist yet.
struct Shape {
    /// None: nobody knows what it holds.
    capacity: Option<Vec<u64>>,
    gpus: u64,
}

impl Shape {
    /// Nodes of this shape for a load; every pod counts as a node where nobody knows.
    fn nodes_of(&self, load: &Load) -> u32 {
        let known = self.capacity.as_ref().and_then(|capacity| load.nodes_of(capacity));
        known.unwrap_or_else(|| load.count())
    }

    /// Places what fits on one node.
    fn place(&self, load: &mut Load) {
        match &self.capacity {
            Some(capacity) => load.place(&mut capacity.clone()),
            None => load.place_one(),
        };
    }
}

impl Round<'_> {
    /// What the pool lacks; nothing for one that does not grow.
    pub fn ask(&mut self) -> Option<Asked> {
        let growth = self.view.pool.scale_up.clone()?;
        let there = u32::try_from(self.view.machines.len()).unwrap_or(u32::MAX);
        let mut asking = Asking {
            left_nodes: growth.max_nodes.map_or(u32::MAX, |most| most.saturating_sub(there)),
            left_pods: growth.max_pods.unwrap_or(u32::MAX),
            growth,
            asked: Asked {
                ask: ScaleUp::default(),
                by_asker: vec![0; self.view.askers.len()],
            },
            used: vec![false; self.view.machines.len()],
            taken: Vec::new(),
            limited_by: 0,
        };
        for asker in 0..self.view.askers.len() {
            self.ask_for_floor(asker, &mut asking);
        }
        let mut wants: Vec<usize> = (0..self.view.wants.len())
            .filter(|want| self.requests[*want].why == Some(Why::NoneFree))
            .filter(|want| !self.view.wants[*want].demand.existing_nodes_only)
            .collect();
        wants.sort_by_key(|at| {
            let want = &self.view.wants[*at];
            (
                Reverse(want.demand.priority),
                want.demand.waiting_since,
                want.asker,
                &want.demand.name,
            )
        });
        for want in wants {
            let demand = self.view.wants[want].demand;
            if demand.gang || demand.topology == Topology::SingleDomain {
                self.ask_for_gang(want, &mut asking);
            } else {
                self.ask_for_pods(want, &mut asking);
            }
        }
        for (tenant, gpus) in asking.taken {
            self.tree.give_back(tenant, gpus);
        }
        let mut asked = asking.asked;
        if let Some(words) = asked.ask.limited_by.as_mut().filter(|_| asking.limited_by > 1) {
            *words = format!("{words}; the same holds for {} more", asking.limited_by - 1);
        }
        Some(asked)
    }

    /// Whole nodes that a group has whatever happens; all of them or none, as they are given.
    fn ask_for_floor(&mut self, asker: usize, asking: &mut Asking) {
        let holding = &self.holdings[asker];
        if holding.missing == 0 || holding.floor_why != Some(Why::NoneFree) {
            return;
        }
        let on_the_way = holding.awaited_for_floor.iter();
        let on_the_way = on_the_way.filter(|at| !self.view.machines[**at].is_free()).count();
        let mut load = self.view.whole_nodes(holding.missing);
        for _ in 0..on_the_way {
            load.place_one();
        }
        let whole = |_: usize| Some(vec![1; self.view.whole_nodes(1).parts[0].each.len()]);
        let own = |at: usize| self.view.machines[at].asker == Some(asker);
        self.count_on(asking, &mut load, |at| self.is_coming(at) && !own(at), whole);
        let (count, gpus) = (load.count(), self.least_gpus(&asking.growth));
        self.count_on(
            asking,
            &mut load,
            |at| self.may_hold_pod(at) || self.is_starting(at),
            whole,
        );
        let new = load.count();
        let of = &self.view.askers[asker];
        if self.tree.limit(of.tenant, gpus * u64::from(count)).is_some() {
            return;
        }
        let name = format!("group {} of {}", of.group.name, of.of.name);
        if !asking.may_ask(&name, new, count, &self.view.pool.name) {
            return;
        }
        let resource = self
            .view
            .pool
            .gpu_resource_name
            .iter()
            .map(|resource| (resource.clone(), gpus));
        let new_gpus = gpus.saturating_mul(new.into());
        self.tree.take(of.tenant, new_gpus);
        asking.taken.push((of.tenant, new_gpus));
        asking.add(
            asker,
            new,
            Shortage {
                tenant: of.of.uid.clone(),
                node_group: of.group.name.clone(),
                whole_nodes: true,
                pod_sets: vec![PodSet {
                    count,
                    requests: resource.collect(),
                }],
                ..Shortage::default()
            },
        );
    }

    fn ask_for_gang(&mut self, want: usize, asking: &mut Asking) {
        let asker = self.view.wants[want].asker;
        let rooms = self.holdings[asker].rooms.clone();
        let mut load = self.view.wants[want].load.clone();
        for (machine, room) in rooms {
            if self.matches(want, machine) {
                load.place(&mut room.clone());
            }
        }
        let mut kept = Vec::new();
        for own in &self.holdings[asker].cordoned {
            if self.may_be_kept(*own, &kept) && self.matches(want, *own) && load.place(&mut self.view.room(*own)) > 0 {
                kept.push(*own);
            }
        }
        let capacity = |at: usize| Some(self.view.kinds[self.view.machines[at].kind].capacity.clone());
        let matching = |at: usize| self.matches(want, at);
        self.count_on(
            asking,
            &mut load,
            |at| self.is_coming(at) && !self.is_own(want, at) && matching(at),
            capacity,
        );
        let shape = self.shape(want, &load, &asking.growth);
        if shape.capacity.is_none() {
            // The first node that comes tells how large nodes are. Until then a pod is a node, and the group may have no more.
            let of = &self.view.askers[asker];
            let had = self.holdings[asker].there + asking.asked.by_asker[asker];
            let left = of.most().saturating_sub(had);
            while load.count() > left {
                load.drop_one();
            }
        }
        let pods = load.clone();
        let before = shape.nodes_of(&load);
        self.count_on(asking, &mut load, |at| self.may_hold_pod(at) && matching(at), capacity);
        self.count_on(asking, &mut load, |at| self.is_starting(at), |_| shape.capacity.clone());
        let new = shape.nodes_of(&load);
        let gpus = if shape.capacity.is_some() {
            shape.gpus.saturating_mul(before.into())
        } else {
            self.gpus_of(&pods)
        };
        let more = asking.asked.by_asker[asker].saturating_add(before);
        if pods.is_empty() || self.may_have(asker, more as usize, gpus).is_err() {
            return;
        }
        let name = format!(
            "gang {} of {}",
            self.view.wants[want].demand.name, self.view.askers[asker].of.name
        );
        if asking.may_ask(&name, new, pods.count(), &self.view.pool.name) {
            self.note(want, asking, &shape, new, &pods);
        }
    }

    /// Pods one by one, as many as may have nodes.
    fn ask_for_pods(&mut self, want: usize, asking: &mut Asking) {
        let asker = self.view.wants[want].asker;
        let mut load = self.requests[want].rest.clone();
        let all = load.clone();
        let shape = self.shape(want, &load, &asking.growth);
        let capacity = |at: usize| Some(self.view.kinds[self.view.machines[at].kind].capacity.clone());
        let spare = |at: usize| self.may_hold_pod(at) && self.matches(want, at);
        self.count_on(asking, &mut load, spare, capacity);
        self.count_on(asking, &mut load, |at| self.is_starting(at), |_| shape.capacity.clone());
        let awaited = self.holdings[asker].awaited;
        let mut new = 0;
        while !load.is_empty() {
            let more = awaited + (asking.asked.by_asker[asker] + new + 1) as usize;
            if self.may_have(asker, more, shape.gpus * u64::from(new + 1)).is_err() {
                break;
            }
            if new >= asking.left_nodes {
                let name = format!(
                    "{} of {}",
                    self.view.wants[want].demand.name, self.view.askers[asker].of.name
                );
                asking.hold_back_nodes(&name, 1, &self.view.pool.name);
                break;
            }
            shape.place(&mut load);
            new += 1;
        }
        let mut pods = all.without(&load);
        if pods.count() > asking.left_pods {
            asking.hold_back_pods(&self.view.pool.name);
            while pods.count() > asking.left_pods {
                pods.drop_one();
            }
            new = new.min(shape.nodes_of(&pods));
        }
        if !pods.is_empty() {
            self.note(want, asking, &shape, new, &pods);
        }
    }

    /// Takes note of what is asked for.
    fn note(&mut self, want: usize, asking: &mut Asking, shape: &Shape, new: u32, pods: &Load) {
        let (asker, demand): (usize, &Demand) = (self.view.wants[want].asker, self.view.wants[want].demand);
        let of = &self.view.askers[asker];
        let gpus = shape.gpus * u64::from(new);
        self.tree.take(of.tenant, gpus);
        asking.taken.push((of.tenant, gpus));
        let shortage = Shortage {
            tenant: of.of.uid.clone(),
            node_group: of.group.name.clone(),
            name: demand.name.clone(),
            gang: demand.gang,
            whole_nodes: false,
            single_domain: demand.topology == Topology::SingleDomain,
            pod_sets: self.view.pods_of(pods),
            selector: demand.selector.clone(),
        };
        asking.add(asker, new, shortage);
    }

    /// Places a load on machines that nobody counts on yet.
    fn count_on(
        &self,
        asking: &mut Asking,
        load: &mut Load,
        which: impl Fn(usize) -> bool,
        room: impl Fn(usize) -> Option<Vec<u64>>,
    ) {
        for at in 0..self.view.machines.len() {
            if load.is_empty() {
                return;
            }
            if asking.used[at] || !which(at) {
                continue;
            }
            let placed = match room(at) {
                Some(mut room) => load.place(&mut room),
                None => load.place_one(),
            };
            asking.used[at] = placed > 0;
        }
    }

    /// On its way to be free, and nobody's yet.
    fn is_coming(&self, at: usize) -> bool {
        self.coming.contains(&at) && matches!(self.fates[at], Fate::Open)
    }

    /// Free after this plan, so that a pod which stands for demand can be placed there.
    fn may_hold_pod(&self, at: usize) -> bool {
        self.view.machines[at].is_free() && matches!(self.fates[at], Fate::Open | Fate::Awaited)
    }

    fn is_starting(&self, at: usize) -> bool {
        self.view.machines[at].node.starting
    }

    /// The kind of node that takes the fewest for a load.
    fn shape(&self, want: usize, load: &Load, growth: &ScaleUpLimits) -> Shape {
        let selector = self.view.wants[want].selector;
        if self.knows_a_node() {
            let kinds = self.view.kinds.iter().filter(|kind| kind.matches[selector]);
            let fitting = kinds.filter_map(|kind| Some((load.nodes_of(&kind.capacity)?, kind)));
            if let Some((_, kind)) = fitting.min_by_key(|(nodes, kind)| (*nodes, kind.gpus)) {
                return Shape {
                    capacity: Some(kind.capacity.clone()),
                    gpus: kind.gpus,
                };
            }
        }
        Shape {
            capacity: growth.node_capacity.as_ref().map(|node| self.view.capacity_of(node)),
            gpus: self.least_gpus(growth).max(self.largest_pod(load)),
        }
    }

    /// GPUs that a pod of the load asks for at most.
    fn largest_pod(&self, load: &Load) -> u64 {
        let parts = load.parts.iter().map(|part| self.gpus_of_pod(&part.each));
        parts.max().unwrap_or_default()
    }

    fn gpus_of(&self, load: &Load) -> u64 {
        let of_part = |sum: u64, part: &Part| {
            let gpus = self.gpus_of_pod(&part.each).saturating_mul(part.left.into());
            sum.saturating_add(gpus)
        };
        load.parts.iter().fold(0, of_part)
    }

    /// A pool's own resource is its first; a node without any counts as one GPU, and so does a pod.
    fn gpus_of_pod(&self, each: &[u64]) -> u64 {
        self.view.pool.gpu_resource_name.as_ref().map_or(1, |_| each[0])
    }

    /// GPUs of the smallest node.
    fn least_gpus(&self, growth: &ScaleUpLimits) -> u64 {
        let known = self.view.machines.iter().filter(|machine| !machine.node.starting);
        let declared = || {
            growth
                .node_capacity
                .as_ref()?
                .get(self.view.pool.gpu_resource_name.as_ref()?)
                .copied()
        };
        let least = known.map(|machine| self.view.kinds[machine.kind].gpus).min();
        least.or_else(declared).unwrap_or(1)
    }
}

impl Asking {
    /// Whether all of something may be asked for.
    fn may_ask(&mut self, name: &str, new: u32, pods: u32, pool: &str) -> bool {
        if new > self.left_nodes {
            self.hold_back_nodes(name, new, pool);
            return false;
        }
        if pods > self.left_pods {
            self.hold_back_pods(pool);
            return false;
        }
        pods > 0
    }

    fn hold_back_nodes(&mut self, name: &str, new: u32, pool: &str) {
        let most = self.growth.max_nodes.unwrap_or_default();
        self.hold_back(format!(
            "{name} needs {} more, and pool {pool} may have {most} in all",
            nodes(new as usize)
        ));
    }

    fn hold_back_pods(&mut self, pool: &str) {
        let most = self.growth.max_pods.unwrap_or_default();
        self.hold_back(format!("for pool {pool} {most} pods are asked for at most"));
    }

    fn hold_back(&mut self, words: String) {
        self.limited_by += 1;
        self.asked.ask.limited_by.get_or_insert(words);
    }

    fn add(&mut self, asker: usize, new: u32, shortage: Shortage) {
        let pods: u32 = shortage.pod_sets.iter().map(|pods| pods.count).sum();
        self.left_nodes = self.left_nodes.saturating_sub(new);
        self.left_pods = self.left_pods.saturating_sub(pods);
        self.asked.by_asker[asker] += new;
        self.asked.ask.nodes += new;
        self.asked.ask.shortages.push(shortage);
    }
}

impl crate::view::View<'_> {
    /// Pods with their amounts by name.
    fn pods_of(&self, load: &Load) -> Vec<PodSet> {
        let pods = load.parts.iter().map(|part| {
            let amounts = self.resources.iter().filter(|(_, number)| part.each[**number] > 0);
            PodSet {
                count: part.left,
                requests: amounts
                    .map(|(name, number)| ((*name).to_owned(), part.each[*number]))
                    .collect(),
            }
        });
        pods.collect()
    }

    /// A capacity by resource number. What is not named there is plenty of.
    fn capacity_of(&self, amounts: &BTreeMap<String, u64>) -> Vec<u64> {
        const PLENTY: u64 = u64::MAX / 4;
        let mut capacity = vec![PLENTY; self.resources.len() + 1];
        for (name, number) in &self.resources {
            if let Some(amount) = amounts.get(*name) {
                capacity[*number] = *amount;
            }
        }
        capacity[self.resources.len()] = 1;
        capacity
    }
}
