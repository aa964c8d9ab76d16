//! What one decision costs: 10,000 tenants in 1,000 Projects of 100 Organizations, one of them new each time.
//!
//! `cargo run --release -p berth-quota --example scale`
#![allow(clippy::print_stdout, clippy::cast_possible_wrap, clippy::needless_range_loop)]

use berth_api::{Organization, OrganizationSpec, Project, ProjectSpec, TenantLimits, TreeQuota, TreeResource};
use berth_quota::{Amounts, Claim, Decision, Tree, decide};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const ORGANIZATIONS: usize = 100;
const PROJECTS: usize = 1000;
const TENANTS: usize = 10_000;
const ROUNDS: usize = 100;

fn quota(resource: TreeResource, nominal: u32) -> TreeQuota {
    TreeQuota {
        resource,
        pool_name: None,
        gpu_product: None,
        nominal_quota: nominal.into(),
        borrowing_limit: Some(0_u32.into()),
        lending_limit: None,
    }
}

fn main() {
    let organizations: Vec<Organization> = (0..ORGANIZATIONS)
        .map(|number| {
            let spec = OrganizationSpec {
                quotas: vec![quota(TreeResource::TenantClusters, 1000)],
                ..OrganizationSpec::default()
            };
            Organization::new(&format!("o{number}"), spec)
        })
        .collect();
    let projects: Vec<Project> = (0..PROJECTS)
        .map(|number| {
            let spec = ProjectSpec {
                organization_name: Some(format!("o{}", number % ORGANIZATIONS)),
                quotas: TreeResource::RESERVED
                    .into_iter()
                    .filter(|resource| *resource != TreeResource::RequestsStorage)
                    .map(|resource| quota(resource, u32::MAX))
                    .collect(),
                ..ProjectSpec::default()
            };
            Project::new(&format!("p{number}"), spec)
        })
        .collect();
    let limits = TenantLimits::default();
    let requested: Amounts = TreeResource::RESERVED
        .into_iter()
        .filter_map(|resource| {
            let amount = resource.reserved_by(&limits)?;
            Some((resource, amount.min(1000)))
        })
        .collect();
    let mut claims: Vec<Claim> = (0..TENANTS)
        .map(|number| Claim {
            uid: format!("{number:05}"),
            created: number as i64,
            project: format!("p{}", number % PROJECTS),
            requested: Some(requested.clone()),
            unlimited: BTreeSet::new(),
            reserved: Some(requested.clone()),
        })
        .collect();
    let mut durations: Vec<Duration> = Vec::new();
    for round in 0..ROUNDS {
        claims[round].reserved = None;
        let started = Instant::now();
        let tree = Tree::new(&organizations, &projects);
        let outcome = decide(&tree, &claims);
        durations.push(started.elapsed());
        let is_reserved = matches!(outcome.decisions[&claims[round].uid], Decision::Reserved { .. });
        assert!(is_reserved, "the new tenant has quota");
        claims[round].reserved = Some(requested.clone());
    }
    durations.sort();
    let milliseconds = |percent: usize| durations[ROUNDS * percent / 100].as_secs_f64() * 1000.0;
    println!(
        "one decision for {TENANTS} tenants in {PROJECTS} Projects: median {:.1} ms, 99th percentile {:.1} ms",
        milliseconds(50),
        milliseconds(99)
    );
}
