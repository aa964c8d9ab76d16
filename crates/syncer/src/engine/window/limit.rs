//! How many of the tenant's pods may be on their way to the host's scheduler at a time.
//!
//! The host's API server and its scheduler are common to all tenants, and a syncer sees only its own pods. What it can measure is how
//! long a pod takes from its place in the window until the scheduler tries it: that time grows with the pods of all tenants on the
//! way. So the limit grows while pods are quick, by a fixed step, and is halved when they take long. With this rule, TCP connections come to
//! equal shares of a link of which none knows how fast it is and how many others use it.
//!
//! Even one pod at a time from each of many tenants can be more than the host carries. So a tenant at the least limit rests between two pods
//! if they take long: twice as long each time, up to a bound. While pods are quick it starts more pods a second again, by a fixed step for each second.
//! The step is not for each pod: a tenant that rests for long has few pods to learn from, and would stay behind others and leave the host idle.
//!
//! A host can also be slow by itself, because of its webhooks for example. Then nobody is helped by fewer pods. So "long" is in proportion to the
//! quickest pod of late, once that is not quick any more.
//!
//! The limit changes only while pods wait for a place. A tenant that needs fewer has its places at once, however many others wait.

use std::time::{Duration, Instant};

/// The limit at first: enough for 80 pods a second that take 100 ms each.
const START: usize = 8;
/// The least limit. All tenants that have too many pods have this many at the same time.
const MINIMUM: usize = 1;
/// By how much the limit grows.
const STEP: usize = 2;
/// The limit grows while pods are tried within this time, or one and a half times that of the quickest pod of late if that is longer; it is halved if
/// they take longer. On a host with nothing else to do, a pod takes
/// 40 ms: two requests that create it and its Secret, and the scheduler.
const TARGET: Duration = Duration::from_millis(100);
/// No pod that takes longer is quick, on whatever host.
const LONGEST_TARGET: Duration = Duration::from_millis(500);
/// How soon the quickest pod is forgotten. Meanwhile a flood leaves pods as quick as they can be again and again.
const FORGETTING: Duration = Duration::from_mins(10);
/// The first rest.
const SHORTEST_REST: Duration = Duration::from_millis(50);
/// The longest rest: how slow a flood can get because of others.
const LONGEST_REST: Duration = Duration::from_millis(500);
/// By how many pods a second a tenant that rests becomes quicker, for each second in which pods are quick.
const RECOVERY: f64 = 20.0;
/// Shortest time between two changes, by direction: what was changed must have had an effect.
const PAUSE_GROWING: Duration = Duration::from_millis(50);
const PAUSE_SHRINKING: Duration = Duration::from_millis(100);

/// The limit.
#[derive(Debug)]
pub(super) struct Limit {
    current: usize,
    rest: Duration,
    /// How long the quickest pod of late took. Until one is known, what a host needs that is quick enough.
    quickest: Duration,
    /// When that was so.
    quickest_at: Option<Instant>,
    maximum: usize,
    changed_at: Option<Instant>,
}

impl Limit {
    /// A limit that never grows beyond `maximum`.
    pub(super) fn new(maximum: usize) -> Self {
        Self {
            current: START.min(maximum),
            rest: Duration::ZERO,
            quickest: TARGET * 2 / 3,
            quickest_at: None,
            maximum,
            changed_at: None,
        }
    }

    /// The limit now.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// How long no pod gets a place after one was tried.
    pub(super) fn rest(&self) -> Duration {
        self.rest
    }

    /// Begins anew: what was measured is out of date, because no pod is left in the queue.
    pub(super) fn reset(&mut self) {
        *self = Self {
            quickest: self.quickest,
            quickest_at: self.quickest_at,
            ..Self::new(self.maximum)
        };
    }

    /// Changes the limit after the scheduler has tried a pod that has had its place for `delay`. `is_needed`: pods wait for a place.
    pub(super) fn measure(&mut self, delay: Duration, is_needed: bool, now: Instant) {
        self.note(delay, now);
        if !is_needed {
            return;
        }
        let is_slow = delay > self.target();
        let pause = if is_slow { PAUSE_SHRINKING } else { PAUSE_GROWING };
        let is_due = |at: Instant| now.saturating_duration_since(at) >= pause;
        if self.changed_at.is_none_or(is_due) {
            let changed_at = self.changed_at.replace(now).unwrap_or(now);
            if is_slow {
                self.shrink();
            } else {
                self.grow(now.saturating_duration_since(changed_at));
            }
        }
    }

    /// Remembers the quickest pod. What is remembered doubles in [`FORGETTING`]: a host can be slow, or become slower for good.
    fn note(&mut self, delay: Duration, now: Instant) {
        let elapsed = self.quickest_at.map(|at| now.saturating_duration_since(at));
        let doublings = elapsed.unwrap_or_default().div_duration_f64(FORGETTING);
        // Far beyond any delay, and far from what a `Duration` can hold.
        let known = self.quickest.mul_f64(doublings.min(16.0).exp2());
        self.quickest = known.min(delay);
        self.quickest_at = Some(now);
    }

