//! A fleet as text, and a plan as text.
//!
//! ```text
//! pool h100 gpus=8 least=56 domains hold=600 idle=300 grace=300 order=fifo reclaim=fair-share starvation=600 scaled max-nodes=9 max-pods=99 node-gpus=8 repair=600:2
//! quota vision weight=2 nominal=16 lending=8 limit=32 parent=org shared-pauses
//! tenant a quota=vision weight=2 deleted unused=h100:8
//! stuck d 2x8 quota=vision
//! group a/train h100 0..8
//! demand a/train train-8 8x8 gang single-domain since=60 prio=5 zone=a
//! node n1..n4 rack=r1 free
//! node n1..n4 free=600
//! node n5 rack=r2 a/train used=8 age=3600 prio=1
//! node n6 a/train idle=600 age=3600 gang=train-8
//! node n6 a/train idle=600 age=3600 kept
//! node n6 a/train used=8 not-ready=700 maintained
//! node n7 a/train cordoned=300 gpus=4 recorded=8
//! node n8 a/train reserved=8
//! node n9 recycling
//! node n9 draining=a used=8
//! node n10 unavailable
//! node n11 starting
//! ```
//! Times are seconds: ages and `since` count back from now, which is noon. Demand is pods x GPUs. A `stuck` tenant has a group `g` and pods that
//! have waited for an hour. `repair=600:2`: nodes that are not Ready for 600 seconds are repaired, unless there are more than two.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail where it stands")]

pub mod executor;
pub mod random;
pub mod world;

use berth_planner::{
    ActionKind, ActionReason, Amounts, Demand, Fleet, Node, NodeGroup, NodeState, Order, Owner, Phase, Plan, PodSet,
    Pool, Quota, Reclaim, RepairPolicy, Seconds, Tenant, Topology, UnusedNodes, WaitingTime,
};
use std::fmt::Write;

/// Noon of some day.
pub const NOW: Seconds = 43_200;
/// What GPUs are called.
pub const GPU: &str = "nvidia.com/gpu";

/// Reads a fleet.
pub fn read_fleet(text: &str) -> Fleet {
    let mut fleet = Fleet {
        now: NOW,
        ..Fleet::default()
    };
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "pool" => fleet.pools.push(pool(&words[1..])),
            "quota" => {
                let quota = quota(&words[1..], &fleet.pools);
                fleet.quotas.push(quota);
            }
            "tenant" => {
                let tenant = tenant(&words[1..], fleet.tenants.len());
                fleet.tenants.push(tenant);
            }
            "stuck" => stuck_tenant(&mut fleet, &words[1..]),
            "group" => group(&mut fleet, &words[1..]),
            "demand" => demand(&mut fleet, &words[1..]),
            "node" => node(&mut fleet, &words[1..]),
            other => panic!("unknown object {other}"),
        }
    }
    fleet
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

fn split(word: &str) -> (&str, &str) {
    word.split_once('=').unwrap_or((word, ""))
}

fn pool(words: &[&str]) -> Pool {
    let mut pool = Pool {
        name: words[0].into(),
        ..Pool::default()
    };
    for word in &words[1..] {
        match split(word) {
            ("gpus", _) => pool.gpu_resource_name = Some(GPU.into()),
            ("product", value) => pool.product = Some(value.into()),
            ("domains", _) => pool.has_domains = true,
            ("divided", _) => pool.divides_nodes = true,
            ("least", value) => pool.least_gpus = number(value),
            ("hold", value) => pool.min_hold_duration = number(value),
            ("idle", value) => pool.idle_timeout = number(value),
            ("grace", value) => pool.reclaim_grace_period = number(value),
            ("starvation", value) => pool.starvation_limit = Some(number(value)),
            ("order", "fifo") => pool.order = Order::Fifo,
            ("reclaim", "fair-share") => pool.reclaim = Reclaim::FairShare,
            ("scaled", _) => drop(pool.scale_up.get_or_insert_default()),
            ("max-nodes", value) => pool.scale_up.get_or_insert_default().max_nodes = Some(number(value)),
            ("max-pods", value) => pool.scale_up.get_or_insert_default().max_pods = Some(number(value)),
            ("node-gpus", value) => pool.scale_up.get_or_insert_default().node_capacity = Some(gpus(number(value))),
            ("reclaim", "never") => pool.reclaim = Reclaim::Never,
            ("repair", value) => {
                let (after, most) = value.split_once(':').expect("repair=SECONDS:NODES");
                pool.repair = Some(RepairPolicy {
                    not_ready_after: number(after),
                    max_unhealthy: number(most),
                    allowed_since: None,
                });
            }
            other => panic!("unknown option of a pool: {other:?}"),
        }
    }
    pool
}

