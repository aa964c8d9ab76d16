//! What is remembered of nodes that a tenant did not use, from plan to plan.

use crate::Seconds;
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
    /// When nodes were released that none of its pods used.
    pub released_at: Seconds,
    /// How many.
    pub nodes: u32,
    /// How often that happened in a row. 0: it did not happen.
    pub times: u32,
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

    /// What is still remembered of it.
    pub(crate) fn recall(self, now: Seconds) -> Self {
        let is_remembered = self.times > 0 && now < self.released_at.saturating_add(MEMORY);
        let released = if is_remembered { self } else { Self::default() };
        Self {
            // A clock that went back must not make a pause longer.
            kept_since: self.kept_since.map(|since| since.min(now)),
            released_at: released.released_at.min(now),
            ..released
        }
    }

    /// The same after further nodes were released. `pods_wait`: for these nodes.
    pub(crate) fn add(self, nodes: u32, now: Seconds, pods_wait: bool) -> Self {
        // Nodes that came together are not released at the same moment.
        let is_same = self.times > 0 && now < self.released_at + FIRST_PAUSE;
        let was_spared = is_same && self.find_pause(now).is_none();
        let times = if is_same {
            self.times
        } else {
            self.times.saturating_add(1)
        };
        Self {
            kept_since: self.kept_since,
            released_at: if was_spared && !pods_wait {
                self.released_at
            } else {
                now
            },
            nodes: if is_same {
                self.nodes.saturating_add(nodes)
            } else {
                nodes
            },
            times: if pods_wait { times.max(SPARED + 1) } else { times },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut unused = UnusedNodes::default();
        let (mut now, mut pauses) = (1_000, Vec::new());
        for _ in 0..6 {
            unused = unused.add(8, now, true);
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
        assert_eq!(unused.recall(unused.released_at + MEMORY), UnusedNodes::default());
        assert_eq!(unused.recall(50).released_at, 50, "the clock went back");
    }

    #[test]
    fn nodes_that_are_released_one_after_the_other_count_once() {
        let first = UnusedNodes::default().add(1, 1_000, true);
        let second = first.add(1, 1_010, true);
        assert_eq!((second.nodes, second.times), (2, first.times));
        assert_eq!(second.paused_until(), Some(1_610));
    }

    #[test]
    fn nodes_whose_pods_were_deleted_are_spared_twice() {
        let mut unused = UnusedNodes::default();
        for (now, paused) in [(1_000, false), (1_100, false), (2_000, false), (3_000, true)] {
            unused = unused.add(1, now, false);
            assert_eq!(unused.find_pause(now).is_some(), paused, "{now}");
        }
    }
}
