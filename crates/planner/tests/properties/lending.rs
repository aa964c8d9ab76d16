//! What quotas do not lend is there when they need it, and no work is stopped for demand that may not have the nodes.

use super::support::random::{GPUS, arrivals, fleet, pool};
use super::support::world::World;
use super::support::{describe, gpus, read_fleet};
use super::{config, count_held};
use berth_planner::{ActionReason, Demand, NodeState, PodSet, Pool, plan};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn job(name: &str, count: u64, gang: bool) -> Demand {
    Demand {
        name: name.into(),
        pod_sets: vec![PodSet {
            count: u32::try_from(count).unwrap(),
            requests: gpus(GPUS),
        }],
        gang,
        ..Demand::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// A team takes no nodes that another team of its organization does not lend: they are free when that team needs them.
    #[test]
    fn what_a_team_does_not_lend_is_free_when_it_needs_it(
        pool in pool(), own in 0..4_u64, other in 1..5_u64, lent in 0..5_u64, more in 0..3_u64, minimum in 0..6_u32, sizes in prop::collection::vec((1..4_u64, any::<bool>()), 1..5),
    ) {
        let lent = lent.min(other);
        let nodes = own + other + more;
        let mut fleet = read_fleet(&format!("
            pool h100 gpus=8
            quota org
            quota own parent=org nominal={}
            quota other parent=org nominal={} lending={}
            tenant t0 quota=own
            group t0/g h100 {minimum}..99
            tenant t1 quota=other
            group t1/g h100 0..99
            node n1..n{nodes} free
        ", own * GPUS, other * GPUS, lent * GPUS));
        fleet.pools[0] = Pool { has_domains: false, ..pool };
        let mut world = World::new(fleet);
        for (number, (count, gang)) in sizes.iter().enumerate() {
            world.add_demand(0, job(&format!("job-{number}"), *count, *gang), 1_000_000);
        }
        for _ in 0..20 {
            let made = world.advance(|_| false);
            let held = u64::from(count_held(&world.fleet, "t0"));
            prop_assert!(held <= nodes - (other - lent), "{}", describe(&made));
        }
        world.add_demand(1, job("own", other - lent, false), 1_000_000);
        let made = world.advance(|_| false);
        prop_assert_eq!(u64::from(count_held(&world.fleet, "t1")), other - lent, "{}", describe(&made));
    }

    /// Quotas that lend less than before keep nodes that come back, so nothing is reclaimed for demand of others that would not get them.
    #[test]
    fn nothing_is_reclaimed_that_is_not_lent(fleet in fleet(), arrivals in arrivals(), when in 5..20_usize, lent in prop::collection::vec(0..3_u64, 3)) {
        let mut fleet = fleet;
        for tenant in &mut fleet.tenants {
            tenant.node_groups[0].min_nodes = 0;
        }
        let mut world = World::new(fleet);
        let mut reclaimed: BTreeSet<String> = BTreeSet::new();
        for step in 0..200 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                let mut demand = arrival.demand.clone();
                demand.gang = false;
                world.add_demand(arrival.tenant, demand, 1_000_000);
            }
            if step == when {
                for (quota, lent) in world.fleet.quotas.iter_mut().zip(&lent) {
                    quota.nominal_quota.insert("h100".into(), 3 * GPUS);
                    quota.lending_limit.insert("h100".into(), lent * GPUS);
                }
            }
            let made = world.advance(|_| false);
            let actions = made.actions.iter();
            let of_plan = actions.filter(|action| matches!(action.reason, ActionReason::Reclaimed { .. }));
            if step >= when {
                reclaimed.extend(of_plan.map(|action| action.node.clone()));
            }
        }
        let made = plan(&world.fleet);
        let mut free = world.fleet.nodes.iter().filter(|node| node.state == NodeState::Free);
        let wasted = free.find(|node| reclaimed.contains(&node.name));
        prop_assert!(wasted.is_none(), "{wasted:?}\n{}", describe(&made));
    }
}
