//! What holds whatever happens: random fleets live for a while, and each plan is looked at.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use berth_planner::{
    Demand, Fleet, Group, Node, NodeState, Order, Phase, Plan, Pods, Pool, Reclaim, Share, Step, Tenant, plan,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fmt::Write;
use support::world::{Arrival, World};
use support::{GPU, executor, gpus, told};

const GPUS: u64 = 8;

fn pool() -> impl Strategy<Value = Pool> {
    let reclaim = prop_oneof![
        Just(Reclaim::Never),
        Just(Reclaim::Guaranteed),
        Just(Reclaim::FairShare)
    ];
    let order = prop_oneof![Just(Order::FairShare), Just(Order::Fifo)];
    (any::<bool>(), 0..4_i64, 0..4_i64, 0..4_i64, reclaim, order, 0..10_i64).prop_map(
        |(has_domains, tenure, idle, grace, reclaim, order, patience)| Pool {
            name: "h100".into(),
            resource: Some(GPU.into()),
            has_domains,
            minimum_tenure: tenure * 120,
            idle_after: idle * 60,
            reclaim_grace: grace * 60,
            handover: 180,
            order,
            reclaim,
            patience: Some(patience * 60),
        },
    )
}

fn share(number: usize) -> impl Strategy<Value = Share> {
    let some = |most: u64| prop::option::of((0..=most).prop_map(|nodes| nodes * GPUS));
    (0..3_u32, some(3), some(3), some(8)).prop_map(move |(weight, guaranteed, lendable, limit)| {
        let of = |amount: Option<u64>| amount.map(|amount| ("h100".to_string(), amount)).into_iter().collect();
        Share {
            name: format!("share-{number}"),
            parent: (number == 2).then(|| "share-1".into()),
            weight,
            guaranteed: of(guaranteed),
            lendable: of(lendable),
            limit: of(limit.filter(|limit| *limit > 0)),
        }
    })
}

fn tenant(number: usize) -> impl Strategy<Value = Tenant> {
    (0..4_usize, 0..3_u32, 0..3_u32, 0..9_u32).prop_map(move |(share, weight, min, more)| Tenant {
        uid: format!("t{number}"),
        name: format!("t{number}"),
        created: i64::try_from(number).unwrap(),
        share: (share < 3).then(|| format!("share-{share}")),
        weight,
        groups: vec![Group {
            name: "g".into(),
            pool: "h100".into(),
            min: if number == 0 { min } else { 0 },
            max: min + more,
            demand: Vec::new(),
        }],
        gone: false,
    })
}

fn fleet() -> impl Strategy<Value = Fleet> {
    let tenants = (tenant(0), tenant(1), tenant(2), tenant(3));
    (pool(), (share(0), share(1), share(2)), tenants, 1..12_usize).prop_map(|(pool, shares, tenants, nodes)| Fleet {
        now: 100_000,
        pools: vec![pool],
        nodes: (0..nodes)
            .map(|at| Node {
                name: format!("n{at:02}"),
                pool: "h100".into(),
                domain: (at % 7 != 6).then(|| format!("rack-{}", at / 3)),
                capacity: gpus(GPUS),
                state: if at == 9 {
                    NodeState::Unavailable {
                        why: "quarantined".into(),
                    }
                } else {
                    NodeState::Free
                },
                ..Node::default()
            })
            .collect(),
        tenants: vec![tenants.0, tenants.1, tenants.2, tenants.3],
        shares: vec![shares.0, shares.1, shares.2],
    })
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (
        0..40_usize,
        0..4_usize,
        any::<bool>(),
        1..6_u32,
        0..4_u32,
        0..2_i32,
        1..20_usize,
    );
    prop::collection::vec(arrival, 0..14).prop_map(|arrivals| {
        let numbered = arrivals.into_iter().enumerate();
        numbered
            .map(|(number, (step, tenant, gang, count, size, priority, runs))| Arrival {
                step,
                tenant,
                runs,
                demand: Demand {
                    name: format!("job-{number:02}"),
                    priority,
                    pods: vec![Pods {
                        count,
                        each: gpus(1 << size),
                    }],
                    gang,
                    ..Demand::default()
                },
            })
            .collect()
    })
}

/// Nodes that a tenant has: promised, serving, cordoned.
fn held(fleet: &Fleet, uid: &str) -> u32 {
    let owned = fleet.nodes.iter().filter(|node| match &node.state {
        NodeState::Owned(owner) => owner.tenant == uid,
        _ => false,
    });
    u32::try_from(owned.count()).unwrap()
}

