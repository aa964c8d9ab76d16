//! Simulated nodes, shaped like those of a real GPU fleet: the labels of NVIDIA's GPU feature discovery, capacities,
//! racks and NVLink domains.

mod object;
mod shape;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Node, NodeSpec};
use serde::{Deserialize, Serialize};

pub use object::RACK_LABEL;
pub(crate) use object::SIMULATED;
use object::build_node;
pub use shape::NodeShape;

/// Label of nodes that no tenant gets: they run the cluster's own pods. Tenants' nodes are tainted.
pub const SYSTEM_NODE: &str = "node-role.kubernetes.io/system";
/// Each shape has an address range for this many nodes.
const MAX_NODES_PER_SHAPE: u16 = 8192;

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

    /// GPUs by node name, without the nodes that have none.
    pub(crate) fn gpus_by_node(&self) -> BTreeMap<String, u32> {
        let gpus = self
            .shapes_and_numbers()
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
        self.shapes_and_numbers()
            .map(|(shape, number)| shape.node_name(number))
            .collect()
    }

    /// The Node objects to create, for kubelets of `kubernetes_version`.
    pub(crate) fn build_nodes(&self, kubernetes_version: &str) -> Vec<Node> {
        self.shapes_and_numbers()
            .map(|(shape, number)| build_node(shape, number, kubernetes_version))
            .collect()
    }

    /// The Node objects of real nodes with these pod ranges, by name: kubelets find and complete them.
    pub(crate) fn build_real_nodes<'a>(
        &self,
        pod_ranges: impl Iterator<Item = (&'a str, &'a str)>,
        system: &[String],
    ) -> Vec<Node> {
        let ranges: BTreeMap<&str, &str> = pod_ranges.collect();
        self.shapes_and_numbers()
            .map(|(shape, number)| {
                let mut node = build_node(shape, number, "");
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

    fn shapes_and_numbers(&self) -> impl Iterator<Item = (NodeShape, u16)> {
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
                .filter(|count| *count <= MAX_NODES_PER_SHAPE)
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

#[cfg(test)]
mod tests;
