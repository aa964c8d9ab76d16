//! `SchedulePolicy`: when tenants have nodes and when their pods may start.

use crate::{KubeDuration, LabelSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// [`SchedulePolicySpec::warning_period`] of a policy that does not set it, in seconds.
const DEFAULT_WARNING_PERIOD_SECONDS: i64 = 15 * 60;
/// [`SchedulePolicySpec::eviction_timeout`] of a policy that does not set it, in seconds: as long as the drain of a node.
const DEFAULT_EVICTION_TIMEOUT_SECONDS: i64 = 60 * 60;

/// Recurring windows of time in which tenants are stopped, or in which nothing new starts in them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SchedulePolicy",
    status = "SchedulePolicyStatus",
    derive = "PartialEq",
    shortname = "schedpol",
    category = "berth",
    doc = "Recurring windows of time in which tenants are stopped, or in which nothing new starts in them.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "What the policy lets its tenants do now"),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.nextTransitions[0].state", description = "The state after the next change"),
    printcolumn(name = "At", type_ = "string", json_path = ".status.nextTransitions[0].time", description = "Time of the next change"),
    printcolumn(name = "Timezone", type_ = "string", json_path = ".spec.timeZone", description = "Time zone of the schedules"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Window", type_ = "string", json_path = ".status.window", priority = 1, description = "The open window that decides"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a SchedulePolicy must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePolicySpec {
    /// Time zone of the schedules, a name of the IANA time zone database, for example Europe/Berlin. `UTC` is one as well.
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = "^[A-Za-z][-+_A-Za-z0-9]*(/[-+_A-Za-z0-9]+)*$")
    )]
    pub time_zone: String,

    /// Which tenants the policy is for.
    #[schemars(length(min = 1, max = 64))]
    pub targets: Vec<ScheduleTarget>,

    /// The windows. Where windows overlap, the strictest applies: Stop, then Forbid.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub windows: Vec<ScheduleWindow>,

    /// How long before a stop the tenants are warned by an Event. Defaults to 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_period: Option<KubeDuration>,

    /// How long PodDisruptionBudgets may keep pods after a stop began. Then the pods are deleted, with their own grace periods. Defaults
    /// to 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_timeout: Option<KubeDuration>,
}

impl SchedulePolicySpec {
    /// [`SchedulePolicySpec::warning_period`] in seconds, or its default.
    pub fn warning_period(&self) -> i64 {
        self.warning_period
            .as_ref()
            .map_or(DEFAULT_WARNING_PERIOD_SECONDS, KubeDuration::seconds)
    }

    /// [`SchedulePolicySpec::eviction_timeout`] in seconds, or its default.
    pub fn eviction_timeout(&self) -> i64 {
        self.eviction_timeout
            .as_ref()
            .map_or(DEFAULT_EVICTION_TIMEOUT_SECONDS, KubeDuration::seconds)
    }
}

/// The tenants of an organization, a project or a class, or one tenant; with `workloads` some of their pods.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.kind == 'TenantCluster') == has(self.namespace)")
    .message("kind TenantCluster needs a namespace, and no other kind has one")
    .field_path(".namespace"))]
pub struct ScheduleTarget {
    /// Kind of the target.
    pub kind: ScheduleTargetKind,
    /// Name of the target.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Namespace of the TenantCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Only these pods of the tenants. The tenants keep their nodes, and their other pods run. Without it, the tenants as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<WorkloadSelector>,
}

/// Pods in a tenant. A pod is selected if it is in one of the namespaces and has the labels.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.selector) || (has(self.namespaces) && self.namespaces.size() > 0)")
    .message("workloads need namespaces, a selector, or both; a target without workloads is for all pods"))]
pub struct WorkloadSelector {
    /// Namespaces in the tenant. Empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub namespaces: Vec<String>,
    /// Labels of the pods, as they are now. Without it, and if it is empty, all pods of the namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

impl WorkloadSelector {
    /// Whether a pod in this namespace of a tenant, with these labels, is selected.
    pub fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let Self { namespaces, selector } = self;
        let is_in_namespace = namespaces.is_empty() || namespaces.iter().any(|name| name == namespace);
        is_in_namespace && selector.as_ref().is_none_or(|selector| selector.matches(labels))
    }

    /// Whether it selects pods by their labels, which teams change.
    pub fn selects_by_labels(&self) -> bool {
        self.selector
            .as_ref()
            .is_some_and(|selector| *selector != LabelSelector::default())
    }
}

/// Kind of a target, the outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleTargetKind {
    /// All tenants of the projects of an organization.
    Organization,
    /// All tenants in the namespaces of a project.
    Project,
    /// All tenants of a TenantClass.
    TenantClass,
    /// One TenantCluster.
    TenantCluster,
}

impl ScheduleTargetKind {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Organization => "Organization",
            Self::Project => "Project",
            Self::TenantClass => "TenantClass",
            Self::TenantCluster => "TenantCluster",
        }
    }
}

