//! GPUs that do nothing, in the status of a [`TenantCluster`](crate::TenantCluster).

use crate::{GpuHourPrice, IdleLastStep, IdleReclaimMode, OwnerSuspend};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// GPUs of a tenant that do nothing. What its pods have is known only if its class reclaims such GPUs; `nodes` does not depend on that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleStatus {
    /// What Berth does about idle GPUs.
    pub mode: IdleReclaimMode,
    /// What Berth does in mode Enforce with workloads that are still idle at the end.
    #[serde(default)]
    pub last_step: IdleLastStep,
    /// GPUs and MIG instances that the tenant's running pods have.
    pub gpus: u32,
    /// GPUs and MIG instances of running pods that do nothing, without those of pods that teams excepted.
    #[serde(rename = "idleGPUs")]
    pub idle_gpus: u32,
    /// GPUs and MIG instances of running pods of which it is not known whether they do something, by reason.
    #[serde(default, rename = "unknownGPUs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["reason"]))]
    pub unknown_gpus: Vec<UnknownGpus>,
    /// GPUs of pods that teams excepted.
    #[serde(default, rename = "optedOutGPUs")]
    pub opted_out_gpus: u32,
    /// Price of one hour of one GPU, from the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour_price: Option<GpuHourPrice>,
    /// Idle workloads, those with the most GPUs first, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub workloads: Vec<IdleWorkload>,
    /// Further idle workloads, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<UnlistedWorkloads>,
    /// Owners that Berth stopped and that nobody has started since, at most 100. What they were before is in an annotation of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub stopped_owners: Vec<StoppedOwner>,
    /// Nodes of which no pod has requested a GPU for a while, whatever keeps them: those with the most GPUs first, at most 50. Berth only
    /// reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub nodes: Vec<IdleNode>,
    /// Further such nodes, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_nodes: Option<UnlistedNodes>,
}

impl IdleStatus {
    /// For how many seconds GPUs have done nothing until `now`, each for itself, as far as that is known: of all workloads that are idle.
    pub fn gpu_seconds(&self, now: Timestamp) -> u64 {
        let listed = self.workloads.iter().map(|workload| workload.gpu_seconds(now));
        let unlisted = self.unlisted.iter().map(|unlisted| {
            let UnlistedWorkloads {
                workloads: _,
                gpus,
                idle_since,
            } = unlisted;
            count_gpu_seconds(*gpus, idle_since.0.as_second(), now.as_second())
        });
        listed.chain(unlisted).fold(0, u64::saturating_add)
    }
}

/// GPUs that did nothing between two seconds, as a sum of seconds.
fn count_gpu_seconds(gpus: u32, since: i64, until: i64) -> u64 {
    let seconds = u64::try_from(until.saturating_sub(since)).unwrap_or_default();
    seconds.saturating_mul(u64::from(gpus))
}

/// Most [`IdleStatus::workloads`].
pub const MOST_IDLE_WORKLOADS: usize = 100;
/// Most [`IdleStatus::stopped_owners`].
pub const MOST_STOPPED_OWNERS: usize = 100;
/// Most [`IdleStatus::nodes`].
pub const MOST_IDLE_NODES: usize = 50;

/// An owner in the tenant that Berth stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoppedOwner {
    /// API group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace in the tenant.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID in the tenant. Another object of the same name was not stopped.
    pub uid: String,
    /// GPUs and MIG instances that its pods had.
    pub gpus: u32,
    /// When it was stopped.
    pub stopped_at: Time,
    /// The field or annotation that stopped it, as the class names it. Absent: its replicas were set to 0, or it is a Job that was
    /// suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<OwnerSuspend>,
}

impl StoppedOwner {
    /// `Kind/namespace/name`, as [`RESTORE`](crate::labels::RESTORE) on a `TenantCluster` names it.
    pub fn path(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }

    /// Whether a value of [`RESTORE`](crate::labels::RESTORE) on a `TenantCluster` names it. The kind may be in lower case.
    pub fn is_named_by(&self, request: &str) -> bool {
        let is_named = |item: &str| {
            let mut parts = item.splitn(2, '/');
            let (kind, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            kind.eq_ignore_ascii_case(&self.kind) && name.split_once('/') == Some((&self.namespace, &self.name))
        };
        request
            .split(',')
            .map(str::trim)
            .any(|item| item == ALL_STOPPED_OWNERS || is_named(item))
    }
}

/// Stands for all stopped owners in [`RESTORE`](crate::labels::RESTORE) on a `TenantCluster`.
pub const ALL_STOPPED_OWNERS: &str = "*";

/// The owner of idle pods in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleOwner {
    /// API group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// GPUs of which it is not known whether they do something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnknownGpus {
    /// Why it is not known.
    pub reason: String,
    /// How many.
    pub gpus: u32,
}