fn quota(words: &[&str], pools: &[Pool]) -> Quota {
    let mut quota = Quota {
        name: words[0].into(),
        ..Quota::default()
    };
    for word in &words[1..] {
        let (key, value) = split(word);
        let of_all = |value| pools.iter().map(|pool| (pool.name.clone(), number(value))).collect();
        match key {
            "parent" => quota.parent = Some(value.into()),
            "weight" => quota.weight = number(value),
            "nominal" => quota.nominal_quota = of_all(value),
            "lending" => quota.lending_limit = of_all(value),
            "limit" => quota.limit = of_all(value),
            "shared-pauses" => quota.shares_pauses = true,
            "total" => quota.total_limit = Some(number(value)),
            "product-limit" => {
                let (product, limit) = value.split_once(':').expect("product-limit=PRODUCT:GPUS");
                quota.product_limit.insert(product.into(), number(limit));
            }
            other => panic!("unknown option of a quota: {other}"),
        }
    }
    quota
}

fn tenant(words: &[&str], age: usize) -> Tenant {
    let mut tenant = Tenant {
        uid: words[0].into(),
        name: words[0].into(),
        created: i64::try_from(age).unwrap(),
        ..Tenant::default()
    };
    for word in &words[1..] {
        match split(word) {
            ("quota", value) => tenant.quota = Some(value.into()),
            ("weight", value) => tenant.weight = number(value),
            // unused=POOL:NODES, released now.
            ("unused", value) => {
                let (pool, nodes) = value.split_once(':').expect("unused=POOL:NODES");
                let unused = UnusedNodes {
                    began_at: NOW,
                    released_at: NOW,
                    nodes: number(nodes),
                    times: 3,
                    kept_since: None,
                    waiting: WaitingTime::default(),
                };
                tenant.unused.insert(pool.into(), unused);
            }
            ("deleted", _) => tenant.terminated = true,
            other => panic!("unknown option of a tenant: {other:?}"),
        }
    }
    tenant
}

/// A tenant with one group of up to eight nodes, whose pods fit on nodes and do not start.
fn stuck_tenant(fleet: &mut Fleet, words: &[&str]) {
    let (options, pods): (Vec<&str>, Vec<&str>) = words[1..].iter().copied().partition(|word| word.contains('='));
    let made = tenant(&[&words[..1], options.as_slice()].concat(), fleet.tenants.len());
    fleet.tenants.push(made);
    let (of, pool) = (
        format!("{}/g", words[0]),
        fleet.pools.last().expect("a pool").name.clone(),
    );
    group(fleet, &[of.as_str(), pool.as_str(), "0..8"]);
    demand(
        fleet,
        &[&[of.as_str(), "stuck", "since=3600"][..], pods.as_slice()].concat(),
    );
}

fn group(fleet: &mut Fleet, words: &[&str]) {
    let (tenant, name) = words[0].split_once('/').unwrap();
    let (min, max) = words[2].split_once("..").unwrap();
    let tenant = fleet
        .tenants
        .iter_mut()
        .find(|known| known.uid == tenant)
        .expect("the tenant of a group");
    tenant.node_groups.push(NodeGroup {
        name: name.into(),
        pool: words[1].into(),
        min_nodes: number(min),
        max_nodes: number(max),
        ..NodeGroup::default()
    });
}

