//! Reads what a tenant's reconcile needs from the host.

use super::{context::TenantContext, node_groups, unused_nodes};
use crate::error::{ReconcileError, api};
use berth_api::{NodeGroup, NodeGroupStatus, ScheduleState, TenantCluster, UnusedNodesStatus};
use berth_node_lifecycle::Assignment;
use k8s_openapi::api::{core::v1::Node, networking::v1::ServiceCIDR};
use kube::{Api, Client, ResourceExt, api::ListParams, runtime::reflector::Store};
use std::sync::Arc;

/// The nodes of a tenant.
pub(super) struct ObservedNodes {
    /// Nodes whose assignment names this tenant, by name.
    pub(super) owned: Vec<Arc<Node>>,
    /// The node groups of the spec, as schedules let them be.
    pub(super) spec: Vec<NodeGroup>,
    /// The status of each node group.
    pub(super) groups: Vec<NodeGroupStatus>,
    /// Nodes that it did not use.
    pub(super) unused: Vec<UnusedNodesStatus>,
}

impl ObservedNodes {
    /// The nodes on which pods of the tenant may run, and which no other tenant uses.
    pub(super) fn running(&self) -> impl Iterator<Item = &Node> {
        let owned = self.owned.iter().map(Arc::as_ref);
        owned.filter(|node| Assignment::read(node).is_some_and(|record| record.state.runs_tenant_pods()))
    }
}

/// The nodes of a tenant and the status of its node groups. Schedules limit what its groups ask for.
pub(super) fn observe_nodes(
    context: &TenantContext,
    cluster: &TenantCluster,
    schedule: ScheduleState,
) -> ObservedNodes {
    let owned = owned_nodes(&context.stores.nodes, cluster);
    let plans = cluster.uid().and_then(|uid| context.tenants.node_group_plans(&uid));
    let spec = node_groups::scheduled(&cluster.spec.node_groups, &owned, schedule);
    let groups = node_groups::statuses(&spec, &owned, plans.as_ref());
    ObservedNodes {
        owned,
        spec,
        groups,
        unused: unused_nodes::statuses(&context.tenants.unused_nodes(cluster)),
    }
}

/// Nodes whose assignment names this tenant.
pub(super) fn owned_nodes(nodes: &Store<Node>, cluster: &TenantCluster) -> Vec<Arc<Node>> {
    let uid = cluster.uid().unwrap_or_default();
    let mut nodes = nodes.state();
    nodes.retain(|node| Assignment::read(node).is_some_and(|record| record.uid == uid));
    nodes.sort_by_key(|node| node.name_any());
    nodes
}

/// Name of the ServiceCIDR with the ranges of an API server's command line.
const DEFAULT_CIDR: &str = "kubernetes";

/// The host's Service ranges, one entry for each of its ServiceCIDRs, the one from its command line first. Each holds
/// one range, or one of each address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostRanges(pub(super) Vec<Vec<String>>);

impl HostRanges {
    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }
}

/// Reads the host's Service ranges.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn read_service_ranges(client: &Client) -> Result<HostRanges, ReconcileError> {
    let cidrs: Api<ServiceCIDR> = Api::all(client.clone());
    let list = cidrs
        .list(&ListParams::default())
        .await
        .map_err(api("list the host's ServiceCIDRs"))?;
    let mut items = list.items;
    items.sort_by_key(|cidr| (cidr.name_any() != DEFAULT_CIDR, cidr.name_any()));
    let ranges = items.into_iter().filter_map(|cidr| cidr.spec?.cidrs);
    Ok(HostRanges(ranges.collect()))
}
