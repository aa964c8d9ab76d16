//! Minimums are guaranteed within nominal quotas, and borrowed beyond them.

use super::support::random::{GPUS, pool};
use super::support::world::World;
use super::support::{describe, gpus, read_fleet};
use super::{check_plan, config, count_held};
use berth_planner::{Demand, PodSet, Pool, Quota, Reclaim, Tenant, plan};
use proptest::prelude::*;
use std::fmt::Write;

proptest! {
    #![proptest_config(config())]

    /// However large the minimums of others are, none keeps borrowed nodes while a tenant lacks what it is owed: for pods, or for a
    /// minimum. What a nominal quota covers stays. Nor does a minimum keep them that is within a nominal quota and can never be met.
    #[test]
    fn no_minimum_keeps_what_others_are_owed(
        pool in pool(), nodes in 1..10_u64, covered in 0..6_u64, owed in 0..6_u64, minimums in (0..8_u32, 0..8_u32), as_minimum in any::<bool>(),
        is_overcommitted in any::<bool>(),
    ) {
        let mut fleet = read_fleet(&format!("
            pool h100 gpus=8
            quota covered nominal={}
            quota owed nominal={}
            tenant t0 quota=covered
            group t0/g h100 {}..99
            tenant t1 quota=owed
            group t1/g h100 0..99
            tenant t2
            group t2/g h100 {}..99
            node n1..n{nodes} free
        ", covered * GPUS, owed * GPUS, minimums.0, minimums.1));
        if is_overcommitted {
            let nominal_quota = [("h100".to_owned(), nodes * GPUS)].into();
            fleet.quotas.push(Quota { name: "all".into(), nominal_quota, ..Quota::default() });
            let all = Tenant { uid: "t3".into(), name: "t3".into(), created: 3, quota: Some("all".into()), ..fleet.tenants[2].clone() };
            fleet.tenants.push(all);
            fleet.tenants[3].node_groups[0].min_nodes = 0;
        }
        fleet.pools[0] = Pool { reclaim: Reclaim::NominalQuota, has_domains: false, ..pool };
        let job = |name: &str, count: u64| Demand {
            name: name.into(),
            pod_sets: vec![PodSet { count: u32::try_from(count).unwrap(), requests: gpus(GPUS) }],
            ..Demand::default()
        };
        let mut world = World::new(fleet);
        world.add_demand(0, job("endless", 99), 1_000_000);
        world.add_demand(2, job("other", 99), 1_000_000);
        for _ in 0..5 {
            world.advance(|_| false);
        }
        if is_overcommitted && covered > 0 {
            world.fleet.tenants[3].node_groups[0].min_nodes = u32::try_from(nodes).unwrap();
        }
        let expected = owed.min(nodes - covered.min(nodes));
        if as_minimum {
            world.fleet.tenants[1].node_groups[0].min_nodes = u32::try_from(expected).unwrap();
        } else if owed > 0 {
            world.add_demand(1, job("owed", owed), 1_000_000);
        }
        for _ in 0..40 {
            let before = world.fleet.clone();
            check_plan(&before, &plan(&before));
            world.advance(|_| false);
        }
        let text = describe(&plan(&world.fleet));
        prop_assert_eq!(u64::from(count_held(&world.fleet, "t1")), expected, "{}", text);
        prop_assert!(u64::from(count_held(&world.fleet, "t0")) >= covered.min(nodes), "{}", text);
    }

    /// What is borrowed comes last: where there are enough nodes for it, each tenant has its nominal quota's part of its minimum and of its requests, and
    /// the rest of its minimum, whatever others request beyond theirs. No node is left free while a request waits.
    #[test]
    fn minimums_and_nominal_quotas_come_before_what_is_borrowed(
        pool in pool(), spare in 0..6_u32, tenants in prop::collection::vec((0..4_u32, 0..4_u32, 0..8_u32, any::<bool>()), 1..6),
    ) {
        // A minimum is met with nodes for pods as well: the group lacks the greater number of both.
        let guaranteed = |(minimum, nominal, requested, _): &(u32, u32, u32, bool)| (*minimum).max(*minimum.max(requested).min(nominal));
        let nodes = spare + tenants.iter().map(guaranteed).sum::<u32>();
        let mut text = String::from("pool h100 gpus=8\n");
        for (number, (minimum, nominal, requested, is_one_by_one)) in tenants.iter().enumerate() {
            writeln!(text, "quota q{number} nominal={}", u64::from(*nominal) * GPUS).unwrap();
            writeln!(text, "tenant t{number} quota=q{number}\ngroup t{number}/g h100 {minimum}..99").unwrap();
            let pods = if *is_one_by_one { *requested } else { requested * 2 };
            if pods > 0 {
                writeln!(text, "demand t{number}/g job {pods}x{}", if *is_one_by_one { 8 } else { 4 }).unwrap();
            }
        }
        writeln!(text, "node n0..n{nodes} free").unwrap();
        let mut fleet = read_fleet(&text);
        fleet.nodes.truncate(usize::try_from(nodes).unwrap());
        fleet.pools[0] = Pool { has_domains: false, ..pool };
        let made = plan(&fleet);
        check_plan(&fleet, &made);
        let has = |number: usize| made.node_groups[&format!("t{number}")]["g"].held;
        for (number, tenant) in tenants.iter().enumerate() {
            prop_assert!(has(number) >= guaranteed(tenant), "t{number} of {text}{}", describe(&made));
        }
        let wanted: u32 = tenants.iter().map(|(minimum, _, requested, _)| minimum.max(requested)).sum();
        let held: u32 = (0..tenants.len()).map(has).sum();
        prop_assert_eq!(held, wanted.min(nodes), "{}{}", text, describe(&made));
    }
}
