//! Properties of every plan: random fleets run for a while, and each plan is checked.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use berth_planner::{
    Action, ActionKind, ActionReason, Demand, Fleet, Node, NodeState, Phase, Plan, PodSet, Pool, Quota, Reclaim,
    ScaleUpLimits, Tenant, UnusedNodes, WaitReason, check, plan,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fmt::Write;
use support::random::{Change, GPUS, MISSING_QUOTA, POOLS, arrivals, changes, fleet, fleet_of_pools, pool};
use support::world::{STUCK, World};
use support::{describe, executor, gpus};

/// The tenant that has a node, or whose pods may still run there.
fn tenant_of(node: &Node) -> Option<&str> {
    match &node.state {
        NodeState::Owned(owner) => Some(&owner.tenant),
        NodeState::Draining { tenant, .. } => Some(tenant),
        NodeState::Free | NodeState::Unavailable { .. } | NodeState::Recycling { .. } => None,
    }
}

/// Nodes that a tenant has: reserved, serving, cordoned, being drained.
fn count_held(fleet: &Fleet, uid: &str) -> u32 {
    let held = fleet.nodes.iter().filter(|node| tenant_of(node) == Some(uid));
    u32::try_from(held.count()).unwrap()
}

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

/// Checks a plan, and that there is nothing left to do after it.
fn check_plan(before: &Fleet, made: &Plan) {
    let violations = check(before, made);
    assert!(violations.is_empty(), "{violations:?}\n{}", describe(made));

    let mut after = before.clone();
    executor::apply(&mut after, made);
    // Nothing is left to do after a plan. Where nodes are reclaimed for fairness or were left unused, or reservations are incomplete, a
    // plan can change which request is next; this settles after a few plans.
    let is_reserved = |node: &Node| {
        let owner = node.owner();
        owner.is_some_and(|owner| matches!(owner.phase, Phase::Reserved { .. }))
    };
    let left_unused = |action: &Action| {
        matches!(
            action.reason,
            ActionReason::Unused { .. } | ActionReason::NeverUsed { .. }
        )
    };
    let strict = before.pools[0].reclaim != Reclaim::FairShare
        && !before.nodes.iter().any(is_reserved)
        && !made.actions.iter().any(left_unused);
    let (mut settled, mut again) = (after.clone(), plan(&after));
    for _ in 0..if strict { 0 } else { 8 } {
        executor::apply(&mut settled, &again);
        again = plan(&settled);
    }
    assert!(
        again.actions.is_empty(),
        "{}is followed by\n{}",
        describe(made),
        describe(&again)
    );

    let mut reversed = before.clone();
    reversed.nodes.reverse();
    reversed.tenants.reverse();
    reversed.quotas.reverse();
    assert_eq!(&plan(&reversed), made, "the order of the input matters");
}

/// Whether a tenant is served last for a while, because it left nodes unused.
fn is_paused(fleet: &Fleet, tenant: &Tenant) -> bool {
    let untils = tenant.unused.values().filter_map(UnusedNodes::paused_until);
    untils.max().is_some_and(|until| fleet.now < until)
}

/// Text of a fleet in which tenant a keeps idle nodes for pods that do not start, and tenants b, c and d have demand. `minimum`: of the group
/// of a, as far as it has nodes. `nodes`: whose, how many GPUs, its zone. `demand`: tenant, pods, GPUs of each, zone, whether it is a gang, and one in a single domain.
fn describe_kept_fleet(
    minimum: usize,
    nodes: &[(usize, bool, bool)],
    demand: &[RandomDemand],
    starvation: u32,
) -> String {
    let mut text = format!("pool h100 gpus=8 domains idle=300 hold=600 reclaim=never starvation={starvation}\n");
    let kept = nodes.iter().filter(|(holder, ..)| *holder < 2).count();
    writeln!(
        text,
        "tenant a\ngroup a/g h100 {}..{kept}\ndemand a/g stuck 99x4 since=3600",
        minimum.min(kept)
    )
    .unwrap();
    for other in ["b", "c", "d"] {
        writeln!(text, "tenant {other}\ngroup {other}/g h100 0..99").unwrap();
    }
    for (at, (tenant, count, size, zone, gang, single_domain)) in demand.iter().enumerate() {
        let tenant = ["b", "c", "d"][*tenant];
        let zone = zone.map_or("", |is_first| if is_first { "zone=x" } else { "zone=y" });
        let kind = ["", "gang"][usize::from(*gang)];
        let topology = ["", "single-domain"][usize::from(*single_domain)];
        let each = 1 << size;
        writeln!(
            text,
            "demand {tenant}/g job-{at} {count}x{each} since={} {zone} {kind} {topology}",
            at * 60
        )
        .unwrap();
    }
    for (at, (holder, is_small, is_first)) in nodes.iter().enumerate() {
        let (gpus, zone) = if *is_small {
            (4, "zone=x")
        } else {
            (8, if *is_first { "zone=x" } else { "zone=y" })
        };
        let state = match holder {
            0 | 1 => "a/g idle=3600 age=3600".to_owned(),
            2 => "free".to_owned(),
            _ => format!("d/g used={gpus} age=3600"),
        };
        writeln!(text, "node n{at} rack=r{} gpus={gpus} {zone} {state}", at / 3).unwrap();
    }
    text
}

