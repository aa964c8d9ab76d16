//! What becomes of a node from one tenant to the next.

use std::cmp::Reverse;

use berth_planner::Seconds;

#[cfg(test)]
use super::Entry;
use super::{Cluster, Event, Events, Stand};

impl Cluster<'_> {
    /// A node changes hands.
    pub(super) fn own(&mut self, node: usize, stand: Stand, now: Seconds) {
        let here = &mut self.nodes[node];
        here.stand = stand;
        here.owned_since = now;
        here.idle_since = now;
        self.nodes_changed.insert(node);
        #[cfg(test)]
        self.history.push(Entry::Owner {
            node,
            at: now,
            tenant: match stand {
                Stand::Reserved { tenant, .. } | Stand::Joining { tenant } | Stand::Open { tenant } => Some(tenant),
                _ => None,
            },
            clean: !matches!(stand, Stand::Returning { .. }),
        });
    }

    /// A free node is promised to a tenant, or a promise changes.
    pub(in crate::replay) fn reserve(&mut self, node: usize, tenant: usize, of: u32, now: Seconds) {
        match &mut self.nodes[node].stand {
            Stand::Free => self.own(node, Stand::Reserved { tenant, of }, now),
            Stand::Reserved { tenant: held, of: was } if *held == tenant => {
                *was = of;
                self.nodes_changed.insert(node);
            }
            _ => {}
        }
    }

    /// A promise is taken back: nothing of the tenant was on the node.
    pub(in crate::replay) fn unreserve(&mut self, node: usize, now: Seconds) {
        if matches!(self.nodes[node].stand, Stand::Reserved { .. }) {
            self.own(node, Stand::Free, now);
            self.news = true;
        }
    }

    /// Promised nodes join if their tenant has as many as they wait for.
    pub(in crate::replay) fn join_complete(&mut self, now: Seconds, events: &mut Events) {
        let mut has = vec![0_u32; self.queues.len()];
        for node in &self.nodes {
            if let Stand::Reserved { tenant, .. } | Stand::Joining { tenant } | Stand::Open { tenant } = node.stand {
                has[tenant] += 1;
            }
        }
        for node in 0..self.nodes.len() {
            if let Stand::Reserved { tenant, of } = self.nodes[node].stand
                && has[tenant] >= of
            {
                self.nodes[node].stand = Stand::Joining { tenant };
                self.nodes_changed.insert(node);
                events.push(Reverse((now + self.options.join, Event::Ready { node })));
            }
        }
    }

    /// Pods can start on a node.
    pub(in crate::replay) fn open(&mut self, node: usize, now: Seconds) {
        if let Stand::Joining { tenant } = self.nodes[node].stand {
            self.nodes[node].stand = Stand::Open { tenant };
            self.nodes[node].idle_since = now;
            self.nodes_changed.insert(node);
            self.open[tenant].insert(node);
            self.unsettled.insert(tenant);
            self.news = true;
        }
    }

    /// A node is to be taken from its tenant.
    pub(in crate::replay) fn release(&mut self, node: usize, until: Seconds, now: Seconds, events: &mut Events) {
        let tenant = match self.nodes[node].stand {
            Stand::Joining { tenant } | Stand::Open { tenant } | Stand::Cordoned { tenant, .. } => tenant,
            Stand::Reserved { .. } => return self.unreserve(node, now),
            Stand::Free | Stand::Returning { .. } => return,
        };
        self.open[tenant].remove(&node);
        self.nodes[node].stand = Stand::Cordoned { tenant, until };
        self.nodes_changed.insert(node);
        if until > now {
            events.push(Reverse((until, Event::Drain { node })));
        } else {
            self.drain_if_due(node, now, events);
        }
    }

    /// A node that was to be taken stays after all.
    pub(in crate::replay) fn keep(&mut self, node: usize) {
        if let Stand::Cordoned { tenant, .. } = self.nodes[node].stand {
            self.nodes[node].stand = Stand::Open { tenant };
            self.open[tenant].insert(node);
            self.nodes_changed.insert(node);
            self.unsettled.insert(tenant);
        }
    }

    /// A cordoned node whose time is over loses its jobs and is scrubbed.
    pub(in crate::replay) fn drain_if_due(&mut self, node: usize, now: Seconds, events: &mut Events) {
        let Stand::Cordoned { tenant, until } = self.nodes[node].stand else {
            return;
        };
        if until > now {
            return;
        }
        for job in self.nodes[node].jobs.clone() {
            self.evict(job, now);
        }
        self.counts.handovers += u64::from(self.window.overlap(now, now + 1) > 0);
        self.own(
            node,
            Stand::Returning {
                from: tenant,
                since: now,
            },
            now,
        );
        events.push(Reverse((now + self.options.scrub, Event::Clean { node })));
        self.news = true;
    }

    /// A node is scrubbed.
    pub(in crate::replay) fn clean(&mut self, node: usize, now: Seconds) {
        self.nodes[node].stand = Stand::Free;
        self.nodes[node].idle_since = now;
        self.nodes_changed.insert(node);
        self.news = true;
        #[cfg(test)]
        self.history.push(Entry::Clean { node, at: now });
    }
}
