//! Limits hold whatever tenants do, over one pool and over several.

use super::support::random::{Change, GPUS, POOLS, arrivals, changes, fleet, fleet_of_pools};
use super::support::world::World;
use super::support::{describe, executor};
use super::{check_plan, config, count_held, tenant_of};
use berth_planner::{Fleet, Quota, Tenant, check, plan};
use proptest::prelude::*;

/// GPUs that the tenants below a quota have.
fn count_quota_gpus(fleet: &Fleet, quota: &Quota) -> u64 {
    count_quota_gpus_in(fleet, quota, &POOLS)
}

/// The same in these pools.
fn count_quota_gpus_in(fleet: &Fleet, quota: &Quota, pools: &[&str]) -> u64 {
    let below = fleet.tenants.iter().filter(|tenant| is_below(tenant, quota));
    let below: Vec<&str> = below.map(|tenant| tenant.uid.as_str()).collect();
    let nodes = fleet.nodes.iter().filter(|node| pools.contains(&node.pool.as_str()));
    let held = nodes.filter(|node| tenant_of(node).is_some_and(|uid| below.contains(&uid)));
    held.count() as u64 * GPUS
}

/// The pools of each limit of a quota, with the limit.
fn list_limits(quota: &Quota) -> Vec<(&'static [&'static str], u64)> {
    let of_pool = POOLS.iter().filter_map(|pool| {
        let limit = quota.limit.get(*pool)?;
        Some((std::slice::from_ref(pool), *limit))
    });
    of_pool.chain(list_shared_limits(quota)).collect()
}

/// The pools of each limit of several pools together, with the limit.
fn list_shared_limits(quota: &Quota) -> Vec<(&'static [&'static str], u64)> {
    let of_product = quota
        .product_limit
        .values()
        .map(|limit| (&["h100", "h100-b"][..], *limit));
    let of_all = quota.total_limit.map(|limit| (&POOLS[..], limit));
    of_product.chain(of_all).collect()
}

fn is_below(tenant: &Tenant, quota: &Quota) -> bool {
    tenant.quota.as_ref() == Some(&quota.name) || quota.name == "quota-1" && tenant.quota.as_deref() == Some("quota-2")
}

proptest! {
    #![proptest_config(config())]

    /// No quota ever gets more GPUs than a limit of several pools together, even if some actions fail. A lowered limit is reached,
    /// and in the end there is nothing left to do.
    #[test]
    fn limits_of_several_pools_hold(
        fleet in fleet_of_pools(), arrivals in arrivals(), unlucky in 2..9_usize,
        when in 2..20_usize, quota in 0..3_usize, lowered in 0..4_u64,
    ) {
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            if step == when {
                world.fleet.quotas[quota].total_limit = Some(lowered * GPUS);
            }
            let before = world.fleet.clone();
            let made = plan(&before);
            let violations = check(&before, &made);
            prop_assert!(violations.is_empty(), "{violations:?}\n{}", describe(&made));
            let mut after = before.clone();
            executor::apply(&mut after, &made);
            for quota in &before.quotas {
                for (pools, limit) in list_shared_limits(quota) {
                    let (was, is) = (count_quota_gpus_in(&before, quota, pools), count_quota_gpus_in(&after, quota, pools));
                    prop_assert!(is <= was.max(limit), "{} has {is} of {limit} GPUs in {pools:?}\n{}", quota.name, describe(&made));
                }
            }
            let mut reversed = before.clone();
            reversed.nodes.reverse();
            reversed.pools.reverse();
            reversed.tenants.reverse();
            reversed.quotas.reverse();
            prop_assert_eq!(&plan(&reversed), &made, "the order of the input matters");
            world.advance(|node| (step + node.len() + usize::from(node.as_bytes()[2])).is_multiple_of(unlucky));
        }
        for _ in 0..400 {
            world.advance(|_| false);
        }
        let made = plan(&world.fleet);
        prop_assert!(made.actions.is_empty(), "{}", describe(&made));
        for quota in &world.fleet.quotas {
            for (pools, limit) in list_shared_limits(quota) {
                let held = count_quota_gpus_in(&world.fleet, quota, pools);
                prop_assert!(held <= limit, "{} has {held} of {limit} GPUs in {pools:?}", quota.name);
            }
        }
    }

    /// No quota has more GPUs than its limits, those of nodes on which pods of its tenants may still run included, whatever tenants
    /// do with their groups.
    #[test]
    fn no_limit_is_exceeded_by_nodes_that_drain(fleet in fleet_of_pools(), arrivals in arrivals(), changes in changes()) {
        let mut world = World::new(fleet);
        let initial: Vec<_> = world.fleet.tenants.iter().map(|tenant| tenant.node_groups[0].clone()).collect();
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            for (_, tenant, change) in changes.iter().filter(|(at, ..)| *at == step) {
                let group = &mut world.fleet.tenants[*tenant].node_groups[0];
                match change {
                    Change::Rename => group.name.push('g'),
                    Change::Empty => (group.min_nodes, group.max_nodes) = (0, 0),
                    Change::Restore => (group.min_nodes, group.max_nodes) = (initial[*tenant].min_nodes, initial[*tenant].max_nodes),
                    Change::Pool(pool) => group.pool = POOLS[*pool].into(),
                }
            }
            let before = world.fleet.clone();
            let made = plan(&before);
            let violations = check(&before, &made);
            prop_assert!(violations.is_empty(), "{violations:?}\n{}", describe(&made));
            world.advance(|_| false);
            for quota in &world.fleet.quotas {
                for (pools, limit) in list_limits(quota) {
                    let held = count_quota_gpus_in(&world.fleet, quota, pools);
                    prop_assert!(held <= limit, "{} has {held} of {limit} GPUs in {pools:?}\n{}", quota.name, describe(&made));
                }
            }
        }
    }

    /// A lowered limit, and a lowered maximum of a group, also apply to nodes that are already assigned.
    #[test]
    fn lowered_limits_are_reached(
        fleet in fleet(), arrivals in arrivals(), when in 2..12_usize,
        quota in 0..3_usize, limit in 0..4_u64, group in 0..4_usize, most in 0..4_u32,
    ) {
        let mut world = World::new(fleet);
        for step in 0..when + 17 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step % 12 == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), 1_000_000);
            }
            if step == when {
                world.fleet.quotas[quota].limit.insert("h100".into(), limit * GPUS);
                let group = &mut world.fleet.tenants[group].node_groups[0];
                group.max_nodes = most.max(group.min_nodes);
            }
            let before = world.fleet.clone();
            check_plan(&before, &plan(&before));
            world.advance(|_| false);
        }
        prop_assert!(count_quota_gpus(&world.fleet, &world.fleet.quotas[quota]) <= limit * GPUS);
        let tenant = &world.fleet.tenants[group];
        prop_assert!(count_held(&world.fleet, &tenant.uid) <= tenant.node_groups[0].max_nodes);
    }
}
