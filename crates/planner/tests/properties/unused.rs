//! Nodes that a tenant gets for pods that never start.

use super::support::random::{GPUS, arrivals, fleet};
use super::support::world::{STUCK, World};
use super::support::{GPU, describe, executor, gpus, read_fleet};
use super::{check_plan, config, tenant_of};
use berth_planner::{
    Action, ActionKind, ActionReason, Demand, Fleet, LEAST_PATIENCE, NodeState, PodSet, Tenant, UnusedNodes,
    WaitingTime, check, plan,
};
use proptest::prelude::*;
use std::fmt::Write;

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

/// Text of a fleet in which pods of tenant a fit on what is left of its nodes, and tenants b and c have demand. `nodes`: GPUs in use, and the priority there. `never`: the
/// priority of each of these pods. `demand`: tenant, pods, the size of each, priority, whether it is a gang.
fn describe_waiting_fleet(
    nodes: &[(u32, i32)],
    never: &[i32],
    demand: &[(usize, u32, u32, i32, bool)],
    is_fair: bool,
) -> String {
    let reclaim = ["", "reclaim=fair-share"][usize::from(is_fair)];
    let mut text = format!("pool h100 gpus=8 idle=300 hold=600 grace=300 {reclaim}\ntenant a\ngroup a/g h100 0..8\n");
    for (at, priority) in never.iter().take(nodes.len()).enumerate() {
        writeln!(text, "demand a/g never-{at} 1x4 since=900 prio={priority}").unwrap();
    }
    for (at, (used, priority)) in nodes.iter().enumerate() {
        writeln!(text, "node n{at} a/g used={used} age=9000 prio={priority}").unwrap();
    }
    writeln!(text, "tenant b\ngroup b/g h100 0..8\ntenant c\ngroup c/g h100 0..8").unwrap();
    for (at, (tenant, count, size, priority, is_gang)) in demand.iter().enumerate() {
        let (tenant, each, kind) = (["b", "c"][*tenant], 1 << size, ["", "gang"][usize::from(*is_gang)]);
        writeln!(
            text,
            "demand {tenant}/g job-{at} {count}x{each} since={} prio={priority} {kind}",
            at * 60
        )
        .unwrap();
    }
    text
}

proptest! {
    #![proptest_config(config())]

    /// Pods that never start are in a pause for most of the time, and others stop no work for them meanwhile. What other tenants use is
    /// never taken for unused.
    #[test]
    fn pods_that_never_start_stop_work_of_others_more_and_more_rarely(
        fleet in fleet(), arrivals in arrivals(), gang in any::<bool>(), count in 1..6_u32, priority in 0..3_i32,
    ) {
        let mut world = World::new(fleet);
        let pod_sets = vec![PodSet { count, requests: gpus(GPUS) }];
        world.add_demand(1, Demand { name: STUCK.into(), priority, gang, pod_sets, ..Demand::default() }, 1);
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
            let is_unused = |action: &&Action| matches!(action.reason, ActionReason::Unused { .. });
            for action in made.actions.iter().filter(is_unused) {
                let node = before.nodes.iter().find(|node| node.name == action.node).unwrap();
                prop_assert_eq!(tenant_of(node), Some("t1"), "{}", describe(&made));
            }
            // Pods of others end before the plan that is carried out: these may need no node any more.
            let done = world.advance(|_| false);
            let begins_pause = done.actions.iter().any(|action| is_unused(&action));
            let is_in_pause = is_paused(&world.fleet, &world.fleet.tenants[1]);
            prop_assert!(!begins_pause || is_in_pause, "a release begins a pause: {}", describe(&done));
        }
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
        let mut fleet = read_fleet(&text);
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
                    && demand.pod_sets[0].requests[GPU] <= node.capacity[GPU]
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

    /// Pods that have counted on what is left of nodes in use for too long keep them from nobody: others reclaim the same as if they were not there.
    #[test]
    fn pods_that_wait_for_too_long_change_nothing_for_others(
        nodes in prop::collection::vec((1..5_u32, 0..3_i32), 1..9),
        never in prop::collection::vec(0..3_i32, 0..9),
        demand in prop::collection::vec((0..2_usize, 1..4_u32, 2..4_u32, 0..3_i32, any::<bool>()), 1..5),
        is_fair in any::<bool>(),
    ) {
        let text = describe_waiting_fleet(&nodes, &never, &demand, is_fair);
        let mut fleet = read_fleet(&text);
        let waiting = WaitingTime { since: Some(fleet.now - LEAST_PATIENCE), until: None };
        fleet.tenants[0].unused.insert("h100".into(), UnusedNodes { waiting, ..UnusedNodes::default() });
        let made = plan(&fleet);
        prop_assert_eq!(check(&fleet, &made), []);
        let mut without = fleet.clone();
        without.tenants[0].node_groups[0].demand.clear();
        let expected = plan(&without);
        prop_assert_eq!(&made.actions, &expected.actions, "{}\n{}\nwithout\n{}", text, describe(&made), describe(&expected));
        executor::apply(&mut fleet, &made);
        let next = plan(&fleet);
        prop_assert_eq!(&next.actions, &[], "{}\n{}\nthen\n{}", text, describe(&made), describe(&next));
    }
}