/// What must hold of every plan.
fn look_at(before: &Fleet, made: &Plan) {
    let mut names: Vec<&str> = made.actions.iter().map(|action| action.node.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), made.actions.len(), "a node has two actions");
    for action in made
        .actions
        .iter()
        .filter(|action| matches!(action.step, Step::Release { .. }))
    {
        let node = before.nodes.iter().find(|node| node.name == action.node).unwrap();
        assert!(matches!(node.state, NodeState::Owned(_)), "{} is nobody's", node.name);
    }

    let mut after = before.clone();
    executor::apply(&mut after, made);
    // Done once, nothing is left to do. Where nodes are taken back for fairness, or promises are half made, who is next may
    // change once more with what was done; it settles.
    let promised = |node: &Node| match &node.state {
        NodeState::Owned(owner) => matches!(owner.phase, Phase::Reserved { .. }),
        _ => false,
    };
    let strict = before.pools[0].reclaim != Reclaim::FairShare && !before.nodes.iter().any(promised);
    let (mut settled, mut again) = (after.clone(), plan(&after));
    for _ in 0..if strict { 0 } else { 4 } {
        executor::apply(&mut settled, &again);
        again = plan(&settled);
    }
    assert!(
        again.actions.is_empty(),
        "{}is followed by\n{}",
        told(made),
        told(&again)
    );

    for tenant in &before.tenants {
        let group = &tenant.groups[0];
        let (then, now) = (held(before, &tenant.uid), held(&after, &tenant.uid));
        assert!(
            now <= group.max || now <= then,
            "{} has {now} of {}",
            tenant.name,
            group.max
        );
        let staying = World::present(&after, &tenant.uid);
        assert!(
            staying >= group.min || staying >= World::present(before, &tenant.uid).min(group.min),
            "{} falls below its floor",
            tenant.name
        );
        // A gang is promised all that it needs, in one plan.
        for node in &after.nodes {
            if let NodeState::Owned(owner) = &node.state
                && let Phase::Reserved { of } = owner.phase
                && owner.tenant == tenant.uid
            {
                assert!(
                    of <= staying,
                    "{} waits for {of} and there are {staying}\n{}",
                    node.name,
                    told(made)
                );
            }
        }
    }
    for share in &before.shares {
        let of_share = |fleet: &Fleet| {
            let below = |name: &Option<String>| {
                *name == Some(share.name.clone()) || share.name == "share-1" && name.as_deref() == Some("share-2")
            };
            let tenants = fleet.tenants.iter().filter(|tenant| below(&tenant.share));
            tenants
                .map(|tenant| u64::from(held(fleet, &tenant.uid)) * GPUS)
                .sum::<u64>()
        };
        if let Some(limit) = share.limit.get("h100") {
            let (then, now) = (of_share(before), of_share(&after));
            assert!(now <= *limit || now <= then, "{} has {now} of {limit}", share.name);
        }
    }

    // Never more is taken back than is waited for.
    let taken = made
        .actions
        .iter()
        .filter(|action| action.why.starts_with("borrowed"))
        .count();
    let waiting: u32 = made
        .groups
        .values()
        .flat_map(|groups| groups.values())
        .map(|standing| standing.waiting)
        .sum();
    assert!(taken <= waiting as usize, "{}", told(made));

    let mut turned = before.clone();
    turned.nodes.reverse();
    turned.tenants.reverse();
    turned.shares.reverse();
    assert_eq!(&plan(&turned), made, "the order of the input matters");
}

