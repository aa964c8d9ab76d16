//! What people and programs ask of a tenant: an annotation of its TenantCluster with the time of the request. A request counts if it is
//! later than what happened last, so that nobody has to remove it.

use crate::TenantCluster;
use jiff::{SignedDuration, Timestamp};

/// How far ahead the clock may be of who asks a tenant to wake. One minute, as for CronJobs: a wake for a later time is no earlier than that.
pub const WAKE_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// The time of a request that is made now. It is later than `last`, also where the clock is behind. Times in a status have whole seconds.
pub fn request_time(now: Timestamp, last: Option<Timestamp>) -> Timestamp {
    let next = last.and_then(|last| Timestamp::from_second(last.as_second() + 1).ok());
    next.map_or(now, |next| now.max(next))
}

/// Whether a request to wake counts at `now`, and is not for a later time.
pub fn is_wake_due(requested_at: Timestamp, now: Timestamp) -> bool {
    requested_at <= now.saturating_add(WAKE_CLOCK_SKEW).unwrap_or(Timestamp::MAX)
}

impl TenantCluster {
    /// The time of a request to wake the tenant that is made now.
    pub fn wake_request_time(&self, now: Timestamp) -> Timestamp {
        request_time(now, self.sleep_changed_at())
    }

    /// The time of a request to let the tenant sleep that is made now. It counts more than the last request to wake, unless that is for a
    /// later time.
    pub fn sleep_request_time(&self, now: Timestamp) -> Timestamp {
        let changed_at = self.sleep_changed_at();
        let wake = self.wake_requested_at();
        let wake = wake.filter(|at| is_wake_due(*at, request_time(now, changed_at)));
        request_time(now, changed_at.max(wake))
    }

    /// Since when it sleeps, or when it was woken last.
    fn sleep_changed_at(&self) -> Option<Timestamp> {
        let sleep = self.status.as_ref()?.sleep.as_ref()?;
        sleep.since.as_ref().map(|since| since.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOON: &str = "2026-05-05T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn tenant(since: Option<&str>, wake: Option<&str>) -> TenantCluster {
        let annotations = wake.map_or(Value::Null, |wake| json!({"berth.dev/wake-requested-at": wake}));
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "annotations": annotations},
            "spec": {"version": "v1.37.1"}, "status": {"sleep": {"state": "Sleeping", "since": since}},
        }))
        .unwrap()
    }

    #[test]
    fn a_request_is_later_than_what_happened_last() {
        let now = at(NOON);
        assert_eq!(request_time(now, None), now);
        for (last, expected) in [
            ("2026-05-05T11:59:59Z", NOON),
            (NOON, "2026-05-05T12:00:01Z"),
            ("2026-05-05T12:00:00.9Z", "2026-05-05T12:00:01Z"),
            ("2026-05-05T13:00:00Z", "2026-05-05T13:00:01Z"),
        ] {
            assert_eq!(request_time(now, Some(at(last))), at(expected), "{last}");
        }
        assert_eq!(request_time(now, Some(Timestamp::MAX)), now, "there is no later time");
    }

    #[test]
    fn a_clock_that_is_behind_wakes_a_tenant_and_lets_it_sleep() {
        let now = at(NOON);
        let ahead = tenant(Some("2026-05-05T12:30:00Z"), None);
        assert_eq!(ahead.wake_request_time(now), at("2026-05-05T12:30:01Z"));
        assert_eq!(ahead.sleep_request_time(now), at("2026-05-05T12:30:01Z"));
        for agreed in [tenant(None, None), tenant(Some("2026-05-05T11:00:00Z"), None)] {
            assert_eq!(agreed.wake_request_time(now), now);
            assert_eq!(agreed.sleep_request_time(now), now);
        }
    }

    #[test]
    fn a_request_to_sleep_is_later_than_the_one_to_wake_unless_that_is_for_later() {
        let now = at(NOON);
        for (wake, expected) in [
            ("2026-05-05T11:59:00Z", NOON),
            ("2026-05-05T12:00:00.25Z", "2026-05-05T12:00:01Z"),
            ("2026-05-05T12:01:00Z", "2026-05-05T12:01:01Z"),
            ("2026-05-05T12:01:01Z", NOON),
            ("2026-05-06T08:00:00Z", NOON),
            ("tomorrow", NOON),
        ] {
            let tenant = tenant(Some("2026-05-05T11:00:00Z"), Some(wake));
            assert_eq!(tenant.sleep_request_time(now), at(expected), "{wake}");
            assert_eq!(tenant.wake_request_time(now), now, "{wake}");
        }
        // Its time is counted from that of the last wake, which the clock here has not reached.
        let behind = tenant(Some("2026-05-05T12:30:00Z"), Some("2026-05-05T12:30:20Z"));
        assert_eq!(behind.sleep_request_time(now), at("2026-05-05T12:30:21Z"));
    }
}
