//! What quotas do not lend is there when they need it.

use super::support::random::{GPUS, pool};
use super::support::world::World;
use super::support::{describe, gpus, read_fleet};
use super::{config, count_held};
use berth_planner::{Demand, PodSet, Pool};
use proptest::prelude::*;

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
}
