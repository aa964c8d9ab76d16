//! For how long pods that wait have kept nodes in use from others, from plan to plan.

use crate::Seconds;
use serde::{Deserialize, Serialize};

/// The shortest time after which a node is idle for too long, and for which pods may keep it then; and for which they keep what is left of one in use.
/// The scheduler itself may wait for volumes for ten minutes (`bindTimeoutSeconds`) before it binds a pod.
pub const LEAST_PATIENCE: Seconds = 660;
/// A break takes this part of itself from the time that is counted: a tenth.
const PART_OF_BREAK: Seconds = 10;

/// For how long pods of a tenant have counted on what is left of nodes in use of one pool, without starting. A short break does not begin it anew:
/// pods that are deleted and created again would keep nodes for ever, and tenants that do so in turns would keep one of them at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WaitingTime {
    /// Since when; later than in truth by what breaks took. None: they have not for long.
    pub since: Option<Seconds>,
    /// Since when none does. None: some do.
    pub until: Option<Seconds>,
}

impl WaitingTime {
    /// Whether pods count on such nodes since an earlier plan.
    pub(crate) fn is_running(self) -> bool {
        self.since.is_some() && self.until.is_none()
    }

    /// For how long they have, without what a break took; at most [`LEAST_PATIENCE`].
    fn count(self, now: Seconds) -> Seconds {
        let Some(since) = self.since else { return 0 };
        let until = self.until.unwrap_or(now);
        let waited = until.saturating_sub(since).clamp(0, LEAST_PATIENCE);
        let taken = now.saturating_sub(until).max(0) / PART_OF_BREAK;
        waited.saturating_sub(taken).max(0)
    }

    /// When they keep no node any more, if they wait on.
    pub(crate) fn over_at(self) -> Option<Seconds> {
        let since = self.since.filter(|_| self.until.is_none())?;
        Some(since.saturating_add(LEAST_PATIENCE))
    }

    /// Whether they have waited for so long that they keep no node any more.
    pub(crate) fn is_over(self, now: Seconds) -> bool {
        self.count(now) >= LEAST_PATIENCE
    }

    /// What is still remembered. A clock that went back must not leave a time that is not reached.
    pub(crate) fn recall(self, now: Seconds) -> Self {
        if self.until.is_some() && self.count(now) == 0 {
            return Self::default();
        }
        Self {
            since: self.since.map(|since| since.min(now)),
            until: self.until.map(|until| until.min(now)),
        }
    }

    /// The same after a plan in which pods count on such nodes, or none does.
    pub(crate) fn go_on(self, is_waiting: bool, now: Seconds) -> Self {
        match (is_waiting, self.is_running()) {
            (true, false) => Self {
                since: Some(now - self.count(now)),
                until: None,
            },
            (false, true) => Self {
                until: Some(now),
                ..self
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_keep_nodes_for_eleven_minutes() {
        let time = WaitingTime::default().go_on(true, 1_000);
        assert_eq!(time.over_at(), Some(1_660));
        assert_eq!((time.is_over(1_659), time.is_over(1_660)), (false, true));
        assert_eq!(time.go_on(true, 1_500), time);
        assert!(
            time.recall(9_000_000).is_over(9_000_000),
            "it has no end as long as they wait"
        );
    }

    #[test]
    fn a_break_takes_a_tenth_of_itself() {
        let time = WaitingTime::default().go_on(true, 1_000).go_on(false, 1_600);
        assert_eq!(time.over_at(), None);
        let again = time.recall(1_700).go_on(true, 1_700);
        assert_eq!(again.over_at(), Some(1_700 + 70), "600 seconds less 10");
        let last = time.until.unwrap() + 600 * PART_OF_BREAK;
        assert_ne!(time.recall(last - 1), WaitingTime::default());
        assert_eq!(time.recall(last), WaitingTime::default());
    }

    #[test]
    fn pods_that_are_created_again_each_minute_keep_nodes_for_little_longer() {
        let (mut time, mut now) = (WaitingTime::default(), 1_000);
        while !time.is_over(now) {
            time = time.go_on(true, now);
            now += 55;
            time = time.recall(now).go_on(false, now);
            now += 5;
        }
        assert!(now < 1_000 + 800, "{now}");
    }

    #[test]
    fn a_long_wait_is_forgotten_as_quickly_as_a_short_one() {
        let time = WaitingTime::default().go_on(true, 0).go_on(false, 1_000_000);
        assert!(time.is_over(1_000_009));
        assert_eq!(time.recall(1_000_000 + 6_600), WaitingTime::default());
    }

    #[test]
    fn a_clock_that_went_back_adds_no_time() {
        let time = WaitingTime::default().go_on(true, 1_000);
        assert_eq!(time.recall(400).over_at(), Some(1_060));
        let ended = time.go_on(false, 1_300).recall(400);
        assert_eq!((ended.since, ended.until), (Some(400), Some(400)));
    }
}
