//! Labels of a host node that its tenant sees.

use berth_api::labels;

/// Whether a label of a host node is visible to its tenant: labels of hardware and topology, and Berth's pool and node group.
pub fn is_visible_label(key: &str, topology_key: Option<&str>) -> bool {
    const KEYS: [&str; 8] = [
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        labels::POOL,
        labels::SHARED_POOL,
    ];
    const PREFIXES: [&str; 5] = [
        "nvidia.com/",
        "amd.com/",
        "gpu.intel.com/",
        "feature.node.kubernetes.io/",
        labels::TOPOLOGY,
    ];
    KEYS.contains(&key)
        || key == labels::NODE_GROUP
        || topology_key == Some(key)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}
