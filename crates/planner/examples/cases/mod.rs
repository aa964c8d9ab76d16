//! Large fleets in which plans take long.

use berth_planner::{
    Amounts, Demand, Fleet, Node, NodeGroup, NodeState, Order, Owner, Phase, PodSet, Pool, Quota, Reclaim,
    ScaleUpLimits, Tenant, Topology, UnusedNodes, WaitingTime,
};
use std::collections::BTreeMap;

const GPU: &str = "nvidia.com/gpu";
const TENANTS: usize = 500;
const QUOTAS: usize = 25;
const NOW: i64 = 1_000_000;
/// How many times the demands of other cases a tenant has in [`Case::Fifo`].
const FIFO_DEMANDS: i64 = 10;

/// All cases, with their names.
pub const CASES: [(Case, &str); 9] = [
    (Case::AllAsk, "all request at once"),
    (Case::Busy, "busy"),
    (Case::Reclaimed, "reclaimed"),
    (Case::Unused, "unused"),
    (Case::Minimums, "minimums"),
    (Case::Paused, "paused"),
    (Case::UnmetMinimums, "unmet minimums"),
    (Case::Fifo, "FIFO, ten times the demands"),
    (Case::OneTenant, "one tenant"),
];

/// The state of the fleet.
#[derive(Clone, Copy)]
pub enum Case {
    /// All nodes are free, and all tenants request their part of them at the same time.
    AllAsk,
    /// Most nodes are taken; every tenant requests more, also for gangs; some nodes are idle, some are being recycled.
    Busy,
    /// All nodes are taken by half of the tenants; the others have a nominal quota, or are below their fair share.
    Reclaimed,
    /// All nodes are taken by half of the tenants, some for pods that never start. The others lack nodes, and a gang that waits first would
    /// keep each of those in its domain.
    Unused,
    /// All nodes are idle minimums of half of the tenants. The others lack nodes, and an autoscaler extends the pool.
    Minimums,
    /// All nodes are taken by half of the tenants, which are in a pause. The others lack nodes, and share these pauses.
    Paused,
    /// All nodes are taken by half of the tenants. The others lack nodes, and every second of them lacks those of its minimum first, which others would
    /// get if somebody reclaimed them one by one.
    UnmetMinimums,
    /// As busy, but the longest wait comes first, and each tenant has ten times the demands: pods that are alike are several demands there, by how long
    /// they wait.
    Fifo,
    /// One tenant has nine of ten nodes, all full, and requests the others.
    OneTenant,
}

fn gpus(number: u64) -> Amounts {
    Amounts::from([(GPU.into(), number), ("cpu".into(), number * 16)])
}

/// A fleet of that many nodes and 500 tenants.
pub fn fleet(case: Case, nodes: usize) -> Fleet {
    let each = u32::try_from(nodes / TENANTS).unwrap_or(1).max(2);
    let nominal = u64::from(each) * 8 * 20 / 4;
    Fleet {
        now: NOW,
        pools: vec![Pool {
            name: "h100".into(),
            gpu_resource_name: Some(GPU.into()),
            has_domains: true,
            min_hold_duration: 600,
            idle_timeout: 300,
            reclaim_grace_period: 300,
            order: match case {
                Case::Fifo => Order::Fifo,
                _ => Order::FairShare,
            },
            reclaim: match case {
                Case::Unused => Reclaim::Never,
                _ => Reclaim::FairShare,
            },
            scale_up: matches!(case, Case::Minimums).then(ScaleUpLimits::default),
            ..Pool::default()
        }],
        nodes: (0..nodes).map(|at| node(case, at, nodes)).collect(),
        tenants: (0..TENANTS).map(|at| tenant(case, at, each)).collect(),
        quotas: (0..QUOTAS)
            .map(|at| Quota {
                name: format!("class-{at}"),
                weight: 1 + u32::try_from(at % 3).unwrap_or(0),
                nominal_quota: [("h100".to_string(), nominal)].into(),
                shares_pauses: matches!(case, Case::Paused),
                ..Quota::default()
            })
            .collect(),
    }
}