/// Amounts with this number of GPUs.
pub fn gpus(number: u64) -> Amounts {
    Amounts::from([(GPU.into(), number)])
}

fn demand(fleet: &mut Fleet, words: &[&str]) {
    let (tenant, name) = words[0].split_once('/').unwrap();
    let mut demand = Demand {
        name: words[1].into(),
        waiting_since: fleet.now,
        ..Demand::default()
    };
    for word in &words[2..] {
        match split(word) {
            ("gang", _) => demand.gang = true,
            ("single-domain", _) => demand.topology = Topology::SingleDomain,
            ("existing-only", _) => demand.existing_nodes_only = true,
            ("since", value) => demand.waiting_since = fleet.now - number::<i64>(value),
            ("prio", value) => demand.priority = number(value),
            (key, "") => {
                let (count, each) = key
                    .split_once('x')
                    .unwrap_or_else(|| panic!("unknown option of demand: {key}"));
                demand.pod_sets.push(PodSet {
                    count: number(count),
                    requests: gpus(number(each)),
                });
            }
            (label, value) => drop(demand.selector.insert(label.into(), value.into())),
        }
    }
    let tenant = fleet
        .tenants
        .iter_mut()
        .find(|known| known.uid == tenant)
        .expect("the tenant of demand");
    let group = tenant
        .node_groups
        .iter_mut()
        .find(|known| known.name == name)
        .expect("the group of demand");
    group.demand.push(demand);
}

fn node(fleet: &mut Fleet, words: &[&str]) {
    let mut node = Node {
        pool: fleet.pools.last().map_or_else(String::new, |pool| pool.name.clone()),
        capacity: gpus(8),
        ..Node::default()
    };
    let mut owner = None;
    let mut age = 0;
    for word in &words[1..] {
        match split(word) {
            ("free", "") => {}
            ("free", value) => node.free_since = Some(fleet.now - number::<i64>(value)),
            ("unusable", _) => node.unusable = true,
            ("closed", _) => node.closed = true,
            ("kept", _) => node.kept_by_pods = true,
            ("maintained", _) => node.exempt_from_repair = true,
            ("not-ready", value) => node.not_ready_since = Some(fleet.now - number::<i64>(value)),
            ("rack", value) => node.domain = Some(value.into()),
            ("pool", value) => node.pool = value.into(),
            ("gpus", value) => node.capacity = gpus(number(value)),
            ("recorded", value) => node.recorded_gpus = number(value),
            ("used", value) => {
                node.used = gpus(number(value));
                node.pods = 1;
            }
            ("idle", value) => node.idle_since = Some(fleet.now - number::<i64>(value)),
            ("age", value) => age = number(value),
            ("prio", value) => node.priority = number(value),
            ("gang", value) => drop(node.gangs.insert(value.into())),
            ("recycling", _) => {
                node.state = NodeState::Recycling {
                    previous_tenant: "other".into(),
                    since: fleet.now,
                }
            }
            ("draining", tenant) => {
                node.state = NodeState::Draining {
                    tenant: tenant.into(),
                    since: fleet.now,
                }
            }
            ("unavailable", _) => {
                node.state = NodeState::Unavailable {
                    reason: "quarantined".into(),
                }
            }
            ("starting", _) => {
                node.capacity = Amounts::new();
                node.starting = true;
                node.state = NodeState::Unavailable {
                    reason: "it is not Ready".into(),
                }
            }
            ("cordoned", value) => {
                set_phase(
                    &mut owner,
                    Phase::Cordoned {
                        drain_at: fleet.now + number::<i64>(value),
                    },
                );
            }
            ("reserved", value) => set_phase(
                &mut owner,
                Phase::Reserved {
                    required_nodes: number(value),
                },
            ),
            ("joining", _) => set_phase(&mut owner, Phase::Joining),
            (of, "") => {
                let (tenant, group) = of.split_once('/').unwrap_or_else(|| panic!("unknown option {of}"));
                owner = Some(Owner {
                    tenant: tenant.into(),
                    node_group: group.into(),
                    since: 0,
                    phase: Phase::Assigned,
                });
            }
            (label, value) => drop(node.labels.insert(label.into(), value.into())),
        }
    }
    if let Some(mut owner) = owner {
        owner.since = fleet.now - age;
        node.state = NodeState::Owned(owner);
        node.unusable |= node.not_ready_since.is_some();
    }
    let (first, last) = words[0].split_once("..").unwrap_or((words[0], words[0]));
    let digits = |name: &str| name.find(|letter: char| letter.is_ascii_digit()).unwrap();
    let (prefix, from, to) = (
        &first[..digits(first)],
        number::<u32>(&first[digits(first)..]),
        number::<u32>(&last[digits(last)..]),
    );
    for at in from..=to {
        fleet.nodes.push(Node {
            name: format!("{prefix}{at}"),
            ..node.clone()
        });
    }
}

