//! Builds the planner's snapshot of the fleet from the watches.

use super::{NodesContext, gone_tenants};
use crate::{
    controllers::{tenant::Validator, tenant_class::class_of},
    quota_ledger::GpuUse,
    tenant_state::is_created,
};
use berth_api::TenantCluster;
use berth_node_lifecycle::{
    demand::TenantDemand,
    fleet::{SnapshotInput, TenantInput, WithdrawnNodes, build_snapshot},
    platform_pods::NodeUse,
};
use berth_planner::{Fleet, NodeState};
use berth_quota::Projects;
use jiff::Timestamp;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};

/// The fleet as the watches know it.
pub struct ObservedFleet {
    /// What the planner gets.
    pub fleet: Fleet,
    /// The demand of its tenants.
    pub demand: TenantDemand,
    /// When schedules let a tenant have more or less.
    pub next_schedule: Option<Timestamp>,
}

/// The fleet as the watches know it.
pub fn observe_fleet(context: &NodesContext, now: Timestamp) -> ObservedFleet {
    let stores = &context.stores;
    let schedules = context.schedules.observe(stores, now);
    let validator = Validator::new(
        stores,
        context.runtime.as_ref(),
        &context.network_config,
        context.without_class,
    );
    let all_projects = stores.projects.state();
    let projects = Projects::new(all_projects.iter().map(AsRef::as_ref));
    let tenants = stores.tenants.state().into_iter().map(|cluster| {
        let is_valid = validator.accepts(&cluster);
        let accepted = is_valid && has_quota(context, &cluster);
        TenantInput {
            accepted,
            withdrawn: if is_valid {
                WithdrawnNodes::default()
            } else {
                validator.withdrawn_nodes(&cluster, now)
            },
            gone: cluster.meta().deletion_timestamp.is_some()
                && cluster.uid().is_some_and(|uid| context.tenants.workloads_gone(&uid)),
            project: projects
                .of(&cluster.namespace().unwrap_or_default())
                .map(ToOwned::to_owned),
            schedule: cluster.restricted_by_sleep(schedules.state(&cluster)),
            unused: context.tenants.unused_nodes(&cluster),
            class: class_of_nodes(&cluster, accepted, |name| {
                stores.classes.get(&ObjectRef::new(name)).is_some()
            }),
            cluster,
        }
    });
    let platform = |node: &str| {
        let mut used = NodeUse::default();
        for (name, pod) in &stores.usage.of(node) {
            used.add(name, pod);
        }
        used
    };
    let (mut fleet, demand) = build_snapshot(&SnapshotInput {
        now,
        nodes: stores.nodes.state(),
        pools: stores.pools.state(),
        classes: stores.classes.state(),
        organizations: stores.organizations.state(),
        projects: stores.projects.state(),
        tenants: tenants.collect(),
        workloads: stores.workloads.all(),
        platform: &platform,
        devices: &stores.devices,
        idle: &context.idle,
        rejected_nodes: &context.rejected_nodes,
    });
    gone_tenants::add_gone(&mut fleet, context.tenants.in_shared_pause());
    ObservedFleet {
        fleet,
        demand,
        next_schedule: schedules.next_change,
    }
}

/// The class to whose share the nodes of a tenant count. One whose spec is not accepted keeps its nodes, and they keep counting for the class
/// that it runs with.
fn class_of_nodes(cluster: &TenantCluster, accepted: bool, exists: impl Fn(&str) -> bool) -> Option<String> {
    let running = cluster.status.as_ref().and_then(|status| status.class_name.clone());
    running.filter(|_| !accepted).or_else(|| class_of(cluster, exists))
}

/// Whether the quotas let a tenant have nodes.
fn has_quota(context: &NodesContext, cluster: &TenantCluster) -> bool {
    match context.quotas.verdict(&context.stores, cluster, context.clock.now()) {
        Some(verdict) => verdict.may_have_nodes(),
        // Nothing is decided yet: control has just started.
        None => is_running(cluster),
    }
}

/// Whether a tenant was created, or has quota to be.
fn is_running(cluster: &TenantCluster) -> bool {
    let status = cluster.status.as_ref();
    is_created(cluster) || status.is_some_and(|status| status.quota.is_some())
}

/// GPUs of the nodes that tenants have, those included on which their pods may still run, as quotas count them.
pub fn sum_gpus(fleet: &Fleet) -> GpuUse {
    let mut sum = GpuUse::new();
    for node in &fleet.nodes {
        let tenant = match &node.state {
            NodeState::Owned(owner) => &owner.tenant,
            NodeState::Draining { tenant, .. } => tenant,
            NodeState::Free | NodeState::Unavailable { .. } | NodeState::Recycling { .. } => continue,
        };
        let pool = fleet.pools.iter().find(|pool| pool.name == node.pool);
        let gpus = pool.map_or(1, |pool| pool.count_gpus(node));
        let of_tenant = sum.entry(tenant.clone()).or_default();
        *of_tenant.entry(node.pool.clone()).or_default() += gpus;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{TenantClusterSpec, TenantClusterStatus};
    use berth_planner::{Node, Owner, Pool};

    #[test]
    fn a_spec_that_is_not_accepted_takes_no_node_from_the_share_of_its_class() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.spec.class_name = Some("silver".into());
        let class = |cluster: &TenantCluster, accepted| class_of_nodes(cluster, accepted, |_| true);
        assert_eq!(
            class(&cluster, false).as_deref(),
            Some("silver"),
            "it runs with no class"
        );
        cluster.status = Some(TenantClusterStatus {
            class_name: Some("gold".into()),
            ..TenantClusterStatus::default()
        });
        assert_eq!(class(&cluster, false).as_deref(), Some("gold"));
        assert_eq!(class(&cluster, true).as_deref(), Some("silver"));
    }

    #[test]
    fn nodes_that_drain_are_reserved_gpus_of_their_tenant() {
        let tenant = String::from("uid");
        let states = [
            NodeState::Owned(Owner {
                tenant: tenant.clone(),
                ..Owner::default()
            }),
            NodeState::Draining { tenant, since: 0 },
            NodeState::Recycling {
                previous_tenant: "vision".into(),
                since: 0,
            },
        ];
        let nodes = states.map(|state| Node {
            pool: "h100".into(),
            capacity: [("gpu".to_owned(), 8)].into(),
            state,
            ..Node::default()
        });
        let fleet = Fleet {
            pools: vec![Pool {
                name: "h100".into(),
                gpu_resource_name: Some("gpu".into()),
                ..Pool::default()
            }],
            nodes: nodes.into(),
            ..Fleet::default()
        };
        assert_eq!(sum_gpus(&fleet)["uid"]["h100"], 16);
    }
}
