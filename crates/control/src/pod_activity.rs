//! When pods of tenants came and went. A tenant that had a pod between two reconciles was not idle.

use berth_runtime::locks::lock;
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

/// When each tenant last had a pod that had not ended or might start none, by slug. Empty after a start: pods that came and went while control did not run
/// are not known. What is remembered is how long ago that was, so that it follows the clock of those who ask.
#[derive(Debug)]
pub struct PodActivity {
    watched_since: Instant,
    tenants: Mutex<HashMap<String, Activity>>,
}

#[derive(Clone, Copy, Debug)]
struct Activity {
    has_pods: bool,
    last: Instant,
}

impl Default for PodActivity {
    fn default() -> Self {
        Self::watched_for(Duration::ZERO)
    }
}

/// When something was, by a clock that says that it is `now`.
fn time_of(then: Instant, now: Timestamp) -> Timestamp {
    let elapsed = SignedDuration::try_from(then.elapsed()).unwrap_or(SignedDuration::MAX);
    now.saturating_sub(elapsed).unwrap_or(now)
}

impl PodActivity {
    /// No activity so far, of pods that are watched for this long.
    pub fn watched_for(time: Duration) -> Self {
        let now = Instant::now();
        Self {
            watched_since: now.checked_sub(time).unwrap_or(now),
            tenants: Mutex::default(),
        }
    }

    /// Since when pods are watched, if it is `now`.
    pub fn start(&self, now: Timestamp) -> Timestamp {
        time_of(self.watched_since, now)
    }

    /// A pod of the tenant came, changed or went. `has_pods` says whether the tenant has one now that has not ended.
    pub fn record(&self, tenant: &str, has_pods: bool) {
        let mut all = lock(&self.tenants);
        let had_pods = all.get(tenant).is_some_and(|activity| activity.has_pods);
        // Pods that have ended long ago are no activity.
        if has_pods || had_pods {
            let last = Instant::now();
            all.insert(tenant.to_owned(), Activity { has_pods, last });
        }
    }

    /// The tenant may start no pod now: it is not idle for that.
    pub fn record_no_starts(&self, tenant: &str) {
        let last = Instant::now();
        let mut all = lock(&self.tenants);
        let activity = all
            .entry(tenant.to_owned())
            .or_insert(Activity { has_pods: false, last });
        activity.last = last;
    }

    /// When the tenant last had a pod or might start none, as far as that is known, if it is `now`.
    pub fn last(&self, tenant: &str, now: Timestamp) -> Option<Timestamp> {
        let all = lock(&self.tenants);
        all.get(tenant).map(|activity| time_of(activity.last, now))
    }

    /// Forgets a tenant that is gone.
    pub fn forget(&self, tenant: &str) {
        lock(&self.tenants).remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these moments are not later than the last activity of the tenant.
    fn count_until_last(activity: &PodActivity, moments: &[Instant]) -> Option<usize> {
        let all = activity.tenants.lock().unwrap();
        let last = all.get("t")?.last;
        Some(moments.iter().filter(|moment| **moment <= last).count())
    }

    #[test]
    fn the_last_time_is_that_of_the_end_of_the_last_pod() {
        let activity = PodActivity::default();
        activity.record("t", false);
        assert_eq!(
            activity.last("t", Timestamp::now()),
            None,
            "a pod that has ended is listed"
        );
        activity.record("t", true);
        let running = Instant::now();
        activity.record("t", false);
        let ended = later_than(Instant::now());
        activity.record("t", false);
        assert_eq!(count_until_last(&activity, &[running, ended]), Some(1));
        activity.forget("t");
        assert_eq!(activity.last("t", Timestamp::now()), None);
    }

    #[test]
    fn time_in_which_no_pod_may_start_is_activity() {
        let activity = PodActivity::default();
        activity.record_no_starts("t");
        let first = later_than(Instant::now());
        activity.record_no_starts("t");
        let second = later_than(Instant::now());
        activity.record("t", false);
        assert_eq!(
            count_until_last(&activity, &[first, second]),
            Some(1),
            "it still has no pods"
        );
    }

    #[test]
    fn times_are_by_the_clock_of_those_who_ask() {
        let activity = PodActivity::watched_for(Duration::from_secs(100));
        activity.record("t", true);
        // That of the host is far behind this machine.
        let now = Timestamp::from_second(1000).unwrap();
        let last = activity.last("t", now).unwrap();
        assert!(last <= now && last > activity.start(now), "{last}");
        assert!(activity.start(now) <= Timestamp::from_second(900).unwrap());
    }

    /// A moment that is later than this one and not later than the next.
    fn later_than(moment: Instant) -> Instant {
        loop {
            let now = Instant::now();
            if now > moment {
                return now;
            }
        }
    }
}
