//! The lifecycle of a host node as pure rules: which tenant has it, its next state, the nodes that tenants need, and the snapshot
//! of the fleet from which the [planner](berth_planner) decides.
//!
//! | module | contents |
//! |---|---|
//! | [`assignment`] | which tenant has a node, as recorded on the Node object |
//! | [`node`] | other facts that a Node object shows: whether it is ready, what autoscalers do with it |
//! | [`transitions`] | the next state of a node between two tenants |
//! | [`demand`] | the demand of tenants' pods for nodes |
//! | [`devices`] | the same for claims of devices (dynamic resource allocation) |
//! | [`nvidia_labels`] | the labels by which NVIDIA's device plugin and MIG manager choose their configuration |
//! | [`platform_pods`] | the platform's own pods on nodes, and those that keep a node from being assigned |
//! | [`evicted_pods`] | pods that have to end before a tenant gets their node |
//! | [`repair`] | nodes that are not Ready for too long |
//! | [`fleet`] | all of it as the planner's input |
//! | [`own_nodes`] | the nodes of tenants, with the pods that each tenant runs on its own |
//! | [`idle_nodes`] | GPUs of these nodes that no pod requests |
//! | [`shared_nodes`] | which nodes several tenants may use at the same time |
//!
//! Nothing here talks to an API server: the controllers in `berth-control` observe and apply.

#![allow(missing_docs, reason = "a comment that repeats the name is noise")]

pub mod assignment;
mod by_node;
pub mod demand;
pub mod devices;
pub mod evicted_pods;
pub mod fleet;
pub mod idle;
pub mod idle_nodes;
pub mod node;
mod node_index;
pub mod nvidia_labels;
pub mod own_nodes;
pub mod platform_pods;
pub mod pod_phase;
pub mod pod_requests;
mod pools;
pub mod recorded_gpus;
pub mod rejections;
pub mod repair;
pub mod shared_nodes;
pub mod transitions;
mod visible_labels;

pub use assignment::{Assignment, AssignmentState};
pub use node::is_assignable;
pub use node_index::NodeIndex;
pub use pools::PoolSelectors;
pub use visible_labels::is_visible_label;