    /// Pods that take longer are slow.
    fn target(&self) -> Duration {
        (self.quickest * 3 / 2).clamp(TARGET, LONGEST_TARGET)
    }

    fn shrink(&mut self) {
        let least = MINIMUM.min(self.maximum);
        if self.current > least {
            self.current = (self.current / 2).max(least);
        } else {
            self.rest = (self.rest * 2).clamp(SHORTEST_REST, LONGEST_REST);
        }
    }

    fn grow(&mut self, elapsed: Duration) {
        if self.rest.is_zero() {
            self.current = (self.current + STEP).min(self.maximum);
            return;
        }
        let recovered = RECOVERY * elapsed.as_secs_f64();
        let rest = Duration::from_secs_f64(1.0 / (1.0 / self.rest.as_secs_f64() + recovered));
        self.rest = if rest < SHORTEST_REST { Duration::ZERO } else { rest };
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
        assert_eq!(after(&mut limit, &[10; 8]), 18);
    }

    #[test]
    fn it_is_halved_when_the_scheduler_is_slow_down_to_the_minimum() {
        let mut limit = Limit::new(64);
        after(&mut limit, &[10; 28]);
        assert_eq!(limit.current(), 64);
        limit.changed_at = None;
        assert_eq!(after(&mut limit, &[500]), 32);
        limit.changed_at = None;
        assert_eq!(after(&mut limit, &[500; 9]), MINIMUM);
    }

    #[test]
    fn at_the_minimum_it_rests_longer_and_longer_until_pods_are_quick() {
        let mut limit = Limit::new(64);
        limit.current = 2;
        let mut now = Instant::now();
        let mut rests = |delay: u64, pause: u64| {
            now += Duration::from_millis(pause);
            limit.measure(Duration::from_millis(delay), true, now);
            (limit.current(), limit.rest().as_millis())
        };
        assert_eq!(
            [2000; 6].map(|delay| rests(delay, 100)),
            [0, 50, 100, 200, 400, 500].map(|rest| (MINIMUM, rest))
        );
        // Two pods a second, and two more for each tenth of a second; half a second of quick pods, and it does not rest.
        assert_eq!(
            [20; 3].map(|delay| rests(delay, 100)).map(|(_, rest)| rest),
            [250, 166, 125]
        );
        assert_eq!(
            [200, 200, 300].map(|pause| rests(20, pause)).map(|(_, rest)| rest),
            [83, 62, 0]
        );
        assert_eq!(rests(20, 100), (MINIMUM + STEP, 0), "it grows once there is no rest");
    }

    #[test]
    fn tenants_that_rest_recover_at_the_same_time_however_many_pods_they_have() {
        let start = Instant::now();
        let recovered = |pauses: u32| {
            let mut limit = Limit::new(64);
            (limit.current, limit.rest, limit.changed_at) = (MINIMUM, LONGEST_REST, Some(start));
            for index in 1..=pauses {
                let now = start + Duration::from_millis(800) * index / pauses;
                limit.measure(Duration::from_millis(20), true, now);
            }
            limit.rest().as_millis()
        };
        assert_eq!([1, 2, 8].map(recovered), [55; 3]);
    }

    #[test]
    fn a_host_that_is_slow_by_itself_lets_it_grow_after_some_time() {
        let start = Instant::now();
        let mut limit = Limit::new(64);
        let mut after_minutes = |minutes: u64, delay: u64| {
            for index in 0..100 {
                let now = start + Duration::from_mins(minutes) + Duration::from_millis(100) * index;
                limit.measure(Duration::from_millis(delay), true, now);
            }
            (limit.current(), limit.rest())
        };
        assert_eq!(after_minutes(0, 150), (MINIMUM, LONGEST_REST));
        assert_eq!(after_minutes(12, 150), (64, Duration::ZERO));
        assert_eq!(after_minutes(13, 300), (MINIMUM, LONGEST_REST), "others delay its pods");
    }

    #[test]
    fn how_quick_a_pod_was_is_forgotten_and_bounded() {
        let now = Instant::now();
        let mut limit = Limit::new(64);
        let mut target = |minutes: u64, delay: u64| {
            limit.note(Duration::from_millis(delay), now + Duration::from_mins(minutes));
            limit.target().as_millis()
        };
        assert_eq!((target(0, 30), target(0, 800), target(10, 800)), (100, 100, 100));
        assert_eq!((target(20, 800), target(30, 800), target(60, 800)), (180, 360, 500));
        assert_eq!(target(61, 20), 100);
    }

    #[test]
    fn it_does_not_grow_while_no_pod_waits() {
        let mut limit = Limit::new(64);
        limit.measure(Duration::from_millis(1), false, Instant::now());
        assert_eq!(limit.current(), START);
    }

    #[test]
    fn a_tenant_whose_pods_do_not_wait_keeps_its_limit_when_others_delay_them() {
        let mut limit = Limit::new(64);
        limit.measure(Duration::from_secs(3), false, Instant::now());
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
