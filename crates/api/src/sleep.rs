//! Sleep: a tenant that nobody uses has no processes, and wakes when it is needed.

use crate::{KubeDuration, ScheduleState, TenantCluster, labels};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a tenant sleeps. Part of a [`TenantCluster`].
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.afterIdle) || duration(self.afterIdle) >= duration('5m')")
    .message("must be at least 5m; leave it out for a tenant that does not fall asleep by itself")
    .field_path(".afterIdle"))]
pub struct SleepSpec {
    /// How long the tenant's API server must be unused before the tenant falls asleep, for example 30m. Requests of its own
    /// controllers and of Berth do not count, nor do open watches. Defaults to that of the class; without one, the tenant does not fall
    /// asleep by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_idle: Option<KubeDuration>,
    /// Auto: the tenant falls asleep after `afterIdle` and when it is asked to, and wakes when it is needed. Asleep: it sleeps, and
    /// no request and no CronJob wakes it. Awake: it does not sleep.
    #[serde(default)]
    pub mode: SleepMode,
}

/// Whether a tenant sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SleepMode {
    /// It falls asleep when nobody uses it or when it is asked to, and wakes when it is needed.
    #[default]
    Auto,
    /// It sleeps until the mode is another.
    Asleep,
    /// It does not sleep.
    Awake,
}

/// How tenants of a class sleep. Part of a [`TenantClass`](crate::TenantClass).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.afterIdle) || duration(self.afterIdle) >= duration('5m')")
    .message("must be at least 5m; leave it out for tenants that do not fall asleep by themselves")
    .field_path(".afterIdle"))]
pub struct ClassSleep {
    /// `spec.sleep.afterIdle` of tenants that do not set it. Absent: they do not fall asleep by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_idle: Option<KubeDuration>,
    /// Whether a tenant whose pods run may fall asleep. Its pods are evicted then, as by the stop of a SchedulePolicy, and start again
    /// when it wakes. Defaults to false: a tenant with pods stays awake.
    #[serde(default)]
    pub stops_pods: bool,
}

impl ClassSleep {
    /// Seconds without use after which a tenant falls asleep which asks for `spec`; none: it does not fall asleep by itself. A duration
    /// that cannot be read is none.
    pub fn idle_seconds(&self, spec: Option<&SleepSpec>) -> Option<i64> {
        let own = spec.and_then(|spec| spec.after_idle.as_ref());
        let seconds = own.or(self.after_idle.as_ref()).map(KubeDuration::seconds);
        seconds.filter(|seconds| *seconds > 0)
    }
}

/// Whether a tenant sleeps. Part of the status of a [`TenantCluster`]; absent for a tenant that never slept and has no setting for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SleepStatus {
    /// Whether it sleeps.
    #[serde(default)]
    pub state: SleepState,
    /// Why it sleeps or falls asleep. Absent while it is awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<SleepCause>,
    /// Since when it sleeps or falls asleep; while it is awake, when it was woken last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When it wakes by itself, for a CronJob or a SchedulePolicy. Absent: only when it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakes_at: Option<Time>,
    /// When the tenant was used last, as far as that is known. Updated in steps of five minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Time>,
    /// Hash of the rules of its class that its objects on the host follow while it sleeps. If the class has others by now, its syncer runs for a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforced_rules: Option<String>,
}

/// Stages of sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SleepState {
    /// The control plane runs.
    #[default]
    Awake,
    /// The control plane runs. No pod starts, and those that run are evicted.
    FallingAsleep,
    /// Nothing runs.
    Sleeping,
    /// It sleeps, and its API server and its syncer run until its objects on the host follow the rules of its class. No pod starts.
    Enforcing,
    /// The control plane is being started.
    Waking,
}

impl SleepState {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Awake,
        Self::FallingAsleep,
        Self::Sleeping,
        Self::Enforcing,
        Self::Waking,
    ];

    /// Whether no pod of the tenant may run.
    pub fn stops_pods(self) -> bool {
        matches!(self, Self::FallingAsleep | Self::Sleeping | Self::Enforcing)
    }

    /// Whether the tenant sleeps: nobody uses it, whether or not its class is enforced meanwhile.
    pub fn is_asleep(self) -> bool {
        matches!(self, Self::Sleeping | Self::Enforcing)
    }

    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Awake => "Awake",
            Self::FallingAsleep => "FallingAsleep",
            Self::Sleeping => "Sleeping",
            Self::Enforcing => "Enforcing",
            Self::Waking => "Waking",
        }
    }
}

