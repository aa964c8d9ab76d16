//! Names of resources of the host's `ResourceQuota` that a class can limit by name, as Kubernetes has them: requests of pods, storage
//! by class of storage, and devices by class of devices. Tenants use the host's names of both classes.

use std::borrow::Cow;

/// A part of a regular expression: a DNS subdomain.
macro_rules! subdomain {
    () => {
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    };
}

/// Regular expression of the names, without anchors. `requests.storage` is none of them: it has a field of its own.
pub(crate) const PATTERN: &str = concat!(
    r"requests\.(cpu|memory|ephemeral-storage|hugepages-[1-9][0-9]{0,5}(Ki|Mi|Gi))",
    r"|requests\.",
    subdomain!(),
    r"/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    r"|",
    subdomain!(),
    r"\.storageclass\.storage\.k8s\.io/(requests\.storage|persistentvolumeclaims)",
    r"|",
    subdomain!(),
    r"\.deviceclass\.resource\.k8s\.io/devices",
);

/// The regular expression of a field that has nothing but such names.
pub(crate) fn whole_pattern() -> String {
    format!("^({PATTERN})$")
}

/// Most characters of a name: the part before the slash is a DNS subdomain, which has 253.
pub(crate) const MAX_LENGTH: u32 = 253;

/// What follows the name of a `StorageClass` (`storageClassSuffix` in Kubernetes).
const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// What follows the name of a `DeviceClass` (`ResourceClaimsPerClass` in Kubernetes).
const OF_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// Prefix of the extended resource by which a container gets devices of a `DeviceClass` without a claim (`ResourceDeviceClassPrefix` in Kubernetes).
pub const DEVICES_BY_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// What precedes the resources of pods (`DefaultResourceRequestsPrefix` in Kubernetes).
const REQUESTS: &str = "requests.";

/// Whether amounts are bytes.
pub(crate) fn is_in_bytes(name: &str) -> bool {
    matches!(name, "requests.memory" | "requests.ephemeral-storage")
        || name.starts_with("requests.hugepages-")
        || name.ends_with("/requests.storage")
}

/// The name of the devices of a `DeviceClass`.
pub fn device_class_resource(class: &str) -> String {
    format!("{class}{OF_DEVICE_CLASS}")
}

/// What a resource counts, in messages to the tenant; none if no class can limit it by name.
pub fn describe_host_resource(name: &str) -> Option<Cow<'static, str>> {
    if let Some((class, counted)) = name.split_once(OF_STORAGE_CLASS) {
        return match counted {
            "requests.storage" => Some(format!("requested storage of the StorageClass {class}").into()),
            "persistentvolumeclaims" => Some(format!("PersistentVolumeClaims of the StorageClass {class}").into()),
            _ => None,
        };
    }
    if let Some(class) = name.strip_suffix(OF_DEVICE_CLASS) {
        return Some(format!("requested devices of the DeviceClass {class}").into());
    }
    match name.strip_prefix(REQUESTS)? {
        "cpu" => Some("requested CPU".into()),
        "memory" => Some("requested memory".into()),
        "ephemeral-storage" => Some("requested ephemeral storage".into()),
        resource if resource.starts_with("hugepages-") || resource.contains('/') => {
            Some(format!("requested {resource}").into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_a_resource_counts() {
        for (name, counts) in [
            ("requests.cpu", Some("requested CPU")),
            ("requests.memory", Some("requested memory")),
            ("requests.hugepages-2Mi", Some("requested hugepages-2Mi")),
            (
                "requests.nvidia.com/mig-1g.10gb",
                Some("requested nvidia.com/mig-1g.10gb"),
            ),
            (
                "fast.example.storageclass.storage.k8s.io/requests.storage",
                Some("requested storage of the StorageClass fast.example"),
            ),
            (
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims",
                Some("PersistentVolumeClaims of the StorageClass fast"),
            ),
            (
                "gpu.example.com.deviceclass.resource.k8s.io/devices",
                Some("requested devices of the DeviceClass gpu.example.com"),
            ),
            ("requests.gold", None),
            ("limits.cpu", None),
            ("count/pods", None),
        ] {
            assert_eq!(describe_host_resource(name).as_deref(), counts, "{name}");
        }
    }

    #[test]
    fn bytes_are_known_by_their_name() {
        for (name, bytes) in [
            ("requests.memory", true),
            ("requests.ephemeral-storage", true),
            ("requests.hugepages-1Gi", true),
            ("fast.storageclass.storage.k8s.io/requests.storage", true),
            ("fast.storageclass.storage.k8s.io/persistentvolumeclaims", false),
            ("requests.cpu", false),
            ("requests.nvidia.com/gpu", false),
            ("gpu.deviceclass.resource.k8s.io/devices", false),
        ] {
            assert_eq!(is_in_bytes(name), bytes, "{name}");
        }
    }
}
