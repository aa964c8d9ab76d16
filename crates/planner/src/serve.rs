//! The order in which requests are served: those within a nominal quota first, then by priority, then the tenant with the
//! least of its fair share or the request that waits longest. Those of tenants that left nodes unused come after all others. Minimums come
//! before requests, but those that are borrowed, and those that cannot be met now, come after the requests within a nominal quota.

use crate::pass::{Blocked, Decision, PlanningPass};
use crate::stage::{Outcome, Stage};
use crate::{Order, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

impl PlanningPass<'_> {
    /// Serves all minimums and requests.
    pub fn serve_minimums_and_requests(&mut self) {
        let depths = self.list_quota_depths();
        let mut unmet = self.fill_minimums(depths[0]);
        // A minimum may take nodes that a tenant left unused, which begins a pause.
        let (last, first) = self.split_open_requests();
        self.serve_depth(depths[0], &first);
        for (before, quota_depth) in depths.iter().zip(&depths[1..]) {
            // Each depth has those of the deeper ones as well.
            if quota_depth.is_none() {
                for of_tenant in std::mem::take(&mut unmet) {
                    self.wait_for_minimums(&of_tenant, *before);
                }
            }
            unmet = self.fill_minimums(*quota_depth);
            self.serve_depth(*quota_depth, &first);
        }
        self.serve_all(&last);
    }

    /// The depths of [`Stage::quota_depth`], in the order in which they are served.
    fn list_quota_depths(&self) -> Vec<Option<usize>> {
        self.tree.nominal_quota_depths().map(Some).chain([None]).collect()
    }

    /// Open requests: those of tenants in a pause, and the others.
    fn split_open_requests(&self) -> (Vec<usize>, Vec<usize>) {
        let open = self.list_open_by_group().into_iter();
        let open = open.filter(|request| !self.progress[*request].unplaced.is_empty());
        open.partition(|request| self.find_pause(self.view.tenant_of(*request)).is_some())
    }

    fn serve_all(&mut self, open: &[usize]) {
        for quota_depth in self.list_quota_depths() {
            self.serve_depth(quota_depth, open);
        }
    }

    fn serve_depth(&mut self, quota_depth: Option<usize>, open: &[usize]) {
        let priorities: BTreeSet<Reverse<i32>> = open
            .iter()
            .map(|at| Reverse(self.view.requests[*at].demand.priority))
            .collect();
        for Reverse(priority) in priorities {
            let stage = Stage { quota_depth, priority };
            self.serve_stage(stage, open);
        }
    }

    fn serve_stage(&mut self, stage: Stage, open: &[usize]) {
        // Others may have been served since.
        self.enough = None;
        let mut requests: Vec<usize> = open.to_vec();
        requests.retain(|at| {
            let progress = &self.progress[*at];
            self.view.requests[*at].demand.priority == stage.priority
                && !progress.unplaced.is_empty()
                && progress.earmarked.is_empty()
        });
        requests.sort_unstable_by_key(|at| self.view.wait_ranks[*at]);
        match self.view.pool.order {
            Order::Fifo => {
                for request in requests {
                    while self.serve_request(request, stage) == Outcome::Progress {}
                }
            }
            Order::FairShare => self.serve_fairly(stage, &requests),
        }
    }

    /// Repeatedly serves one step of the tenant with the least of its fair share.
    fn serve_fairly(&mut self, stage: Stage, requests: &[usize]) {
        let mut queues: Vec<VecDeque<usize>> = vec![VecDeque::new(); self.tree.count_tenants()];
        for request in requests {
            queues[self.view.tenant_of(*request)].push_back(*request);
        }
        let mut waiting = self.tree.empty_set();
        for (tenant, _) in queues.iter().enumerate().filter(|(_, queue)| !queue.is_empty()) {
            self.tree.insert_tenant(&mut waiting, tenant);
        }
        while let Some(tenant) = self.tree.next_tenant(&waiting) {
            let Some(request) = queues[tenant].front().copied() else {
                self.tree.remove_tenant(&mut waiting, tenant);
                continue;
            };
            if self.serve_request(request, stage) != Outcome::Progress {
                queues[tenant].pop_front();
            }
        }
    }

    /// Serves again the requests of tenants that reclaimed no nodes because they were giving some up, and now keep them. One that counts on
    /// some nodes waits on.
    pub fn serve_again(&mut self, tenants: &BTreeSet<usize>) {
        // What no request needs has been cancelled, and what is left is decided.
        self.changes += 1;
        for request in 0..self.view.requests.len() {
            let progress = &self.progress[request];
            let is_blocked = progress.blocked_by == Some(Blocked::NoFreeNodes) && progress.earmarked.is_empty();
            if is_blocked && tenants.contains(&self.view.tenant_of(request)) {
                self.progress[request].blocked_by = None;
            }
        }
        let (last, first) = self.split_open_requests();
        self.serve_all(&first);
        self.serve_all(&last);
    }

    /// One step: a gang gets all of its nodes or none, another request one node.
    fn serve_request(&mut self, request: usize, stage: Stage) -> Outcome {
        self.enough = self.enough.take().filter(|enough| enough.request == request);
        match self.view.requests[request].demand.topology {
            Topology::Any => self.serve_unless_in_vain(request, stage),
            // Domains are searched for a few of them alone.
            Topology::SingleDomain => self.serve_gang(request, stage),
        }
    }

    /// Whether a tenant may get `gpus` more GPUs in this stage.
    pub fn is_in_stage(&self, tenant: usize, stage: Stage, gpus: u64) -> bool {
        self.may_get_in_stage(tenant, stage, gpus, &[])
    }

    /// The same if `coming` are nodes that others have now, or lose. Those of a tenant of the same quota change nothing for this quota. Otherwise pods of that tenant, which
    /// may keep the node within the quota, would come before those of a higher priority for which it was reclaimed, and take it back.
    pub fn may_get_in_stage(&self, tenant: usize, stage: Stage, gpus: u64, coming: &[usize]) -> bool {
        let Some(depth) = stage.quota_depth else { return true };
        let holder_of = |at: &usize| Some((self.find_holder(*at)?, self.view.gpus(*at)));
        let moved: Vec<(usize, u64)> = coming.iter().filter_map(holder_of).collect();
        self.tree.is_within_nominal_quota_after(tenant, depth, gpus, &moved)
    }

    /// The tenant for which quotas count a node that has not come yet.
    pub fn find_holder(&self, node: usize) -> Option<usize> {
        let of = &self.view.nodes[node];
        let group = of.group.filter(|_| self.decisions[node] != Decision::CancelReservation);
        let holder = group.map(|group| self.view.node_groups[group].tenant);
        holder.or(of.former_tenant)
    }
}
