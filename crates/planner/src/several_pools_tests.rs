//! Limits of several pools together: they hold over all pools of a plan.

use crate::*;
use std::collections::BTreeMap;

const GPU: &str = "nvidia.com/gpu";
/// GPUs of a node.
const EACH: u64 = 8;

/// Three pools with GPUs, two of them of one product, and one without GPUs. Each has four free nodes, and one tenant has a group in
/// each with these minimums.
fn fleet(minimums: [u32; 4]) -> Fleet {
    let pools = [
        ("a", Some("H100"), true),
        ("b", Some("H100"), true),
        ("c", Some("L40S"), true),
        ("d", None, false),
    ];
    let group = |(pool, min_nodes): (&str, u32)| NodeGroup {
        name: pool.into(),
        pool: pool.into(),
        min_nodes,
        max_nodes: 4,
        ..NodeGroup::default()
    };
    let names = pools.map(|(name, ..)| name);
    let node = |pool: &str, number: u32| Node {
        name: format!("{pool}{number}"),
        pool: pool.into(),
        capacity: [(GPU.to_owned(), EACH)].into(),
        ..Node::default()
    };
    Fleet {
        now: 1000,
        pools: pools
            .map(|(name, product, has_gpus)| Pool {
                name: name.into(),
                gpu_resource_name: has_gpus.then(|| GPU.into()),
                product: product.map(Into::into),
                idle_timeout: 100_000,
                ..Pool::default()
            })
            .into(),
        nodes: names
            .into_iter()
            .flat_map(|pool| (0..4).map(move |number| node(pool, number)))
            .collect(),
        tenants: vec![Tenant {
            uid: "t".into(),
            name: "team/t".into(),
            quota: Some("q".into()),
            node_groups: names.into_iter().zip(minimums).map(group).collect(),
            ..Tenant::default()
        }],
        quotas: vec![Quota {
            name: "q".into(),
            ..Quota::default()
        }],
    }
}

/// Assigns the first nodes of a pool to the tenant.
fn assign(fleet: &mut Fleet, pool: &str, count: usize) {
    for node in fleet.nodes.iter_mut().filter(|node| node.pool == pool).take(count) {
        node.state = NodeState::Owned(Owner {
            tenant: "t".into(),
            node_group: pool.into(),
            since: 0,
            phase: Phase::Assigned,
        });
    }
}

/// Plans, and checks the plan. Returns how many nodes of each pool are reserved and released.
fn count_actions(fleet: &Fleet) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let made = plan(fleet);
    assert_eq!(check(fleet, &made), []);
    let (mut reserved, mut released) = (BTreeMap::new(), BTreeMap::new());
    for action in &made.actions {
        let counts = match action.kind {
            ActionKind::Reserve { .. } => &mut reserved,
            _ => &mut released,
        };
        *counts.entry(action.node[..1].to_owned()).or_default() += 1;
    }
    (reserved, released)
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(pool, count)| ((*pool).to_owned(), *count)).collect()
}

#[test]
fn a_limit_of_all_pools_holds_for_minimums_of_every_pool_with_gpus() {
    let mut fleet = fleet([2, 1, 1, 2]);
    assert_eq!(
        count_actions(&fleet).0,
        counts(&[("a", 2), ("b", 1), ("c", 1), ("d", 2)])
    );
    fleet.quotas[0].total_limit = Some(3 * EACH);
    assert_eq!(
        count_actions(&fleet).0,
        counts(&[("a", 2), ("b", 1), ("d", 2)]),
        "nodes without GPUs do not count"
    );
    let made = plan(&fleet);
    let wait = &made.node_groups["t"]["c"].waits[0];
    let WaitReason::QuotaLimit { scope, limit, .. } = &wait.reason else {
        panic!("{:?}", wait.reason)
    };
    assert_eq!((scope, *limit), (&GpuScope::AllPools, 24));
}

#[test]
fn nodes_that_tenants_have_in_pools_planned_later_count() {
    let mut fleet = fleet([1, 0, 2, 0]);
    fleet.quotas[0].total_limit = Some(3 * EACH);
    assign(&mut fleet, "c", 2);
    assert_eq!(count_actions(&fleet).0, counts(&[("a", 1)]));
    fleet.quotas[0].total_limit = Some(2 * EACH);
    assert_eq!(count_actions(&fleet).0, counts(&[]));
}

#[test]
fn a_limit_of_a_product_holds_for_its_pools() {
    let mut fleet = fleet([2, 1, 2, 0]);
    fleet.quotas[0].product_limit = [("H100".to_owned(), 2 * EACH)].into();
    assert_eq!(count_actions(&fleet).0, counts(&[("a", 2), ("c", 2)]));
    // What one pool may not have is left for the other.
    fleet.quotas[0].limit = [("a".to_owned(), EACH)].into();
    assert_eq!(count_actions(&fleet).0, counts(&[("b", 1), ("c", 2)]));
}

#[test]
fn a_limit_above_holds_for_all_quotas_below() {
    let mut fleet = fleet([1, 1, 2, 0]);
    fleet.quotas[0].parent = Some("above".into());
    fleet.quotas.push(Quota {
        name: "above".into(),
        total_limit: Some(EACH),
        ..Quota::default()
    });
    assert_eq!(count_actions(&fleet).0, counts(&[("a", 1)]));
}

#[test]
fn what_exceeds_a_lowered_limit_is_taken_once_and_minimums_last() {
    let mut fleet = fleet([2, 0, 0, 0]);
    for pool in ["a", "b", "c"] {
        assign(&mut fleet, pool, 2);
    }
    fleet.quotas[0].total_limit = Some(4 * EACH);
    assert_eq!(count_actions(&fleet), (counts(&[]), counts(&[("b", 2)])));
    fleet.quotas[0].total_limit = Some(EACH);
    assert_eq!(
        count_actions(&fleet),
        (counts(&[]), counts(&[("a", 1), ("b", 2), ("c", 2)]))
    );
    fleet.quotas[0].total_limit = None;
    assert_eq!(count_actions(&fleet), (counts(&[]), counts(&[])));
}

#[test]
fn nodes_of_other_pools_that_drain_count_towards_a_limit_of_all_pools() {
    let mut fleet = fleet([0, 0, 1, 0]);
    fleet.quotas[0].total_limit = Some(EACH);
    fleet.nodes[0].state = NodeState::Draining {
        tenant: "t".into(),
        since: 0,
    };
    assert_eq!(count_actions(&fleet).0, counts(&[]));
    let waits = |fleet: &Fleet| plan(fleet).node_groups["t"]["c"].message();
    assert_eq!(
        waits(&fleet),
        "1 of 1 node missing: q may have 8 GPUs of all pools at most, and has 8 on nodes that are being drained"
    );
    fleet.tenants[0].terminated = true;
    assert!(plan(&fleet).actions.is_empty());
    fleet.tenants[0].terminated = false;
    fleet.nodes[0].state = NodeState::Recycling {
        previous_tenant: "t".into(),
        since: 0,
    };
    assert_eq!(count_actions(&fleet).0, counts(&[("c", 1)]));
}

#[test]
fn a_node_of_a_group_that_has_another_pool_now_counts_until_its_pods_have_ended() {
    let mut fleet = fleet([0, 1, 0, 0]);
    fleet.quotas[0].total_limit = Some(EACH);
    assign(&mut fleet, "a", 1);
    fleet.tenants[0].node_groups.remove(0);
    assert_eq!(count_actions(&fleet), (counts(&[]), counts(&[("a", 1)])));
}