fn node(case: Case, at: usize, nodes: usize) -> Node {
    let owner = |tenant: usize| {
        NodeState::Owned(Owner {
            tenant: format!("uid-{tenant}"),
            node_group: "train".into(),
            since: NOW - 5_000,
            phase: Phase::Assigned,
        })
    };
    let (state, idle) = match case {
        Case::AllAsk => (NodeState::Free, false),
        Case::Busy | Case::Fifo => match at % 20 {
            0 => (NodeState::Free, false),
            1 => {
                let state = NodeState::Recycling {
                    previous_tenant: "other".into(),
                    since: NOW - 60,
                };
                (state, false)
            }
            number => (owner(at * TENANTS / nodes), number == 2),
        },
        Case::Reclaimed | Case::Paused | Case::UnmetMinimums => (owner(at * TENANTS / nodes / 2), false),
        Case::Unused => (owner(at * TENANTS / nodes / 2), at.is_multiple_of(16)),
        Case::OneTenant if at.is_multiple_of(10) => (NodeState::Free, false),
        Case::OneTenant => (owner(0), false),
        Case::Minimums => (owner(at * TENANTS / nodes / 2), true),
    };
    Node {
        name: format!("node-{at:05}"),
        pool: "h100".into(),
        domain: Some(format!("clique-{}", at / 8)),
        labels: [
            ("zone".to_string(), format!("zone-{}", at % 3)),
            ("kubernetes.io/hostname".to_string(), format!("node-{at:05}")),
            ("nvidia.com/gpu.product".to_string(), "H100".to_string()),
        ]
        .into(),
        capacity: gpus(8),
        used: match case {
            _ if idle => Amounts::new(),
            Case::OneTenant if matches!(state, NodeState::Free) => Amounts::new(),
            // Full: on free capacity waiting pods of its tenant would count, and the node would not be reclaimed for fairness.
            Case::Reclaimed | Case::Unused | Case::Paused | Case::UnmetMinimums | Case::OneTenant => gpus(8),
            Case::AllAsk | Case::Busy | Case::Minimums | Case::Fifo => gpus(6),
        },
        pods: u32::from(!idle),
        idle_since: idle.then_some(NOW - 3_000),
        state,
        ..Node::default()
    }
}

/// What is known of nodes that a tenant did not use.
fn paused(case: Case, tenant: usize) -> BTreeMap<String, UnusedNodes> {
    let paused = UnusedNodes {
        began_at: NOW - 60,
        released_at: NOW - 60,
        nodes: 8,
        times: 3,
        kept_since: None,
        waiting: WaitingTime::default(),
    };
    let is_paused = matches!(case, Case::Paused) && tenant < TENANTS / 2;
    is_paused.then(|| ("h100".to_string(), paused)).into_iter().collect()
}

/// The same demands again and again, each time an hour older.
fn repeat(demand: &[Demand]) -> Vec<Demand> {
    let times = (0..FIFO_DEMANDS).flat_map(|time| {
        demand.iter().map(move |one| Demand {
            name: format!("{}-{time}", one.name),
            waiting_since: one.waiting_since - time * 3_600,
            ..one.clone()
        })
    });
    times.collect()
}

fn tenant(case: Case, at: usize, each: u32) -> Tenant {
    let demand = |name: &str, since: i64, count: u32, number: u64| Demand {
        name: name.into(),
        waiting_since: NOW - since,
        pod_sets: vec![PodSet {
            count,
            requests: gpus(number),
        }],
        ..Demand::default()
    };
    let gang = Demand {
        gang: true,
        topology: if at.is_multiple_of(10) || matches!(case, Case::Unused) {
            Topology::SingleDomain
        } else {
            Topology::Any
        },
        ..demand("gang", 900, each.min(8), 8)
    };
    let mut zoned = demand("zoned", 30, 1, 4);
    zoned.selector = [("zone".to_string(), format!("zone-{}", at % 3))].into();
    let (demand, unused) = match case {
        Case::Unused if at < TENANTS / 2 => {
            let kept = UnusedNodes {
                kept_since: Some(NOW - 2_000),
                ..UnusedNodes::default()
            };
            (
                vec![demand("stuck", 900, each / 8 + 1, 8)],
                [("h100".to_string(), kept)].into(),
            )
        }
        Case::Minimums | Case::UnmetMinimums if at < TENANTS / 2 => (Vec::new(), BTreeMap::new()),
        Case::OneTenant if at > 0 => (Vec::new(), BTreeMap::new()),
        Case::OneTenant => (vec![demand("many", 60, each * 50, 8)], BTreeMap::new()),
        Case::Fifo => (repeat(&[gang, demand("many", 60, each * 4, 2), zoned]), BTreeMap::new()),
        _ => (vec![gang, demand("many", 60, each * 4, 2), zoned], paused(case, at)),
    };
    Tenant {
        uid: format!("uid-{at}"),
        name: format!("team/{at}"),
        created: i64::try_from(at).unwrap_or(0),
        quota: Some(format!("class-{}", at % QUOTAS)),
        node_groups: vec![NodeGroup {
            name: "train".into(),
            pool: "h100".into(),
            min_nodes: match case {
                Case::Minimums if at < TENANTS / 2 => each * 2,
                Case::UnmetMinimums if at >= TENANTS / 2 && at.is_multiple_of(2) => each * 2,
                _ => 0,
            },
            max_nodes: if matches!(case, Case::OneTenant) { 100_000 } else { 1000 },
            demand,
            ..NodeGroup::default()
        }],
        unused,
        ..Tenant::default()
    }
}
