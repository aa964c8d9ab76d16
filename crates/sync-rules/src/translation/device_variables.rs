//! Environment variables that choose devices.

/// Variables that choose devices past the scheduler: containers get devices by resource requests only. A variable of
/// the container overrides what a device plugin sets, so none of these may come from a tenant in any way.
///
/// | way | rule |
/// |---|---|
/// | `env` | denied, unless the value is a literal that means no device |
/// | `envFrom` without prefix | such keys of ConfigMaps and Secrets stay in the tenant |
/// | `envFrom` with a prefix | denied if a key could complete it to such a name |
/// | the image | the node's runtime decides; what a device plugin sets beats it |
pub const DEVICE_VARIABLES: &[&str] = &[
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_VISIBLE_DEVICES",
];

/// Values that mean no device.
pub const NO_DEVICE: &[&str] = &["", "none", "void"];
