//! Prints what is planned for large fleets and for many random ones, a line for each plan with a number that depends on all of it. For changes that are to
//! change no plan: run it before and after, and compare the output.
//! `cargo run --release -p berth-planner --example plans -- 1000 > before`, where 1000 is the number of lives of random fleets. Each has 30 plans.

#![expect(clippy::expect_used, reason = "it is run by hand, and may fail where it stands")]

mod cases;
#[path = "../tests/support/mod.rs"]
mod support;

use berth_planner::{Fleet, NodeGroup, Plan, Tenant, Topology, plan};
use cases::CASES;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::hash::{DefaultHasher, Hash, Hasher};
use support::random::{GPUS, arrivals, fleet, fleet_of_pools};
use support::world::{Arrival, World};

const STEPS: usize = 30;
/// Tenants of a random fleet at first. Another one of each is added.
const TENANTS: usize = 4;

fn main() {
    let lives = std::env::args()
        .nth(1)
        .map_or(300, |lives| lives.parse().expect("a number"));
    for (case, name) in CASES {
        for nodes in [1_000, 2_000, 5_000] {
            print_plan(&format!("{name}, {nodes} nodes"), &plan(&cases::fleet(case, nodes)));
        }
    }
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    for life in 0..lives {
        let drawn = life_of_a_fleet()
            .new_tree(&mut runner)
            .expect("a random fleet")
            .current();
        let (mut world, arrivals) = (World::new(drawn.0), drawn.1);
        for step in 0..STEPS {
            for arrival in arrivals.iter().filter(|arrival| arrival.step % STEPS == step) {
                world.add_demand(arrival.tenant, arrival.demand.clone(), arrival.runs);
            }
            // Each plan is carried out in a part of the lives alone, so that fleets are also seen in which much has failed.
            let made =
                world.advance(|node| life % 3 == 0 && (step + usize::from(node.as_bytes()[2])).is_multiple_of(3));
            print_plan(&format!("life {life}, step {step}"), &made);
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output is the purpose of this program")]
fn print_plan(what: &str, plan: &Plan) {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(plan).expect("a plan as text").hash(&mut hasher);
    println!("{what}: {} actions, {:016x}", plan.actions.len(), hasher.finish());
}

/// A fleet of one pool or of three, and jobs.
fn life_of_a_fleet() -> impl Strategy<Value = (Fleet, Vec<Arrival>)> {
    let fleet = prop_oneof![3 => fleet(), 1 => fleet_of_pools()];
    let minimums = vec(prop_oneof![2 => Just(0), 3 => 0..7_u32], 2 * TENANTS);
    let has_small_nodes = prop::bool::weighted(0.3);
    let jobs = vec((arrivals(), any::<bool>(), any::<bool>()), 1..4);
    (fleet, minimums, has_small_nodes, 1..5_usize, jobs).prop_map(
        |(mut fleet, minimums, has_small_nodes, times, jobs)| {
            multiply_nodes(&mut fleet, times, has_small_nodes);
            add_tenants(&mut fleet, &minimums);
            let mut all = Vec::new();
            for (number, (arrivals, is_of_others, in_one_domain)) in jobs.into_iter().enumerate() {
                for mut arrival in arrivals {
                    arrival.demand.name = format!("{}-{number}", arrival.demand.name);
                    arrival.tenant += if is_of_others { TENANTS } else { 0 };
                    if in_one_domain && arrival.demand.gang {
                        arrival.demand.topology = Topology::SingleDomain;
                    }
                    all.push(arrival);
                }
            }
            (fleet, all)
        },
    )
}

/// Adds nodes like those that are there, in other domains.
fn multiply_nodes(fleet: &mut Fleet, times: usize, has_small_nodes: bool) {
    let nodes = std::mem::take(&mut fleet.nodes);
    for time in 0..times {
        for (at, node) in nodes.iter().enumerate() {
            let mut node = node.clone();
            node.name = format!("{}-{time}", node.name);
            node.domain = node.domain.map(|domain| format!("{domain}-{time}"));
            if has_small_nodes && (at + time).is_multiple_of(3) {
                node.capacity = support::gpus(GPUS / 2);
            }
            fleet.nodes.push(node);
        }
    }
}

/// Adds another one of each tenant, and gives all of them minimums.
fn add_tenants(fleet: &mut Fleet, minimums: &[u32]) {
    for at in 0..TENANTS {
        let tenant = fleet.tenants[at].clone();
        let name = format!("t{}", at + TENANTS);
        let created = tenant.created + 1;
        fleet.tenants.push(Tenant {
            uid: name.clone(),
            name,
            created,
            ..tenant
        });
    }
    for (tenant, minimum) in fleet.tenants.iter_mut().zip(minimums) {
        let group = &mut tenant.node_groups[0];
        *group = NodeGroup {
            min_nodes: *minimum,
            max_nodes: group.max_nodes + minimum,
            ..group.clone()
        };
    }
}
