//! The fleet as the planner wants it, from what the watches know. Pure but for what [`Idle`] and [`Refusals`] remember.

mod growth;
mod nodes;
mod tenants;
mod visible;

pub use visible::is_visible_label;

use super::{
    demand::{Needs, Workload},
    devices::Devices,
    idle::Idle,
    refusals::Refusals,
    requests::Requests,
};
use berth_api::{HostNodePool, PoolOrder, PoolQuota, TenantClass, TenantCluster, names::TenantId};
use berth_planner::{Fleet, Order, Pool, Quota, Tenant};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as HostObject;
use kube::ResourceExt;
use nodes::{host_nodes, look, planned, pools_with_devices};
use std::{collections::HashMap, sync::Arc};
use tenants::{Asked, groups};

/// What the fleet is made of.
pub struct Input<'a> {
    /// The time.
    pub now: Timestamp,
    /// Host nodes.
    pub nodes: Vec<Arc<HostObject>>,
    /// Pools.
    pub pools: Vec<Arc<HostNodePool>>,
    /// Classes.
    pub classes: Vec<Arc<TenantClass>>,
    /// Tenants.
    pub tenants: Vec<TenantInput>,
    /// Their pods.
    pub workloads: Vec<Arc<Workload>>,
    /// What the platform's own pods take of a node.
    pub platform: &'a dyn Fn(&str) -> Requests,
    /// What claims come to, and what devices nodes have for claims.
    pub devices: &'a Devices,
    /// Since when nodes are idle.
    pub idle: &'a Idle,
    /// Nodes that cannot be promised for a while.
    pub refusals: &'a Refusals,
}

/// A tenant, and what is known of it besides its object.
pub struct TenantInput {
    /// The object.
    pub cluster: Arc<TenantCluster>,
    /// Whether its spec can be carried out.
    pub accepted: bool,
    /// Whether it is being deleted and nothing of it runs.
    pub gone: bool,
    /// The class that applies to it.
    pub class: Option<String>,
}

/// Makes the fleet. What stands behind the labels that demand asks for comes with it.
pub fn build(input: &Input<'_>) -> (Fleet, Needs) {
    let now = input.now.as_second();
    let resolved = input.devices.resolve(&input.workloads);
    let mut pools: Vec<&HostNodePool> = input.pools.iter().map(Arc::as_ref).collect();
    pools.sort_by_key(|pool| pool.name_any());
    let seen = look(input, &pools, &resolved);
    let with_devices = pools_with_devices(&pools, &seen);

    let mut by_tenant: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved.workloads {
        by_tenant.entry(&workload.tenant).or_default().push(workload);
    }
    let mut host_nodes = host_nodes(&seen, &pools, &with_devices);
    growth::imagine_nodes(&mut host_nodes, &pools, &seen, &with_devices, now);
    let mut asked = Asked::default();
    let mut tenants: Vec<Tenant> = input
        .tenants
        .iter()
        .filter_map(|tenant| {
            let uid = tenant.cluster.uid()?;
            let slug = TenantId::new(&tenant.cluster.name_any(), &uid).slug().to_owned();
            let mut groups = groups(tenant, &uid, &seen);
            if tenant.accepted {
                let workloads = by_tenant.get(slug.as_str()).map(Vec::as_slice).unwrap_or_default();
                asked.add_demand(tenant, &uid, workloads, &seen, &host_nodes, &mut groups);
            }
            Some(Tenant {
                name: format!(
                    "{}/{}",
                    tenant.cluster.namespace().unwrap_or_default(),
                    tenant.cluster.name_any()
                ),
                created: tenant.cluster.creation_timestamp().map_or(0, |time| time.0.as_second()),
                quota: tenant.class.clone(),
                weight: 1,
                node_groups: groups,
                terminated: tenant.gone,
                uid,
            })
        })
        .collect();
    tenants.sort_by(|a, b| a.uid.cmp(&b.uid));
    let nodes = seen
        .iter()
        .map(|node| planned(node, input, now, &pools, &with_devices, &asked))
        .collect();
    let mut shares: Vec<Quota> = input.classes.iter().map(|class| quota(class)).collect();
    shares.sort_by(|a, b| a.name.cmp(&b.name));
    let fleet = Fleet {
        now,
        pools: pools.into_iter().map(|one| pool(one, &asked)).collect(),
        nodes,
        tenants,
        quotas: shares,
    };
    (fleet, asked.needs)
}

fn pool(pool: &HostNodePool, asked: &Asked) -> Pool {
    let policy = &pool.spec.policy;
    Pool {
        name: pool.name_any(),
        gpu_resource_name: pool.spec.gpu_resource_name.clone(),
        has_domains: pool.spec.topology_key.is_some(),
        min_hold_duration: policy.min_hold_duration(),
        idle_timeout: policy.idle_timeout(),
        reclaim_grace_period: policy.reclaim_grace_period(),
        order: match policy.order {
            PoolOrder::FairShare => Order::FairShare,
            PoolOrder::Fifo => Order::Fifo,
        },
        scale_up: growth::of_pool(pool, asked.limits.get(&pool.name_any())),
        ..Pool::default()
    }
}

fn quota(class: &TenantClass) -> Quota {
    let quotas = || class.spec.quotas.iter();
    let of = |quota: &PoolQuota, amount: u64| (quota.pool_name.clone(), amount);
    Quota {
        name: class.name_any(),
        parent: None,
        weight: class.spec.fair_sharing.weight,
        nominal_quota: quotas().map(|quota| of(quota, quota.nominal_quota)).collect(),
        lending_limit: quotas()
            .filter_map(|quota| Some(of(quota, quota.lending_limit?)))
            .collect(),
        limit: quotas()
            .filter_map(|quota| Some(of(quota, quota.nominal_quota.saturating_add(quota.borrowing_limit?))))
            .collect(),
    }
}
