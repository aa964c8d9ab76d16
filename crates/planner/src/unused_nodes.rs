//! What is remembered of nodes that a tenant did not use, from plan to plan.

use crate::{Seconds, WaitingTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long a tenant is served last the first time; each further time it is twice as long.
const FIRST_PAUSE: Seconds = 600;
/// The longest pause.
const LONGEST_PAUSE: Seconds = 7200;
/// How long the planner remembers that nodes were not used.
const MEMORY: Seconds = 86_400;
/// How often a tenant may give nodes back that no pod used, if none waits for them any more.
const SPARED: u32 = 2;

/// What is known of nodes that tenants did not use, by tenant UID and pool.
pub type UnusedNodesByTenant = BTreeMap<String, BTreeMap<String, UnusedNodes>>;

/// What is known of nodes of one pool that a tenant did not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UnusedNodes {
    /// Since when it has had nodes that are idle for too long and that only pods which wait keep. None: it has none.
    pub kept_since: Option<Seconds>,
    /// When the first nodes of this time were released that none of its pods used.
    pub began_at: Seconds,
    /// When the last of them were released, or are: nodes in use after a grace period.
    pub released_at: Seconds,
    /// How many; the most of all times in a row.
    pub nodes: u32,
    /// How often that happened in a row. 0: it did not happen. Nodes that came before the time began do not count as a further one.
    pub times: u32,
    /// For how long its pods have counted on nodes in use without starting.
    pub waiting: WaitingTime,
}

impl UnusedNodes {
    /// Until when other tenants are served before it in the pool, and nothing is reclaimed for it; `None`: it was spared.
    pub fn paused_until(&self) -> Option<Seconds> {
        let doublings = self.times.checked_sub(SPARED + 1)?.min(8);
        Some(self.released_at + (FIRST_PAUSE << doublings).min(LONGEST_PAUSE))
    }

    /// Until when there is a pause; `None`: there is none now.
    pub(crate) fn find_pause(&self, now: Seconds) -> Option<Seconds> {
        self.paused_until().filter(|until| now < *until)
    }

    /// What is still remembered of it. `grace_period`: of the pool, after which nodes in use are released.
    pub(crate) fn recall(self, now: Seconds, grace_period: Seconds) -> Self {
        let is_remembered = self.times > 0 && now < self.released_at.saturating_add(MEMORY);
        let released = if is_remembered { self } else { Self::default() };
        Self {
            // A clock that went back must not make a pause longer.
            kept_since: self.kept_since.map(|since| since.min(now)),
            began_at: released.began_at.min(now),
            released_at: released.released_at.min(now.saturating_add(grace_period)),
            waiting: self.waiting.recall(now),
            ..released
        }
    }

    /// The same after further nodes were released.
    pub(crate) fn add(self, left: LeftUnused, now: Seconds) -> Self {
        if left.nodes == 0 {
            return self;
        }
        // Nodes that came together are not released at the same moment. Compared with the last release, nodes of two pods that are lost in
        // turns would be the same time for ever.
        let came_before = left.last_came.is_some_and(|came| came <= self.began_at);
        let is_same = self.times > 0 && (came_before || now < self.released_at + FIRST_PAUSE);
        let was_spared = is_same && self.find_pause(now).is_none();
        let times = if is_same {
            self.times
        } else {
            self.times.saturating_add(1)
        };
        Self {
            kept_since: self.kept_since,
            began_at: if is_same { self.began_at } else { now },
            released_at: if was_spared && !left.pods_wait {
                self.released_at
            } else {
                left.leaves_at.max(now)
            },
            // A few nodes later do not make it quicker to forget many.
            nodes: if is_same {
                self.nodes.saturating_add(left.nodes)
            } else {
                self.nodes.max(left.nodes)
            },
            times: if left.pods_wait { times.max(SPARED + 1) } else { times },
            waiting: self.waiting,
        }
    }
}

