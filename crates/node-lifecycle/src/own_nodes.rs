//! The nodes of tenants, with the pods that each tenant runs on its own.

use crate::{
    Assignment,
    demand::{SchedulingState, Workload},
    devices::Resolved,
};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use std::{collections::HashMap, sync::Arc};

/// A node on which pods of its tenant may run, also while it is drained.
pub struct OwnNode<'a> {
    pub object: &'a Node,
    pub assignment: Assignment,
    /// The pods of its tenant that run there. Those of others are not its tenant's.
    pub pods: Vec<&'a Workload>,
}

/// The nodes of all tenants, in the order of `nodes`.
pub fn list_own_nodes<'a>(nodes: &'a [Arc<Node>], resolved: &'a Resolved<'_>) -> Vec<OwnNode<'a>> {
    let mut on: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved.workloads {
        if let SchedulingState::Bound(node) = &workload.scheduling {
            on.entry(node).or_default().push(workload);
        }
    }
    let own = nodes.iter().filter_map(|object| {
        let assignment = Assignment::read(object)?;
        if !assignment.state.runs_tenant_pods() || assignment.uid.is_empty() {
            return None;
        }
        let mut pods = on.remove(object.name_any().as_str()).unwrap_or_default();
        pods.retain(|pod| pod.tenant == assignment.slug);
        Some(OwnNode {
            object,
            assignment,
            pods,
        })
    });
    own.collect()
}
