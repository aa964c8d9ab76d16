//! The devices in a `ResourceSlice`: the parts that selectors of classes and claims are about. All else is skipped while it is parsed.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The `spec` of a `ResourceSlice`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SliceSpec {
    pub(super) driver: String,
    pub(super) pool: SlicePool,
    /// None: several nodes reach the devices.
    pub(super) node_name: Option<String>,
    pub(super) devices: Option<Vec<Device>>,
}

/// The pool that a slice is a part of.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SlicePool {
    pub(super) name: String,
    pub(super) generation: i64,
}

/// A device.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Device {
    attributes: Option<BTreeMap<String, Property>>,
    capacity: Option<BTreeMap<String, Property>>,
    taints: Option<Vec<DeviceTaint>>,
    pub(super) allow_multiple_allocations: Option<bool>,
}

/// An attribute or a capacity of a device. It has one of these values, or one that is not understood.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Property {
    pub(super) string: Option<String>,
    pub(super) int: Option<i64>,
    pub(super) bool: Option<bool>,
    pub(super) version: Option<String>,
    /// Of a capacity.
    pub(super) value: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DeviceTaint {
    effect: Option<String>,
}

/// Which properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Properties {
    Attributes,
    Capacity,
}

impl Device {
    /// Attributes or capacities by name, with the domain before it if that is not the driver's.
    pub(super) fn properties(&self, of: Properties) -> impl Iterator<Item = (&String, &Property)> {
        let all = match of {
            Properties::Attributes => &self.attributes,
            Properties::Capacity => &self.capacity,
        };
        all.iter().flatten()
    }

    /// The text or version of an attribute.
    pub(super) fn text(&self, attribute: &str) -> Option<&str> {
        let attribute = self.attributes.as_ref()?.get(attribute)?;
        attribute.string.as_deref().or(attribute.version.as_deref())
    }

    /// Whether a taint keeps the device from being allocated.
    pub(super) fn is_tainted(&self) -> bool {
        let taints = self.taints.iter().flatten();
        let mut effects = taints.filter_map(|taint| taint.effect.as_deref());
        effects.any(|effect| matches!(effect, "NoSchedule" | "NoExecute"))
    }
}
