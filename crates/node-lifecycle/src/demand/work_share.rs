//! How much of the planner's work one node group may cause.
//!
//! The planner has a number for each request and each resource that requests name, and evaluates each affinity on each node. Tenants decide on
//! both: with an anti-affinity of its own for each of 15,000 pods, one of them would take all memory of control and keep it from planning
//! for others. So each group has a share. What is beyond it waits, as pods do that wait for the nodes of others, until those before it
//! have their nodes.

use super::{units::SchedulingUnit, workload::Workload};
use berth_api::labels;
use berth_planner::Unplanned;
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

/// Requests of all groups together. Pods that are alike are one.
const ALL_REQUESTS: usize = 20_000;
/// What a group has of them, however many groups there are.
const FEWEST_REQUESTS: usize = 1_000;
/// Constraints of all groups together: resources, labels, affinities, anti-affinities and spreads that requests name, each once.
const ALL_CONSTRAINTS: usize = 1_000;
/// What a group has of them, however many groups there are.
const FEWEST_CONSTRAINTS: usize = 50;

/// What a node group may cause.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    requests: usize,
    constraints: usize,
}

impl Share {
    /// The share of one of so many groups whose nodes follow demand.
    pub fn of_one(groups: usize) -> Self {
        let share = |all: usize, fewest: usize| (all / groups.max(1)).max(fewest);
        Self {
            requests: share(ALL_REQUESTS, FEWEST_REQUESTS),
            constraints: share(ALL_CONSTRAINTS, FEWEST_CONSTRAINTS),
        }
    }
}

impl Default for Share {
    /// That of the only group.
    fn default() -> Self {
        Self::of_one(1)
    }
}

/// What a group has used of its share.
#[derive(Debug, Default)]
pub(super) struct UsedShare {
    requests: usize,
    constraints: HashSet<u64>,
}

impl UsedShare {
    /// Adds the constraints of pods, if there is room for them and for another request; else says why there is none.
    pub(super) fn admit(&mut self, share: Share, constraints: &HashSet<u64>) -> Result<(), Unplanned> {
        if constraints.len() > share.constraints {
            return Err(Unplanned::ManyConstraints);
        }
        let new = constraints.difference(&self.constraints).count();
        if self.requests >= share.requests || self.constraints.len() + new > share.constraints {
            return Err(Unplanned::Later);
        }
        self.constraints.extend(constraints);
        Ok(())
    }

    /// Counts requests that were added.
    pub(super) fn add_request(&mut self) {
        self.requests += 1;
    }
}

/// Identifies constraints by hashes: their texts can be long.
#[derive(Default)]
pub(super) struct Constraints(RandomState);

impl Constraints {
    /// The constraints of pods that are served together.
    pub(super) fn of(&self, unit: &SchedulingUnit<'_>) -> HashSet<u64> {
        unit.pods.iter().flat_map(|pod| self.of_pod(pod)).collect()
    }

    fn of_pod(&self, pod: &Workload) -> Vec<u64> {
        let of_all_nodes = [labels::POOL, labels::NODE_GROUP];
        let selected = pod.rules.selector.iter();
        let selected = selected.filter(|(key, _)| !of_all_nodes.contains(&key.as_str()));
        let mut all: Vec<u64> = selected.map(|entry| self.0.hash_one(("label", entry))).collect();
        all.extend(pod.amounts.keys().map(|name| self.0.hash_one(("resource", name))));
        all.extend(
            pod.anti_affinity_resources()
                .map(|name| self.0.hash_one(("resource", name))),
        );
        if !pod.rules.terms.is_empty() {
            all.push(self.0.hash_one(("affinity", pod.rules.describe_terms())));
        }
        all
    }
}
