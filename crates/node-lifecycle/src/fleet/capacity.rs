//! What a node offers a tenant.

use super::SnapshotInput;
use crate::{
    Assignment, AssignmentState, demand,
    devices::Resolved,
    pod_requests::{self, Requests},
};
use berth_api::HostNodePoolSpec;
use berth_planner::{Amounts, MAX_NODE_GPUS};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as HostObject;
use kube_core::ResourceExt;

/// Whether a node has GPUs that a resource of its pool counts, or that other resources of the same domain count, as for MIG instances.
/// Devices of claims are none as long as no class says so with this resource: quotas would count the node as one GPU.
pub(super) fn has_gpus(capacity: &Amounts, counted: &str) -> bool {
    { capacity.keys() }.any(|resource| demand::is_of_same_domain(resource, counted))
}

/// Seconds after its assignment within which a node may still report the GPUs that it had before.
const SETTLING: i64 = 120;

/// Whether a node has what it has for a tenant: it has not before it is assigned, nor once it is recycled.
pub(super) fn is_settled(assignment: Option<&Assignment>, now: Timestamp) -> bool {
    assignment.is_some_and(|assignment| match assignment.state {
        AssignmentState::Assigned => assignment.elapsed(now) >= SETTLING,
        state => state.runs_tenant_pods(),
    })
}

/// Raises the GPUs of a node to those that it has once it is assigned, if its pool says so.
pub(super) fn raise_to_assigned(capacity: &mut Amounts, pool: &HostNodePoolSpec) {
    let expected = pool.gpu_resource_name.as_ref().zip(pool.gpus_per_assigned_node);
    if let Some((resource, expected)) = expected {
        let reported = capacity.entry(resource.clone()).or_default();
        *reported = u64::from(expected).max(*reported);
    }
}

/// The capacity that the platform's own pods, which request `used`, leave for a tenant.
pub(super) fn tenant_capacity(
    node: &HostObject,
    used: &Requests,
    input: &SnapshotInput<'_>,
    resolved: &Resolved<'_>,
) -> Amounts {
    let status = node.status.as_ref();
    let mut all = pod_requests::amounts(status.and_then(|status| status.allocatable.as_ref()));
    for (resource, used) in used {
        if let Some(amount) = all.get_mut(resource) {
            *amount -= used;
        }
    }
    let mut capacity = demand::available_amounts(&all);
    for (resource, count) in input.devices.of_node(&node.name_any(), resolved) {
        // The count of a device plugin takes precedence, as for the scheduler.
        capacity.entry(resource).or_insert(count);
    }
    // Quotas add these up.
    for (resource, amount) in &mut capacity {
        if demand::is_device(resource) {
            *amount = (*amount).min(MAX_NODE_GPUS);
        }
    }
    capacity
}
