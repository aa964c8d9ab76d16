//! The Node object of a simulated machine.

use super::shape::{Gpu, NodeShape};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Annotation of the nodes that kwok simulates.
pub(crate) const SIMULATED: (&str, &str) = ("kwok.x-k8s.io/node", "fake");
/// Label that names the rack of a node.
pub const RACK_LABEL: &str = "topology.berth.dev/rack";
/// Nodes of one rack; the H100 nodes of a rack share an NVLink domain.
const RACK_SIZE: u16 = 4;

/// The Node object of one simulated machine.
pub(super) fn build_node(shape: NodeShape, number: u16, kubernetes_version: &str) -> Node {
    let name = shape.node_name(number);
    let (machine, ..) = shape.machine();
    let index = number - 1;
    let rack = format!("{}-rack-{:02}", shape.name(), index / RACK_SIZE + 1);
    let zone = if (index / RACK_SIZE).is_multiple_of(2) {
        "zone-a"
    } else {
        "zone-b"
    };
    let mut labels = BTreeMap::from(
        [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("node.kubernetes.io/instance-type", machine),
            ("topology.kubernetes.io/region", "local"),
            ("topology.kubernetes.io/zone", zone),
            (RACK_LABEL, &rack),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    if let Some(gpu) = shape.gpu() {
        labels.extend(gpu_labels(&gpu, machine, &rack));
    }
    let (address, pod_range) = addresses(shape, index);
    let (capacity, allocatable) = resources(shape);
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(BTreeMap::from([(SIMULATED.0.to_owned(), SIMULATED.1.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(pod_range.clone()),
            pod_cidrs: Some(vec![pod_range]),
            provider_id: Some(format!("simulated://{name}")),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(vec![
                NodeAddress {
                    type_: "InternalIP".into(),
                    address,
                },
                NodeAddress {
                    type_: "Hostname".into(),
                    address: name.clone(),
                },
            ]),
            capacity: Some(capacity),
            allocatable: Some(allocatable),
            node_info: Some(system_info(&name, kubernetes_version)),
            ..NodeStatus::default()
        }),
    }
}

/// The node's own address and the range of its pods. No two nodes of any plan share them.
pub(super) fn addresses(shape: NodeShape, index: u16) -> (String, String) {
    let address = format!("10.{}.{}.{}", 64 + shape.block(), index / 250, index % 250 + 1);
    let pod_range = format!("10.{}.{}.0/24", 128 + shape.block() * 32 + index / 256, index % 256);
    (address, pod_range)
}

/// The labels that GPU feature discovery and the GPU operator write.
fn gpu_labels(gpu: &Gpu, machine: &str, rack: &str) -> BTreeMap<String, String> {
    let (count, memory) = (gpu.count.to_string(), gpu.memory_mib.to_string());
    let mig_capable = gpu.mig_capable.to_string();
    let mut labels = BTreeMap::from([
        ("nvidia.com/gpu.present", "true"),
        ("nvidia.com/gpu.product", gpu.product),
        ("nvidia.com/gpu.count", &count),
        ("nvidia.com/gpu.memory", &memory),
        ("nvidia.com/gpu.replicas", "1"),
        ("nvidia.com/gpu.family", gpu.family),
        ("nvidia.com/gpu.machine", machine),
        ("nvidia.com/gpu.mode", "compute"),
        ("nvidia.com/gpu.compute.major", gpu.compute.0),
        ("nvidia.com/gpu.compute.minor", gpu.compute.1),
        ("nvidia.com/gpu.sharing-strategy", "none"),
        ("nvidia.com/mig.capable", &mig_capable),
        ("nvidia.com/mig.strategy", "single"),
        ("nvidia.com/mps.capable", "false"),
        ("nvidia.com/cuda.driver-version.full", "580.95.05"),
    ]);
    if gpu.mig_capable {
        labels.extend([
            ("nvidia.com/mig.config", "all-disabled"),
            ("nvidia.com/mig.config.state", "success"),
        ]);
    }
    let mut labels: BTreeMap<_, _> = labels
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    if gpu.nvlink {
        labels.insert("nvidia.com/gpu.clique".into(), format!("{}.0", uuid(rack)));
    }
    labels
}

/// Capacity, and what is left of it for pods.
fn resources(shape: NodeShape) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
    let (_, cpus, memory_gib, disk_gib) = shape.machine();
    let describe = |cpus: u32, memory_gib: u32, disk_gib: u32| {
        let mut resources = BTreeMap::from([
            ("cpu", cpus.to_string()),
            ("memory", format!("{memory_gib}Gi")),
            ("ephemeral-storage", format!("{disk_gib}Gi")),
            ("pods", "250".to_owned()),
            ("hugepages-1Gi", "0".to_owned()),
            ("hugepages-2Mi", "0".to_owned()),
        ]);
        if let Some(gpu) = shape.gpu() {
            resources.insert("nvidia.com/gpu", gpu.count.to_string());
        }
        resources
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
            .collect()
    };
    // One sixty-fourth is reserved for the system.
    let rest = |amount: u32| amount - amount / 64;
    (
        describe(cpus, memory_gib, disk_gib),
        describe(rest(cpus), rest(memory_gib), rest(disk_gib)),
    )
}

fn system_info(name: &str, kubernetes_version: &str) -> NodeSystemInfo {
    NodeSystemInfo {
        architecture: "amd64".into(),
        boot_id: uuid(&format!("boot {name}")),
        container_runtime_version: "containerd://2.2.9".into(),
        kernel_version: "6.8.0-85-generic".into(),
        kube_proxy_version: String::new(),
        kubelet_version: kubernetes_version.into(),
        machine_id: uuid(&format!("machine {name}")).replace('-', ""),
        operating_system: "linux".into(),
        os_image: "Ubuntu 24.04.3 LTS".into(),
        system_uuid: uuid(&format!("system {name}")),
        ..NodeSystemInfo::default()
    }
}

/// A UUID that is always the same for the same text.
fn uuid(text: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(text));
    format!(
        "{}-{}-{}-{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[12..16],
        &digest[16..20],
        &digest[20..32]
    )
}
