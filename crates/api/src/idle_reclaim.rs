//! Giving back GPUs that do nothing: the rules of a [`TenantClass`](crate::TenantClass).

use crate::{KubeDuration, quantity};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How Berth gives back GPUs that are allocated to pods and do nothing.
///
/// A pod is idle if each of its GPUs shows no activity and draws little power in the whole window. Metrics that are missing, old
/// or incomplete never make a pod idle, except for missing ones of a pod whose containers have not started for `maxStartup`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.window) >= duration('30m')")
    .message("must be at least 30m: jobs load data or write checkpoints for 20 minutes and more")
    .field_path(".window"))]
#[x_kube(validation = Rule::new("duration(self.window) <= duration('24h')")
    .message("must be at most 24h")
    .field_path(".window"))]
#[x_kube(validation = Rule::new("self.lastStep != 'StopOwner' || size(self.ownerKinds) > 0")
    .message("lastStep StopOwner needs at least one kind; leave ownerKinds out for Deployments, StatefulSets and Jobs")
    .field_path(".ownerKinds"))]
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
    /// Time between the request to write a checkpoint and the last step.
    #[serde(default = "ten_minutes")]
    pub checkpoint_period: KubeDuration,
    /// How long PodDisruptionBudgets may keep pods after the last step. Then the pods are deleted, with their own grace periods.
    #[serde(default = "one_hour")]
    pub eviction_timeout: KubeDuration,
    /// What Berth does in mode Enforce with a workload that is still idle at the end.
    #[serde(default)]
    pub last_step: IdleLastStep,
    /// Kinds of owners in the tenant that the last step StopOwner stops. Pods of other owners are evicted. Defaults to Deployments,
    /// StatefulSets and Jobs.
    #[serde(default = "built_in_owner_kinds")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["group".to_string(), "kind".to_string()]))]
    pub owner_kinds: Vec<OwnerKind>,
    /// Time after the start of a pod that is not evaluated, for example to pull a model.
    #[serde(default = "thirty_minutes")]
    pub startup_grace_period: KubeDuration,
    /// Time after which a pod that has a node, and whose containers have not started, is judged by its metrics alone. Without metrics it is idle then.
    #[serde(default = "six_hours")]
    pub max_startup: KubeDuration,
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
    /// Limits of power by GPU product, in place of `maxPowerWatts`: products differ in their power without work.
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
            eviction_timeout: one_hour(),
            last_step: IdleLastStep::default(),
            owner_kinds: built_in_owner_kinds(),
            startup_grace_period: thirty_minutes(),
            max_startup: six_hours(),
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

fn six_hours() -> KubeDuration {
    "6h".into()
}

fn one_megabyte() -> u64 {
    1_000_000
}

/// What an H100 with a CUDA context takes without work, and some more.
fn power_without_work() -> u32 {
    150
}

fn built_in_owner_kinds() -> Vec<OwnerKind> {
    [("apps", "Deployment"), ("apps", "StatefulSet"), ("batch", "Job")]
        .map(|(group, kind)| OwnerKind {
            group: group.into(),
            kind: kind.into(),
            suspend: None,
        })
        .into()
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

/// What Berth does with a workload that is still idle at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum IdleLastStep {
    /// Berth evicts its pods. Their owner may create new ones.
    #[default]
    EvictPods,
    /// Berth scales the owner to zero, or suspends it, until the team wants it back. Pods whose owner cannot be stopped are evicted.
    StopOwner,
}

/// A kind of owners that Berth may stop.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.group in ['', 'apps', 'batch']) || self.kind in ['Deployment', 'StatefulSet', 'ReplicaSet', 'ReplicationController', 'Job']")
    .message("of the kinds of Kubernetes itself, Deployment, StatefulSet, ReplicaSet, ReplicationController and Job can be stopped")
    .field_path(".kind"))]
#[x_kube(validation = Rule::new("!(self.group in ['', 'apps', 'batch']) || !has(self.suspend)")
    .message("leave it out for the kinds of Kubernetes itself: Berth knows how to stop these")
    .field_path(".suspend"))]
pub struct OwnerKind {
    /// API group, empty for the core group.
    #[serde(default)]
    #[schemars(
        length(max = 253),
        regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$")
    )]
    pub group: String,
    /// Kind. One of a CustomResourceDefinition needs the subresource scale, or `suspend`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// What stops an object of the kind, instead of its number of replicas. All its pods end, also those without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<OwnerSuspend>,
}

/// What stops an owner that has no number of replicas: a field or an annotation.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.path) != has(self.annotation)")
    .message("set one of path and annotation"))]
#[x_kube(validation = Rule::new("!has(self.value) || has(self.annotation)")
    .message("is for annotation: with path, the field becomes true")
    .field_path(".value"))]
#[x_kube(validation = Rule::new("!has(self.annotation) || !self.annotation.matches('^([a-z0-9.-]+[.])?berth[.]dev/')")
    .message("annotations of berth.dev are Berth's own")
    .field_path(".annotation"))]
pub struct OwnerSuspend {
    /// A field of the spec that is true while the object is suspended, for example `spec.suspend` of a JobSet or a RayCluster, and
    /// `spec.runPolicy.suspend` of a PyTorchJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = r"^spec(\.[A-Za-z0-9_-]+){1,7}$"))]
    pub path: Option<String>,
    /// An annotation that the object has while it is stopped, for example `kubeflow-resource-stopped` of a Kubeflow Notebook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 253),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
    )]
    pub annotation: Option<String>,
    /// The value of the annotation that stops the object, for example `true`. Without it every value stops it, and Berth sets the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub value: Option<String>,
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
    /// Time between the request to write a checkpoint and the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_period: Option<KubeDuration>,
    /// Time after the start of a pod that is not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_grace_period: Option<KubeDuration>,
    /// Time after which a pod that has a node, and whose containers have not started, is judged by its metrics alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_startup: Option<KubeDuration>,
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
    fn pods_are_evicted_unless_a_class_says_otherwise() {
        let policy: IdleReclaim = serde_json::from_value(json!({})).unwrap();
        assert_eq!(policy, IdleReclaim::default());
        assert_eq!(policy.last_step, IdleLastStep::EvictPods);
        let kinds: Vec<&str> = policy.owner_kinds.iter().map(|owner| owner.kind.as_str()).collect();
        assert_eq!(kinds, ["Deployment", "StatefulSet", "Job"]);
        let policy = json!({"lastStep": "StopOwner", "ownerKinds": [{"group": "example.com", "kind": "Notebook"}]});
        let policy: IdleReclaim = serde_json::from_value(policy).unwrap();
        assert_eq!(policy.last_step, IdleLastStep::StopOwner);
        assert_eq!(policy.owner_kinds.len(), 1);
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
}
