//! The devices of a node: their ids, their health, and the environment of a container that gets some. Pure.

use std::collections::{BTreeSet, HashMap};

use sha2::{Digest as _, Sha256};

use crate::v1beta1::{ContainerAllocateResponse, Device};

/// The variable by which NVIDIA's container runtime knows which devices a container gets.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// A container requests a device that the node does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node has no device {0}")]
pub struct UnknownDevice(String);

/// The devices of a node and their health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceList {
    ids: Vec<String>,
    failed: BTreeSet<String>,
}

impl DeviceList {
    /// The devices of a node, all healthy. Their ids are always the same for the same node and resource.
    pub fn new(node: &str, resource: &str, count: u16) -> Self {
        Self {
            ids: (0..count).map(|index| device_id(node, resource, index)).collect(),
            failed: BTreeSet::new(),
        }
    }

    /// The same devices; those that `text` names, one per line, have failed. Ids of other nodes are ignored.
    #[must_use]
    pub fn with_failed(&self, text: &str) -> Self {
        let named: BTreeSet<&str> = text.lines().map(str::trim).collect();
        let failed = self.ids.iter().filter(|id| named.contains(id.as_str())).cloned();
        Self {
            ids: self.ids.clone(),
            failed: failed.collect(),
        }
    }

    /// The ids of all devices, in order.
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// The devices as the kubelet expects them.
    pub(crate) fn as_listed(&self) -> Vec<Device> {
        let health = |id| {
            if self.failed.contains(id) {
                "Unhealthy"
            } else {
                "Healthy"
            }
        };
        self.ids
            .iter()
            .map(|id| Device {
                id: id.clone(),
                health: health(id).into(),
                // Simulated devices have no NUMA node.
                topology: None,
            })
            .collect()
    }

    /// The answer for a container that gets these devices. A failed device is allocated all the same: the kubelet may
    /// have chosen it before it learned of the failure.
    pub(crate) fn allocate(&self, wanted: &[String]) -> Result<ContainerAllocateResponse, UnknownDevice> {
        if let Some(unknown) = wanted.iter().find(|id| !self.ids.contains(id)) {
            return Err(UnknownDevice(unknown.clone()));
        }
        Ok(ContainerAllocateResponse {
            envs: HashMap::from([(VISIBLE_DEVICES.to_owned(), wanted.join(","))]),
            mounts: Vec::new(),
            devices: Vec::new(),
            annotations: HashMap::new(),
            cdi_devices: Vec::new(),
        })
    }
}

/// An id of the form that NVIDIA's driver gives.
fn device_id(node: &str, resource: &str, index: u16) -> String {
    let digest = format!("{:x}", Sha256::digest(format!("{node}\0{resource}\0{index}")));
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[12..16],
        &digest[16..20],
        &digest[20..32]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> DeviceList {
        DeviceList::new("gpu-h100-01", "nvidia.com/gpu", 8)
    }

    #[test]
    fn ids_are_the_same_after_a_restart_and_others_on_other_nodes() {
        let ids: BTreeSet<String> = devices().ids().iter().cloned().collect();
        assert_eq!(ids.len(), 8);
        assert_eq!(devices(), devices());
        for other in [
            DeviceList::new("gpu-h100-02", "nvidia.com/gpu", 8),
            DeviceList::new("gpu-h100-01", "nvidia.com/mig-1g.10gb", 8),
        ] {
            assert!(other.ids().iter().all(|id| !ids.contains(id)));
        }
    }

    #[test]
    fn ids_look_like_those_of_the_driver() {
        for id in devices().ids() {
            let uuid = id.strip_prefix("GPU-").unwrap();
            let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
            assert!(id.len() <= 63, "{id}");
        }
    }

    #[test]
    fn a_named_device_is_unhealthy_and_recovers() {
        let second = devices().ids()[1].clone();
        let failed = devices().with_failed(&format!("{second}\n\nGPU-of-another-node\n"));
        let unhealthy: Vec<String> = failed
            .as_listed()
            .into_iter()
            .filter(|device| device.health == "Unhealthy")
            .map(|device| device.id)
            .collect();
        assert_eq!(unhealthy, [second]);
        assert_eq!(failed.with_failed(""), devices());
    }

    #[test]
    fn allocation_sets_the_devices_variable_and_nothing_else() {
        let list = devices();
        let wanted = list.ids()[2..4].to_vec();
        let response = list.allocate(&wanted).unwrap();
        assert_eq!(response.envs[VISIBLE_DEVICES], wanted.join(","));
        assert_eq!(response.envs.len(), 1);
        assert!(response.devices.is_empty() && response.mounts.is_empty() && response.cdi_devices.is_empty());
    }

    #[test]
    fn a_foreign_device_is_refused() {
        let refused = devices().allocate(&["GPU-0".into()]).unwrap_err();
        assert_eq!(refused.to_string(), "this node has no device GPU-0");
    }
}
