//! The snapshot of the fleet from which the planner decides. It reads no state except [`IdleTracker`] and [`RejectedNodes`].

mod capacity;
mod growth;
mod nodes;
mod planner_nodes;
mod quotas;
mod repairs;
mod tenants;
mod unavailable;

pub use growth::MAX_PLACEHOLDERS;

use crate::{
    demand::{TenantDemand, Workload},
    devices::Devices,
    idle::IdleTracker,
    platform_pods::NodeUse,
    rejections::RejectedNodes,
    repair::repair_policy,
};
use berth_api::{
    HostNodePool, Organization, PoolOrder, PoolReclaim, Project, ScheduleState, TenantClass, TenantCluster,
    names::TenantId,
};
use berth_planner::{Fleet, Order, Pool, Reclaim, Tenant, UnusedNodes};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as HostObject;
use kube_core::ResourceExt;
use nodes::{ObservedNode, devices_by_pool, group_by_pool, observe_nodes};
use planner_nodes::planner_node;
use repairs::Repairs;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};
use tenants::{DemandCollector, count_groups_with_demand, planner_groups};

/// The input of a snapshot.
pub struct SnapshotInput<'a> {
    pub now: Timestamp,
    pub nodes: Vec<Arc<HostObject>>,
    pub pools: Vec<Arc<HostNodePool>>,
    pub classes: Vec<Arc<TenantClass>>,
    pub organizations: Vec<Arc<Organization>>,
    pub projects: Vec<Arc<Project>>,
    pub tenants: Vec<TenantInput>,
    pub workloads: Vec<Arc<Workload>>,
    /// What pods on a node mean that no syncer made.
    pub platform: &'a dyn Fn(&str) -> NodeUse,
    /// Claims of devices, and devices of nodes.
    pub devices: &'a Devices,
    pub idle: &'a IdleTracker,
    pub rejected_nodes: &'a RejectedNodes,
}

/// A tenant, and facts that its object does not show.
pub struct TenantInput {
    pub cluster: Arc<TenantCluster>,
    /// Whether its spec is accepted.
    pub accepted: bool,
    /// Nodes that the platform takes away from it; only if its spec is not accepted.
    pub withdrawn: WithdrawnNodes,
    /// Whether it is being deleted and none of its workloads is left.
    pub gone: bool,
    /// The class that applies to it.
    pub class: Option<String>,
    /// The Project that it belongs to.
    pub project: Option<String>,
    /// What its schedules let it do now.
    pub schedule: ScheduleState,
    /// What is remembered of nodes that it did not use, by pool.
    pub unused: BTreeMap<String, UnusedNodes>,
}

/// Nodes that a tenant has and may not keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WithdrawnNodes {
    /// All of them.
    pub all: bool,
    /// Those of these pools.
    pub pools: BTreeSet<String>,
    /// Those of these node groups.
    pub groups: BTreeSet<String>,
}

impl WithdrawnNodes {
    fn has(&self, group: &str, pool: &str) -> bool {
        let Self { all, pools, groups } = self;
        *all || pools.contains(pool) || groups.contains(group)
    }
}

