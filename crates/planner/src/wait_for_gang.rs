//! A gang that cannot have all its nodes yet: incoming nodes are kept for it, and borrowed ones are reclaimed, if it can have
//! all its nodes then.

use crate::incoming::Source;
use crate::load::Load;
use crate::pass::{Blocked, Decision, PlanningPass};
use crate::placement::Placement;
use crate::stage::{Outcome, Stage};
use crate::tree::SavedTree;
use crate::{ActionReason, Topology};
use std::collections::{BTreeSet, HashMap};

/// For how many gangs a plan searches all domains.
const MOST_SEARCHED: usize = 8;

/// Nodes for a gang: those that it can have now, and those that it has to wait for.
pub(crate) type Candidate = (Placement, Vec<usize>);

impl PlanningPass<'_> {
    /// Keeps incoming nodes for a gang, and reclaims as many borrowed nodes as it needs, if it can have all its nodes then.
    /// Otherwise does nothing. `now`: the nodes that it has, and free ones.
    pub fn wait_for_gang_nodes(&mut self, request: usize, stage: Stage, now: &Placement) -> Option<Outcome> {
        let (placement, later) = self.find_gang_nodes(request, stage, now)?;
        let new = placement.free.iter().chain(&later);
        let gpus = new.map(|at| self.view.gpus(*at)).sum();
        if self.is_stopped_by_minimums(request, &later, gpus) {
            return None;
        }
        for at in later.iter().copied() {
            if let Some(minimum) = self.find_minimum_for(at)
                && self.take_from_group(at, request, gpus)
            {
                self.pass_to_minimum(minimum, at);
                return Some(Outcome::Progress);
            }
        }
        self.wait_with(request, placement, later);
        Some(Outcome::Finished)
    }

    /// Finds all nodes of a gang: those that it can have now, incoming ones, and borrowed ones, as far as limits allow them.
    pub fn find_gang_nodes(&mut self, request: usize, stage: Stage, now: &Placement) -> Option<Candidate> {
        // A stage that it cannot be in must not cost one of the turns.
        if !self.is_in_stage(self.view.tenant_of(request), stage, 0) {
            return None;
        }
        // It has its turn also if nothing is found now: nodes may be offered later, and the next plan counts on them in the same order.
        let in_one_domain = self.view.requests[request].demand.topology == Topology::SingleDomain;
        if in_one_domain && !self.may_search_domains(request) {
            return None;
        }
        self.list_victims();
        let has_victims = self.victims.as_ref().is_some_and(|victims| victims.listed > 0);
        if self.incoming.is_empty() && !has_victims {
            return None;
        }
        let (placement, later) = self.find_lent_nodes(request, now)?;
        let (group, tenant) = (self.view.requests[request].group, self.view.tenant_of(request));
        let new = placement.free.iter().chain(&later);
        let new_gpus: u64 = new.map(|at| self.view.gpus(*at)).sum();
        let new_nodes = placement.free.len() + later.len() + self.groups[group].earmarked;
        let may_have = self.may_get_in_stage(tenant, stage, new_gpus, &later)
            && self.check_limits(group, new_nodes, new_gpus).is_ok();
        may_have.then_some((placement, later))
    }

    /// Finds all nodes of a gang. If others do not lend all of the free ones, it counts on nodes that come in place of these.
    fn find_lent_nodes(&mut self, request: usize, now: &Placement) -> Option<Candidate> {
        let tenant = self.view.tenant_of(request);
        let (placement, later) = self.collect_nodes(request, now, None)?;
        // Nodes that its quota loses count for it until they are gone, so a gang may wait for more than it may have now. Offered nodes, and
        // those that it reclaims, must be sure to help.
        let is_reclaimed =
            |at: &usize| self.view.nodes[*at].is_serving() && self.stays(*at) && !self.incoming.contains(*at);
        let is_lent = if self.offered.is_empty() && !later.iter().any(is_reclaimed) {
            let gpus = placement.free.iter().map(|at| self.view.gpus(*at)).sum();
            self.check_lending(tenant, gpus).is_ok()
        } else {
            self.is_lent_later(tenant, &placement.free, &later)
        };
        if is_lent {
            return Some((placement, later));
        }
        let not_lent = self.tree.gpus_not_lent_by_others(tenant);
        let lent = self.available.gpus.saturating_sub(not_lent);
        let (placement, later) = self.collect_nodes(request, now, Some(lent))?;
        let is_lent = self.is_lent_later(tenant, &placement.free, &later);
        is_lent.then_some((placement, later))
    }

    /// `lent`: how many of the free GPUs it counts on at most; nothing is reclaimed then.
    fn collect_nodes(&mut self, request: usize, now: &Placement, lent: Option<u64>) -> Option<Candidate> {
        match (self.view.requests[request].demand.topology, lent) {
            (Topology::Any, None) => self.collect_anywhere(request, now.clone(), true),
            (Topology::Any, Some(lent)) => {
                let limited = self.limit_free_nodes(request, now, lent);
                self.collect_anywhere(request, limited, false)
            }
            (Topology::SingleDomain, _) => self.collect_in_one_domain(request, lent),
        }
    }

    /// The placement of a gang with free nodes of `lent` GPUs at most.
    fn limit_free_nodes(&self, request: usize, placement: &Placement, lent: u64) -> Placement {
        let group = self.view.requests[request].group;
        let mut limited = self.pack(request, self.groups[group].free_capacity.iter());
        self.add_cordoned(request, &mut limited, |_| true);
        let mut left = lent;
        for at in &placement.free {
            let gpus = self.view.gpus(*at);
            if gpus <= left && limited.unplaced.place(&mut self.view.capacity(*at).to_vec()) > 0 {
                left -= gpus;
                limited.free.push(*at);
            }
        }
        limited
    }

    /// Lets a gang wait until the nodes `later` are free, too.
    pub fn wait_with(&mut self, request: usize, placement: Placement, later: Vec<usize>) {
        let group = self.view.requests[request].group;
        for own in &placement.cordoned {
            // No other request is placed on it: it is full when the gang starts.
            let reason = ActionReason::NeededAgain {
                request: self.request_name(request),
            };
            self.cancel_release(*own, reason);
        }
        if !later.is_empty() {
            self.note_awaited(&placement);
        }
        let free = placement.free.clone();
        let complete = Placement {
            unplaced: Load::default(),
            ..placement
        };
        self.apply_placement(request, complete);
        let nodes: Vec<usize> = free.into_iter().chain(later).collect();
        let mut needed: u64 = nodes.iter().map(|at| self.view.gpus(*at)).sum();
        for node in nodes {
            self.take_from_group(node, request, needed);
            self.earmark(node, group);
            needed -= self.view.gpus(node);
            self.progress[request].earmarked.push(node);
        }
        self.progress[request].blocked_by = Some(Blocked::NodesComing);
    }

    /// Adds incoming nodes, then borrowed ones if it `reclaims` any, to those that a gang can have now, until it fits.
    fn collect_anywhere(&mut self, request: usize, mut placement: Placement, reclaims: bool) -> Option<Candidate> {
        let group = self.view.requests[request].group;
        let (mut later, mut assumed) = (Vec::new(), Vec::new());
        let is_kind = |kind: usize| {
            self.is_of_kind(request, kind) && placement.unplaced.any_fits(&self.view.kinds[kind].capacity)
        };
        let coming = self
            .incoming
            .list(is_kind, |source| self.may_count_on_source(source, group));
        for at in coming {
            if placement.unplaced.is_empty() {
                break;
            }
            let capacity = self.view.capacity(at);
            if placement.unplaced.any_fits(capacity) && self.may_count_on(at, group) {
                placement.unplaced.place(&mut capacity.to_vec());
                later.push(at);
                if self.stays(at) && self.is_idle_too_long(at) {
                    self.assume_released(at);
                    assumed.push(at);
                }
            }
        }
        let so_far = placement.free.iter().chain(&later);
        let mut gpus: u64 = so_far.map(|at| self.view.gpus(*at)).sum();
        let moving = self.assume_moving(request, &later);
        let unplaced = std::mem::take(&mut placement.unplaced);
        let before = std::mem::replace(&mut self.progress[request].unplaced, unplaced);
        let (mut taken, mut capacity) = (Vec::new(), Vec::new());
        while reclaims && !self.progress[request].unplaced.is_empty() {
            let Some(node) = self.choose_victim(request, gpus) else {
                break;
            };
            gpus += self.view.gpus(node);
            self.assume_released(node);
            taken.push(node);
            self.view.capacity(node).clone_into(&mut capacity);
            self.progress[request].unplaced.place(&mut capacity);
        }
        placement.unplaced = std::mem::replace(&mut self.progress[request].unplaced, before);
        // The first nodes were chosen while the gang counted on fewer GPUs than it needs.
        let allowed = taken.iter().all(|at| self.may_reclaim(request, *at, gpus, 0));
        for node in assumed.iter().chain(&taken).rev() {
            self.undo_assumption(*node);
        }
        self.undo_moving(request, &moving);
        later.extend(taken);
        (allowed && placement.unplaced.is_empty()).then_some((placement, later))
    }

    /// Whether domains are searched for a gang: for the first gangs of a plan alone, at all depths of quotas, and for no more of one tenant than
    /// leave a turn for others. Nodes that are offered go to these gangs: the next plan gives others none that are not free.
    fn may_search_domains(&mut self, request: usize) -> bool {
        if self.searched.contains(&request) {
            return true;
        }
        if !self.offered.is_empty() || self.searched.len() >= MOST_SEARCHED {
            return false;
        }
        let share = self
            .searched_share
            .unwrap_or_else(|| MOST_SEARCHED / self.count_tenants_to_search_for().max(1))
            .max(1);
        self.searched_share = Some(share);
        let tenant = self.view.tenant_of(request);
        let of_tenant = self
            .searched
            .iter()
            .filter(|other| self.view.tenant_of(**other) == tenant);
        let has_turn = of_tenant.count() < share;
        if has_turn {
            self.searched.insert(request);
        }
        has_turn
    }

    /// Counts the tenants with pods that wait for nodes in one domain.
    fn count_tenants_to_search_for(&self) -> usize {
        let waits = |request: &usize| {
            let (demand, progress) = (self.view.requests[*request].demand, &self.progress[*request]);
            let gets_none = matches!(progress.blocked_by, Some(Blocked::Impossible(_)));
            demand.topology == Topology::SingleDomain && !progress.unplaced.is_empty() && !gets_none
        };
        let waiting = (0..self.view.requests.len()).filter(waits);
        let tenants: BTreeSet<usize> = waiting.map(|request| self.view.tenant_of(request)).collect();
        tenants.len()
    }

    /// Finds the domain in which a gang fits with the fewest nodes of minimums, then with the fewest reclaimed, then with the fewest to
    /// wait for. `lent`: as above.
    fn collect_in_one_domain(&mut self, request: usize, lent: Option<u64>) -> Option<Candidate> {
        let mut sources = self.list_sources_by_domain(request);
        if lent.is_some() {
            for [.., borrowed] in &mut sources {
                borrowed.clear();
            }
        }
        let offered: BTreeSet<usize> = self.offered.iter().map(|at| self.view.nodes[*at].domain).collect();
        let mut best: Option<([usize; 5], Candidate)> = None;
        // Domains without offered nodes were searched before.
        let searched = |domain: &usize| offered.is_empty() || offered.contains(domain);
        let own = self.groups[self.view.requests[request].group].domains.clone();
        for (domain, of_domain) in sources.iter().enumerate().filter(|(domain, _)| searched(domain)) {
            if of_domain.iter().all(Vec::is_empty) && !own.contains(&domain) {
                let nothing = || self.collect_in(request, domain, of_domain, lent).1.0;
                debug_assert!(!nothing().unplaced.is_empty(), "a domain that is left out has room");
                continue;
            }
            let ([free, incoming, borrowed], candidate) = self.collect_in(request, domain, of_domain, lent);
            let minimums = self.count_of_minimums(&candidate.1);
            let key = [minimums, borrowed, incoming, free, domain];
            let is_better = candidate.0.unplaced.is_empty() && best.as_ref().is_none_or(|(other, _)| key < *other);
            // Each of the nodes may be reclaimed, but perhaps not all of them.
            if is_better
                && !self.are_kept_for_first(&candidate.1)
                && self.may_reclaim_all(request, &candidate.0, &candidate.1)
            {
                best = Some((key, candidate));
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// Free, incoming and borrowed nodes of each domain.
    fn list_sources_by_domain(&self, request: usize) -> Vec<[Vec<usize>; 3]> {
        let group = self.view.requests[request].group;
        let domains = self.view.domains.len();
        let mut sources: Vec<[Vec<usize>; 3]> = vec![Default::default(); domains];
        for (domain, free) in self.available.list_by_domain() {
            let is_open = |at: &usize| self.view.nodes[*at].is_free() && self.decisions[*at] == Decision::Undecided;
            debug_assert!(free.iter().all(is_open), "a node is not free any more");
            sources[domain][0] = free;
        }
        let coming = |is_source: &dyn Fn(Source) -> bool| -> Vec<usize> {
            let coming = self.incoming.list(|kind| self.is_of_kind(request, kind), is_source);
            coming.into_iter().filter(|at| self.may_count_on(*at, group)).collect()
        };
        // An idle node is for others than its group, which does not need it for its minimum.
        let is_source = |source: Source| !source.is_idle || self.may_count_on_source(source, group);
        let known = coming(&is_source);
        debug_assert_eq!(known, coming(&|_| true), "a node that comes is left out");
        for at in known.into_iter().filter(|at| self.view.nodes[*at].domain < domains) {
            sources[self.view.nodes[at].domain][1].push(at);
        }
        for (holder, victims) in self
            .victims
            .iter()
            .flat_map(|victims| victims.of_group.iter().enumerate())
        {
            if !self.may_lose_any(holder, request, 0) {
                let is_left_out = || victims.iter().any(|at| self.is_borrowed_for(request, *at));
                debug_assert!(!is_left_out(), "a node that may be reclaimed is left out");
                continue;
            }
            for at in victims.iter().copied() {
                let domain = self.view.nodes[at].domain;
                if domain < domains && self.is_borrowed_for(request, at) {
                    sources[domain][2].push(at);
                }
            }
        }
        for [.., borrowed] in &mut sources {
            let (minimums, others): (Vec<usize>, Vec<usize>) = self.split_minimums(borrowed);
            *borrowed = others.into_iter().chain(minimums).collect();
        }
        sources
    }

    /// Whether a node that stays so far may be reclaimed for a request that does not count on it anyway.
    fn is_borrowed_for(&self, request: usize, node: usize) -> bool {
        let (group, gpus) = (self.view.requests[request].group, self.view.gpus(node));
        let is_coming =
            || self.incoming.contains(node) && self.may_count_on(node, group) || self.offered.contains(&node);
        self.stays(node) && !is_coming() && self.may_reclaim(request, node, gpus, gpus)
    }

    /// Splits nodes into those that their groups would lack for their minimums if one after the other is taken, and the others.
    fn split_minimums(&self, nodes: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut taken: HashMap<usize, u32> = HashMap::new();
        nodes.iter().copied().partition(|at| {
            let node = &self.view.nodes[*at];
            let Some(group) = node.group.filter(|_| node.is_serving() && self.stays(*at)) else {
                return false;
            };
            let of_group = taken.entry(group).or_default();
            *of_group += 1;
            self.groups[group].staying.saturating_sub(*of_group) < self.view.node_groups[group].spec.min_nodes
        })
    }

    fn count_of_minimums(&self, nodes: &[usize]) -> usize {
        self.split_minimums(nodes).0.len()
    }

    /// Places a gang on the nodes of one domain; also returns the number of nodes of each source. `lent`: as above.
    fn collect_in(
        &self,
        request: usize,
        domain: usize,
        sources: &[Vec<usize>; 3],
        lent: Option<u64>,
    ) -> ([usize; 3], Candidate) {
        let mut lent = lent.unwrap_or(u64::MAX);
        let held = self.groups[self.view.requests[request].group].free_capacity.iter();
        let mut placement = self.pack(request, held.filter(|(at, _)| self.view.nodes[*at].domain == domain));
        let (mut later, mut number) = (Vec::new(), [0, 0, 0]);
        for (source, nodes) in sources.iter().enumerate() {
            for at in nodes {
                let own = self.is_own(request, *at);
                if !self.matches(request, *at) || own && !self.may_cancel_release(*at, &placement.cordoned) {
                    continue;
                }
                let is_free = source == 0;
                if is_free && self.view.gpus(*at) > lent {
                    continue;
                }
                if placement.unplaced.place(&mut self.view.capacity(*at).to_vec()) == 0 {
                    continue;
                }
                number[source] += 1;
                match source {
                    0 => {
                        lent -= self.view.gpus(*at);
                        placement.free.push(*at);
                    }
                    1 if own => placement.cordoned.push(*at),
                    _ => later.push(*at),
                }
            }
        }
        (number, (placement, later))
    }

    /// Whether all nodes that serve another tenant may be reclaimed together.
    fn may_reclaim_all(&mut self, request: usize, placement: &Placement, later: &[usize]) -> bool {
        let new = placement.free.iter().chain(later);
        let gpus = new.map(|at| self.view.gpus(*at)).sum();
        let serving = later.iter().copied();
        let serving = serving.filter(|at| self.view.nodes[*at].is_serving() && self.stays(*at));
        let taken: Vec<usize> = serving.collect();
        let moving = self.assume_moving(request, later);
        for node in &taken {
            self.assume_released(*node);
        }
        let allowed = taken.iter().all(|at| {
            let of_group = self.view.nodes[*at].group;
            let keeps_minimum =
                of_group.is_some_and(|group| self.groups[group].staying >= self.view.node_groups[group].spec.min_nodes);
            keeps_minimum && self.incoming.contains(*at) || self.may_reclaim(request, *at, gpus, 0)
        });
        for node in taken.iter().rev() {
            self.undo_assumption(*node);
        }
        self.undo_moving(request, &moving);
        allowed
    }

    /// Counts those of some nodes that are leaving a tenant as kept for a request: a quota that both tenants belong to has no more with them. Otherwise the request
    /// would be owed other nodes before these are released, and not any more after that. Returns their holders and GPUs.
    fn assume_moving(&mut self, request: usize, nodes: &[usize]) -> Vec<(usize, u64)> {
        let is_leaving = |at: &usize| self.is_leaving(*at) || self.view.nodes[*at].former_tenant.is_some();
        let leaving = nodes.iter().copied().filter(is_leaving);
        let moving = leaving.filter_map(|at| Some((self.find_holder(at)?, self.view.gpus(at))));
        let moving: Vec<(usize, u64)> = moving.collect();
        let tenant = self.view.tenant_of(request);
        for (holder, gpus) in &moving {
            self.tree.add_moving(tenant, *holder, *gpus);
        }
        moving
    }

    /// Undoes [`Self::assume_moving`].
    fn undo_moving(&mut self, request: usize, moving: &[(usize, u64)]) {
        let tenant = self.view.tenant_of(request);
        for (holder, gpus) in moving {
            self.tree.remove_moving(tenant, *holder, *gpus);
        }
    }

    /// Counts a node as taken from its group during a search.
    pub fn assume_released(&mut self, node: usize) {
        if let Some(group) = self.view.nodes[node].group {
            self.remove_staying(group, self.view.gpus(node));
            self.decisions[node] = Decision::AssumedReleased {
                needed: self.decisions[node] == Decision::Needed,
            };
        }
    }

    /// Undoes [`Self::assume_released`]. Of several nodes the last first, as nodes of a group may differ in size.
    pub fn undo_assumption(&mut self, node: usize) {
        if let Some(group) = self.view.nodes[node].group {
            self.add_staying(group, self.view.gpus(node));
            self.decisions[node] = self.decision_before(node);
        }
    }

    /// The same for many nodes, and for all that was changed in the tree since it was saved.
    pub fn undo_assumptions(&mut self, nodes: &[usize], saved: SavedTree) {
        for node in nodes.iter().rev().copied() {
            if let Some(group) = self.view.nodes[node].group {
                self.add_to_group(group, self.view.gpus(node));
                self.decisions[node] = self.decision_before(node);
            }
        }
        self.tree.restore(saved);
    }

    /// The decision about a node that a search counts as taken.
    fn decision_before(&self, node: usize) -> Decision {
        match self.decisions[node] {
            Decision::AssumedReleased { needed: true } => Decision::Needed,
            _ => Decision::Undecided,
        }
    }
}