/// A recurring window of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleWindow {
    /// Name of the window, unique in the policy. Conditions and Events name it.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Stop: while the window is open, the tenants have no nodes of their own and no pod starts. Start: the tenants run only while a
    /// Start window of the policy is open. Forbid: while the window is open, what runs goes on, and nothing new starts.
    pub action: ScheduleAction,
    /// When the window opens, as five fields of cron: minute, hour, day of the month, month, day of the week. For example
    /// `0 8 * * MON-FRI`.
    #[schemars(
        length(min = 9, max = 128),
        regex(pattern = r"^[-*,/0-9A-Za-z]+( [-*,/0-9A-Za-z]+){4}$")
    )]
    pub schedule: String,
    /// How long the window is open, on the clock of the time zone: a window that opens at 22:00 for 8h closes at 06:00, also in nights
    /// in which the clock is changed.
    pub duration: KubeDuration,
}

/// What a window does while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleAction {
    /// The tenants are stopped.
    Stop,
    /// The tenants run. Outside all Start windows of a policy that has one, they are stopped.
    Start,
    /// Nothing new starts.
    Forbid,
}

/// What a schedule lets tenants do, the least strict first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleState {
    /// No schedule restricts them.
    #[default]
    Running,
    /// What runs goes on; nothing new starts.
    StartsForbidden,
    /// They have no nodes of their own, and no pod starts.
    Stopped,
}

impl ScheduleState {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::StartsForbidden => "StartsForbidden",
            Self::Stopped => "Stopped",
        }
    }
}

/// Observed state of a SchedulePolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePolicyStatus {
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the policy lets its tenants do now. Another policy may restrict them further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ScheduleState>,
    /// The open window that decides. Empty if none is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// The next changes of the state, three at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_transitions: Vec<ScheduleTransition>,
    /// Ready: the schedules are valid and all targets exist. A policy that is invalid has no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A change of the state of a SchedulePolicy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleTransition {
    /// When the state changes.
    pub time: Time,
    /// The state from then on.
    pub state: ScheduleState,
    /// The open window that decides then. Empty if none is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_warned_a_quarter_of_an_hour_before_unless_the_policy_says_otherwise() {
        let mut spec: SchedulePolicySpec = serde_json::from_value(serde_json::json!({
            "timeZone": "UTC", "targets": [{"kind": "TenantClass", "name": "gold"}],
            "windows": [{"name": "night", "action": "Stop", "schedule": "0 22 * * *", "duration": "8h"}],
        }))
        .unwrap();
        assert_eq!(spec.warning_period(), 900);
        spec.warning_period = Some(KubeDuration::from("1h"));
        assert_eq!(spec.warning_period(), 3600);
    }

    #[test]
    fn budgets_hold_for_an_hour_unless_the_policy_says_otherwise() {
        let mut spec: SchedulePolicySpec = serde_json::from_value(serde_json::json!({
            "timeZone": "UTC", "targets": [], "windows": [],
        }))
        .unwrap();
        assert_eq!(spec.eviction_timeout(), 3600);
        spec.eviction_timeout = Some(KubeDuration::from("0s"));
        assert_eq!(spec.eviction_timeout(), 0);
    }

    #[test]
    fn workloads_are_selected_by_namespace_and_labels() {
        let matches = |workloads: serde_json::Value, namespace: &str, labels: serde_json::Value| {
            let workloads: WorkloadSelector = serde_json::from_value(workloads).unwrap();
            workloads.matches(namespace, &serde_json::from_value(labels).unwrap())
        };
        let batch =
            serde_json::json!({"namespaces": ["jobs", "nightly"], "selector": {"matchLabels": {"tier": "batch"}}});
        assert!(matches(
            batch.clone(),
            "nightly",
            serde_json::json!({"tier": "batch", "a": "b"})
        ));
        assert!(!matches(batch.clone(), "web", serde_json::json!({"tier": "batch"})));
        assert!(!matches(batch, "jobs", serde_json::json!({})));
        assert!(matches(
            serde_json::json!({"namespaces": ["jobs"]}),
            "jobs",
            serde_json::json!({})
        ));
        assert!(matches(
            serde_json::json!({"selector": {}}),
            "anywhere",
            serde_json::json!({})
        ));
        let not_batch = serde_json::json!({"selector": {"matchExpressions": [
            {"key": "tier", "operator": "NotIn", "values": ["batch"]},
        ]}});
        assert!(matches(not_batch.clone(), "jobs", serde_json::json!({})));
        assert!(!matches(not_batch, "jobs", serde_json::json!({"tier": "batch"})));
    }

    #[test]
    fn the_strictest_state_and_the_outermost_target_are_at_the_ends() {
        assert!(ScheduleState::Running < ScheduleState::StartsForbidden);
        assert!(ScheduleState::StartsForbidden < ScheduleState::Stopped);
        assert!(ScheduleTargetKind::Organization < ScheduleTargetKind::TenantCluster);
    }
}
