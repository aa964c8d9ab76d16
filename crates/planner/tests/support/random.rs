//! Random fleets and workloads.

use super::world::Arrival;
use super::{GPU, gpus};
use berth_planner::{Demand, Fleet, Node, NodeGroup, NodeState, Order, PodSet, Pool, Quota, Reclaim, Tenant};
use proptest::prelude::*;

/// GPUs of each node.
pub const GPUS: u64 = 8;
/// All pools.
pub const POOLS: [&str; 3] = ["h100", "h100-b", "l40s"];

/// What a tenant does with its group.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Rename,
    /// It may have no nodes.
    Empty,
    /// It may have as many as at first.
    Restore,
    Pool(usize),
}

/// Changes of groups: step, tenant, and what changes.
pub fn changes() -> impl Strategy<Value = Vec<(usize, usize, Change)>> {
    let change = prop_oneof![
        2 => Just(Change::Rename),
        2 => Just(Change::Empty),
        3 => Just(Change::Restore),
        1 => (0..POOLS.len()).prop_map(Change::Pool),
    ];
    prop::collection::vec((0..40_usize, 0..4_usize, change), 0..30)
}

/// A pool with a random policy.
pub fn pool() -> impl Strategy<Value = Pool> {
    let reclaim = prop_oneof![
        Just(Reclaim::Never),
        Just(Reclaim::NominalQuota),
        Just(Reclaim::FairShare)
    ];
    let order = prop_oneof![Just(Order::FairShare), Just(Order::Fifo)];
    (any::<bool>(), 0..4_i64, 0..4_i64, 0..4_i64, reclaim, order, 0..10_i64).prop_map(
        |(has_domains, hold, idle, grace, reclaim, order, starvation)| Pool {
            name: "h100".into(),
            gpu_resource_name: Some(GPU.into()),
            product: None,
            has_domains,
            divides_nodes: false,
            least_gpus: 0,
            min_hold_duration: hold * 120,
            idle_timeout: idle * 60,
            reclaim_grace_period: grace * 60,
            order,
            reclaim,
            starvation_limit: Some(starvation * 60),
            scale_up: None,
            repair: None,
        },
    )
}

/// Name of a quota that no fleet has.
pub const MISSING_QUOTA: &str = "missing";

fn quota(number: usize) -> impl Strategy<Value = Quota> {
    let some = |most: u64| prop::option::of((0..=most).prop_map(|nodes| nodes * GPUS));
    let has_parent = prop::bool::weighted(0.9);
    (0..3_u32, some(3), some(3), some(8), has_parent).prop_map(move |(weight, nominal, lending, limit, has_parent)| {
        let of = |amount: Option<u64>| amount.map(|amount| ("h100".to_string(), amount)).into_iter().collect();
        Quota {
            name: format!("quota-{number}"),
            parent: match (has_parent, number) {
                (true, 2) => Some("quota-1".into()),
                (true, _) => None,
                (false, _) => Some(MISSING_QUOTA.into()),
            },
            weight,
            nominal_quota: of(nominal),
            lending_limit: of(lending),
            limit: of(limit.filter(|limit| *limit > 0)),
            ..Quota::default()
        }
    })
}

fn tenant(number: usize) -> impl Strategy<Value = Tenant> {
    (0..4_usize, 0..3_u32, 0..3_u32, 0..9_u32).prop_map(move |(quota, weight, min, more)| Tenant {
        uid: format!("t{number}"),
        name: format!("t{number}"),
        created: i64::try_from(number).unwrap(),
        quota: (quota < 3).then(|| format!("quota-{quota}")),
        weight,
        node_groups: vec![NodeGroup {
            name: "g".into(),
            pool: "h100".into(),
            min_nodes: if number == 0 { min } else { 0 },
            max_nodes: min + more,
            ..NodeGroup::default()
        }],
        ..Tenant::default()
    })
}

/// Up to eleven free nodes, of which the tenth is quarantined, four tenants, and a quota tree.
pub fn fleet() -> impl Strategy<Value = Fleet> {
    let tenants = (tenant(0), tenant(1), tenant(2), tenant(3));
    (pool(), (quota(0), quota(1), quota(2)), tenants, 1..12_usize).prop_map(|(pool, quotas, tenants, nodes)| Fleet {
        now: 100_000,
        pools: vec![pool],
        nodes: (0..nodes)
            .map(|at| Node {
                name: format!("n{at:02}"),
                pool: "h100".into(),
                domain: (at % 7 != 6).then(|| format!("rack-{}", at / 3)),
                capacity: gpus(GPUS),
                state: if at == 9 {
                    NodeState::Unavailable {
                        reason: "quarantined".into(),
                    }
                } else {
                    NodeState::Free
                },
                ..Node::default()
            })
            .collect(),
        tenants: vec![tenants.0, tenants.1, tenants.2, tenants.3],
        quotas: vec![quotas.0, quotas.1, quotas.2],
    })
}

/// A fleet of three pools, two of them of one product, with limits of several pools together.
pub fn fleet_of_pools() -> impl Strategy<Value = Fleet> {
    let limits = || prop::option::of((1..6_u64).prop_map(|nodes| nodes * GPUS));
    let quotas = prop::collection::vec((limits(), limits()), 3);
    (fleet(), prop::collection::vec(0..3_usize, 4), quotas).prop_map(|(mut fleet, pools, limits)| {
        for name in &POOLS[1..] {
            fleet.pools.push(Pool {
                name: (*name).into(),
                ..fleet.pools[0].clone()
            });
        }
        for pool in &mut fleet.pools[..2] {
            pool.product = Some("H100".into());
        }
        for (at, node) in fleet.nodes.iter_mut().enumerate() {
            node.pool = POOLS[at % 3].into();
        }
        for (tenant, pool) in fleet.tenants.iter_mut().zip(pools) {
            tenant.node_groups[0].pool = POOLS[pool].into();
        }
        for (quota, (total, of_product)) in fleet.quotas.iter_mut().zip(limits) {
            quota.total_limit = total;
            quota.product_limit = of_product.map(|limit| ("H100".to_owned(), limit)).into_iter().collect();
        }
        fleet
    })
}

/// Jobs, some of them gangs.
pub fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (
        0..40_usize,
        0..4_usize,
        any::<bool>(),
        1..6_u32,
        0..4_u32,
        0..2_i32,
        1..20_usize,
    );
    prop::collection::vec(arrival, 0..14).prop_map(|arrivals| {
        let numbered = arrivals.into_iter().enumerate();
        numbered
            .map(|(number, (step, tenant, gang, count, size, priority, runs))| Arrival {
                step,
                tenant,
                runs,
                demand: Demand {
                    name: format!("job-{number:02}"),
                    priority,
                    pod_sets: vec![PodSet {
                        count,
                        requests: gpus(1 << size),
                    }],
                    gang,
                    ..Demand::default()
                },
            })
            .collect()
    })
}
