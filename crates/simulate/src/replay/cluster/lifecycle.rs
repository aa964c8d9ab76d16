//! The life of a node from one tenant to the next.

use std::cmp::Reverse;

use berth_planner::Seconds;

#[cfg(test)]
use super::Entry;
use super::{Cluster, Event, Events, NodePhase};

impl Cluster<'_> {
    /// Changes the owner of a node.
    pub(super) fn set_owner(&mut self, node: usize, phase: NodePhase, now: Seconds) {
        let here = &mut self.nodes[node];
        here.phase = phase;
        here.owned_since = now;
        here.idle_since = now;
        self.nodes_changed.insert(node);
        #[cfg(test)]
        self.history.push(Entry::Owner {
            node,
            at: now,
            tenant: match phase {
                NodePhase::Reserved { tenant, .. } | NodePhase::Joining { tenant } | NodePhase::Open { tenant } => {
                    Some(tenant)
                }
                _ => None,
            },
            clean: !matches!(phase, NodePhase::Returning { .. }),
        });
    }

    /// Reserves a free node for a tenant, or changes a reservation.
    pub(in crate::replay) fn reserve(&mut self, node: usize, tenant: usize, of: u32, now: Seconds) {
        match &mut self.nodes[node].phase {
            NodePhase::Free => self.set_owner(node, NodePhase::Reserved { tenant, of }, now),
            NodePhase::Reserved { tenant: held, of: was } if *held == tenant => {
                *was = of;
                self.nodes_changed.insert(node);
            }
            _ => {}
        }
    }

    /// Cancels a reservation: the tenant has not used the node.
    pub(in crate::replay) fn cancel_reservation(&mut self, node: usize, now: Seconds) {
        if matches!(self.nodes[node].phase, NodePhase::Reserved { .. }) {
            self.set_owner(node, NodePhase::Free, now);
            self.plan_outdated = true;
        }
    }

    /// Lets reserved nodes join whose tenant has the number of nodes that they wait for.
    pub(in crate::replay) fn join_complete(&mut self, now: Seconds, events: &mut Events) {
        let mut has = vec![0_u32; self.queues.len()];
        for node in &self.nodes {
            if let NodePhase::Reserved { tenant, .. } | NodePhase::Joining { tenant } | NodePhase::Open { tenant } =
                node.phase
            {
                has[tenant] += 1;
            }
        }
        for node in 0..self.nodes.len() {
            if let NodePhase::Reserved { tenant, of } = self.nodes[node].phase
                && has[tenant] >= of
            {
                self.nodes[node].phase = NodePhase::Joining { tenant };
                self.nodes_changed.insert(node);
                events.push(Reverse((now + self.options.join, Event::Ready { node })));
            }
        }
    }

    /// Lets jobs start on a node.
    pub(in crate::replay) fn open_node(&mut self, node: usize, now: Seconds) {
        if let NodePhase::Joining { tenant } = self.nodes[node].phase {
            self.nodes[node].phase = NodePhase::Open { tenant };
            self.nodes[node].idle_since = now;
            self.nodes_changed.insert(node);
            self.open[tenant].insert(node);
            self.unsettled.insert(tenant);
            self.plan_outdated = true;
        }
    }

    /// Cordons a node that is taken from its tenant.
    pub(in crate::replay) fn release(&mut self, node: usize, until: Seconds, now: Seconds, events: &mut Events) {
        let tenant = match self.nodes[node].phase {
            NodePhase::Joining { tenant } | NodePhase::Open { tenant } | NodePhase::Cordoned { tenant, .. } => tenant,
            NodePhase::Reserved { .. } => return self.cancel_reservation(node, now),
            NodePhase::Free | NodePhase::Returning { .. } => return,
        };
        self.open[tenant].remove(&node);
        self.nodes[node].phase = NodePhase::Cordoned { tenant, until };
        self.nodes_changed.insert(node);
        if until > now {
            events.push(Reverse((until, Event::Drain { node })));
        } else {
            self.drain_if_due(node, now, events);
        }
    }

    /// Leaves a cordoned node to its tenant.
    pub(in crate::replay) fn cancel_release(&mut self, node: usize) {
        if let NodePhase::Cordoned { tenant, .. } = self.nodes[node].phase {
            self.nodes[node].phase = NodePhase::Open { tenant };
            self.open[tenant].insert(node);
            self.nodes_changed.insert(node);
            self.unsettled.insert(tenant);
        }
    }

    /// Evicts the jobs of a cordoned node at its drain time, and scrubs it.
    pub(in crate::replay) fn drain_if_due(&mut self, node: usize, now: Seconds, events: &mut Events) {
        let NodePhase::Cordoned { tenant, until } = self.nodes[node].phase else {
            return;
        };
        if until > now {
            return;
        }
        for job in self.nodes[node].jobs.clone() {
            self.evict(job, now);
        }
        self.counts.recyclings += u64::from(self.window.overlap(now, now + 1) > 0);
        self.set_owner(
            node,
            NodePhase::Returning {
                from: tenant,
                since: now,
            },
            now,
        );
        events.push(Reverse((now + self.options.scrub, Event::Clean { node })));
        self.plan_outdated = true;
    }

    /// Frees a node whose scrub is finished.
    pub(in crate::replay) fn finish_scrub(&mut self, node: usize, now: Seconds) {
        self.nodes[node].phase = NodePhase::Free;
        self.nodes[node].idle_since = now;
        self.nodes_changed.insert(node);
        self.plan_outdated = true;
        #[cfg(test)]
        self.history.push(Entry::Clean { node, at: now });
    }
}
