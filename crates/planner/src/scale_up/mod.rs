//! What a pool lacks that an autoscaler extends: pods and minimums that wait only because there are too few nodes.
//!
//! A request is not listed if it counts on incoming nodes, may not have more nodes, or fits on no node. A gang is listed as a
//! whole, including its pods that fit on free nodes: the autoscaler sees these nodes, and must not remove them meanwhile.

mod new_node;

use crate::load::Load;
use crate::pass::{Blocked, Decision, PlanningPass};
use crate::{PodSet, ScaleUp, ScaleUpBound, ScaleUpLimited, ScaleUpLimits, Shortage, Topology, Waiting};
use new_node::NewNode;
use std::cmp::Reverse;
use std::rc::Rc;

/// Nodes that are requested from the autoscaler.
pub(crate) struct RequestedNodes {
    pub scale_up: ScaleUp,
    /// New nodes by node group.
    pub by_group: Vec<u32>,
}

/// What has been requested so far.
struct ScaleUpPass {
    limits: ScaleUpLimits,
    requested: RequestedNodes,
    /// How many nodes the pool may still get.
    nodes_left: u32,
    pods_left: u32,
    /// Existing nodes that a listed request or minimum counts on.
    used: Vec<bool>,
    existing: ExistingNodes,
    /// What was added to the quota tree during this pass: tenant and GPUs.
    added: Vec<(usize, u64)>,
}

/// Nodes that requests and minimums may count on before new ones are requested.
#[derive(Clone)]
struct ExistingNodes {
    /// Not free yet, and kept for none.
    coming: Rc<[usize]>,
    /// Free after this plan, so that a placeholder can be placed there.
    free: Rc<[usize]>,
    /// Too new to be assigned.
    starting: Rc<[usize]>,
}

