//! The life of a fleet: requests that can be served are served, nodes that are not needed are free, and shares are fair.

use super::support::random::{GPUS, MISSING_QUOTA, arrivals, fleet, pool};
use super::support::world::World;
use super::support::{describe, executor, gpus, read_fleet};
use super::{check_plan, check_scale_up, config, count_held};
use berth_planner::{Demand, Fleet, NodeState, Plan, PodSet, Pool, Reclaim, WaitReason, plan};
use proptest::prelude::*;
use std::fmt::Write;

/// Checks that no node is free that a waiting tenant could use. Only for fleets in which none is kept for others.
fn check_that_no_usable_node_is_free(before: &Fleet, made: &Plan) {
    let mut after = before.clone();
    executor::apply(&mut after, made);
    let free = after.nodes.iter().filter(|node| node.state == NodeState::Free).count();
    for tenant in &after.tenants {
        let group_plan = &made.node_groups[&tenant.uid]["g"];
        let could = group_plan.waiting > 0 && group_plan.held < tenant.node_groups[0].max_nodes;
        assert!(free == 0 || !could, "{free} nodes are free\n{}", describe(made));
    }
}

/// After how many steps a gang of all nodes starts, while tenants bring a job of one node each, one `every` few steps. None: it does not.
fn steps_until_a_gang_starts(order: &str, nodes: u32, every: usize, runs: usize) -> Option<usize> {
    const STEPS: usize = 600;
    let mut text = format!("pool h100 gpus=8 starvation=600 {order}\ntenant gang\ngroup gang/g h100 0..{nodes}\n");
    for other in 0..=STEPS / every {
        writeln!(text, "tenant t{other}\ngroup t{other}/g h100 0..1").unwrap();
    }
    writeln!(text, "node n1..n{nodes} free").unwrap();
    let job = |name: String, count: u32, gang: bool| Demand {
        name,
        pod_sets: vec![PodSet {
            count,
            requests: gpus(GPUS),
        }],
        gang,
        ..Demand::default()
    };
    let mut world = World::new(read_fleet(&text));
    for step in 0..STEPS {
        if step % every == 0 {
            world.add_demand(1 + step / every, job(format!("job-{step}"), 1, false), runs);
        }
        if step == 5 {
            world.add_demand(0, job("all".into(), nodes, true), 1_000_000);
        }
        world.advance(|_| false);
        if step > 5 && world.fleet.tenants[0].node_groups[0].demand.is_empty() {
            return Some(step);
        }
    }
    None
}

