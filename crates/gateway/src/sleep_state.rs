//! Whether a tenant sleeps, and when the gateway asks control to wake it. Pure.

use berth_api::{
    conditions::{AWAKE, SERVING},
    labels,
    requests::{self, is_wake_due},
};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two requests to end the same sleep of a tenant. No request takes longer.
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a request that failed is made again. Clients such as kubectl wait ten seconds in all.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two requests for a tenant that does not sleep as far as the gateway knows: its API server may just be broken.
const UNCONFIRMED_INTERVAL: Duration = Duration::from_secs(60);

/// What a tenant's API server does, by the status of its TenantCluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// There is no reason to expect one: the TenantCluster is new, or waits.
    #[default]
    Other,
    /// It runs, or has just been stopped and the status does not say so yet.
    Running,
    /// It does not run until the tenant is woken.
    Sleeping,
    /// It does not run, and no request wakes the tenant: `spec.sleep.mode` is Asleep.
    Kept,
    /// It is being started.
    Waking,
    /// The TenantCluster is being deleted.
    Ending,
}

impl Activity {
    fn of_phase(phase: Option<&str>) -> Self {
        match phase {
            Some("Provisioning" | "Ready") => Self::Running,
            Some("Sleeping") => Self::Sleeping,
            Some("Waking") => Self::Waking,
            _ => Self::Other,
        }
    }

    /// That of a TenantCluster. While a tenant wakes, its API server serves some time before the tenant is awake.
    fn of(tenant: &DynamicObject) -> Self {
        let text = |path| tenant.data.pointer(path)?.as_str();
        match Self::of_phase(text("/status/phase")) {
            _ if tenant.metadata.deletion_timestamp.is_some() => Self::Ending,
            Self::Sleeping if text("/spec/sleep/mode") == Some("Asleep") => Self::Kept,
            Self::Waking if is_serving(tenant) => Self::Running,
            activity => activity,
        }
    }

    /// Whether the API server does not run yet, or not any more, because the tenant sleeps.
    pub fn is_asleep(self) -> bool {
        matches!(self, Self::Sleeping | Self::Kept | Self::Waking)
    }
}

fn is_serving(tenant: &DynamicObject) -> bool {
    let conditions = tenant.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == AWAKE && condition["reason"] == SERVING)
}

/// What a TenantCluster says about the sleep of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepState {
    /// What its API server does.
    pub activity: Activity,
    /// Since when it sleeps (`status.sleep.since`).
    pub since: Option<Timestamp>,
    /// When somebody last asked to wake it (annotation [`labels::WAKE_REQUESTED_AT`]).
    pub requested_at: Option<Timestamp>,
}

impl SleepState {
    /// That of a TenantCluster. Times that cannot be read are as if they were missing.
    pub fn of(tenant: &DynamicObject) -> Self {
        let text = |path| tenant.data.pointer(path)?.as_str();
        let annotations = tenant.metadata.annotations.as_ref();
        let requested_at = annotations.and_then(|all| all.get(labels::WAKE_REQUESTED_AT));
        Self {
            activity: Activity::of(tenant),
            since: text("/status/sleep/since").and_then(|time| time.parse().ok()),
            requested_at: requested_at.and_then(|time| time.parse().ok()),
        }
    }

    /// Whether control already has a request to end this sleep. One for a time that is still to come, such as tomorrow, ends it only then.
    fn is_requested(&self, now: Timestamp) -> bool {
        let is_due = |requested| is_wake_due(requested, self.request_time(now));
        matches!((self.requested_at, self.since), (Some(requested), Some(since)) if requested > since && is_due(requested))
    }

    /// The time that a request has which is made now. It is later than the beginning of the sleep, also where the clock of this machine
    /// is behind that of control.
    pub fn request_time(&self, now: Timestamp) -> Timestamp {
        requests::request_time(now, self.since)
    }
}

/// When one tenant's request was last made by this process.
#[derive(Debug, Default)]
pub struct WakeRequests {
    last: Option<Instant>,
    /// The sleep that the last one was to end, by its beginning.
    ended: Option<Timestamp>,
    /// When the last one is made again, because it failed.
    retry_at: Option<Instant>,
}

