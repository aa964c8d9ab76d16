//! A plan depends on what a fleet has, and not on the order in which it is listed.

use super::config;
use super::support::random::{arrivals, fleet_of_pools};
use super::support::world::World;
use berth_planner::{Demand, Fleet, NodeGroup, plan};
use proptest::prelude::*;

/// Numbers that look random, the same for each seed: a linear congruential generator.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Puts all lists of a fleet in a random order.
fn shuffle(fleet: &Fleet, random: &mut Random) -> Fleet {
    let mut shuffled = fleet.clone();
    shuffle_list(&mut shuffled.nodes, random);
    shuffle_list(&mut shuffled.pools, random);
    shuffle_list(&mut shuffled.quotas, random);
    shuffle_list(&mut shuffled.tenants, random);
    for tenant in &mut shuffled.tenants {
        shuffle_list(&mut tenant.node_groups, random);
        for group in &mut tenant.node_groups {
            shuffle_list(&mut group.demand, random);
            for demand in &mut group.demand {
                shuffle_list(&mut demand.pod_sets, random);
            }
        }
    }
    shuffled
}

fn shuffle_list<T>(list: &mut [T], random: &mut Random) {
    for last in (1..list.len()).rev() {
        list.swap(last, random.below(last + 1));
    }
}

/// Gives each tenant a second group, which is for every other one of its requests.
fn add_groups(fleet: &mut Fleet) {
    for tenant in &mut fleet.tenants {
        let first = &mut tenant.node_groups[0];
        let mut number = 0;
        let others: Vec<Demand> = first
            .demand
            .extract_if(.., |_| {
                number += 1;
                number % 2 == 0
            })
            .collect();
        let second = NodeGroup {
            name: "h".into(),
            demand: others,
            ..first.clone()
        };
        tenant.node_groups.push(second);
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever the order of pools, nodes, quotas, tenants, groups, and of what these request: the plan is the same.
    #[test]
    fn no_order_matters(fleet in fleet_of_pools(), arrivals in arrivals(), minimums in prop::collection::vec(0..4_u32, 4), random in any::<u64>()) {
        let mut random = Random(random);
        let mut fleet = fleet;
        for (tenant, minimum) in fleet.tenants.iter_mut().zip(minimums) {
            let group = &mut tenant.node_groups[0];
            (group.min_nodes, group.max_nodes) = (minimum, group.max_nodes.max(minimum));
        }
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            let mut listed = world.fleet.clone();
            if step % 2 == 0 {
                add_groups(&mut listed);
            }
            prop_assert_eq!(plan(&shuffle(&listed, &mut random)), plan(&listed), "step {}", step);
            world.advance(|_| false);
        }
    }
}