/// Tenant, pods, the size of each, zone, whether it is a gang, whether it needs one domain.
type RandomDemand = (usize, u32, u32, Option<bool>, bool, bool);

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

/// Checks that autoscaling does not change the actions on existing nodes, and that no more nodes are requested than allowed.
fn check_scale_up(fleet: &Fleet) {
    let mut growing = fleet.clone();
    let there = u32::try_from(fleet.nodes.len()).unwrap();
    for pool in &mut growing.pools {
        pool.scale_up = Some(ScaleUpLimits {
            max_nodes: Some(there + 3),
            max_pods: Some(40),
            node_capacity: None,
        });
    }
    let (made, grown) = (plan(fleet), plan(&growing));
    assert_eq!(made.actions, grown.actions);
    for ask in grown.scale_ups.values() {
        assert!(ask.nodes <= 3 && ask.count_pods() <= 40, "{}", describe(&grown));
        assert!(
            ask.shortages
                .iter()
                .all(|one| one.pod_sets.iter().all(|pods| pods.count > 0)),
            "{}",
            describe(&grown)
        );
    }
    assert!(made.scale_ups.is_empty());
}

/// Tests the same fleets each time, so that a change does not fail because of older errors.
/// `PROPTEST_CASES=20000 cargo test --release -p berth-planner --test properties` tests others.
fn config() -> ProptestConfig {
    let default = ProptestConfig {
        max_shrink_iters: 4000,
        ..ProptestConfig::default()
    };
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default,
        None => ProptestConfig {
            cases: 150,
            rng_seed: RngSeed::Fixed(11),
            ..default
        },
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

    /// Pods that never start are in a pause for most of the time, and others stop no work for them meanwhile. What other tenants use is
    /// never taken for unused.
    #[test]
    fn pods_that_never_start_stop_work_of_others_more_and_more_rarely(
        fleet in fleet(), arrivals in arrivals(), gang in any::<bool>(), count in 1..6_u32, priority in 0..3_i32,
    ) {
        let mut world = World::new(fleet);
        let pod_sets = vec![PodSet { count, requests: gpus(GPUS) }];
        world.add_demand(1, Demand { name: STUCK.into(), priority, gang, pod_sets, ..Demand::default() }, 1);
        let (mut released, mut paused) = (false, 0);
        for step in 0..300 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step && arrival.tenant != 1) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            let before = world.fleet.clone();
            let made = plan(&before);
            check_plan(&before, &made);
            let is_for_stuck = |action: &Action| {
                matches!(&action.reason, ActionReason::Reclaimed { request, .. } if request.name == STUCK)
            };
            let reclaims = made.actions.iter().any(is_for_stuck);
            let is_in_pause = is_paused(&before, &before.tenants[1]);
            prop_assert!(!(reclaims && is_in_pause), "{}", describe(&made));
            for action in made.actions.iter().filter(|action| matches!(action.reason, ActionReason::Unused { .. })) {
                let node = before.nodes.iter().find(|node| node.name == action.node).unwrap();
                prop_assert_eq!(tenant_of(node), Some("t1"), "{}", describe(&made));
                released |= step < 299;
            }
            paused += u32::from(is_in_pause);
            world.advance(|_| false);
        }
        prop_assert!(!released || paused > 0, "a release begins a pause");
    }

    /// A node that pods keep without using it is released only if a request of another tenant fits there, and another tenant gets one of the
    /// released nodes as soon as they are free.
    #[test]
    fn nodes_are_taken_from_pods_that_never_start_only_for_others_that_get_them(
        nodes in prop::collection::vec((0..4_usize, any::<bool>(), any::<bool>()), 1..12),
        demand in prop::collection::vec(
            (0..3_usize, 1..5_u32, 0..4_u32, prop::option::of(any::<bool>()), any::<bool>(), any::<bool>()), 1..6,
        ),
        is_starved in any::<bool>(),
        minimum in 0..4_usize,
    ) {
        let text = describe_kept_fleet(minimum, &nodes, &demand, if is_starved { 30 } else { 99_999 });
        let mut fleet = support::read_fleet(&text);
        let kept = UnusedNodes { kept_since: Some(fleet.now - 900), ..UnusedNodes::default() };
        fleet.tenants[0].unused.insert("h100".into(), kept);
        let made = plan(&fleet);
        prop_assert_eq!(check(&fleet, &made), []);
        let unused = made.actions.iter().filter(|action| matches!(action.reason, ActionReason::Unused { .. }));
        let released: Vec<&str> = unused.map(|action| action.node.as_str()).collect();
        let of_a = fleet.nodes.iter().filter(|node| tenant_of(node) == Some("a"));
        let staying = of_a.clone().filter(|node| made.actions.iter().all(|action| action.node != node.name)).count();
        prop_assert!(staying >= minimum.min(of_a.count()), "{text}\n{}", describe(&made));
        let others: Vec<&Demand> = fleet.tenants[1..].iter().flat_map(|tenant| &tenant.node_groups[0].demand).collect();
        for node in fleet.nodes.iter().filter(|node| released.contains(&node.name.as_str())) {
            prop_assert_eq!(tenant_of(node), Some("a"));
            let fits = |demand: &&Demand| {
                demand.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
                    && demand.pod_sets[0].requests[support::GPU] <= node.capacity[support::GPU]
            };
            prop_assert!(others.iter().any(fits), "{text}\n{}", describe(&made));
        }
        let mut after = fleet.clone();
        executor::apply(&mut after, &made);
        for node in after.nodes.iter_mut().filter(|node| released.contains(&node.name.as_str())) {
            (node.state, node.idle_since) = (NodeState::Free, None);
        }
        let next = plan(&after);
        let is_for_other = |action: &Action| {
            let is_other = matches!(&action.kind, ActionKind::Reserve { tenant, .. } if tenant != "a");
            is_other && released.contains(&action.node.as_str())
        };
        prop_assert!(released.is_empty() || next.actions.iter().any(is_for_other), "{text}\n{}\nthen\n{}", describe(&made), describe(&next));
    }

    /// Where all tenants request more nodes than there are, no tenant has over one node more than its weight allows.
    #[test]
    fn shares_follow_weights(weights in prop::collection::vec(1..5_u32, 1..6), nodes in 1..40_usize) {
        let mut text = String::from("pool h100 gpus=8\n");
        for (number, weight) in weights.iter().enumerate() {
            writeln!(text, "tenant t{number} weight={weight}\ngroup t{number}/g h100 0..99\ndemand t{number}/g job 99x8").unwrap();
        }
        writeln!(text, "node n1..n{nodes} free").unwrap();
        let made = plan(&support::read_fleet(&text));
        let has: Vec<u32> = (0..weights.len()).map(|at| made.node_groups[&format!("t{at}")]["g"].held).collect();
        for (a, weight_a) in has.iter().zip(&weights) {
            for (b, weight_b) in has.iter().zip(&weights) {
                prop_assert!(a.saturating_sub(1) * weight_b <= b * weight_a, "{:?} by {:?}", has, weights);
            }
        }
    }

    /// A tenant gets its nominal quota, however much others use and however long they would keep it.
    #[test]
    fn nominal_quotas_are_honoured(pool in pool(), nodes in 1..10_u64, nominal in 1..10_u64, gang in any::<bool>()) {
        let nominal = nominal.min(nodes);
        let reclaim = if pool.reclaim == Reclaim::Never { Reclaim::NominalQuota } else { pool.reclaim };
        let mut fleet = support::read_fleet(&format!("
            pool h100 gpus=8
            quota own nominal={}
            tenant t0
            group t0/g h100 0..99
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
