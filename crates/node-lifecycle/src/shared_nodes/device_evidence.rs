//! Evidence that a node has devices. Nodes that several tenants use must have none: a pod that requests no GPU
//! can still reach one through variables in its image. In doubt, a node is taken to have devices.

use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;

/// Prefixes of labels that GPU operators, clouds and autoscalers set on nodes with GPUs. Those of the last two are there from the beginning: a node has them
/// before its device plugin reports any resource.
const LABEL_PREFIXES: [&str; 19] = [
    "nvidia.com/gpu",
    "nvidia.com/mig",
    "nvidia.com/cuda",
    "amd.com/gpu",
    "beta.amd.com/gpu",
    "gpu.intel.com/",
    "intel.feature.node.kubernetes.io/gpu",
    "habana.ai/",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
    // CoreWeave.
    "gpu.nvidia.com/",
    "doks.digitalocean.com/gpu",
    "ibm-cloud.kubernetes.io/gpu",
    "eks.amazonaws.com/instance-gpu",
    "eks.amazonaws.com/instance-accelerator",
    "karpenter.k8s.aws/instance-gpu",
    "karpenter.k8s.aws/instance-accelerator",
    "karpenter.azure.com/sku-gpu",
];
/// Values of such labels on nodes without GPUs.
const NONE: [&str; 4] = ["", "0", "false", "none"];
/// Labels of the PCI devices that Node Feature Discovery has found: `pci-<class>_<vendor>.present`, either part optional.
const PCI: &str = "feature.node.kubernetes.io/pci-";
/// Vendors whose listed devices all count.
const GPU_VENDORS: [&str; 2] = ["10de", "1002"];
/// Vendor whose display controllers alone count.
const INTEL: &str = "8086";
/// PCI classes that are GPUs or accelerators of any vendor: 3D controllers and processing accelerators.
const GPU_CLASSES: [&str; 2] = ["0302", "1200"];
/// PCI classes that are GPUs if their vendor makes GPUs: VGA-compatible and other display controllers.
const DISPLAY_CLASSES: [&str; 2] = ["0300", "0380"];

/// Why the node is taken to have devices; none if it has none. `slices` is how many `ResourceSlices` drivers
/// publish for it.
pub fn find_device_evidence(node: &Node, slices: usize) -> Option<String> {
    let status = node.status.as_ref();
    let reported = [
        status.and_then(|status| status.capacity.as_ref()),
        status.and_then(|status| status.allocatable.as_ref()),
    ];
    // Resources with a domain are those of device plugins, whatever their current amount.
    if let Some(resource) = reported
        .into_iter()
        .flatten()
        .flat_map(|resources| resources.keys())
        .find(|resource| resource.contains('/'))
    {
        return Some(format!("it has the resource {resource}"));
    }
    if slices > 0 {
        return Some("a driver publishes devices of it (ResourceSlice)".into());
    }
    let label = node.labels().iter().find(|(key, value)| {
        let says_no = NONE.contains(&value.as_str());
        !says_no && (LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) || is_gpu_on_pci(key))
    });
    label.map(|(key, value)| format!("it has the label {key}={value}"))
}

fn is_gpu_on_pci(key: &str) -> bool {
    let Some(device) = key.strip_prefix(PCI) else {
        return false;
    };
    let parts: Vec<&str> = device.split('.').next().unwrap_or_default().split('_').collect();
    let any = |known: &[&str]| parts.iter().any(|part| known.contains(part));
    any(&GPU_VENDORS) || any(&GPU_CLASSES) || (any(&DISPLAY_CLASSES) && any(&[INTEL]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: &Value, capacity: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}))
            .unwrap()
    }

    #[test]
    fn an_ordinary_node_has_no_device_evidence() {
        let labels = json!({
            "kubernetes.io/arch": "amd64", "nvidia.com/gpu.present": "false", "nvidia.com/gpu.count": "0",
            // Every server has such a VGA controller for its management; the CPU is from AMD, the network card from Intel.
            "feature.node.kubernetes.io/pci-0300_1a03.present": "true",
            "feature.node.kubernetes.io/pci-0600_1022.present": "true",
            "feature.node.kubernetes.io/pci-0200_8086.present": "true",
            "karpenter.k8s.aws/instance-category": "m", "karpenter.azure.com/sku-gpu-count": "0",
            "ibm-cloud.kubernetes.io/gpu-enabled": "false",
        });
        let capacity =
            json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "1Ti", "hugepages-2Mi": "0"});
        assert_eq!(find_device_evidence(&node(&labels, &capacity), 0), None);
    }

    #[test]
    fn resources_labels_and_slices_are_device_evidence() {
        for resource in [
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.10gb",
            "amd.com/gpu",
            "gpu.intel.com/i915",
            "rdma/hca",
        ] {
            let evidence = find_device_evidence(&node(&json!({}), &json!({"cpu": "8", resource: "0"})), 0).unwrap();
            assert!(evidence.contains(resource), "{evidence}");
        }
        for (key, value) in [
            ("nvidia.com/gpu.present", "true"),
            ("nvidia.com/gpu.product", "H100"),
            ("nvidia.com/mig.capable", "true"),
            ("amd.com/gpu.product-name", "MI300X"),
            ("cloud.google.com/gke-accelerator", "nvidia-l4"),
            ("gpu.nvidia.com/class", "A100_NVLINK_80GB"),
            ("doks.digitalocean.com/gpu-brand", "nvidia"),
            ("ibm-cloud.kubernetes.io/gpu-enabled", "true"),
            ("eks.amazonaws.com/instance-gpu-count", "1"),
            ("eks.amazonaws.com/instance-accelerator-name", "inferentia"),
            ("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia"),
            ("karpenter.k8s.aws/instance-accelerator-count", "2"),
            ("karpenter.azure.com/sku-gpu-name", "A100"),
            ("feature.node.kubernetes.io/pci-10de.present", "true"),
            ("feature.node.kubernetes.io/pci-0302_10de.sriov.capable", "true"),
            ("feature.node.kubernetes.io/pci-0380_8086.present", "true"),
            ("feature.node.kubernetes.io/pci-1200_1da3.present", "true"),
        ] {
            let evidence = find_device_evidence(&node(&json!({key: value}), &json!({})), 0).unwrap();
            assert!(evidence.contains(key), "{evidence}");
        }
        assert!(find_device_evidence(&node(&json!({}), &json!({})), 1).is_some());
    }
}
