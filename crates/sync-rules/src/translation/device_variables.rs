//! Environment variables that the node's container runtime reads. The runtimes of device vendors look into the environment
//! of a container, and put devices, drivers and mounts of the node into it.
//!
//! Containers get devices by resource requests only: such a variable would choose them past the scheduler, and it overrides
//! what a device plugin sets. So none of them may come from a tenant in any way, unless the class gives it by name.
//!
//! | variable | rule |
//! |---|---|
//! | `NVIDIA_…` | denied, unless it is listed below as harmless: the NVIDIA Container Toolkit reads new names with each version |
//! | `NVIDIA_DRIVER_CAPABILITIES`, `NVIDIA_DISABLE_REQUIRE`, `NVIDIA_REQUIRE_…` | harmless: which libraries of the driver come with a device that the container has, and conditions on its version |
//! | `NVIDIA_…_VERSION`, `NVIDIA_BUILD_ID`, `NVIDIA_BUILD_REF`, `NVIDIA_CUDA_END_OF_LIFE`, `NVIDIA_…_NAME` | harmless: NVIDIA's images and charts describe themselves |
//! | `NVIDIA_API_…`, `NVIDIA_NIM_…`, `…_KEY`, `…_URL`, `NVIDIA_TF32_OVERRIDE` and the like | harmless: applications and libraries read them, in the container |
//! | `NVIDIA_…_SERVICE_HOST`, `…_PORT_80_TCP` and the like | harmless: made for Services whose names begin with `nvidia` |
//! | `NVIDIA_GDS`, `NVIDIA_GDRCOPY`, `NVIDIA_MOFED`, `NVIDIA_NVSWITCH`, `NVIDIA_IMEX_CHANNELS` | denied: device files of the node that no resource counts |
//! | `CUDA_VERSION` | denied: without `NVIDIA_VISIBLE_DEVICES` the toolkit takes the container for an old CUDA image, and gives it every GPU |
//! | `…_VISIBLE_DEVICES`, but for those of the next row; `DOCKER_RESOURCE_…`; others of Ascend | denied: runtimes of vendors choose devices by them, and there are more vendors than anybody knows |
//! | `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `ASCEND_RT_VISIBLE_DEVICES`, also after another word | harmless: libraries choose by them among the devices that the container has |
//!
//! | way | rule |
//! |---|---|
//! | `env` | denied, unless the value is a literal that means no device |
//! | `envFrom` without prefix | such keys of ConfigMaps and Secrets stay in the tenant, and keys that end in `VISIBLE_DEVICES`, which a prefix could complete |
//! | `envFrom` with a prefix | denied if another key could complete it to such a name |
//! | variables of Services | left out |
//! | the image | the node's runtime decides; what a device plugin sets beats it |

use berth_api::sync_policy::PodPolicy;

/// Prefix of the variables of which only harmless ones pass.
pub const NVIDIA: &str = "NVIDIA_";
/// Harmless variables that begin with [`NVIDIA`].
pub const HARMLESS_NAMES: &[&str] = &[
    "NVIDIA_BUILD_ID",
    "NVIDIA_BUILD_REF",
    "NVIDIA_CUDA_END_OF_LIFE",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
];
/// Beginnings of harmless variables.
pub const HARMLESS_PREFIXES: &[&str] = &[
    "NVIDIA_API_",
    "NVIDIA_INGEST_",
    "NVIDIA_NGC_",
    "NVIDIA_NIM_",
    "NVIDIA_REQUIRE_",
    "NVIDIA_RIVA_",
    "NVIDIA_TRITON_",
];
/// Ends of harmless variables that begin with [`NVIDIA`].
pub const HARMLESS_SUFFIXES: &[&str] = &[
    "_ADDR",
    "_ENDPOINT",
    "_HOST",
    "_KEY",
    "_MODEL",
    "_NAME",
    "_PORT",
    "_PROTO",
    "_SCTP",
    "_TCP",
    "_TIMEOUT",
    "_TOKEN",
    "_UDP",
    "_URL",
    "_VERSION",
];
/// What harmless variables that begin with [`NVIDIA`] contain: the name of a Service's port follows.
pub const HARMLESS_INFIX: &str = "_SERVICE_PORT_";

/// Variables of which every one is denied that begins so.
pub const DENIED_PREFIX: &str = "DOCKER_RESOURCE_";
/// Variables of which every one is denied that ends so, but for [`HARMLESS_VISIBLE_DEVICES`].
pub const VISIBLE_DEVICES: &str = "_VISIBLE_DEVICES";
/// Harmless variables that end with [`VISIBLE_DEVICES`]: libraries read them, in the container. Others end with an underscore and one of these, as
/// `RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES` does.
pub const HARMLESS_VISIBLE_DEVICES: &[&str] = &[
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
];
/// A key that many prefixes make a variable which ends with [`VISIBLE_DEVICES`].
pub const VISIBLE_DEVICES_KEY: &str = "VISIBLE_DEVICES";
/// Denied variables that do not begin with [`NVIDIA`] or [`DENIED_PREFIX`], or end with [`VISIBLE_DEVICES`].
pub const DENIED_NAMES: &[&str] = &[
    "ASCEND_RUNTIME_MOUNTS",
    "ASCEND_RUNTIME_OPTIONS",
    "ASCEND_VNPU_SPECS",
    CUDA_VERSION,
];
/// The variable of which any value but the empty one chooses devices.
pub const CUDA_VERSION: &str = "CUDA_VERSION";