/// Two or three jobs run at any time, so that some nodes are always free, and all of them never are.
#[test]
fn a_gang_of_all_nodes_starts_in_the_end_although_others_use_some_all_the_time() {
    for order in ["", "order=fifo"] {
        for (nodes, every, runs) in [(6, 8, 20), (6, 10, 25), (8, 12, 30)] {
            let started = steps_until_a_gang_starts(order, nodes, every, runs);
            assert!(started.is_some(), "{order} {nodes} {every} {runs}");
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Every plan in the life of a fleet is safe, even if some of its actions fail. In the end, every request that can be
    /// served is served, and nodes that no request needs are free.
    #[test]
    fn every_plan_in_the_life_of_a_fleet_is_safe(fleet in fleet(), arrivals in arrivals(), unlucky in 2..9_usize) {
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            let before = world.fleet.clone();
            check_plan(&before, &plan(&before));
            check_scale_up(&before);
            world.advance(|node| (step + node.len() + usize::from(node.as_bytes()[2])).is_multiple_of(unlucky));
        }
        for _ in 0..400 {
            world.advance(|_| false);
        }
        let made = plan(&world.fleet);
        prop_assert!(made.actions.is_empty(), "{}", describe(&made));
        for tenant in &world.fleet.tenants {
            let group_plan = &made.node_groups[&tenant.uid]["g"];
            prop_assert!(World::count_joining_nodes(&world.fleet, &tenant.uid) <= tenant.node_groups[0].min_nodes, "{}", describe(&made));
            // A request still waits only because of a limit, or because others do not lend GPUs or have them as a minimum.
            let limited = group_plan.waits.iter().any(|wait| !matches!(wait.reason, WaitReason::NoFreeNodes(_) | WaitReason::NodesComing(_)));
            let free = world.fleet.nodes.iter().filter(|node| node.state == NodeState::Free).count();
            prop_assert!(group_plan.waiting as usize > free || group_plan.waiting == 0 || limited, "{}", describe(&made));
        }
    }

    /// Where nodes differ in size and many requests are alike, no search is left out that finds something: the planner searches all the same in builds
    /// with debug assertions, and panics then.
    #[test]
    fn no_search_is_left_out_that_finds_something(
        fleet in fleet(), small in prop::collection::vec(any::<bool>(), 11), arrivals in arrivals(), counts in prop::collection::vec(1..9_u32, 4),
    ) {
        let mut fleet = fleet;
        for (node, is_small) in fleet.nodes.iter_mut().zip(small) {
            if is_small {
                node.capacity = gpus(GPUS / 2);
            }
        }
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                for (copy, count) in counts.iter().enumerate() {
                    let mut demand = arrival.demand.clone();
                    demand.name = format!("{}-{copy}", demand.name);
                    demand.gang &= copy == 0;
                    demand.pod_sets[0].count = *count;
                    world.add_demand(arrival.tenant, demand, arrival.runs);
                }
            }
            world.advance(|_| false);
        }
    }

    /// Pods that no node can have change nothing for others, however important they are.
    #[test]
    fn pods_that_no_node_can_have_change_nothing(fleet in fleet(), arrivals in arrivals()) {
        let too_large = Demand {
            name: "too-large".into(),
            priority: 9,
            pod_sets: vec![PodSet { count: 1, requests: gpus(2 * GPUS) }],
            ..Demand::default()
        };
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            let mut more = world.fleet.clone();
            for tenant in &mut more.tenants {
                tenant.node_groups[0].demand.push(too_large.clone());
            }
            prop_assert_eq!(plan(&more).actions, plan(&world.fleet).actions, "step {}", step);
            world.advance(|_| false);
        }
    }

    /// Where there are no gangs, minimums and limits, no node is free while a request waits.
    #[test]
    fn work_is_conserved(fleet in fleet(), arrivals in arrivals()) {
        let mut fleet = fleet;
        for tenant in &mut fleet.tenants {
            tenant.node_groups[0].min_nodes = 0;
        }
        for quota in &mut fleet.quotas {
            quota.limit.clear();
            quota.lending_limit.clear();
            quota.parent = quota.parent.take().filter(|parent| parent != MISSING_QUOTA);
        }
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, Demand { gang: false, ..arrival.demand.clone() }, arrival.runs);
            }
            let before = world.fleet.clone();
            check_that_no_usable_node_is_free(&before, &plan(&before));
            world.advance(|_| false);
        }
    }

    /// Where all tenants request more nodes than there are, no tenant has over one node more than its weight allows.
    #[test]
    fn shares_follow_weights(weights in prop::collection::vec(1..5_u32, 1..6), nodes in 1..40_usize) {
        let mut text = String::from("pool h100 gpus=8\n");
        for (number, weight) in weights.iter().enumerate() {
            writeln!(text, "tenant t{number} weight={weight}\ngroup t{number}/g h100 0..99\ndemand t{number}/g job 99x8").unwrap();
        }
        writeln!(text, "node n1..n{nodes} free").unwrap();
        let made = plan(&read_fleet(&text));
        let has: Vec<u32> = (0..weights.len()).map(|at| made.node_groups[&format!("t{at}")]["g"].held).collect();
        for (a, weight_a) in has.iter().zip(&weights) {
            for (b, weight_b) in has.iter().zip(&weights) {
                prop_assert!(a.saturating_sub(1) * weight_b <= b * weight_a, "{:?} by {:?}", has, weights);
            }
        }
    }

    /// A tenant gets its nominal quota, however much others use, have as a minimum, and however long they would keep it.
    #[test]
    fn nominal_quotas_are_honoured(
        pool in pool(), nodes in 1..10_u64, nominal in 1..10_u64, minimum in 0..10_u32, gang in any::<bool>(),
    ) {
        let nominal = nominal.min(nodes);
        let reclaim = if pool.reclaim == Reclaim::Never { Reclaim::NominalQuota } else { pool.reclaim };
        let mut fleet = read_fleet(&format!("
            pool h100 gpus=8
            quota own nominal={}
            tenant t0
            group t0/g h100 {minimum}..99
            tenant t1 quota=own
            group t1/g h100 0..99
            node n1..n{nodes} free
        ", nominal * GPUS));
        fleet.pools[0] = Pool { reclaim, has_domains: false, ..pool };
        let job = |name: &str, count: u64, gang: bool| Demand {
            name: name.into(),
            pod_sets: vec![PodSet { count: u32::try_from(count).unwrap(), requests: gpus(GPUS) }],
            gang,
            ..Demand::default()
        };
        let mut world = World::new(fleet);
        world.add_demand(0, job("endless", 99, false), 1_000_000);
        for _ in 0..5 {
            world.advance(|_| false);
        }
        world.add_demand(1, job("nominal", nominal, gang), 1_000_000);
        for _ in 0..40 {
            let before = world.fleet.clone();
            check_plan(&before, &plan(&before));
            check_scale_up(&before);
            world.advance(|_| false);
        }
        prop_assert_eq!(u64::from(count_held(&world.fleet, "t1")), nominal);
        prop_assert_eq!(u64::from(count_held(&world.fleet, "t0")), nodes - nominal);
    }
}
