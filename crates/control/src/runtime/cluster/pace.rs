//! How often a component is changed before its last change was rolled out.
//!
//! Each change makes a Secret, a ReplicaSet and a pod on the host, whose controllers delete what is outdated only after a rollout. A team that changes its
//! TenantCluster all the time, or has settings with which no API server starts, would fill the host's etcd and the nodes of control planes.

use std::time::Duration;
use tokio::time::Instant;

/// Changes at once.
const BURST: u32 = 8;
/// Time after which there may be one more.
const INTERVAL: Duration = Duration::from_secs(30);

/// The changes of one component.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Hash of what was applied last; none if that is not known.
    version: Option<String>,
    /// When all changes until now would have been made if there were one in each interval.
    paid_until: Option<Instant>,
}

impl Pace {
    /// Whether the version with this hash was applied last.
    pub(super) fn is_last(&self, version: &str) -> bool {
        self.version.as_deref() == Some(version)
    }

    /// Whether another version may be applied at `now`. That costs nothing if the last one `is_rolled_out`.
    pub(super) fn admit(&mut self, version: &str, is_rolled_out: bool, now: Instant) -> bool {
        let is_admitted = is_rolled_out || self.take(now);
        if is_admitted {
            self.version = Some(version.to_owned());
        }
        is_admitted
    }

    fn take(&mut self, now: Instant) -> bool {
        let paid_until = self.paid_until.map_or(now, |until| until.max(now)) + INTERVAL;
        let is_left = paid_until.duration_since(now) <= INTERVAL * BURST;
        if is_left {
            self.paid_until = Some(paid_until);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_before_a_rollout_are_few_and_others_are_free() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut number = 0;
        let mut admit = |is_rolled_out, now| {
            number += 1;
            pace.admit(&number.to_string(), is_rolled_out, now)
        };
        for _ in 0..100 {
            assert!(admit(true, start));
        }
        for _ in 0..BURST {
            assert!(admit(false, start));
        }
        assert!(!admit(false, start));
        assert!(!admit(false, start + INTERVAL / 2));
        assert!(admit(true, start));
        assert!(admit(false, start + INTERVAL));
        assert!(!admit(false, start + INTERVAL));
        // Rest makes up for no more than at the start.
        let later = start + INTERVAL * 100;
        let admitted = (0..100).filter(|_| admit(false, later)).count();
        assert_eq!(admitted, BURST as usize);
    }

    #[test]
    fn what_was_applied_last_is_known() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert!(!pace.is_last("a"));
        assert!(pace.admit("a", true, now) && pace.is_last("a"));
        while pace.admit("b", false, now) {}
        assert!(pace.is_last("b"));
        assert!(!pace.admit("c", false, now) && pace.is_last("b"));
    }
}
