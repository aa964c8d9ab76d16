//! Reclaiming borrowed nodes. As few as possible: nodes that will be free soon count first, and none are reclaimed for a gang
//! that would still not fit. Nodes of minimums go last, only as far as they are beyond nominal quotas, and only to those who are owed them.

use crate::pass::{Decision, PlanningPass};
use crate::tree::{ReclaimClaim, TenantSet};
use crate::{ActionReason, Order, Reclaim, Seconds};
use std::collections::HashMap;

impl<'a> PlanningPass<'a> {
    /// A node to reclaim for a request.
    pub fn find_victim(&mut self, request: usize) -> Option<usize> {
        self.list_victims();
        self.choose_victim(request, 0)
    }

    /// The largest gang on a node: the number of `nodes` on which it runs, and its name. All of it stops when one of its nodes is
    /// taken, so the others are taken next.
    pub fn largest_gangs(&self, nodes: &[usize]) -> impl Fn(usize) -> (u32, &'a str) + use<'a> {
        let mut sizes: HashMap<&'a str, u32> = HashMap::new();
        let of_node = |at: usize| self.view.nodes[at].object.gangs.iter();
        for gang in nodes.iter().flat_map(|at| of_node(*at)) {
            *sizes.entry(gang).or_default() += 1;
        }
        let largest = |at: usize| {
            let sizes = of_node(at).map(|gang| (sizes[gang.as_str()], gang.as_str()));
            sizes.filter(|(size, _)| *size > 1).max()
        };
        let known: HashMap<usize, (u32, &'a str)> = nodes.iter().filter_map(|at| Some((*at, largest(*at)?))).collect();
        move |at| known.get(&at).copied().unwrap_or((1, ""))
    }

    /// Whether a node stays with its tenant by the decisions so far.
    pub fn stays(&self, node: usize) -> bool {
        matches!(self.decisions[node], Decision::Undecided | Decision::Needed)
    }

    /// Whether requests of its group count on a node. None counts on those that other pods keep, and those that have counted on nodes in use for too
    /// long, without starting, do not either: they may never start.
    pub fn is_counted_on(&self, node: usize) -> bool {
        let is_needed = matches!(
            self.decisions[node],
            Decision::Needed | Decision::AssumedReleased { needed: true }
        );
        is_needed && !self.kept_by_pods.contains(&node) && !self.is_waited_for_too_long(node)
    }

    /// The highest priority of the pods that run on a node or may run on what is left of it.
    pub fn priority_of_use(&self, node: usize) -> i32 {
        let of = &self.view.nodes[node];
        let waiting = self.waiting_priorities.get(node).copied().flatten();
        let waiting = waiting.filter(|_| self.is_counted_on(node));
        let running = of.object.has_users().then_some(of.object.priority);
        running.max(waiting).unwrap_or(i32::MIN)
    }

    /// The node to reclaim next for a request that counts on `already` GPUs: from the tenant that is the furthest above its
    /// fair share.
    pub fn choose_victim(&self, request: usize, already: u64) -> Option<usize> {
        let victims = self.victims.as_ref()?;
        let priority = self.view.requests[request].demand.priority;
        let is_lower = |lowest: Option<i32>| lowest.is_some_and(|lowest| lowest < priority);
        let claim = ReclaimClaim {
            fair: self.reclaims_for_fairness(),
            urgent: is_lower(victims.lowest_priority),
            ..self.claim_nominal_quota(already)
        };
        // Those that are not owed nor more important get nodes only if nobody counts on them.
        let is_only_fair = !is_lower(victims.lowest_running_of_all);
        let choose = |group| self.choose_victim_of(group, request, already);
        self.choose_from_richest(self.view.tenant_of(request), claim, is_only_fair, choose)
    }

    /// The node to reclaim next for a minimum within a nominal quota of a tenant that counts on `already` GPUs.
    pub fn choose_victim_for_minimum(&self, claimant: usize, already: u64) -> Option<usize> {
        self.choose_from_richest(claimant, self.claim_nominal_quota(already), false, |group| {
            let list = &self.victims.as_ref()?.of_group[group];
            let first = list.iter().copied().find(|at| self.stays(*at))?;
            let gpus = self.view.gpus(first);
            self.may_reclaim_as_owed(claimant, first, already + gpus, gpus)
                .then_some(first)
        })
    }

    fn claim_nominal_quota(&self, already: u64) -> ReclaimClaim {
        let least = self.view.smallest_node_gpus;
        ReclaimClaim {
            additional_gpus: already + least,
            least,
            fair: false,
            urgent: false,
        }
    }

    /// The node that `choose` finds in a group of the tenant that is the furthest above its fair share: one that its group does not need
    /// for its minimum, or else one of a minimum if the claimant is owed it. `is_only_fair`: nodes that the claimant is not owed are reclaimed for fairness
    /// alone.
    fn choose_from_richest(
        &self,
        claimant: usize,
        claim: ReclaimClaim,
        is_only_fair: bool,
        choose: impl Fn(usize) -> Option<usize>,
    ) -> Option<usize> {
        let victims = self.victims.as_ref().filter(|victims| victims.listed > 0)?;
        // Not one holder after the other, each with the same answer.
        if self.is_in_pause(claimant) {
            return None;
        }
        let find = |claim: &ReclaimClaim, [holders, fair]: [&TenantSet; 2], is_wanted: &dyn Fn(usize) -> bool| {
            let mut from_tenant = |tenant: usize| {
                let mut wanted = victims.groups[tenant].iter().copied().filter(|group| is_wanted(*group));
                wanted.find_map(&choose)
            };
            let found = self
                .tree
                .take_from_richest(claimant, [holders, fair], claim, &mut from_tenant);
            if cfg!(debug_assertions) {
                let all = victims.list_tenants(&self.tree);
                let of_all = self
                    .tree
                    .take_from_richest(claimant, [&all; 2], claim, &mut from_tenant);
                assert_eq!(found, of_all, "a tenant that is left out has something to give");
            }
            found
        };
        let fair = if is_only_fair {
            &victims.with_uncounted
        } else {
            &victims.with_spare
        };
        find(&claim, [&victims.with_spare, fair], &|group| {
            self.has_spare_nodes(group)
        })
        .or_else(|| {
            let owed = ReclaimClaim {
                fair: false,
                urgent: false,
                ..claim
            };
            let may_be_owed = self.tree.is_within_nominal_quota(claimant, claim.additional_gpus);
            let holders = [&victims.without_spare; 2];
            may_be_owed
                .then(|| find(&owed, holders, &|group| !self.has_spare_nodes(group)))
                .flatten()
        })
    }

    fn choose_victim_of(&self, group: usize, request: usize, already: u64) -> Option<usize> {
        // Usually it is the first one, which is a shorter look than what is known of the group.
        let first = self.victims.as_ref()?.of_group[group].first().copied();
        if let Some(first) = first.filter(|at| self.is_victim(*at, request, already)) {
            debug_assert_eq!(
                self.search_victim_of(group, request, already),
                Some(first),
                "another node comes first"
            );
            return Some(first);
        }
        if self.may_lose_any(group, request, already) {
            return self.search_victim_of(group, request, already);
        }
        debug_assert_eq!(
            self.search_victim_of(group, request, already),
            None,
            "a group may lose a node that is left out"
        );
        None
    }

    /// Whether a pod of a request fits on a node that may be reclaimed for it.
    fn is_victim(&self, node: usize, request: usize, already: u64) -> bool {
        let gpus = self.view.gpus(node);
        self.has_room(node, request) && self.may_reclaim(request, node, already + gpus, gpus)
    }

    /// Whether a node stays so far, and a pod of a request fits there once it is empty.
    pub fn has_room(&self, node: usize, request: usize) -> bool {
        let unplaced = &self.progress[request].unplaced;
        self.stays(node) && self.matches(request, node) && unplaced.any_fits(self.view.capacity(node))
    }

    /// Whether a request may reclaim any node of a group, as far as what is known of the group says, and what its tenant has. Most have none, and their nodes are
    /// not looked at one by one.
    pub fn may_lose_any(&self, group: usize, request: usize, already: u64) -> bool {
        let Some(victims) = &self.victims else { return false };
        let (claimant, holder) = (self.view.tenant_of(request), self.view.node_groups[group].tenant);
        // Each node has that many GPUs at least, and the more it has, the less may it be reclaimed.
        let least = self.view.smallest_node_gpus;
        if !self.may_claim(claimant, holder, least) {
            return false;
        }
        if self.tree.is_owed(claimant, holder, already + least) {
            return true;
        }
        if self.tree.is_giving_up_nodes(claimant) {
            return false;
        }
        let running = victims.lowest_running[group];
        if running.is_some_and(|running| running < self.view.requests[request].demand.priority) {
            return true;
        }
        self.reclaims_for_fairness()
            && self.tree.is_fairer(claimant, holder, already + least, least)
            && victims.has_uncounted(group)
    }

    fn search_victim_of(&self, group: usize, request: usize, already: u64) -> Option<usize> {
        let list = &self.victims.as_ref()?.of_group[group];
        let fits = |at: &usize| self.has_room(*at, request);
        let may_reclaim = |at: &usize| {
            let gpus = self.view.gpus(*at);
            self.may_reclaim(request, *at, already + gpus, gpus)
        };
        // Whether a node may be reclaimed depends only on its tenant, on the priority of the pods there, and on whether requests count on it. Of the nodes that
        // other pods keep, and of those in use that are not counted on, the first has the lowest priority. What is counted on may have changed since they were
        // put in order.
        let first = list.iter().copied().find(fits)?;
        if may_reclaim(&first) {
            return Some(first);
        }
        let is_idle = |at: &usize| self.view.nodes[*at].object.idle_since.is_some();
        let is_kept = |at: &usize| self.kept_by_pods.contains(at);
        let kept = list.iter().copied().find(|at| is_kept(at) && fits(at));
        let in_use = |is_counted_on: bool| {
            let of_these = move |at: &usize| !is_idle(at) && self.is_counted_on(*at) == is_counted_on && fits(at);
            list.iter().copied().filter(of_these)
        };
        let counted_on = in_use(true).min_by_key(|at| self.priority_of_use(*at));
        [kept, in_use(false).next(), counted_on]
            .into_iter()
            .flatten()
            .find(may_reclaim)
    }

    /// Whether nodes are reclaimed for fairness alone. Not in a FIFO pool: another tenant would get them, and they would be
    /// reclaimed again.
    pub fn reclaims_for_fairness(&self) -> bool {
        self.view.pool.reclaim == Reclaim::FairShare && self.view.pool.order == Order::FairShare
    }

    /// Whether a node may be reclaimed for a request. `additional_gpus`: GPUs that its tenant would get;
    /// `held_gpus`: those of the node, as long as they count for its holder.
    pub fn may_reclaim(&self, request: usize, node: usize, additional_gpus: u64, held_gpus: u64) -> bool {
        let Some(group) = self.view.nodes[node].group else {
            return false;
        };
        let (claimant, holder) = (self.view.tenant_of(request), self.view.node_groups[group].tenant);
        if !self.may_claim(claimant, holder, held_gpus) {
            return false;
        }
        let is_of_minimum = self.is_of_minimum(node, group);
        if self.tree.is_owed(claimant, holder, additional_gpus)
            && (!is_of_minimum || self.tree.is_minimum_borrowed(claimant, holder, held_gpus))
        {
            return true;
        }
        if is_of_minimum {
            return false;
        }
        // A tenant that is giving up nodes reclaims none: nodes would move in circles.
        if self.tree.is_giving_up_nodes(claimant) {
            return false;
        }
        let (running, priority) = (self.priority_of_use(node), self.view.requests[request].demand.priority);
        // Above all that wait for the node as well: these could not take it back, and keep it from nobody although they may never start.
        let urgent = running < priority && self.view.nodes[node].object.has_users();
        // Pods of higher priority would be served first when they wait again, and take the node back. And if nodes that requests of the holder count on were
        // reclaimed for fairness, gangs would take nodes from each other in turn, and none would start.
        let fair = running <= priority && self.reclaims_for_fairness() && !self.is_counted_on(node);
        urgent || fair && self.tree.is_fairer(claimant, holder, additional_gpus, held_gpus)
    }

    /// Whether a node may be reclaimed for the nominal quota of a tenant, whatever it is for. The GPUs are those of [`Self::may_reclaim`].
    pub fn may_reclaim_as_owed(&self, claimant: usize, node: usize, additional_gpus: u64, held_gpus: u64) -> bool {
        let Some(group) = self.view.nodes[node].group else {
            return false;
        };
        let holder = self.view.node_groups[group].tenant;
        self.may_claim(claimant, holder, held_gpus)
            && self.tree.is_owed(claimant, holder, additional_gpus)
            && (!self.is_of_minimum(node, group) || self.tree.is_minimum_borrowed(claimant, holder, held_gpus))
    }

    /// Whether a tenant may have any node reclaimed from the holder of one with `held_gpus`.
    fn may_claim(&self, claimant: usize, holder: usize, held_gpus: u64) -> bool {
        claimant != holder && self.tree.is_borrowed(claimant, holder, held_gpus) && !self.is_in_pause(claimant)
    }

    /// Whether nothing is reclaimed for a tenant, because it or another one of its Project left nodes unused: others stop no work for pods that may
    /// never start.
    fn is_in_pause(&self, tenant: usize) -> bool {
        self.find_pause(tenant).is_some() || self.find_shared_pause(tenant).is_some()
    }

    /// Whether a group has fewer nodes than its minimum without this node, and without those that a search takes.
    pub fn is_of_minimum(&self, node: usize, group: usize) -> bool {
        let others = self.groups[group].staying.saturating_sub(u32::from(self.stays(node)));
        others < self.view.node_groups[group].spec.min_nodes
    }

    /// Releases a node that serves another group for a request: as idle, or as borrowed. Returns whether it was released now. `gpus`: those that the request needs
    /// together to get anything, and that do not count for its tenant yet.
    pub fn take_from_group(&mut self, node: usize, request: usize, gpus: u64) -> bool {
        if !self.view.nodes[node].is_serving() || matches!(self.decisions[node], Decision::Release { .. }) {
            return false;
        }
        let of = &self.view.nodes[node];
        // A minimum stays however long it is idle. Pods that keep a node are warned, unless they had their time.
        let is_left = !of.object.kept_by_pods || self.offered.contains(&node);
        if is_left && self.is_idle_too_long(node) && of.group.is_none_or(|group| self.has_spare_nodes(group)) {
            self.release_as_idle(node);
        } else {
            self.reclaim(node, request, gpus);
        }
        true
    }

    /// Releases a borrowed node for the minimum of a group.
    pub fn reclaim_for_minimum(&mut self, node: usize, group: usize) {
        let drain_at = self.drain_time(node);
        let of = &self.view.node_groups[group];
        let reason = ActionReason::ReclaimedForMinimum {
            tenant: of.owner.name.clone(),
            node_group: of.spec.name.clone(),
            drain_at: self.later_than_now(drain_at),
        };
        self.release(node, drain_at, reason);
    }

    fn reclaim(&mut self, node: usize, request: usize, gpus: u64) {
        let drain_at = self.drain_time(node);
        let group = self.view.requests[request].group;
        let would_be_taken_back = self.would_be_taken_back(node, request, gpus);
        let reason = ActionReason::Reclaimed {
            request: self.request_name(request),
            tenant: self.view.node_groups[group].owner.name.clone(),
            drain_at: self.later_than_now(drain_at),
        };
        self.release(node, drain_at, reason);
        if would_be_taken_back {
            self.remember_unused(node, true, drain_at);
        }
    }

    /// When a node that is taken from its tenant is drained: after the grace period if it is in use, or other pods keep it. On one that is not Ready for
    /// too long nobody saves anything.
    pub fn drain_time(&self, node: usize) -> Seconds {
        let warned = self.view.nodes[node].object.has_users() && !self.is_broken(node);
        let grace_period = warned.then_some(self.view.pool.reclaim_grace_period);
        self.view.now + grace_period.unwrap_or_default()
    }

    /// Returns `time` if it is later than now.
    pub fn later_than_now(&self, time: Seconds) -> Option<Seconds> {
        (time > self.view.now).then_some(time)
    }
}