impl PlanningPass<'_> {
    /// Lists the nodes that the pool lacks; `None` for a pool that is not scaled.
    pub fn request_nodes(&mut self) -> Option<RequestedNodes> {
        let limits = self.view.pool.scale_up.clone()?;
        let existing = u32::try_from(self.view.nodes.len()).unwrap_or(u32::MAX);
        let mut pass = ScaleUpPass {
            nodes_left: limits.max_nodes.map_or(u32::MAX, |max| max.saturating_sub(existing)),
            pods_left: limits.max_pods.unwrap_or(u32::MAX),
            limits,
            requested: RequestedNodes {
                scale_up: ScaleUp::default(),
                by_group: vec![0; self.view.node_groups.len()],
            },
            used: vec![false; self.view.nodes.len()],
            existing: self.list_existing_nodes(),
            added: Vec::new(),
        };
        for group in 0..self.view.node_groups.len() {
            self.request_minimum(group, &mut pass);
        }
        for request in self.list_scalable_requests() {
            let demand = self.view.requests[request].demand;
            if demand.gang || demand.topology == Topology::SingleDomain {
                self.request_for_gang(request, &mut pass);
            } else {
                self.request_for_pods(request, &mut pass);
            }
        }
        for (tenant, gpus) in pass.added {
            self.tree.remove_used(tenant, gpus);
        }
        Some(pass.requested)
    }

    fn list_existing_nodes(&self) -> ExistingNodes {
        let list = |is_wanted: &dyn Fn(usize) -> bool| -> Rc<[usize]> {
            let nodes = 0..self.view.nodes.len();
            nodes.filter(|at| is_wanted(*at)).collect()
        };
        ExistingNodes {
            coming: list(&|at| self.is_unclaimed_incoming(at)),
            free: list(&|at| self.can_hold_pods(at)),
            starting: list(&|at| self.view.nodes[at].object.starting),
        }
    }

    /// Requests that wait only because there are too few nodes, in the order in which they are listed.
    fn list_scalable_requests(&self) -> Vec<usize> {
        let mut requests: Vec<usize> = (0..self.view.requests.len())
            .filter(|request| self.progress[*request].blocked_by == Some(Blocked::NoFreeNodes))
            .filter(|request| !self.view.requests[*request].demand.existing_nodes_only)
            .collect();
        requests.sort_by_key(|at| {
            let request = &self.view.requests[*at];
            let demand = request.demand;
            (
                self.find_pause(self.view.tenant_of(*at)).is_some(),
                Reverse(demand.priority),
                demand.waiting_since,
                request.group,
                &demand.name,
            )
        });
        requests
    }

    /// Requests all whole nodes that the minimum of a group lacks, or none: they are reserved together, too.
    fn request_minimum(&mut self, group: usize, pass: &mut ScaleUpPass) {
        let state = &self.groups[group];
        if state.missing == 0 || state.minimum_blocked_by != Some(Blocked::NoFreeNodes) {
            return;
        }
        let on_their_way = state.earmarked_for_minimum.iter();
        let on_their_way = on_their_way.filter(|at| !self.view.nodes[**at].is_free()).count();
        let mut load = self.view.whole_nodes(state.missing);
        for _ in 0..on_their_way {
            load.place_one();
        }
        let whole = |_: usize| Some(vec![1; self.view.whole_nodes(1).parts[0].each.len()]);
        let own = |at: usize| self.view.nodes[at].group == Some(group);
        let existing = pass.existing.clone();
        pass.count_on(&mut load, &existing.coming, |at| !own(at), whole);
        let count = load.count();
        // Quotas count a node as it will be.
        let gpus = self.smallest_new_node_gpus(&pass.limits).max(self.view.pool.least_gpus);
        let unassigned = self.unassigned_node_gpus(&pass.limits);
        pass.count_on(&mut load, &existing.free, |_| true, whole);
        pass.count_on(&mut load, &existing.starting, |_| true, whole);
        let new = load.count();
        let of = &self.view.node_groups[group];
        let exceeded = self.tree.exceeded_limit(of.tenant, gpus * u64::from(count));
        let waiting = Waiting::Minimum {
            min_nodes: of.spec.min_nodes,
        };
        if exceeded.is_some() || !self.may_request(pass, group, waiting, new, count) {
            return;
        }
        let of = &self.view.node_groups[group];
        let resource = self.view.pool.gpu_resource_name.iter();
        let shortage = Shortage {
            tenant: of.owner.uid.clone(),
            node_group: of.spec.name.clone(),
            whole_nodes: true,
            pod_sets: vec![PodSet {
                count,
                requests: resource.map(|resource| (resource.clone(), unassigned)).collect(),
            }],
            ..Shortage::default()
        };
        self.add_shortage(pass, group, new, gpus.saturating_mul(new.into()), shortage);
    }

    fn request_for_gang(&mut self, request: usize, pass: &mut ScaleUpPass) {
        let group = self.view.requests[request].group;
        let mut load = self.load_beyond_held_nodes(request);
        let capacity = |at: usize| Some(self.view.capacity(at).to_vec());
        let matching = |at: usize| self.matches(request, at);
        let existing = pass.existing.clone();
        let incoming = |at: usize| !self.is_own(request, at) && matching(at);
        pass.count_on(&mut load, &existing.coming, incoming, capacity);
        let new_node = self.choose_new_node(request, &load, &pass.limits);
        if new_node.capacity.is_none() {
            // The first new node shows how large nodes are. Until then each pod counts as a node, and the group may not have more
            // nodes than its maximum.
            let had = self.groups[group].held + pass.requested.by_group[group];
            let left = self.view.node_groups[group].max_nodes().saturating_sub(had);
            while load.count() > left {
                load.drop_one();
            }
        }
        let pods = load.clone();
        let needed = new_node.count_for(&load);
        pass.count_on(&mut load, &existing.free, matching, capacity);
        pass.count_on(&mut load, &existing.starting, |_| true, |_| new_node.capacity.clone());
        let new = new_node.count_for(&load);
        let gpus = if new_node.capacity.is_some() {
            new_node.gpus.saturating_mul(needed.into())
        } else {
            self.count_gpus(&pods)
        };
        let more = pass.requested.by_group[group].saturating_add(needed);
        if pods.is_empty() || self.check_limits(group, more as usize, gpus).is_err() {
            return;
        }
        let waiting = Waiting::Request(self.request_name(request));
        if self.may_request(pass, group, waiting, new, pods.count()) {
            self.add_request(pass, request, &new_node, new, &pods);
        }
    }

    /// The pods of a gang that do not fit on the nodes of its group.
    fn load_beyond_held_nodes(&self, request: usize) -> Load {
        let state = &self.groups[self.view.requests[request].group];
        let mut load = self.view.requests[request].load.clone();
        for (node, free) in &state.free_capacity {
            if self.matches(request, *node) {
                load.place(&mut free.clone());
            }
        }
        let mut kept = Vec::new();
        for own in &state.cordoned {
            if self.may_cancel_release(*own, &kept)
                && self.matches(request, *own)
                && load.place(&mut self.view.free_capacity(*own)) > 0
            {
                kept.push(*own);
            }
        }
        load
    }

    /// Requests nodes for pods one by one, for as many pods as the limits allow.
    fn request_for_pods(&mut self, request: usize, pass: &mut ScaleUpPass) {
        let group = self.view.requests[request].group;
        let mut load = self.progress[request].unplaced.clone();
        let all = load.clone();
        let new_node = self.choose_new_node(request, &load, &pass.limits);
        let capacity = |at: usize| Some(self.view.capacity(at).to_vec());
        let existing = pass.existing.clone();
        let matching = |at: usize| self.matches(request, at);
        pass.count_on(&mut load, &existing.free, matching, capacity);
        pass.count_on(&mut load, &existing.starting, |_| true, |_| new_node.capacity.clone());
        let earmarked = self.groups[group].earmarked;
        let mut new = 0;
        while !load.is_empty() {
            let more = earmarked + (pass.requested.by_group[group] + new + 1) as usize;
            let gpus = new_node.gpus * u64::from(new + 1);
            if self.check_limits(group, more, gpus).is_err() {
                break;
            }
            if new >= pass.nodes_left {
                let waiting = Waiting::Request(self.request_name(request));
                self.note_max_nodes(pass, group, waiting, 1);
                break;
            }
            new_node.place(&mut load);
            new += 1;
        }
        let mut pods = all.without(&load);
        if pods.count() > pass.pods_left {
            pass.note_max_pods();
            while pods.count() > pass.pods_left {
                pods.drop_one();
            }
            new = new.min(new_node.count_for(&pods));
        }
        if !pods.is_empty() {
            self.add_request(pass, request, &new_node, new, &pods);
        }
    }

    fn add_request(&mut self, pass: &mut ScaleUpPass, request: usize, new_node: &NewNode, new: u32, pods: &Load) {
        let spec = &self.view.requests[request];
        let of = &self.view.node_groups[spec.group];
        let shortage = Shortage {
            tenant: of.owner.uid.clone(),
            node_group: of.spec.name.clone(),
            name: spec.demand.name.clone(),
            gang: spec.demand.gang,
            whole_nodes: false,
            single_domain: spec.demand.topology == Topology::SingleDomain,
            pod_sets: self.name_pod_sets(pods),
            selector: spec.demand.selector.clone(),
        };
        self.add_shortage(pass, spec.group, new, new_node.gpus * u64::from(new), shortage);
    }

    fn add_shortage(&mut self, pass: &mut ScaleUpPass, group: usize, new: u32, gpus: u64, shortage: Shortage) {
        let tenant = self.view.node_groups[group].tenant;
        self.tree.add_used(tenant, gpus);
        pass.added.push((tenant, gpus));
        let pods: u32 = shortage.pod_sets.iter().map(|pods| pods.count).sum();
        pass.nodes_left = pass.nodes_left.saturating_sub(new);
        pass.pods_left = pass.pods_left.saturating_sub(pods);
        pass.requested.by_group[group] += new;
        pass.requested.scale_up.nodes += new;
        pass.requested.scale_up.shortages.push(shortage);
    }

    /// Pods with what they request by name.
    fn name_pod_sets(&self, load: &Load) -> Vec<PodSet> {
        let pod_sets = load.parts.iter().map(|part| {
            let resources = self.view.resources.iter();
            let requested = resources.filter(|(_, number)| part.each[**number] > 0);
            PodSet {
                count: part.left,
                requests: requested
                    .map(|(name, number)| ((*name).to_owned(), part.each[*number]))
                    .collect(),
            }
        });
        pod_sets.collect()
    }

    fn is_unclaimed_incoming(&self, at: usize) -> bool {
        self.incoming.contains(at) && matches!(self.decisions[at], Decision::Undecided)
    }

    /// Whether a node is free after this plan.
    fn can_hold_pods(&self, at: usize) -> bool {
        self.view.nodes[at].is_free() && matches!(self.decisions[at], Decision::Undecided | Decision::Earmarked)
    }

    /// Whether nodes may be requested for all pods of a request or minimum.
    fn may_request(&self, pass: &mut ScaleUpPass, group: usize, waiting: Waiting, new: u32, pods: u32) -> bool {
        if new > pass.nodes_left {
            self.note_max_nodes(pass, group, waiting, new);
            return false;
        }
        if pods > pass.pods_left {
            pass.note_max_pods();
            return false;
        }
        pods > 0
    }

    fn note_max_nodes(&self, pass: &mut ScaleUpPass, group: usize, waiting: Waiting, needed: u32) {
        let of = &self.view.node_groups[group];
        pass.note_bound(ScaleUpBound::MaxNodes {
            waiting,
            node_group: of.spec.name.clone(),
            tenant: of.owner.name.clone(),
            needed,
            max_nodes: pass.limits.max_nodes.unwrap_or_default(),
        });
    }
}

impl ScaleUpPass {
    /// Places a load on those of `nodes` that no other listed request counts on.
    fn count_on(
        &mut self,
        load: &mut Load,
        nodes: &[usize],
        which: impl Fn(usize) -> bool,
        capacity: impl Fn(usize) -> Option<Vec<u64>>,
    ) {
        for at in nodes.iter().copied() {
            if load.is_empty() {
                return;
            }
            if self.used[at] || !which(at) {
                continue;
            }
            let placed = match capacity(at) {
                Some(mut capacity) => load.place(&mut capacity),
                None => load.place_one(),
            };
            self.used[at] = placed > 0;
        }
    }

    fn note_max_pods(&mut self) {
        let max_pods = self.limits.max_pods.unwrap_or_default();
        self.note_bound(ScaleUpBound::MaxPods { max_pods });
    }

    fn note_bound(&mut self, bound: ScaleUpBound) {
        match &mut self.requested.scale_up.limited_by {
            Some(limited) => limited.more += 1,
            none => *none = Some(ScaleUpLimited { bound, more: 0 }),
        }
    }
}