/// A workload whose GPUs do nothing: pods with one owner, or of one gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleWorkload {
    /// What the pods have in common, for example Job or Gang; Pod for a single one.
    pub kind: String,
    /// Namespace in the tenant.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Profile of the class that applies, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The object in the tenant that owns its pods, after the first warning. The first of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<IdleOwner>,
    /// GPUs and MIG instances of its pods.
    pub gpus: u32,
    /// Since when they do nothing.
    pub idle_since: Time,
    /// The last step that was taken.
    pub step: IdleStep,
    /// When it was taken.
    pub step_since: Time,
    /// When the next step is due at the earliest, if the GPUs stay idle. Absent after the last step, and while metrics are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step_at: Option<Time>,
    /// Whether metrics are missing at the moment. The time until the next step starts again when they are back.
    #[serde(default)]
    pub paused: bool,
    /// Since when it is not known whether they do nothing. Absent while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<Time>,
    /// Seconds after `idleSince` for which that was not known, without those after `unknownSince`.
    #[serde(default)]
    pub unknown_seconds: u32,
}

impl IdleWorkload {
    /// For how many seconds its GPUs have done nothing until `now`, each for itself, as far as that is known.
    pub fn gpu_seconds(&self, now: Timestamp) -> u64 {
        let until = self.unknown_since.as_ref().map_or(now, |since| since.0.min(now));
        count_gpu_seconds(self.gpus, self.counted_since(), until.as_second())
    }

    /// Since when they do nothing, without the time for which that was not known, in seconds since the epoch.
    pub fn counted_since(&self) -> i64 {
        self.idle_since
            .0
            .as_second()
            .saturating_add(self.unknown_seconds.into())
    }
}

/// Idle workloads beyond those that are listed, without those of which it is not known whether they do nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnlistedWorkloads {
    /// How many.
    pub workloads: u32,
    /// Their GPUs and MIG instances.
    pub gpus: u32,
    /// Since when these do nothing, on average.
    pub idle_since: Time,
}

/// A node with GPUs of which no pod requests one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleNode {
    /// Its name.
    pub name: String,
    /// Name of the HostNodePool that it was assigned from.
    pub pool_name: String,
    /// Name of the tenant's node group that it was assigned to.
    pub node_group_name: String,
    /// Its GPUs and MIG instances.
    pub gpus: u32,
    /// Since when no pod requests one of them.
    pub idle_since: Time,
    /// The oldest pods of the tenant that run there, at most three, as `namespace/name`. Pods that are younger than eleven minutes do not
    /// count, nor do those that name this node, as pods of DaemonSets do. Empty: the minimum of the group keeps the node, or pods that wait
    /// or run for a short time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub pods: Vec<String>,
    /// Further such pods, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted_pods: Option<u32>,
}

/// Idle nodes beyond those that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnlistedNodes {
    /// How many.
    pub nodes: u32,
    /// Their GPUs and MIG instances.
    pub gpus: u32,
}

/// Steps that a workload goes through before its GPUs are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum IdleStep {
    /// It was warned.
    Warned,
    /// It was warned again.
    WarnedAgain,
    /// It was asked to write a checkpoint.
    CheckpointRequested,
    /// It is due: in mode Enforce its pods are evicted, or their owner is stopped.
    Reclaimable,
}

impl IdleStep {
    /// The step after this one.
    pub const fn next(self) -> Option<Self> {
        match self {
            Self::Warned => Some(Self::WarnedAgain),
            Self::WarnedAgain => Some(Self::CheckpointRequested),
            Self::CheckpointRequested => Some(Self::Reclaimable),
            Self::Reclaimable => None,
        }
    }

    /// Its name, also as the reason of conditions and Events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warned => "Warned",
            Self::WarnedAgain => "WarnedAgain",
            Self::CheckpointRequested => "CheckpointRequested",
            Self::Reclaimable => "Reclaimable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_name_stopped_owners() {
        let owner: StoppedOwner = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "web", "uid": "u", "gpus": 8,
            "stoppedAt": "1970-01-01T00:00:00Z",
        }))
        .unwrap();
        assert_eq!(owner.path(), "Deployment/ml/web");
        for (request, expected) in [
            ("*", true),
            ("Deployment/ml/web", true),
            ("Job/ml/a, deployment/ml/web", true),
            ("Deployment/ml/other", false),
            ("Deployment/other/web", false),
            ("Deployment/web", false),
            ("true", false),
            ("", false),
        ] {
            assert_eq!(owner.is_named_by(request), expected, "{request}");
        }
    }

    #[test]
    fn the_steps_end() {
        let steps: Vec<_> = std::iter::successors(Some(IdleStep::Warned), |step| step.next()).collect();
        assert_eq!(steps.len(), 4);
        assert_eq!(steps.last(), Some(&IdleStep::Reclaimable));
        for step in steps {
            assert_eq!(serde_json::to_value(step).unwrap(), step.as_str());
        }
    }
}
