//! `TenantSchedule`: what schedules let the pods of one tenant do, now and later.

use crate::{ScheduleState, WorkloadSelector};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most entries of [`TenantScheduleSpec::workloads`], as in its schema.
pub const MAX_WORKLOAD_SCHEDULES: usize = 256;
/// Name of the one `TenantSchedule` of a tenant.
pub const TENANT_SCHEDULE: &str = "schedule";

/// What schedules let the pods of one tenant do, now and later. Control publishes it in the tenant's control-plane namespace as long as
/// there is a SchedulePolicy for the tenant or some of its pods. The syncer evaluates it by its own clock.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantSchedule",
    namespaced,
    derive = "PartialEq",
    shortname = "tsched",
    category = "berth",
    doc = "What schedules let the pods of one tenant do, now and later. Made by Berth; not meant to be edited.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TenantScheduleSpec {
    /// What all pods of the tenant may do. Empty: no policy is for the tenant as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenant: Vec<SchedulePeriod>,
    /// What some of its pods may do besides, the policies of the outermost targets first. The strictest state applies to a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub workloads: Vec<WorkloadSchedule>,
}

/// What one policy lets some pods do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSchedule {
    /// Name of the SchedulePolicy.
    pub policy_name: String,
    /// The pods.
    pub workloads: WorkloadSelector,
    /// What they may do.
    pub periods: Vec<SchedulePeriod>,
}

/// A time in which the state is the same. It ends when the next one begins; the last one does not end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePeriod {
    /// When the state began or begins.
    pub from: Time,
    /// What the pods may do.
    pub state: ScheduleState,
    /// Name of the SchedulePolicy that decides. Empty if none restricts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_name: Option<String>,
    /// Its open window that decides. Empty outside all Start windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_name: Option<String>,
    /// Seconds for which they are warned before it begins, if it is a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_period_seconds: Option<i64>,
    /// Seconds after `from` for which PodDisruptionBudgets may keep pods, if it is a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_timeout_seconds: Option<i64>,
}

impl SchedulePeriod {
    /// The period at an instant, by its position: the last that has begun, or else the first, which is the present one for the clock that
    /// published it. None if there are no periods.
    pub fn position_at(periods: &[Self], now: Timestamp) -> Option<usize> {
        let begun = periods.iter().rposition(|period| period.from.0 <= now);
        begun.or((!periods.is_empty()).then_some(0))
    }

    /// The period at an instant, see [`SchedulePeriod::position_at`].
    pub fn at(periods: &[Self], now: Timestamp) -> Option<&Self> {
        periods.get(Self::position_at(periods, now)?)
    }

    /// When the pods are warned of this period; none if it is no stop.
    pub fn warns_at(&self) -> Option<Timestamp> {
        let seconds = (self.state == ScheduleState::Stopped).then_some(self.warning_period_seconds?)?;
        Some(saturating_add(self.from.0, -seconds))
    }

    /// Until when PodDisruptionBudgets may keep pods; none if it is no stop.
    pub fn budgets_hold_until(&self) -> Option<Timestamp> {
        let seconds =
            (self.state == ScheduleState::Stopped).then_some(self.eviction_timeout_seconds.unwrap_or_default())?;
        Some(saturating_add(self.from.0, seconds))
    }
}

fn saturating_add(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt;

    fn period(from: i64, state: ScheduleState) -> SchedulePeriod {
        SchedulePeriod {
            from: Time(Timestamp::from_second(from).unwrap()),
            state,
            policy_name: Some("nights".into()),
            window_name: None,
            warning_period_seconds: Some(60),
            eviction_timeout_seconds: Some(300),
        }
    }

    #[test]
    fn the_last_period_that_has_begun_applies_and_before_all_the_first() {
        let periods = [
            period(100, ScheduleState::Running),
            period(200, ScheduleState::Stopped),
            period(300, ScheduleState::Running),
        ];
        let at = |second| SchedulePeriod::position_at(&periods, Timestamp::from_second(second).unwrap());
        let found = [0, 100, 199, 200, 299, 300, 9999].map(at);
        assert_eq!(found, [0, 0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(SchedulePeriod::position_at(&[], Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn no_column_takes_a_period_by_its_position() {
        // The present one is the last that has begun, which no column can say: in that of a tenant that sleeps, stops that are still to come are first.
        let versions = TenantSchedule::crd().spec.versions;
        let columns = versions
            .into_iter()
            .filter_map(|version| version.additional_printer_columns);
        for column in columns.flatten() {
            assert!(!column.json_path.contains('['), "{column:?}");
        }
    }

    #[test]
    fn only_stops_are_warned_of_and_end_pods() {
        let seconds = |at: Option<Timestamp>| at.map(Timestamp::as_second);
        let stop = period(1000, ScheduleState::Stopped);
        assert_eq!(seconds(stop.warns_at()), Some(940));
        assert_eq!(seconds(stop.budgets_hold_until()), Some(1300));
        for state in [ScheduleState::Running, ScheduleState::StartsForbidden] {
            let other = period(1000, state);
            assert_eq!((other.warns_at(), other.budgets_hold_until()), (None, None));
        }
    }
}
