//! When etcd's history is dropped earlier than etcd does it itself: pure.
//!
//! etcd keeps `--auto-compaction-retention` to twice that. In this time, tenants that rewrite large objects could fill it. So as soon as keys
//! and history use half of the quota, only the last minute is kept.

use super::usage::DatabaseState;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// Share of the quota from which on history is dropped.
const PRESSURE_PERCENT: u64 = 50;
/// History that is kept in any case, and the time between two compactions. API servers follow etcd within less.
const KEPT: Duration = Duration::from_secs(30);

/// Revisions and when they were the newest.
#[derive(Debug, Default)]
pub struct History {
    revisions: VecDeque<(Instant, i64)>,
    compacted: Option<(Instant, i64)>,
}

impl History {
    /// Notes the state of the database. Returns the revision up to which history should be dropped now, if it should.
    pub fn observe(&mut self, now: Instant, state: &DatabaseState) -> Option<i64> {
        self.revisions.push_back((now, state.revision));
        let is_old = |at: Instant| now.saturating_duration_since(at) >= KEPT;
        // The first is the newest of those that are old enough, if any is.
        while self.revisions.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.revisions.pop_front();
        }
        let used = state.bytes_in_use.saturating_mul(100);
        let is_pressed = used >= state.quota?.saturating_mul(PRESSURE_PERCENT);
        let is_due = self.compacted.is_none_or(|(at, _)| is_old(at));
        let (at, revision) = *self.revisions.front()?;
        let is_new = self.compacted.is_none_or(|(_, before)| revision > before);
        (is_pressed && is_due && is_new && is_old(at) && revision > 0).then_some(revision)
    }

    /// Notes that history was dropped.
    pub fn record_compaction(&mut self, now: Instant, revision: i64) {
        self.compacted = Some((now, revision));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes every ten seconds and compacts when that is asked for. Returns the second and the revision of each compaction. There are
    /// ten revisions in a second.
    fn compactions(quota: Option<u64>, bytes_in_use: u64) -> Vec<(u64, i64)> {
        let (start, mut history, mut all) = (Instant::now(), History::default(), Vec::new());
        for second in (0..=120_u32).step_by(10) {
            let now = start + Duration::from_secs(second.into());
            let revision = i64::from(second) * 10 + 1;
            let state = DatabaseState {
                quota,
                bytes_in_use,
                revision,
            };
            if let Some(revision) = history.observe(now, &state) {
                history.record_compaction(now, revision);
                all.push((second.into(), revision));
            }
        }
        all
    }

    #[test]
    fn under_pressure_history_is_bounded_to_a_minute() {
        assert_eq!(compactions(Some(100), 50), [(30, 1), (60, 301), (90, 601), (120, 901)]);
    }

    #[test]
    fn without_pressure_or_a_known_quota_etcd_compacts_alone() {
        assert!(compactions(Some(100), 49).is_empty());
        assert!(compactions(None, 1 << 40).is_empty());
    }

    #[test]
    fn the_same_revision_is_not_compacted_twice() {
        let (start, mut history) = (Instant::now(), History::default());
        let state = DatabaseState {
            quota: Some(100),
            bytes_in_use: 90,
            revision: 7,
        };
        let mut asked = Vec::new();
        for second in [0, 30, 60, 90] {
            let now = start + Duration::from_secs(second);
            if let Some(revision) = history.observe(now, &state) {
                history.record_compaction(now, revision);
                asked.push(revision);
            }
        }
        assert_eq!(asked, [7]);
    }
}
