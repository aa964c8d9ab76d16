//! How many of the tenant's pods may be in the queue of the host's scheduler at a time.
//!
//! The queue is common to all tenants, and a syncer sees only its own pods. What it can measure is how long the scheduler takes
//! until it tries a pod: that time grows with the pods of all tenants in the queue. So the limit grows while the scheduler is
//! quick, by a fixed step, and is halved when the scheduler takes long. With this rule, TCP connections come to equal shares of a
//! link of which none knows how fast it is and how many others use it.

use std::time::{Duration, Instant};

/// The limit when there was no pod in the queue: enough for a scheduler that tries 160 pods a second after 50 ms each.
const START: usize = 8;
/// The least limit. All tenants have this many at the same time, so it is small; it must keep the scheduler busy.
const MINIMUM: usize = 4;
/// By how much the limit grows.
const STEP: usize = 4;
/// The limit grows while the scheduler tries pods within this time and pods wait; it is halved if the scheduler takes longer.
const TARGET: Duration = Duration::from_millis(75);
/// Shortest time between two changes, by direction: what was changed must have had an effect.
const PAUSE_GROWING: Duration = Duration::from_millis(50);
const PAUSE_SHRINKING: Duration = Duration::from_millis(100);

/// The limit.
#[derive(Debug)]
pub(super) struct Limit {
    current: usize,
    maximum: usize,
    changed_at: Option<Instant>,
}

impl Limit {
    /// A limit that never grows beyond `maximum`.
    pub(super) fn new(maximum: usize) -> Self {
        Self {
            current: START.min(maximum),
            maximum,
            changed_at: None,
        }
    }

    /// The limit now.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Begins anew: what was measured is out of date, because no pod is left in the queue.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.maximum);
    }

    /// Changes the limit after the scheduler has tried a pod that was on the host for `delay`. `is_needed`: pods wait for a place.
    pub(super) fn measure(&mut self, delay: Duration, is_needed: bool, now: Instant) {
        let (pause, next) = if delay > TARGET {
            (PAUSE_SHRINKING, (self.current / 2).max(MINIMUM.min(self.maximum)))
        } else if is_needed {
            (PAUSE_GROWING, (self.current + STEP).min(self.maximum))
        } else {
            return;
        };
        let is_due = |at: Instant| now.saturating_duration_since(at) >= pause;
        if self.changed_at.is_none_or(is_due) {
            self.current = next;
            self.changed_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after tries that took these milliseconds, 100 ms apart.
    fn after(limit: &mut Limit, delays: &[u64]) -> usize {
        let start = Instant::now() + Duration::from_hours(1);
        for (index, delay) in (0_u32..).zip(delays) {
            let now = start + Duration::from_millis(100) * index;
            limit.measure(Duration::from_millis(*delay), true, now);
        }
        limit.current()
    }

    #[test]
    fn it_grows_while_the_scheduler_is_quick_up_to_the_maximum() {
        let mut limit = Limit::new(18);
        assert_eq!(limit.current(), START);
        assert_eq!(after(&mut limit, &[10, 10]), START + 2 * STEP);
        assert_eq!(after(&mut limit, &[10, 10, 10]), 18);
    }

    #[test]
    fn it_is_halved_when_the_scheduler_is_slow_down_to_the_minimum() {
        let mut limit = Limit::new(64);
        after(&mut limit, &[10; 14]);
        assert_eq!(limit.current(), 64);
        limit.changed_at = None;
        assert_eq!(after(&mut limit, &[500]), 32);
        limit.changed_at = None;
        assert_eq!(after(&mut limit, &[500; 9]), MINIMUM);
    }

    #[test]
    fn it_does_not_grow_while_no_pod_waits() {
        let mut limit = Limit::new(64);
        limit.measure(Duration::from_millis(1), false, Instant::now());
        assert_eq!(limit.current(), START);
    }

    #[test]
    fn many_tries_at_once_change_it_once() {
        let mut limit = Limit::new(64);
        let now = Instant::now();
        for _ in 0..20 {
            limit.measure(Duration::from_millis(300), true, now);
        }
        assert_eq!(limit.current(), START / 2);
    }

    #[test]
    fn a_maximum_below_the_minimum_holds() {
        let mut limit = Limit::new(1);
        assert_eq!(limit.current(), 1);
        assert_eq!(after(&mut limit, &[10, 10, 500, 500]), 1);
    }

    #[test]
    fn tenants_come_to_equal_limits() {
        let (mut one, mut other) = (Limit::new(64), Limit::new(64));
        one.current = 64;
        let start = Instant::now();
        for round in 0..200_u32 {
            let now = start + Duration::from_millis(100) * round;
            // A scheduler that tries 200 pods a second: 5 ms for each pod in its queue.
            let queued = u64::try_from(one.current() + other.current()).unwrap();
            for limit in [&mut one, &mut other] {
                limit.measure(Duration::from_millis(5 * queued), true, now);
            }
        }
        assert!(one.current().abs_diff(other.current()) <= STEP, "{one:?} {other:?}");
    }
}
