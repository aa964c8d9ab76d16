//! Giving back GPUs that do nothing. Part of a [`TenantClass`](crate::TenantClass), and of the status of a
//! [`TenantCluster`](crate::TenantCluster).

use crate::{KubeDuration, quantity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How Berth gives back GPUs that are allocated to pods and do nothing.
///
/// A pod is idle if each of its GPUs shows no activity and draws little power in the whole window. Metrics that are missing, old
/// or incomplete never make a pod idle.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.window) >= duration('30m')")
    .message("must be at least 30m: jobs load data or write checkpoints for 20 minutes and more")
    .field_path(".window"))]
#[x_kube(validation = Rule::new("duration(self.window) <= duration('24h')")
    .message("must be at most 24h")
    .field_path(".window"))]
pub struct IdleReclaim {
    /// What Berth does about idle GPUs.
    #[serde(default)]
    pub mode: IdleReclaimMode,
    /// Time without activity after which a pod is idle. From 30m to 24h.
    #[serde(default = "one_hour")]
    pub window: KubeDuration,
    /// Time between the first warning and the request to write a checkpoint. There is a second warning after half of it.
    #[serde(default = "thirty_minutes")]
    pub grace_period: KubeDuration,
    /// Time between the request to write a checkpoint and the eviction.
    #[serde(default = "ten_minutes")]
    pub checkpoint_period: KubeDuration,
    /// Time after the start of a pod that is not evaluated, for example to pull a model.
    #[serde(default = "thirty_minutes")]
    pub startup_grace_period: KubeDuration,
    /// Time that a pod may run at least, whatever its GPUs do.
    #[serde(default = "two_hours")]
    pub minimum_runtime: KubeDuration,
    /// Activity of an engine, in thousandths of its capacity, that counts as none.
    #[serde(default)]
    #[schemars(range(min = 0, max = 50))]
    pub max_activity_permille: u32,
    /// Traffic of one GPU, in each direction, that counts as none. Monitoring causes some on PCIe.
    #[serde(default = "one_megabyte")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub max_traffic_bytes_per_second: u64,
    /// Power of one GPU in watts, above which it is not idle.
    #[serde(default = "power_without_work")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_power_watts: u32,
    /// The same for GPU products whose power without work differs.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["product".to_string()]))]
    pub products: Vec<IdleProduct>,
    /// Signals that must show no activity, besides the activity of the engines and of the tensor cores, and the power. A pod whose
    /// GPUs do not have all of these metrics is never idle.
    #[serde(default = "memory_activity")]
    #[schemars(length(max = 3))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub additional_signals: Vec<IdleSignal>,
    /// Other times for some pods, for example notebooks. The first profile that selects a pod applies.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub profiles: Vec<IdleProfile>,
    /// Pods that teams may except, up to a number of GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_out: Option<IdleOptOut>,
    /// Price of one hour of one GPU, for the reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour_price: Option<GpuHourPrice>,
}

impl Default for IdleReclaim {
    fn default() -> Self {
        Self {
            mode: IdleReclaimMode::Off,
            window: one_hour(),
            grace_period: thirty_minutes(),
            checkpoint_period: ten_minutes(),
            startup_grace_period: thirty_minutes(),
            minimum_runtime: two_hours(),
            max_activity_permille: 0,
            max_traffic_bytes_per_second: one_megabyte(),
            max_power_watts: power_without_work(),
            products: Vec::new(),
            additional_signals: memory_activity(),
            profiles: Vec::new(),
            opt_out: None,
            gpu_hour_price: None,
        }
    }
}

fn ten_minutes() -> KubeDuration {
    "10m".into()
}

fn thirty_minutes() -> KubeDuration {
    "30m".into()
}

fn one_hour() -> KubeDuration {
    "1h".into()
}

fn two_hours() -> KubeDuration {
    "2h".into()
}

fn one_megabyte() -> u64 {
    1_000_000
}

/// What an H100 with a CUDA context takes without work, and some more.
fn power_without_work() -> u32 {
    150
}

fn memory_activity() -> Vec<IdleSignal> {
    vec![IdleSignal::MemoryActivity]
}

impl IdleReclaim {
    /// The first value that its schema cannot check and that cannot be read, with its field.
    pub fn find_invalid_value(&self) -> Option<(&'static str, &str)> {
        let price = self.gpu_hour_price.as_ref()?;
        price
            .thousandths()
            .is_none()
            .then_some(("gpuHourPrice.amount", price.amount.as_str()))
    }
}

/// What Berth does about idle GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum IdleReclaimMode {
    /// Nothing: no metrics are read.
    #[default]
    Off,
    /// Berth reports in the status of the TenantCluster and in its metrics what it would give back. Teams see no Events.
    DryRun,
    /// Berth warns the pods in the tenant and evicts them in the end.
    Enforce,
}

/// Power of a GPU product.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleProduct {
    /// Name of the product as the metrics have it in the label modelName, for example `NVIDIA H100 80GB HBM3`.
    #[schemars(length(min = 1, max = 128))]
    pub product: String,
    /// Power of one GPU in watts, above which it is not idle.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_power_watts: u32,
}

