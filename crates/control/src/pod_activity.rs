//! When pods of tenants came and went. A tenant that had a pod between two reconciles was not idle.

use berth_runtime::locks::lock;
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

/// When each tenant last had a pod that had not ended, without the time in which it might start none, by slug. Empty after a start: pods that came and went
/// while control did not run are not known. What is remembered is how long ago that was, so that it follows the clock of those who ask.
#[derive(Debug)]
pub struct PodActivity {
    watched_since: Instant,
    tenants: Mutex<HashMap<String, Activity>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    has_pods: bool,
    /// None: not known.
    last: Option<Instant>,
    /// None: not known since the start.
    starts: Option<Starts>,
}

/// Whether a tenant may start pods.
#[derive(Clone, Copy, Debug)]
enum Starts {
    /// It might at this moment.
    Allowed(Instant),
    /// It may not, and had no pods for so long when it might last.
    Forbidden(Duration),
}

/// The moment that is so long ago.
fn ago(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(time).unwrap_or(now)
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
        Self {
            watched_since: ago(time),
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
            let activity = all.entry(tenant.to_owned()).or_default();
            activity.has_pods = has_pods;
            activity.last = Some(Instant::now());
            if let Some(Starts::Forbidden(idle)) = &mut activity.starts {
                *idle = Duration::ZERO;
            }
        }
    }

    /// The tenant may start pods now. The time in which it might not did not count.
    pub fn record_starts(&self, tenant: &str) {
        let mut all = lock(&self.tenants);
        let activity = all.entry(tenant.to_owned()).or_default();
        if let Some(Starts::Forbidden(idle)) = activity.starts {
            activity.last = Some(ago(idle));
        }
        activity.starts = Some(Starts::Allowed(Instant::now()));
    }

    /// The tenant may start no pod now, and has had none for the time `idle`: from now on it does not count. What was before the start of this
    /// process is not known, and does not count either.
    pub fn record_no_starts(&self, tenant: &str, idle: Duration) {
        let mut all = lock(&self.tenants);
        let activity = all.entry(tenant.to_owned()).or_default();
        let idle = match activity.starts {
            None => Duration::ZERO,
            Some(Starts::Allowed(at)) => {
                // A pod may have come or gone since the caller looked.
                let quiet = activity.last.map_or(Duration::MAX, |last| last.elapsed());
                idle.saturating_sub(at.elapsed()).min(quiet)
            }
            Some(Starts::Forbidden(known)) => known,
        };
        activity.starts = Some(Starts::Forbidden(idle));
        activity.last = Some(ago(idle));
    }

    /// What the tenant does is not known now: it is not idle for that, and was not before.
    pub fn record_unknown(&self, tenant: &str) {
        let mut all = lock(&self.tenants);
        let activity = all.entry(tenant.to_owned()).or_default();
        activity.starts = Some(Starts::Forbidden(Duration::ZERO));
        activity.last = Some(Instant::now());
    }

    /// When the tenant last had a pod, without the time in which it might start none, as far as that is known, if it is `now`.
    pub fn last(&self, tenant: &str, now: Timestamp) -> Option<Timestamp> {
        let all = lock(&self.tenants);
        Some(time_of(all.get(tenant)?.last?, now))
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
        let last = all.get("t")?.last?;
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
        activity.record_no_starts("t", Duration::ZERO);
        let first = later_than(Instant::now());
        activity.record_no_starts("t", Duration::ZERO);
        let second = later_than(Instant::now());
        activity.record("t", false);
        assert_eq!(
            count_until_last(&activity, &[first, second]),
            Some(1),
            "it still has no pods"
        );
    }

    /// Whether the tenant has had no pods for about so many hours.
    fn is_idle_for(activity: &PodActivity, hours: i64) -> bool {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let idle = now.duration_since(activity.last("t", now).unwrap());
        (idle - SignedDuration::from_hours(hours)).abs() < SignedDuration::from_mins(10)
    }

    #[test]
    fn idle_time_goes_on_after_the_time_in_which_no_pod_may_start() {
        const HOUR: Duration = Duration::from_secs(3600);
        let activity = PodActivity::default();
        activity.record_starts("t");
        assert_eq!(activity.last("t", Timestamp::UNIX_EPOCH), None, "nothing is known yet");
        // Later passes in this time find more, which does not count.
        for idle in [5 * HOUR, 9 * HOUR] {
            activity.record_no_starts("t", idle);
            assert!(is_idle_for(&activity, 5));
        }
        activity.record_starts("t");
        assert!(is_idle_for(&activity, 5));
        // A pod came and went meanwhile.
        activity.record_no_starts("t", 5 * HOUR);
        activity.record("t", true);
        activity.record("t", false);
        activity.record_starts("t");
        assert!(is_idle_for(&activity, 0));
        // The watch has seen a pod after the pass has looked.
        activity.record("t", true);
        activity.record_no_starts("t", 5 * HOUR);
        assert!(is_idle_for(&activity, 0));
        activity.record_starts("t");
        // What the tenant did is not known.
        activity.record_no_starts("t", 5 * HOUR);
        activity.record_unknown("t");
        activity.record_starts("t");
        assert!(is_idle_for(&activity, 0));
    }

    #[test]
    fn what_was_before_this_process_does_not_count_if_no_pod_may_start() {
        let activity = PodActivity::default();
        activity.record_no_starts("t", Duration::from_secs(50 * 3600));
        activity.record_starts("t");
        assert!(is_idle_for(&activity, 0));
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