/// No node is left lying while somebody could use it, where nothing is kept for anybody.
fn nothing_lies_idle(before: &Fleet, made: &Plan) {
    let mut after = before.clone();
    executor::apply(&mut after, made);
    let free = after.nodes.iter().filter(|node| node.state == NodeState::Free).count();
    for tenant in &before.tenants {
        let standing = &made.groups[&tenant.uid]["g"];
        let could = standing.waiting > 0 && standing.held < tenant.groups[0].max;
        assert!(free == 0 || !could, "{free} nodes are free\n{}", told(made));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, rng_seed: RngSeed::Fixed(11), max_shrink_iters: 4000, ..ProptestConfig::default() })]

    /// Every plan in the life of a fleet is safe, also when some of what was planned fails; and in the end everybody who
    /// could be served was, and what nobody needs is free.
    #[test]
    fn fleets_live(fleet in fleet(), arrivals in arrivals(), unlucky in 2..9_usize) {
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.ask(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            let before = world.fleet.clone();
            look_at(&before, &plan(&before));
            world.pass(|node| (step + node.len() + usize::from(node.as_bytes()[2])).is_multiple_of(unlucky));
        }
        for _ in 0..400 {
            world.pass(|_| false);
        }
        let made = plan(&world.fleet);
        prop_assert!(made.actions.is_empty(), "{}", told(&made));
        for tenant in &world.fleet.tenants {
            let standing = &made.groups[&tenant.uid]["g"];
            prop_assert!(World::present(&world.fleet, &tenant.uid) <= tenant.groups[0].min, "{}", told(&made));
            // Whoever still waits is limited, by itself or by what others do not lend or have for good.
            let words = ["never", "at most", "kept for those they belong to"];
            let limited = words.iter().any(|words| standing.why.contains(words));
            let free = world.fleet.nodes.iter().filter(|node| node.state == NodeState::Free).count();
            prop_assert!(standing.waiting as usize > free || standing.waiting == 0 || limited, "{}", told(&made));
        }
    }

    /// Where there are no gangs, floors and limits, no node is free while somebody waits.
    #[test]
    fn work_is_conserved(fleet in fleet(), arrivals in arrivals()) {
        let mut fleet = fleet;
        for tenant in &mut fleet.tenants {
            tenant.groups[0].min = 0;
        }
        for share in &mut fleet.shares {
            share.limit.clear();
            share.lendable.clear();
        }
        let mut world = World::new(fleet);
        for step in 0..40 {
            for arrival in arrivals.iter().filter(|arrival| arrival.step == step) {
                world.ask(arrival.tenant, Demand { gang: false, ..arrival.demand.clone() }, arrival.runs);
            }
            let before = world.fleet.clone();
            nothing_lies_idle(&before, &plan(&before));
            world.pass(|_| false);
        }
    }

    /// Where everybody wants more than there is, nobody is more than a node above what the weights say.
    #[test]
    fn shares_follow_weights(weights in prop::collection::vec(1..5_u32, 1..6), nodes in 1..40_usize) {
        let mut text = String::from("pool h100 gpus=8\n");
        for (number, weight) in weights.iter().enumerate() {
            writeln!(text, "tenant t{number} weight={weight}\ngroup t{number}/g h100 0..99\nwant t{number}/g job 99x8").unwrap();
        }
        writeln!(text, "node n1..n{nodes} free").unwrap();
        let made = plan(&support::fleet(&text));
        let has: Vec<u32> = (0..weights.len()).map(|at| made.groups[&format!("t{at}")]["g"].held).collect();
        for (a, weight_a) in has.iter().zip(&weights) {
            for (b, weight_b) in has.iter().zip(&weights) {
                prop_assert!(a.saturating_sub(1) * weight_b <= b * weight_a, "{:?} by {:?}", has, weights);
            }
        }
    }

    /// What somebody is guaranteed it gets, however much others use and however long they would keep it.
    #[test]
    fn guarantees_are_honoured(pool in pool(), nodes in 1..10_u64, guaranteed in 1..10_u64, gang in any::<bool>()) {
        let guaranteed = guaranteed.min(nodes);
        let reclaim = if pool.reclaim == Reclaim::Never { Reclaim::Guaranteed } else { pool.reclaim };
        let mut fleet = support::fleet(&format!("
            pool h100 gpus=8
            share own guaranteed={}
            tenant t0
            group t0/g h100 0..99
            tenant t1 share=own
            group t1/g h100 0..99
            node n1..n{nodes} free
        ", guaranteed * GPUS));
        fleet.pools[0] = Pool { reclaim, has_domains: false, ..pool };
        let job = |name: &str, count: u64, gang: bool| Demand {
            name: name.into(),
            pods: vec![Pods { count: u32::try_from(count).unwrap(), each: gpus(GPUS) }],
            gang,
            ..Demand::default()
        };
        let mut world = World::new(fleet);
        world.ask(0, job("endless", 99, false), 1_000_000);
        for _ in 0..5 {
            world.pass(|_| false);
        }
        world.ask(1, job("guaranteed", guaranteed, gang), 1_000_000);
        for _ in 0..40 {
            let before = world.fleet.clone();
            look_at(&before, &plan(&before));
            world.pass(|_| false);
        }
        prop_assert_eq!(u64::from(held(&world.fleet, "t1")), guaranteed);
        prop_assert_eq!(u64::from(held(&world.fleet, "t0")), nodes - guaranteed);
    }
}
