//! How many nodes of a pool are not Ready, and how many may be.

use crate::{Node, Seconds};
use serde::{Deserialize, Serialize};

/// When nodes of a pool that are not Ready are taken from their tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RepairPolicy {
    /// How long a node must not be Ready.
    pub not_ready_after: Seconds,
    /// The most nodes of the pool that may be not Ready at the same time.
    pub max_unhealthy: u32,
    /// Since when no more are not Ready. None: nothing is known of a time when more were.
    pub allowed_since: Option<Seconds>,
}

impl RepairPolicy {
    /// When a node that is not Ready is so for too long; `None`: it is Ready.
    pub(crate) fn overdue_at(&self, node: &Node) -> Option<Seconds> {
        Some(node.not_ready_since?.saturating_add(self.not_ready_after))
    }

    /// When such a node may be taken from its tenant. After an outage the time begins anew: nodes come back one after the other, and the last of them are few
    /// and not Ready for long.
    pub(crate) fn due_at(&self, node: &Node) -> Option<Seconds> {
        let since = node.not_ready_since?;
        let from = self.allowed_since.map_or(since, |allowed| allowed.max(since));
        Some(from.saturating_add(self.not_ready_after))
    }
}

/// How many nodes of a pool that repairs its nodes are not Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolHealth {
    /// Nodes that are not Ready, with a tenant or without one. Those that are too new to be Ready do not count.
    pub not_ready: u32,
    /// The most that may be, see [`RepairPolicy::max_unhealthy`].
    pub max_unhealthy: u32,
    /// Nodes that are not Ready for too long and stay with their tenants, because nothing can take their place.
    pub without_replacement: u32,
}

impl PoolHealth {
    /// Counts the nodes of a pool.
    pub(crate) fn of<'n>(nodes: impl Iterator<Item = &'n Node>, policy: &RepairPolicy) -> Self {
        let not_ready = nodes.filter(|node| node.not_ready_since.is_some() && !node.starting);
        Self {
            not_ready: u32::try_from(not_ready.count()).unwrap_or(u32::MAX),
            max_unhealthy: policy.max_unhealthy,
            without_replacement: 0,
        }
    }

    /// Whether nodes may be taken from their tenants.
    pub fn allows_repair(&self) -> bool {
        self.not_ready <= self.max_unhealthy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_not_ready_count_with_a_tenant_or_without_one_but_not_new_ones() {
        let policy = RepairPolicy {
            not_ready_after: 600,
            max_unhealthy: 1,
            allowed_since: None,
        };
        let node = |not_ready_since, starting| Node {
            not_ready_since,
            starting,
            ..Node::default()
        };
        let nodes = [node(Some(0), false), node(None, false), node(Some(999), true)];
        let health = PoolHealth::of(nodes.iter(), &policy);
        assert_eq!((health.not_ready, health.allows_repair()), (1, true));
        let more = [&nodes[0], &nodes[0]].into_iter();
        assert!(!PoolHealth::of(more, &policy).allows_repair());
        assert_eq!([0, 1].map(|at| policy.overdue_at(&nodes[at])), [Some(600), None]);
    }

    #[test]
    fn a_node_is_due_when_its_time_is_over_since_the_last_outage() {
        let node = |not_ready_since| Node {
            not_ready_since,
            ..Node::default()
        };
        let due = |not_ready_since, allowed_since| {
            let policy = RepairPolicy {
                not_ready_after: 600,
                max_unhealthy: 1,
                allowed_since,
            };
            policy.due_at(&node(not_ready_since))
        };
        assert_eq!([due(Some(100), None), due(None, Some(100))], [Some(700), None]);
        assert_eq!(
            [due(Some(100), Some(50)), due(Some(100), Some(500))],
            [Some(700), Some(1100)]
        );
    }
}
