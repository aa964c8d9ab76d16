//! Builds the planner's snapshot of the fleet from the watches.

use super::NodesContext;
use crate::controllers::{tenant::Validator, tenant_class::class_of};
use berth_node_lifecycle::{
    demand::TenantDemand,
    fleet::{SnapshotInput, TenantInput, WithdrawnNodes, build_snapshot},
    pod_requests,
};
use berth_planner::Fleet;
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
    let tenants = stores.tenants.state().into_iter().map(|cluster| {
        let accepted = validator.accepts(&cluster);
        TenantInput {
            accepted,
            withdrawn: if accepted {
                WithdrawnNodes::default()
            } else {
                validator.withdrawn_nodes(&cluster, now)
            },
            gone: cluster.meta().deletion_timestamp.is_some()
                && cluster.uid().is_some_and(|uid| context.tenants.workloads_gone(&uid)),
            schedule: schedules.state(&cluster),
            class: class_of(&cluster, |name| stores.classes.get(&ObjectRef::new(name)).is_some()),
            cluster,
        }
    });
    let platform = |node: &str| {
        let mut used = pod_requests::Requests::new();
        for of_pod in stores.usage.of(node).values() {
            pod_requests::add(&mut used, of_pod);
        }
        used
    };
    let (fleet, demand) = build_snapshot(&SnapshotInput {
        now,
        nodes: stores.nodes.state(),
        pools: stores.pools.state(),
        classes: stores.classes.state(),
        tenants: tenants.collect(),
        workloads: stores.workloads.all(),
        platform: &platform,
        devices: &stores.devices,
        idle: &context.idle,
        rejected_nodes: &context.rejected_nodes,
    });
    ObservedFleet {
        fleet,
        demand,
        next_schedule: schedules.next_change,
    }
}