/// Values that mean no device.
pub const NO_DEVICE: &[&str] = &["", "none", "void"];

/// Whether a container runtime may give devices or drivers of the node for a variable of this name.
pub fn is_device_variable(name: &str) -> bool {
    let is_of_library = |harmless: &&str| {
        let before = name.strip_suffix(harmless);
        before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
    };
    if name.ends_with(VISIBLE_DEVICES) && !HARMLESS_VISIBLE_DEVICES.iter().any(is_of_library) {
        return true;
    }
    if name.starts_with(NVIDIA) {
        let is_harmless = HARMLESS_NAMES.contains(&name)
            || HARMLESS_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || HARMLESS_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || name.contains(HARMLESS_INFIX);
        return !is_harmless;
    }
    name.starts_with(DENIED_PREFIX) || DENIED_NAMES.contains(&name)
}

/// Whether containers of tenants with these rules may not have a variable of this name.
pub fn is_denied(rules: &PodPolicy, name: &str) -> bool {
    is_device_variable(name) && !rules.device_variables.iter().any(|given| given == name)
}

/// Whether a key of a ConfigMap or Secret may not reach pods of tenants with these rules: it is the name of such a variable, or a prefix could
/// make it one. No vendor has a variable that ends with one of [`HARMLESS_VISIBLE_DEVICES`], so that these keys may have any prefix.
pub fn is_denied_key(rules: &PodPolicy, key: &str) -> bool {
    key == VISIBLE_DEVICES_KEY || is_denied(rules, key)
}

/// Whether a literal value of a device variable chooses nothing.
pub fn means_no_device(name: &str, value: &str) -> bool {
    value.is_empty() || (name != CUDA_VERSION && NO_DEVICE.contains(&value))
}

/// What prefixes end with that a key completes to [`VISIBLE_DEVICES`]. The keys that complete shorter ones stay in the tenant, see [`is_denied_key`].
pub fn cut_visible_devices() -> impl Iterator<Item = &'static str> {
    (2..VISIBLE_DEVICES.len()).map(|length| &VISIBLE_DEVICES[..length])
}

