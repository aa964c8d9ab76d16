//! Simulated nodes, shaped like those of a real GPU fleet: the labels of NVIDIA's GPU feature discovery, capacities,
//! racks and NVLink domains.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::real::SYSTEM_NODE;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Annotation by which kwok knows the nodes it plays.
pub(crate) const SIMULATED: (&str, &str) = ("kwok.x-k8s.io/node", "fake");
/// Label that names the rack of a node.
pub const RACK_LABEL: &str = "topology.berth.dev/rack";
/// Nodes of one rack; the H100 nodes of a rack share an NVLink domain.
const RACK_SIZE: u16 = 4;
/// Each shape has its own address ranges, of this many nodes.
const MOST_OF_A_SHAPE: u16 = 8192;

/// A kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeShape {
    /// 8 × NVIDIA H100 80GB HBM3, NVLink, MIG-capable.
    H100,
    /// 4 × NVIDIA L40S.
    L40s,
    /// No GPU.
    Cpu,
}

/// What tells a GPU product apart from others.
struct Gpu {
    product: &'static str,
    count: u32,
    memory_mib: u32,
    family: &'static str,
    compute: (&'static str, &'static str),
    mig_capable: bool,
    nvlink: bool,
}

impl NodeShape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::H100, Self::L40s, Self::Cpu];

    /// How it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::H100 => "h100",
            Self::L40s => "l40s",
            Self::Cpu => "cpu",
        }
    }

    /// The name of the `number`-th node (from 1) of this shape.
    pub fn node_name(self, number: u16) -> String {
        match self {
            Self::Cpu => format!("cpu-{number:02}"),
            Self::H100 | Self::L40s => format!("gpu-{}-{number:02}", self.name()),
        }
    }

    fn gpu(self) -> Option<Gpu> {
        match self {
            Self::H100 => Some(Gpu {
                product: "NVIDIA-H100-80GB-HBM3",
                count: 8,
                memory_mib: 81_559,
                family: "hopper",
                compute: ("9", "0"),
                mig_capable: true,
                nvlink: true,
            }),
            Self::L40s => Some(Gpu {
                product: "NVIDIA-L40S",
                count: 4,
                memory_mib: 46_068,
                family: "ada-lovelace",
                compute: ("8", "9"),
                mig_capable: false,
                nvlink: false,
            }),
            Self::Cpu => None,
        }
    }

    /// Machine type, CPUs, memory in GiB, local disk in GiB.
    fn machine(self) -> (&'static str, u32, u32, u32) {
        match self {
            Self::H100 => ("hgx-h100-8", 224, 2048, 28_000),
            Self::L40s => ("pcie-l40s-4", 128, 1024, 7_000),
            Self::Cpu => ("general-64", 64, 256, 1_800),
        }
    }

    /// Place of this shape in the address plan.
    fn block(self) -> u16 {
        match self {
            Self::H100 => 0,
            Self::L40s => 1,
            Self::Cpu => 2,
        }
    }
}

/// How many nodes of each shape. Written as `h100=4,l40s=2,cpu=1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodePlan {
    counts: BTreeMap<NodeShape, u16>,
}

impl Default for NodePlan {
    /// Four GPU nodes of two products, and one CPU node.
    fn default() -> Self {
        Self {
            counts: BTreeMap::from([(NodeShape::H100, 2), (NodeShape::L40s, 2), (NodeShape::Cpu, 1)]),
        }
    }
}

impl NodePlan {
    /// One node of each shape: as many real nodes as a small machine carries with ease.
    pub fn small() -> Self {
        Self::of(NodeShape::ALL.map(|shape| (shape, 1)))
    }

    /// How many GPUs each node has that has any, by name.
    pub(crate) fn gpus(&self) -> BTreeMap<String, u32> {
        let gpus = self
            .each()
            .filter_map(|(shape, number)| Some((shape.node_name(number), shape.gpu()?.count)));
        gpus.collect()
    }

