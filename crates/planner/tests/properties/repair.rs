//! Nodes of pools that repair their nodes: whatever breaks, and whenever it comes back.

use super::support::random::{GPUS, arrivals, fleet};
use super::support::world::World;
use super::support::{describe, executor, read_fleet, repaired};
use super::{check_plan, config, count_held};
use berth_planner::{Fleet, NodeState, RepairPolicy, plan};
use proptest::prelude::*;

/// A node breaks or comes back: step, node, and whether it breaks.
fn failures() -> impl Strategy<Value = Vec<(usize, usize, bool)>> {
    prop::collection::vec((0..40_usize, 0..12_usize, any::<bool>()), 0..30)
}

fn set_ready(fleet: &mut Fleet, node: usize, ready: bool) {
    let now = fleet.now;
    let Some(node) = fleet.nodes.get_mut(node) else { return };
    if ready {
        node.not_ready_since = None;
        // It is scrubbed, if it was taken from its tenant.
        if matches!(&node.state, NodeState::Unavailable { reason } if reason == BROKEN) {
            node.state = NodeState::Free;
        }
    } else {
        node.not_ready_since.get_or_insert(now);
        if node.state == NodeState::Free {
            node.state = NodeState::Unavailable { reason: BROKEN.into() };
        }
    }
    node.unusable = !ready;
}

/// Why a node is unavailable that is not Ready.
const BROKEN: &str = "it is not Ready";

/// A node that is not Ready is not scrubbed: it waits.
fn hold_broken(fleet: &mut Fleet) {
    for node in &mut fleet.nodes {
        if node.not_ready_since.is_some() && matches!(node.state, NodeState::Free | NodeState::Recycling { .. }) {
            node.state = NodeState::Unavailable { reason: BROKEN.into() };
        }
    }
}

/// GPUs of the tenants of a quota, on nodes that drain as well.
fn count_gpus(fleet: &Fleet, quota: &str) -> u64 {
    let tenants = fleet
        .tenants
        .iter()
        .filter(|tenant| tenant.quota.as_deref() == Some(quota));
    tenants
        .map(|tenant| u64::from(count_held(fleet, &tenant.uid)) * GPUS)
        .sum()
}

proptest! {
    #![proptest_config(config())]

    /// Whatever breaks: each plan keeps the rules and leaves nothing to do, takes no node that is Ready or not so for long, takes none while too many are not
    /// Ready, and no quota gets more than its limit.
    #[test]
    fn only_nodes_that_are_not_ready_for_long_are_taken(
        fleet in fleet(), arrivals in arrivals(), failures in failures(), after in 0..6_i64, most in 0..6_u32,
    ) {
        let mut fleet = fleet;
        fleet.pools[0].repair = Some(RepairPolicy { not_ready_after: after * 60, max_unhealthy: most, allowed_since: None });
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            for (_, node, breaks) in failures.iter().filter(|(at, ..)| *at == step) {
                set_ready(&mut world.fleet, *node, !breaks);
            }
            hold_broken(&mut world.fleet);
            let before = world.fleet.clone();
            let made = plan(&before);
            check_plan(&before, &made);
            let not_ready = before.nodes.iter().filter(|node| node.not_ready_since.is_some()).count();
            let taken = repaired(&made);
            prop_assert!(taken.is_empty() || not_ready <= most as usize, "{not_ready} of {most}: {}", describe(&made));
            for node in before.nodes.iter().filter(|node| taken.contains(&node.name.as_str())) {
                let since = node.not_ready_since;
                prop_assert!(since.is_some_and(|since| since + after * 60 <= before.now), "{}", describe(&made));
            }
            let mut after_it = before.clone();
            executor::apply(&mut after_it, &made);
            for quota in before.quotas.iter().filter(|quota| quota.name != "quota-1") {
                let Some(limit) = quota.limit.get("h100") else { continue };
                let (was, is) = (count_gpus(&before, &quota.name), count_gpus(&after_it, &quota.name));
                prop_assert!(is <= was.max(*limit), "{} has {is} of {limit}\n{}", quota.name, describe(&made));
            }
            world.advance(|_| false);
        }
    }

    /// A group loses no node of its minimum without getting another one.
    #[test]
    fn a_minimum_loses_no_node_for_which_it_gets_none(nodes in 1..6_usize, free in 0..4_usize, broken in 0..6_usize, most in 0..6_u32) {
        let mut fleet = read_fleet(&format!("
            pool h100 gpus=8 repair=60:{most}
            tenant a
            group a/g h100 {nodes}..{nodes}
            node n1..n{nodes} a/g used=8 age=3600
            node s0..s{free} free
        "));
        // The last one is too many.
        fleet.nodes.pop();
        let broken = broken.min(nodes);
        for node in fleet.nodes.iter_mut().take(broken) {
            node.not_ready_since = Some(fleet.now - 61);
            node.unusable = true;
        }
        let made = plan(&fleet);
        check_plan(&fleet, &made);
        let expected = if broken <= most as usize { broken.min(free) } else { 0 };
        prop_assert_eq!(repaired(&made).len(), expected, "{}", describe(&made));
        let reserved = made.actions.len() - expected;
        prop_assert_eq!(reserved, expected, "{}", describe(&made));
    }
}
