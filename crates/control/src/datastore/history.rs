//! When etcd's history is dropped earlier than etcd does it itself: pure.
//!
//! etcd keeps `--auto-compaction-retention` to twice that. In this time, tenants that rewrite large objects could fill it. So as soon as keys
//! and history use half of the quota, only the last minute is kept: again whenever some history has grown, because current objects alone may
//! use half of the quota.

use super::usage::DatabaseState;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// Share of the quota from which on history is dropped.
const PRESSURE_PERCENT: u64 = 50;
/// Share of the quota by which usage must grow after a compaction before the next one.
const GROWTH_PERCENT: u64 = 5;
/// History that is kept in any case, and the time between two compactions. API servers follow etcd within less.
const KEPT: Duration = Duration::from_secs(30);

/// More revisions than etcd makes between two looks, also if it did not answer for some of them. A backup is restored with a higher revision than
/// any that clients have seen (`etcdutl snapshot restore --bump-revision`).
const JUMP: i64 = 100_000_000;

/// Revisions and when they were the newest.
#[derive(Debug, Default)]
pub struct History {
    revisions: VecDeque<(Instant, i64)>,
    compacted: Option<Compaction>,
}

#[derive(Clone, Copy, Debug)]
struct Compaction {
    at: Instant,
    revision: i64,
    /// The fewest bytes in use since then: it takes a while until the space is free.
    lowest: u64,
}

impl History {
    /// Whether the database is another one than before: a backup was restored, or its volume was lost. Another member may be a little
    /// behind.
    pub fn is_replaced(&self, state: &DatabaseState) -> bool {
        let (first, last) = (self.revisions.front(), self.revisions.back());
        let is_behind = first.is_some_and(|(_, first)| state.revision < *first);
        is_behind || last.is_some_and(|(_, last)| state.revision.saturating_sub(*last) >= JUMP)
    }

    /// Notes the state of the database. Returns the revision up to which history should be dropped now, if it should.
    pub fn observe(&mut self, now: Instant, state: &DatabaseState) -> Option<i64> {
        if self.is_replaced(state) {
            *self = Self::default();
        }
        self.revisions.push_back((now, state.revision));
        let is_old = |at: Instant| now.saturating_duration_since(at) >= KEPT;
        // The first is the newest of those that are old enough, if any is.
        while self.revisions.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.revisions.pop_front();
        }
        let quota = state.quota?;
        let is_pressed = percent_of(state.bytes_in_use, quota) >= PRESSURE_PERCENT;
        let (at, revision) = *self.revisions.front()?;
        let is_due = self.compacted.as_mut().is_none_or(|last| {
            last.lowest = last.lowest.min(state.bytes_in_use);
            let grown = state.bytes_in_use - last.lowest;
            is_old(last.at) && revision > last.revision && percent_of(grown, quota) >= GROWTH_PERCENT
        });
        (is_pressed && is_due && is_old(at) && revision > 0).then_some(revision)
    }

    /// Notes that history was dropped.
    pub fn record_compaction(&mut self, now: Instant, revision: i64) {
        self.compacted = Some(Compaction {
            at: now,
            revision,
            lowest: u64::MAX,
        });
    }
}

fn percent_of(bytes: u64, quota: u64) -> u64 {
    bytes.saturating_mul(100) / quota.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes every ten seconds and compacts when that is asked for. Returns the second and the revision of each compaction. There are
    /// ten revisions in a second. `bytes_in_use` says how much is used, by the second and that of the last compaction.
    fn compactions(quota: Option<u64>, bytes_in_use: impl Fn(u64, Option<u64>) -> u64) -> Vec<(u64, i64)> {
        let (start, mut history, mut all) = (Instant::now(), History::default(), Vec::<(u64, i64)>::new());
        for second in (0..=120_u32).step_by(10) {
            let now = start + Duration::from_secs(second.into());
            let revision = i64::from(second) * 10 + 1;
            let last = all.last().map(|(second, _)| *second);
            let state = DatabaseState {
                quota,
                bytes_in_use: bytes_in_use(second.into(), last),
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
        // It grows by one percent in two seconds.
        let growing = |second: u64, last: Option<u64>| 50 + (second - last.unwrap_or_default()) / 2;
        assert_eq!(
            compactions(Some(100), growing),
            [(30, 1), (60, 301), (90, 601), (120, 901)]
        );
    }

    #[test]
    fn current_objects_that_use_half_of_the_quota_do_not_cause_compactions() {
        assert_eq!(compactions(Some(100), |_, _| 60), [(30, 1)]);
        // Space is free a while after the compaction, and is used again later.
        let used = |second: u64, _: Option<u64>| match second {
            0..=40 => 60,
            50..=90 => 51,
            _ => 56,
        };
        assert_eq!(compactions(Some(100), used), [(30, 1), (100, 701)]);
    }

    #[test]
    fn a_restored_database_is_compacted_as_a_new_one() {
        let (start, mut history) = (Instant::now(), History::default());
        let mut replaced = Vec::new();
        let mut observe = |second: u64, revision| {
            let state = DatabaseState {
                quota: Some(100),
                bytes_in_use: 60,
                revision,
            };
            let now = start + Duration::from_secs(second);
            replaced.push(history.is_replaced(&state));
            let due = history.observe(now, &state);
            if let Some(revision) = due {
                history.record_compaction(now, revision);
            }
            due
        };
        assert_eq!([observe(0, 900), observe(30, 1000)], [None, Some(900)]);
        assert_eq!([observe(40, 500), observe(70, 600)], [None, Some(500)]);
        // With a higher revision than any before.
        let raised = 600 + 1_000_000_000;
        assert_eq!([observe(80, raised), observe(110, raised + 1)], [None, Some(raised)]);
        assert_eq!(replaced, [false, false, true, false, true, false]);
    }

    #[test]
    fn without_pressure_or_a_known_quota_etcd_compacts_alone() {
        assert!(compactions(Some(100), |_, _| 49).is_empty());
        assert!(compactions(None, |_, _| 1 << 40).is_empty());
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