/// A signal of a GPU that a class may require to show no activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum IdleSignal {
    /// Use of the memory interface (DCGM_FI_PROF_DRAM_ACTIVE).
    MemoryActivity,
    /// Traffic on PCIe (DCGM_FI_PROF_PCIE_TX_BYTES, DCGM_FI_PROF_PCIE_RX_BYTES). Not evaluated for MIG instances.
    #[serde(rename = "PCIeTraffic")]
    PcieTraffic,
    /// Traffic on NVLink (DCGM_FI_PROF_NVLINK_TX_BYTES, DCGM_FI_PROF_NVLINK_RX_BYTES). Not evaluated for MIG instances.
    #[serde(rename = "NVLinkTraffic")]
    NvlinkTraffic,
}

/// Times for some pods.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.window) || duration(self.window) >= duration('30m')")
    .message("must be at least 30m: jobs load data or write checkpoints for 20 minutes and more")
    .field_path(".window"))]
#[x_kube(validation = Rule::new("!has(self.window) || duration(self.window) <= duration('24h')")
    .message("must be at most 24h")
    .field_path(".window"))]
pub struct IdleProfile {
    /// Name of the profile, as reports show it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Labels that a pod of the tenant must have, all of them. An empty value stands for any value.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub match_labels: BTreeMap<String, String>,
    /// Time without activity after which a pod is idle. From 30m to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<KubeDuration>,
    /// Time between the first warning and the request to write a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<KubeDuration>,
    /// Time between the request to write a checkpoint and the eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_period: Option<KubeDuration>,
    /// Time after the start of a pod that is not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_grace_period: Option<KubeDuration>,
    /// Time that a pod may run at least, whatever its GPUs do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_runtime: Option<KubeDuration>,
}

/// Pods that teams may except.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleOptOut {
    /// Labels that a pod of the tenant must have, all of them, to be excepted. An empty value stands for any value.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub match_labels: BTreeMap<String, String>,
    /// GPUs of excepted pods in one namespace of a tenant. Pods that started first come first; the labels have no effect on the
    /// others.
    #[serde(rename = "maxGPUsPerNamespace")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_gpus_per_namespace: u32,
    /// GPUs of excepted pods in all namespaces of a tenant together. Defaults to maxGPUsPerNamespace: teams create namespaces themselves.
    #[serde(default, rename = "maxGPUsPerTenant", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_gpus_per_tenant: Option<u32>,
}

impl IdleOptOut {
    /// GPUs of excepted pods of a tenant.
    pub fn max_gpus_of_tenant(&self) -> u32 {
        self.max_gpus_per_tenant.unwrap_or(self.max_gpus_per_namespace)
    }
}

/// Price of one hour of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuHourPrice {
    /// Amount, for example `2.50`.
    #[schemars(length(max = 12), regex(pattern = r"^[0-9]{1,8}(\.[0-9]{1,3})?$"))]
    pub amount: String,
    /// Currency, for example `EUR`.
    #[schemars(length(min = 3, max = 3), regex(pattern = "^[A-Z]{3}$"))]
    pub currency: String,
}

impl GpuHourPrice {
    /// The amount in thousandths; none if it cannot be read.
    pub fn thousandths(&self) -> Option<u64> {
        u64::try_from(quantity::parse(&self.amount)?).ok()
    }

    /// What GPUs cost for a number of seconds, for example `12.50 EUR`; none if the amount cannot be read.
    pub fn worth(&self, gpu_seconds: u64) -> Option<String> {
        let thousandths = u128::from(self.thousandths()?) * u128::from(gpu_seconds) / 3600;
        let hundredths = (thousandths + 5) / 10;
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        Some(format!("{whole}.{rest:02} {}", self.currency))
    }
}

/// GPUs of a tenant that do nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdleStatus {
    /// What Berth does about them.
    pub mode: IdleReclaimMode,
    /// GPUs and MIG instances that the tenant's running pods have.
    pub gpus: u32,
    /// Those that do nothing.
    #[serde(rename = "idleGPUs")]
    pub idle_gpus: u32,
    /// Those of which it is not known whether they do something, by reason.
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
}

/// Most [`IdleStatus::workloads`].
pub const MOST_IDLE_WORKLOADS: usize = 100;

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
    /// It is due: in mode Enforce its pods are evicted.
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
    fn reclaim_is_off_unless_a_class_sets_a_mode() {
        let policy: IdleReclaim = serde_json::from_value(json!({})).unwrap();
        assert_eq!((policy.mode, policy.window.seconds()), (IdleReclaimMode::Off, 3600));
        let policy: IdleReclaim =
            serde_json::from_value(json!({"mode": "DryRun", "additionalSignals": ["PCIeTraffic"]})).unwrap();
        assert_eq!(policy.mode, IdleReclaimMode::DryRun);
        assert_eq!(policy.additional_signals, [IdleSignal::PcieTraffic]);
    }

    #[test]
    fn worth_is_rounded_to_hundredths() {
        let price = |amount: &str| GpuHourPrice {
            amount: amount.into(),
            currency: "EUR".into(),
        };
        assert_eq!(price("2.50").worth(3600 * 8).as_deref(), Some("20.00 EUR"));
        assert_eq!(price("0.005").worth(3600).as_deref(), Some("0.01 EUR"));
        assert_eq!(price("1").worth(1800).as_deref(), Some("0.50 EUR"));
        assert_eq!(price("much").worth(1), None);
    }

    #[test]
    fn prices_that_cannot_be_read_are_found() {
        let mut policy = IdleReclaim::default();
        assert_eq!(policy.find_invalid_value(), None);
        policy.gpu_hour_price = Some(GpuHourPrice {
            amount: "cheap".into(),
            currency: "EUR".into(),
        });
        assert_eq!(policy.find_invalid_value(), Some(("gpuHourPrice.amount", "cheap")));
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