/// A device variable that a key with this prefix could become, if there is one.
pub fn completion(prefix: &str) -> Option<&'static str> {
    if prefix.is_empty() {
        // Keys without a prefix are checked one by one.
        return None;
    }
    let is_harmless = HARMLESS_PREFIXES.iter().any(|harmless| prefix.starts_with(harmless));
    if NVIDIA.starts_with(prefix) || (prefix.starts_with(NVIDIA) && !is_harmless) {
        return Some("NVIDIA_VISIBLE_DEVICES")
            .filter(|name| name.starts_with(prefix))
            .or(Some("NVIDIA_…"));
    }
    if DENIED_PREFIX.starts_with(prefix) || prefix.starts_with(DENIED_PREFIX) {
        return Some("DOCKER_RESOURCE_…");
    }
    if cut_visible_devices().any(|cut| prefix.ends_with(cut))
        && !HARMLESS_VISIBLE_DEVICES
            .iter()
            .any(|harmless| harmless.starts_with(prefix))
    {
        return Some("…_VISIBLE_DEVICES");
    }
    DENIED_NAMES.iter().copied().find(|name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the container runtimes of vendors are known to read.
    const READ: &[&str] = &[
        "AMD_VISIBLE_DEVICES",
        "ASCEND_RUNTIME_MOUNTS",
        "ASCEND_VISIBLE_DEVICES",
        "CUDA_VERSION",
        "DOCKER_RESOURCE_GPU",
        "HABANA_VISIBLE_DEVICES",
        "ILUVATAR_COREX_VISIBLE_DEVICES",
        "MTHREADS_VISIBLE_DEVICES",
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_MOFED",
        "NVIDIA_NVSWITCH",
        "NVIDIA_VISIBLE_DEVICES",
    ];

    #[test]
    fn what_runtimes_read_and_what_nobody_knows_is_denied() {
        for name in READ
            .iter()
            .chain(&["NVIDIA_", "NVIDIA_NEW_DEVICES", "NVIDIA_RDMA", "DOCKER_RESOURCE_"])
            .chain(&[
                "NEW_VENDOR_VISIBLE_DEVICES",
                "CHIP_VISIBLE_DEVICES",
                "NVIDIA_NIM_VISIBLE_DEVICES",
            ])
        {
            assert!(is_device_variable(name), "{name}");
        }
    }

    #[test]
    fn variables_of_images_applications_and_services_pass() {
        for name in [
            "NVIDIA_DRIVER_CAPABILITIES",
            "NVIDIA_DISABLE_REQUIRE",
            "NVIDIA_REQUIRE_CUDA",
            "NVIDIA_PRODUCT_NAME",
            "NVIDIA_CUDA_END_OF_LIFE",
            "NVIDIA_BUILD_ID",
            "NVIDIA_PYTORCH_VERSION",
            "NVIDIA_TRITON_SERVER_VERSION",
            "NVIDIA_API_KEY",
            "NVIDIA_API_KEY_2",
            "NVIDIA_BASE_URL",
            "NVIDIA_TF32_OVERRIDE",
            "NVIDIA_NIM_MAX_BATCH",
            // Of a Service nvidia-dcgm-exporter.
            "NVIDIA_DCGM_EXPORTER_SERVICE_HOST",
            "NVIDIA_DCGM_EXPORTER_SERVICE_PORT_GPU_METRICS",
            "NVIDIA_DCGM_EXPORTER_PORT",
            "NVIDIA_DCGM_EXPORTER_PORT_9400_TCP",
            "NVIDIA_DCGM_EXPORTER_PORT_9400_TCP_PROTO",
            "NVIDIA_DCGM_EXPORTER_PORT_9400_TCP_PORT",
            "NVIDIA_DCGM_EXPORTER_PORT_9400_TCP_ADDR",
            // Read in the container.
            "CUDA_VISIBLE_DEVICES",
            "CUDA_HOME",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ASCEND_RT_VISIBLE_DEVICES",
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
            "NCCL_DEBUG",
            "MODE",
        ] {
            assert!(!is_device_variable(name), "{name}");
        }
    }

    #[test]
    fn the_class_gives_variables_by_name() {
        let mut rules = PodPolicy::default();
        assert!(is_denied(&rules, "NVIDIA_GDS") && !is_denied(&rules, "MODE"));
        rules.device_variables = vec!["NVIDIA_GDS".into()];
        assert!(!is_denied(&rules, "NVIDIA_GDS"));
        assert!(is_denied(&rules, "NVIDIA_MOFED") && is_denied(&rules, "NVIDIA_GDS_"));
    }

    #[test]
    fn no_version_of_cuda_is_harmless() {
        for name in ["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"] {
            assert!(NO_DEVICE.iter().all(|value| means_no_device(name, value)));
            assert!(!means_no_device(name, "all") && !means_no_device(name, "0"));
        }
        assert!(means_no_device(CUDA_VERSION, "") && !means_no_device(CUDA_VERSION, "none"));
    }

    #[test]
    fn prefixes_that_a_key_completes_are_denied() {
        for (prefix, name) in [
            ("N", "NVIDIA_VISIBLE_DEVICES"),
            ("NVIDIA_VISIBLE_", "NVIDIA_VISIBLE_DEVICES"),
            ("NVIDIA_M", "NVIDIA_…"),
            ("NVIDIA_API", "NVIDIA_…"),
            ("DOCKER_", "DOCKER_RESOURCE_…"),
            ("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_…"),
            ("AMD_VISIBLE_", "…_VISIBLE_DEVICES"),
            ("NVIDIA_NIM_V", "…_VISIBLE_DEVICES"),
            ("CUDA_", "CUDA_VERSION"),
            ("ASCEND_", "ASCEND_RUNTIME_MOUNTS"),
        ] {
            assert_eq!(completion(prefix), Some(name), "{prefix}");
        }
        // `VISIBLE_DEVICES` is no key of a ConfigMap on the host.
        for prefix in [
            "",
            "APP_",
            "AMD_",
            "NVIDIA_API_",
            "NVIDIA_REQUIRE_X",
            "CUDA_VISIBLE_",
            "NV_",
            "A_VIEW_",
        ] {
            assert_eq!(completion(prefix), None, "{prefix}");
        }
    }

    proptest! {
        /// A prefix that is not denied makes no device variable of a key that pods get.
        #[test]
        fn keys_complete_no_allowed_prefix(
            name in "(NVIDIA_|DOCKER_RESOURCE_|AMD_)[A-Z_]{0,12}", vendor in "[A-Z_]{1,8}_VISIBLE_DEVICES", cut in 0_usize..30
        ) {
            for name in READ.iter().copied().chain([name.as_str(), vendor.as_str()]) {
                let (prefix, key) = name.split_at(cut.min(name.len()));
                // No key is empty, and those of libraries may have any prefix.
                let is_key = !key.is_empty() && !HARMLESS_VISIBLE_DEVICES.contains(&key);
                let reaches_pods = is_key && !is_denied_key(&PodPolicy::default(), key);
                if !prefix.is_empty() && reaches_pods && completion(prefix).is_none() {
                    prop_assert!(!is_device_variable(name), "{prefix} and {name}");
                }
            }
        }
    }
}