fn set_phase(owner: &mut Option<Owner>, phase: Phase) {
    owner.as_mut().expect("an owner before its phase").phase = phase;
}

fn clock(time: Seconds) -> String {
    format!("{:02}:{:02}:{:02}", time / 3600 % 24, time / 60 % 60, time % 60)
}

/// The nodes that a plan takes from their groups because they are not Ready.
pub fn repaired(plan: &Plan) -> Vec<&str> {
    let is_repair = |reason: &ActionReason| matches!(reason, ActionReason::NotReady { .. });
    let actions = plan.actions.iter().filter(|action| is_repair(&action.reason));
    actions.map(|action| action.node.as_str()).collect()
}

/// Describes a plan in lines.
pub fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    for action in &plan.actions {
        let step = match &action.kind {
            ActionKind::Reserve {
                tenant,
                node_group: group,
                required_nodes: of,
            } => format!("reserved for {tenant}/{group} of {of}"),
            ActionKind::CancelReservation => "reservation cancelled".into(),
            ActionKind::Release { drain_at: until } => format!("released at {}", clock(*until)),
            ActionKind::CancelRelease => "release cancelled".into(),
        };
        writeln!(text, "{}: {step} ({})", action.node, action.reason).unwrap();
    }
    for (tenant, groups) in &plan.node_groups {
        for (group, group_plan) in groups {
            let (desired, held, waiting, borrowed) = (
                group_plan.desired,
                group_plan.held,
                group_plan.waiting,
                group_plan.borrowed,
            );
            write!(
                text,
                "{tenant}/{group} holds {held}, desired {desired}, waits for {waiting}, borrowed {borrowed}"
            )
            .unwrap();
            let message = group_plan.message();
            let why = if message.is_empty() {
                message
            } else {
                format!(": {message}")
            };
            writeln!(text, "{why}").unwrap();
        }
    }
    for (pool, ask) in &plan.scale_ups {
        writeln!(text, "{pool} lacks {} nodes, {} pods wait", ask.nodes, ask.count_pods()).unwrap();
        for shortage in &ask.shortages {
            let pods: Vec<String> = shortage
                .pod_sets
                .iter()
                .map(|pods| format!("{}x{:?}", pods.count, pods.requests))
                .collect();
            let kind = if shortage.gang { " gang" } else { "" };
            let kind = if shortage.whole_nodes { " whole nodes" } else { kind };
            let (of, name) = (format!("{}/{}", shortage.tenant, shortage.node_group), &shortage.name);
            writeln!(
                text,
                "  for {of} {name}{kind}: {} {:?}",
                pods.join(" "),
                shortage.selector
            )
            .unwrap();
        }
        if let Some(message) = ask.limited_message(pool) {
            writeln!(text, "  no more: {message}").unwrap();
        }
    }
    if let Some(time) = plan.replan_at {
        writeln!(text, "again at {}", clock(time)).unwrap();
    }
    text
}
