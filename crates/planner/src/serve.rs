//! Who is served first: what is within a guarantee, then by priority, then whoever has the least of its fair share or waits
//! longest.

use crate::Order;
use crate::claim::{Band, Turn};
use crate::round::Round;
use crate::words::Why;
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

impl Round<'_> {
    /// Serves all demand.
    pub fn serve_demand(&mut self) {
        let open: Vec<usize> = self
            .in_order_of_groups()
            .into_iter()
            .filter(|want| !self.requests[*want].rest.is_empty())
            .collect();
        let priorities: BTreeSet<Reverse<i32>> = open
            .iter()
            .map(|at| Reverse(self.view.wants[*at].demand.priority))
            .collect();
        for guaranteed in self.tree.guarantee_depths().map(Some).chain([None]) {
            for Reverse(priority) in &priorities {
                let band = Band {
                    guaranteed,
                    priority: *priority,
                };
                self.serve_band(band, &open);
            }
        }
    }

    fn serve_band(&mut self, band: Band, open: &[usize]) {
        let mut wants: Vec<usize> = open.to_vec();
        wants.retain(|at| {
            let request = &self.requests[*at];
            self.view.wants[*at].demand.priority == band.priority
                && !request.rest.is_empty()
                && request.awaited.is_empty()
        });
        // Who waits longest first; the age of the tenant decides where that is the same.
        wants.sort_by_key(|at| {
            let want = &self.view.wants[*at];
            (want.demand.waiting_since, want.asker, &want.demand.name, *at)
        });
        match self.view.pool.order {
            Order::Fifo => {
                for want in wants {
                    while self.turn(want, band) == Turn::Progress {}
                }
            }
            Order::FairShare => self.serve_fairly(band, &wants),
        }
    }

    /// Serves those again who asked for nothing of others since they were giving nodes up, and now keep them.
    pub fn serve_again(&mut self, tenants: &BTreeSet<usize>) {
        for want in 0..self.view.wants.len() {
            let tenant = self.view.askers[self.view.wants[want].asker].tenant;
            if tenants.contains(&tenant) && self.requests[want].why == Some(Why::NoneFree) {
                self.requests[want].why = None;
            }
        }
        self.serve_demand();
    }

    /// One step for whoever has the least of its share, again and again.
    fn serve_fairly(&mut self, band: Band, wants: &[usize]) {
        let tenants = self.tree.tenants();
        let mut queues: Vec<VecDeque<usize>> = vec![VecDeque::new(); tenants];
        for want in wants {
            queues[self.view.askers[self.view.wants[*want].asker].tenant].push_back(*want);
        }
        let mut waiting = self.tree.nobody();
        for (tenant, _) in queues.iter().enumerate().filter(|(_, queue)| !queue.is_empty()) {
            self.tree.enter(&mut waiting, tenant);
        }
        while let Some(tenant) = self.tree.next(&waiting) {
            let Some(want) = queues[tenant].front().copied() else {
                self.tree.exit(&mut waiting, tenant);
                continue;
            };
            if self.turn(want, band) != Turn::Progress {
                queues[tenant].pop_front();
            }
        }
    }
}