/// Builds the snapshot; also returns the demand in it.
pub fn build_snapshot(input: &SnapshotInput<'_>) -> (Fleet, TenantDemand) {
    let now = input.now.as_second();
    let resolved = input.devices.resolve(&input.workloads);
    let mut pools: Vec<&HostNodePool> = input.pools.iter().map(Arc::as_ref).collect();
    pools.sort_by_key(|pool| pool.name_any());
    let observed = observe_nodes(input, &pools, &resolved);
    let devices = devices_by_pool(&pools, &observed);

    let mut by_tenant: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved.workloads {
        by_tenant.entry(&workload.tenant).or_default().push(workload);
    }
    let mut host_nodes = group_by_pool(&observed, &pools, &devices);
    growth::add_expected_nodes(&mut host_nodes, &pools, &observed, &devices, now);
    let id_of = |tenant: &TenantInput| {
        let uid = tenant.cluster.uid().unwrap_or_default();
        TenantId::new(&tenant.cluster.name_any(), &uid)
    };
    let workloads_of = |tenant: &TenantInput| {
        let workloads = by_tenant.get(id_of(tenant).slug());
        workloads.map(Vec::as_slice).unwrap_or_default()
    };
    let groups = { input.tenants.iter() }.map(|tenant| count_groups_with_demand(tenant, workloads_of(tenant)));
    let mut collected = DemandCollector::new(groups.sum(), now);
    let mut tenants: Vec<Tenant> = input
        .tenants
        .iter()
        .filter_map(|tenant| {
            let uid = tenant.cluster.uid()?;
            let mut groups = planner_groups(tenant, &uid, &observed);
            if tenant.accepted {
                let workloads = workloads_of(tenant);
                collected.add_demand(tenant, &uid, workloads, &observed, &host_nodes, &mut groups);
            }
            Some(Tenant {
                name: format!(
                    "{}/{}",
                    tenant.cluster.namespace().unwrap_or_default(),
                    tenant.cluster.name_any()
                ),
                created: tenant.cluster.creation_timestamp().map_or(0, |time| time.0.as_second()),
                quota: quotas::quota_of(tenant),
                weight: 1,
                node_groups: groups,
                terminated: tenant.gone,
                unused: tenant.unused.clone(),
                uid,
            })
        })
        .collect();
    tenants.sort_by(|a, b| a.uid.cmp(&b.uid));
    let repairs = Repairs::observe(input, &pools, &observed);
    let nodes = observed
        .iter()
        .map(|node| planner_node(node, input, now, &pools, &devices, &collected, &repairs))
        .collect();
    input
        .idle
        .forget_deleted(observed.iter().map(|node| node.name.as_str()));
    let fleet = Fleet {
        now,
        pools: { pools.into_iter() }
            .map(|one| planner_pool(one, &collected, &observed, input.now))
            .collect(),
        nodes,
        tenants,
        quotas: quotas::build_tree(input),
    };
    let without_turn = { input.tenants.iter() }.filter(|tenant| resolved.is_without_turn(id_of(tenant).slug()));
    collected.needs.without_turn = without_turn.filter_map(|tenant| tenant.cluster.uid()).collect();
    (fleet, collected.needs)
}

fn planner_pool(
    pool: &HostNodePool,
    collected: &DemandCollector,
    observed: &[ObservedNode<'_>],
    now: Timestamp,
) -> Pool {
    let (policy, name) = (&pool.spec.policy, pool.name_any());
    let nodes = observed.iter().filter(|node| node.pool == name).count();
    Pool {
        gpu_resource_name: pool.spec.gpu_resource_name.clone(),
        product: pool.spec.gpu_product.clone(),
        has_domains: pool.spec.topology_key.is_some(),
        divides_nodes: pool.spec.sets_up_sharing() && pool.spec.gpus_per_assigned_node.is_none(),
        least_gpus: pool.spec.gpus_per_assigned_node.map_or(0, u64::from),
        min_hold_duration: policy.min_hold_duration(),
        idle_timeout: policy.idle_timeout(),
        reclaim_grace_period: policy.reclaim_grace_period(),
        order: match policy.order {
            PoolOrder::FairShare => Order::FairShare,
            PoolOrder::Fifo => Order::Fifo,
        },
        reclaim: match policy.reclaim {
            PoolReclaim::Never => Reclaim::Never,
            PoolReclaim::Priority => Reclaim::NominalQuota,
            PoolReclaim::FairShare => Reclaim::FairShare,
        },
        starvation_limit: Some(policy.starvation_limit()),
        scale_up: growth::growth_of(pool, collected.limits.get(&name)),
        repair: repair_policy(pool, nodes, now),
        name,
    }
}

#[cfg(test)]
mod closed_tests;
#[cfg(test)]
mod crowd_tests;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod in_use_tests;
#[cfg(test)]
mod repair_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod unused_tests;