/// Why a tenant sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SleepCause {
    /// Nobody used it for `afterIdle`.
    Idle,
    /// The annotation `berth.dev/sleep-requested-at` asked for it.
    Requested,
    /// `spec.sleep.mode` is Asleep.
    Mode,
}

impl SleepCause {
    /// Its name, as in the API and as the reason of the condition Awake.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Requested => "Requested",
            Self::Mode => "Mode",
        }
    }
}

impl TenantCluster {
    /// Its stage of sleep, as the status says.
    pub fn sleep_state(&self) -> SleepState {
        let sleep = self.status.as_ref().and_then(|status| status.sleep.as_ref());
        sleep.map(|sleep| sleep.state).unwrap_or_default()
    }

    /// What a tenant may do whose schedules say `schedule`: sleep is a stop.
    pub fn restricted_by_sleep(&self, schedule: ScheduleState) -> ScheduleState {
        if self.sleep_state().stops_pods() {
            ScheduleState::Stopped
        } else {
            schedule
        }
    }

    /// When it was asked to wake: [`labels::WAKE_REQUESTED_AT`]. None if it was not, or if the value is not a time.
    pub fn wake_requested_at(&self) -> Option<Timestamp> {
        self.requested_at(labels::WAKE_REQUESTED_AT)
    }

    /// When it was asked to sleep: [`labels::SLEEP_REQUESTED_AT`]. None if it was not, or if the value is not a time.
    pub fn sleep_requested_at(&self) -> Option<Timestamp> {
        self.requested_at(labels::SLEEP_REQUESTED_AT)
    }

    fn requested_at(&self, annotation: &str) -> Option<Timestamp> {
        self.annotations().get(annotation)?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TenantClusterSpec, TenantClusterStatus};

    fn spec(after_idle: Option<&str>) -> SleepSpec {
        SleepSpec {
            after_idle: after_idle.map(KubeDuration::from),
            mode: SleepMode::Auto,
        }
    }

    #[test]
    fn a_tenant_has_its_own_time_or_that_of_its_class() {
        let class = ClassSleep {
            after_idle: Some("1h".into()),
            stops_pods: false,
        };
        assert_eq!(class.idle_seconds(None), Some(3600));
        assert_eq!(class.idle_seconds(Some(&spec(None))), Some(3600));
        assert_eq!(class.idle_seconds(Some(&spec(Some("10m")))), Some(600));
        let none = ClassSleep::default();
        assert_eq!(none.idle_seconds(None), None);
        assert_eq!(none.idle_seconds(Some(&spec(Some("2h")))), Some(7200));
        for unreadable in ["0s", "soon"] {
            assert_eq!(none.idle_seconds(Some(&spec(Some(unreadable)))), None, "{unreadable}");
        }
    }

    #[test]
    fn sleep_is_a_stop() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        let restricted = |cluster: &TenantCluster| cluster.restricted_by_sleep(ScheduleState::StartsForbidden);
        assert_eq!(restricted(&cluster), ScheduleState::StartsForbidden);
        for (state, expected) in [
            (SleepState::Awake, ScheduleState::StartsForbidden),
            (SleepState::FallingAsleep, ScheduleState::Stopped),
            (SleepState::Sleeping, ScheduleState::Stopped),
            (SleepState::Enforcing, ScheduleState::Stopped),
            (SleepState::Waking, ScheduleState::StartsForbidden),
        ] {
            cluster.status = Some(TenantClusterStatus {
                sleep: Some(SleepStatus {
                    state,
                    ..SleepStatus::default()
                }),
                ..TenantClusterStatus::default()
            });
            assert_eq!(restricted(&cluster), expected, "{state:?}");
        }
    }

    #[test]
    fn a_request_is_a_time() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        assert_eq!(cluster.wake_requested_at(), None);
        for (text, expected) in [
            ("2026-05-05T12:00:00Z", Some("2026-05-05T12:00:00Z")),
            (" 2026-05-05T12:00:00.25+02:00", Some("2026-05-05T10:00:00.25Z")),
            ("now", None),
            ("", None),
        ] {
            let annotations = [(labels::WAKE_REQUESTED_AT.to_owned(), text.to_owned())];
            cluster.metadata.annotations = Some(annotations.into());
            let expected = expected.map(|time| time.parse().unwrap());
            assert_eq!(cluster.wake_requested_at(), expected, "{text}");
            assert_eq!(cluster.sleep_requested_at(), None);
        }
    }
}