/// Nodes of one pool that a plan takes from a tenant and that none of its pods used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeftUnused {
    pub nodes: u32,
    /// When the last of them came to the tenant.
    last_came: Option<Seconds>,
    /// Whether pods wait for any of them.
    pods_wait: bool,
    /// When the last of them that is in use is drained. 0: none is.
    leaves_at: Seconds,
}

impl LeftUnused {
    /// Adds a node that came to the tenant at this time.
    pub fn add_node(&mut self, came: Seconds, pods_wait: bool) {
        self.nodes = self.nodes.saturating_add(1);
        self.last_came = self.last_came.max(Some(came));
        self.pods_wait |= pods_wait;
    }

    /// Notes that one of them is drained at this time.
    pub fn drain_at(&mut self, time: Seconds) {
        self.leaves_at = self.leaves_at.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes that came at the same time.
    fn left(nodes: u32, came: Seconds, pods_wait: bool) -> LeftUnused {
        let mut left = LeftUnused::default();
        for _ in 0..nodes {
            left.add_node(came, pods_wait);
        }
        left
    }

    #[test]
    fn pauses_grow_and_end() {
        let mut unused = UnusedNodes::default();
        let (mut now, mut pauses) = (1_000, Vec::new());
        for _ in 0..6 {
            unused = unused.add(left(8, now - 700, true), now);
            let until = unused.paused_until().unwrap();
            pauses.push(until - now);
            assert_eq!(
                (unused.find_pause(until - 1), unused.find_pause(until)),
                (Some(until), None)
            );
            now = until + 900;
        }
        assert_eq!(pauses, [600, 1200, 2400, 4800, 7200, 7200]);
        assert_eq!(unused.nodes, 8);
        assert_eq!(unused.recall(unused.released_at + MEMORY, 0), UnusedNodes::default());
        assert_eq!(unused.recall(50, 0).released_at, 50, "the clock went back");
    }

    #[test]
    fn nodes_that_are_released_one_after_the_other_count_once() {
        let first = UnusedNodes::default().add(left(1, 100, true), 1_000);
        let second = first.add(left(1, 1_005, true), 1_010);
        assert_eq!((second.nodes, second.times), (2, first.times));
        assert_eq!(second.paused_until(), Some(1_610));
    }

    #[test]
    fn nodes_that_came_before_others_were_released_are_no_further_time() {
        let mut unused = UnusedNodes::default();
        for lost in 1..=6 {
            let now = 1_000 + 660 * i64::from(lost);
            unused = unused.add(left(1, 100, true), now);
            assert_eq!((unused.nodes, unused.paused_until()), (lost, Some(now + 600)));
        }
        let now = unused.released_at + 5_000;
        let again = unused.add(left(1, unused.released_at + 1, true), now);
        assert_eq!(again.paused_until(), Some(now + 1_200), "it got the node afterwards");
    }

    #[test]
    fn pauses_grow_also_if_a_tenant_loses_the_nodes_of_two_pods_in_turns() {
        let (mut unused, mut times) = (UnusedNodes::default(), Vec::new());
        // The node of each pod comes again before that of the other is released.
        for (came, now) in [
            (100, 1_000),
            (100, 1_960),
            (1_600, 2_920),
            (2_560, 3_880),
            (5_080, 6_400),
        ] {
            unused = unused.add(left(1, came, true), now);
            times.push(unused.times);
        }
        assert_eq!(times, [3, 3, 4, 4, 5]);
    }

    #[test]
    fn a_few_nodes_do_not_hide_that_there_were_many() {
        let many = UnusedNodes::default().add(left(64, 100, true), 1_000);
        let few = many.add(left(1, 2_000, false), 3_000);
        assert_eq!((few.nodes, few.times), (64, many.times + 1));
        assert_eq!(few.add(left(0, 2_000, true), 4_000), few);
    }

    #[test]
    fn nodes_whose_pods_were_deleted_are_spared_twice() {
        let mut unused = UnusedNodes::default();
        for (now, paused) in [(1_000, false), (1_100, false), (2_000, false), (3_000, true)] {
            unused = unused.add(left(1, now - 50, false), now);
            assert_eq!(unused.find_pause(now).is_some(), paused, "{now}");
        }
    }
}