impl WakeRequests {
    /// Whether a request is to be made now, which is `clock` by the clock. If so, it counts as made.
    pub fn take(&mut self, state: &SleepState, now: Instant, clock: Timestamp) -> bool {
        let interval = match state.activity {
            Activity::Sleeping if state.is_requested(clock) => return false,
            Activity::Sleeping => REQUEST_INTERVAL,
            Activity::Running => UNCONFIRMED_INTERVAL,
            Activity::Kept | Activity::Waking | Activity::Ending | Activity::Other => return false,
        };
        let begins = state.since.filter(|_| state.activity == Activity::Sleeping);
        let is_due = self.last.is_none_or(|last| now >= last + interval)
            || self.retry_at.is_some_and(|retry_at| now >= retry_at)
            // A tenant that has fallen asleep again does not wait for what woke it before.
            || begins.is_some_and(|begins| self.ended != Some(begins));
        if is_due {
            (self.last, self.ended, self.retry_at) = (Some(now), begins, None);
        }
        is_due
    }

    /// The last request has failed.
    pub fn fail(&mut self, now: Instant) {
        self.retry_at = Some(now + RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use serde_json::json;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// A moment long after the beginning of the sleeps.
    const CLOCK: i64 = 600;

    fn sleeping(since: i64, requested_at: Option<i64>) -> SleepState {
        SleepState {
            activity: Activity::Sleeping,
            since: Some(time(since)),
            requested_at: requested_at.map(time),
        }
    }

    #[test]
    fn the_state_is_read_from_status_and_annotation() {
        let object = |status, annotations| -> DynamicObject {
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "status": status})).unwrap()
        };
        let read = SleepState::of(&object(
            json!({"phase": "Sleeping", "sleep": {"since": "2027-01-15T08:00:00Z"}}),
            json!({"berth.dev/wake-requested-at": "2027-01-15T08:00:07.25Z"}),
        ));
        assert_eq!(read.activity, Activity::Sleeping);
        assert_eq!(read.since, Some(time(0)));
        assert_eq!(
            read.requested_at,
            time(7).checked_add(SignedDuration::from_millis(250)).ok()
        );
        for (phase, activity) in [
            (json!(null), Activity::Other),
            (json!("Pending"), Activity::Other),
            (json!("Deleting"), Activity::Other),
            (json!(7), Activity::Other),
            (json!("Provisioning"), Activity::Running),
            (json!("Ready"), Activity::Running),
            (json!("Waking"), Activity::Waking),
        ] {
            let read = SleepState::of(&object(
                json!({"phase": phase, "sleep": {"since": "soon"}}),
                json!({"a": "b"}),
            ));
            assert_eq!((read.activity, read.since, read.requested_at), (activity, None, None));
        }
        let empty: DynamicObject = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(SleepState::of(&empty), SleepState::default());
    }

    #[test]
    fn an_api_server_serves_before_its_tenant_is_awake_and_not_while_it_is_deleted() {
        let read = |object| SleepState::of(&serde_json::from_value(object).unwrap()).activity;
        let waking = |reason: &str| {
            json!({"metadata": {}, "status": {"phase": "Waking", "conditions": [
            {"type": "Ready", "status": "False", "reason": "Serving"}, {"type": "Awake", "status": "False", "reason": reason}]}})
        };
        assert_eq!(read(waking("Waking")), Activity::Waking);
        assert_eq!(read(waking("Serving")), Activity::Running);
        let asleep = |mode: &str| {
            json!({"metadata": {}, "spec": {"sleep": {"mode": mode}}, "status": {"phase": "Sleeping",
            "conditions": [{"type": "Awake", "status": "False", "reason": "Serving"}]}})
        };
        assert_eq!(read(asleep("Auto")), Activity::Sleeping);
        assert_eq!(read(asleep("Asleep")), Activity::Kept);
        // It goes on waking, and falls asleep again then.
        let mut waking = waking("Waking");
        waking["spec"] = json!({"sleep": {"mode": "Asleep"}});
        assert_eq!(read(waking.clone()), Activity::Waking);
        waking["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
        assert_eq!(read(waking), Activity::Ending);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_is_asked_for_once_in_ten_seconds() {
        let (mut requests, start) = (WakeRequests::default(), Instant::now());
        let state = sleeping(0, None);
        let seconds = |seconds| start + Duration::from_secs(seconds);
        let made: Vec<u64> = (0..25)
            .filter(|at| requests.take(&state, seconds(*at), time(CLOCK)))
            .collect();
        assert_eq!(made, [0, 10, 20]);
        // A replica that starts again forgets when it asked, but the annotation says it.
        assert!(WakeRequests::default().take(&state, start, time(CLOCK)));
    }

    #[tokio::test(start_paused = true)]
    async fn another_sleep_is_ended_at_once() {
        let (mut requests, start) = (WakeRequests::default(), Instant::now());
        let seconds = |seconds| start + Duration::from_secs(seconds);
        assert!(requests.take(&sleeping(0, None), start, time(CLOCK)));
        assert!(!requests.take(&sleeping(0, None), seconds(4), time(CLOCK)));
        // It woke, and fell asleep again.
        assert!(requests.take(&sleeping(5, Some(1)), seconds(6), time(CLOCK)));
        assert!(!requests.take(&sleeping(5, Some(1)), seconds(15), time(CLOCK)));
        assert!(requests.take(&sleeping(5, Some(1)), seconds(16), time(CLOCK)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_failed_is_made_again_soon() {
        let (mut requests, start) = (WakeRequests::default(), Instant::now());
        let state = sleeping(0, None);
        let seconds = |seconds| start + Duration::from_secs(seconds);
        assert!(requests.take(&state, start, time(CLOCK)));
        requests.fail(seconds(1));
        let made: Vec<u64> = (1..20)
            .filter(|at| requests.take(&state, seconds(*at), time(CLOCK)))
            .collect();
        assert_eq!(made, [3, 13]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_not_repeated_once_control_has_it() {
        let now = Instant::now();
        for (requested_at, expected) in [(None, true), (Some(-60), true), (Some(0), true), (Some(1), false)] {
            let state = sleeping(0, requested_at);
            assert_eq!(
                WakeRequests::default().take(&state, now, time(CLOCK)),
                expected,
                "{requested_at:?}"
            );
        }
        // One for another day ends this sleep on that day only; a clock that is ahead a little says nothing else.
        for (requested_at, expected) in [(CLOCK + 60, false), (CLOCK + 61, true), (86_400, true)] {
            let state = sleeping(0, Some(requested_at));
            let is_due = WakeRequests::default().take(&state, now, time(CLOCK));
            assert_eq!(is_due, expected, "{requested_at}");
        }
        // The clock of the gateway is far behind: its own requests count all the same.
        assert!(!WakeRequests::default().take(&sleeping(0, Some(1)), now, time(-86_400)));
        // Without the beginning of the sleep, no annotation is known to be of this sleep.
        let unknown = SleepState {
            since: None,
            ..sleeping(0, Some(1))
        };
        assert!(WakeRequests::default().take(&unknown, now, time(CLOCK)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_api_server_causes_few_requests() {
        let (mut requests, start) = (WakeRequests::default(), Instant::now());
        let state = |activity| SleepState {
            activity,
            ..SleepState::default()
        };
        let seconds = |seconds| start + Duration::from_secs(seconds);
        let running = state(Activity::Running);
        let made: Vec<u64> = (0..130)
            .filter(|at| requests.take(&running, seconds(*at), time(CLOCK)))
            .collect();
        assert_eq!(made, [0, 60, 120]);
        // Once it is known to sleep, the next one is made at once.
        assert!(requests.take(&sleeping(0, None), seconds(129), time(CLOCK)));
        for activity in [Activity::Kept, Activity::Waking, Activity::Ending, Activity::Other] {
            assert!(!WakeRequests::default().take(&state(activity), start, time(CLOCK)));
        }
    }

    #[test]
    fn a_request_is_later_than_the_beginning_of_the_sleep() {
        let state = sleeping(100, None);
        assert_eq!(state.request_time(time(500)), time(500));
        assert_eq!(state.request_time(time(40)), time(101), "the clock is behind");
        assert_eq!(SleepState::default().request_time(time(40)), time(40));
    }
}