    /// A plan from counts; a shape that is not named has no nodes.
    pub fn of(counts: impl IntoIterator<Item = (NodeShape, u16)>) -> Self {
        Self {
            counts: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The names of all nodes, in order of shape and number.
    pub fn names(&self) -> Vec<String> {
        self.each().map(|(shape, number)| shape.node_name(number)).collect()
    }

    /// The Node objects to create, for kubelets of `kubernetes_version`.
    pub(crate) fn nodes(&self, kubernetes_version: &str) -> Vec<Node> {
        self.each()
            .map(|(shape, number)| node(shape, number, kubernetes_version))
            .collect()
    }

    /// The Node objects of real nodes with these pod ranges, by name: kubelets find them there, and add what they know.
    pub(crate) fn real_nodes<'a>(
        &self,
        pod_ranges: impl Iterator<Item = (&'a str, &'a str)>,
        system: &[String],
    ) -> Vec<Node> {
        let ranges: BTreeMap<&str, &str> = pod_ranges.collect();
        self.each()
            .map(|(shape, number)| {
                let mut node = node(shape, number, "");
                node.status = None;
                node.metadata.annotations = None;
                if system.contains(&shape.node_name(number)) {
                    let labels = node.metadata.labels.get_or_insert_default();
                    labels.insert(SYSTEM_NODE.into(), String::new());
                }
                let range = ranges.get(shape.node_name(number).as_str()).map(ToString::to_string);
                node.spec = Some(NodeSpec {
                    pod_cidrs: range.clone().map(|range| vec![range]),
                    pod_cidr: range,
                    ..NodeSpec::default()
                });
                node
            })
            .collect()
    }

    fn each(&self) -> impl Iterator<Item = (NodeShape, u16)> {
        self.counts
            .iter()
            .flat_map(|(shape, count)| (1..=*count).map(|number| (*shape, number)))
    }
}

impl fmt::Display for NodePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self
            .counts
            .iter()
            .map(|(shape, count)| format!("{}={count}", shape.name()))
            .collect();
        formatter.write_str(&groups.join(","))
    }
}

/// Why a node plan is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a group of nodes: write <shape>=<count>, with shape h100, l40s or cpu and at most 8192 nodes, as in h100=4,l40s=2,cpu=1"
)]
pub struct NodePlanError(String);

impl FromStr for NodePlan {
    type Err = NodePlanError;

    fn from_str(text: &str) -> Result<Self, NodePlanError> {
        let mut counts = BTreeMap::new();
        for group in text.split(',').filter(|group| !group.is_empty()) {
            let refused = || NodePlanError(group.to_owned());
            let (name, count) = group.split_once('=').ok_or_else(refused)?;
            let shape = NodeShape::ALL
                .into_iter()
                .find(|shape| shape.name() == name.trim())
                .ok_or_else(refused)?;
            let count: u16 = count
                .trim()
                .parse()
                .ok()
                .filter(|count| *count <= MOST_OF_A_SHAPE)
                .ok_or_else(refused)?;
            if counts.insert(shape, count).is_some() {
                return Err(refused());
            }
        }
        Ok(Self::of(counts))
    }
}

impl TryFrom<String> for NodePlan {
    type Error = NodePlanError;

    fn try_from(text: String) -> Result<Self, NodePlanError> {
        text.parse()
    }
}

impl From<NodePlan> for String {
    fn from(plan: NodePlan) -> Self {
        plan.to_string()
    }
}

/// The Node object of one simulated machine.
fn node(shape: NodeShape, number: u16, kubernetes_version: &str) -> Node {
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
fn addresses(shape: NodeShape, index: u16) -> (String, String) {
    let address = format!("10.{}.{}.{}", 64 + shape.block(), index / 250, index % 250 + 1);
    let pod_range = format!("10.{}.{}.0/24", 128 + shape.block() * 32 + index / 256, index % 256);
    (address, pod_range)
}

/// What GPU feature discovery and the GPU operator write.
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
    // A sixty-fourth stays with the system.
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

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
