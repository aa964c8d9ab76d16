//! A pod of a tenant on the host, as far as it matters for its GPUs.

use crate::Seconds;
use std::collections::{BTreeMap, BTreeSet};

/// NVIDIA's resources for a whole GPU, and the prefix of those for MIG instances.
const NVIDIA_GPU: &str = "nvidia.com/gpu";
const NVIDIA_MIG: &str = "nvidia.com/mig-";
/// Suffix of a resource that several pods share in turns.
const SHARED: &str = ".shared";

/// The condition that Berth sets on a host pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedCondition {
    /// Whether its status is True.
    pub is_true: bool,
    /// Its reason.
    pub reason: String,
}

/// Whether a pod holds the devices that it requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicesHeld {
    /// It has no node yet.
    #[default]
    NotYet,
    /// It has a node and has not ended.
    Now,
    /// It has ended or failed.
    NoMore,
}

/// The GPUs that a pod has by claims (dynamic resource allocation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimedGpus {
    /// So many. Claims of other devices have none, and neither have claims of nothing.
    Known(u32),
    /// It is not known what one of its claims has.
    Unknown,
}

impl Default for ClaimedGpus {
    fn default() -> Self {
        Self::Known(0)
    }
}

/// A host pod that requests devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPod {
    /// Slug of the tenant.
    pub tenant: String,
    /// Namespace on the host.
    pub namespace: String,
    /// Name on the host.
    pub name: String,
    /// UID on the host.
    pub uid: String,
    /// Namespace in the tenant.
    pub origin_namespace: String,
    /// Name in the tenant.
    pub origin_name: String,
    /// UID in the tenant; empty if it is not recorded.
    pub origin_uid: String,
    /// Labels, by their keys in the tenant.
    pub labels: BTreeMap<String, String>,
    /// The gang that the syncer recorded.
    pub gang: Option<String>,
    /// Extended resources that it requests.
    pub devices: BTreeMap<String, u32>,
    /// Names of its claims of devices on the host; empty for one that the host has not made yet of its template.
    pub claims: Vec<String>,
    /// The GPUs of these claims.
    pub claimed_gpus: ClaimedGpus,
    /// Of the extended resources, what none of its containers can use: only init containers request it, and these have ended.
    pub unused_devices: BTreeMap<String, u32>,
    /// Of the claims, those that none of its containers can use: only init containers name them, and these have ended, or none does.
    pub unused_claims: Vec<String>,
    /// The GPUs of these claims.
    pub unused_claimed_gpus: u32,
    /// Whether it holds its devices.
    pub devices_held: DevicesHeld,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// Whether a schedule of the platform restricts it now.
    pub is_restricted: bool,
    /// Whether one lets no pod with its labels start now. It goes on, and may wait for such a pod.
    pub awaits_others: bool,
    /// When it got its node.
    pub scheduled_at: Option<Seconds>,
    /// When its containers started, also if none of them runs any more; none as long as none has run.
    pub started_at: Option<Seconds>,
    /// Its priority on the host.
    pub priority: i32,
    /// The condition that says that its GPUs are idle.
    pub condition: Option<ObservedCondition>,
}

impl GpuPod {
    /// Whether it has a node and has not ended.
    pub fn holds_devices(&self) -> bool {
        self.devices_held == DevicesHeld::Now
    }

    /// How many GPUs and MIG instances it requests, and has by claims as far as that is known. `resources` are those that count the GPUs
    /// of pools.
    pub fn gpus(&self, resources: &BTreeSet<String>) -> u32 {
        let of_gpus = self.devices.iter().filter(|(resource, _)| is_gpu(resource, resources));
        let claimed = match self.claimed_gpus {
            ClaimedGpus::Known(count) => count,
            ClaimedGpus::Unknown => 0,
        };
        of_gpus.fold(claimed, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// How many of these its containers can use.
    pub fn usable_gpus(&self, resources: &BTreeSet<String>) -> u32 {
        let unused = self.unused_devices.iter();
        let unused = unused.filter(|(resource, _)| is_gpu(resource, resources));
        let unused = unused.fold(self.unused_claimed_gpus, |sum, (_, count)| sum.saturating_add(*count));
        self.gpus(resources).saturating_sub(unused)
    }

    /// Whether it has GPUs, or it is not known that it has none.
    pub fn may_have_gpus(&self, resources: &BTreeSet<String>) -> bool {
        self.claimed_gpus == ClaimedGpus::Unknown || self.gpus(resources) > 0
    }
}

/// Whether an extended resource counts GPUs. Network devices are extended resources as well.
fn is_gpu(resource: &str, resources: &BTreeSet<String>) -> bool {
    let unshared = resource.strip_suffix(SHARED).unwrap_or(resource);
    resources.contains(resource)
        || resources.contains(unshared)
        || unshared == NVIDIA_GPU
        || unshared.starts_with(NVIDIA_MIG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpus_count() {
        let pod = GpuPod {
            devices: [
                ("nvidia.com/gpu", 4),
                ("nvidia.com/mig-1g.10gb.shared", 2),
                ("rdma/hca", 8),
                ("nvidia.com/hostdev", 8),
                ("amd.com/gpu", 1),
            ]
            .map(|(resource, count)| (resource.to_owned(), count))
            .into(),
            ..GpuPod::default()
        };
        assert_eq!(pod.gpus(&BTreeSet::new()), 6);
        assert_eq!(pod.gpus(&BTreeSet::from(["amd.com/gpu".to_owned()])), 7);
    }

    #[test]
    fn gpus_by_claims_count_and_other_claims_do_not() {
        let pod = |claimed_gpus| GpuPod {
            claims: vec!["claim".into()],
            claimed_gpus,
            ..GpuPod::default()
        };
        for (claimed, gpus, may_have) in [
            (ClaimedGpus::Known(0), 0, false),
            (ClaimedGpus::Known(2), 2, true),
            (ClaimedGpus::Unknown, 0, true),
        ] {
            let pod = pod(claimed);
            assert_eq!(pod.gpus(&BTreeSet::new()), gpus);
            assert_eq!(pod.may_have_gpus(&BTreeSet::new()), may_have);
        }
    }
}
