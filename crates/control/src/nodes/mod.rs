//! Host nodes: who owns which, decided by the pure [planner](berth_planner) and carried out by an [`executor`].
//!
//! The Node object is the only record of its owner, all of it set in one patch that fails if the node changed meanwhile. What
//! the planner looks at is made by [`fleet`] from that record and from the pods that wait, see [`demand`].

pub mod autoscalers;
mod by_node;
pub mod clock;
pub mod demand;
pub mod devices;
pub mod executor;
pub mod fleet;
mod gather;
pub mod idle;
pub mod jobs;
pub mod placeholders;
pub mod record;
pub mod refusals;
pub mod requests;
pub mod shared;
pub mod step;
pub mod workloads;

pub use by_node::ByNode;
pub use fleet::is_visible_label;
pub use record::{NodeRecord, State, is_available, is_ready};

use crate::context::Context;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// What the pools select.
pub struct Selectors(Vec<(String, BTreeMap<String, String>)>);

impl Selectors {
    /// Of the pools that there are.
    pub fn of(context: &Context) -> Self {
        let pools = context.stores.pools.state();
        Self::new(
            pools
                .iter()
                .map(|pool| (pool.name_any(), pool.spec.node_selector.clone())),
        )
    }

    /// Of pools by name.
    pub fn new(pools: impl IntoIterator<Item = (String, BTreeMap<String, String>)>) -> Self {
        let mut all: Vec<_> = pools.into_iter().collect();
        all.sort();
        Self(all)
    }

    /// The pool of a node with these labels. Several: `Err` names them, and the node is given to nobody.
    pub fn pool_of(&self, labels: &BTreeMap<String, String>) -> Result<Option<&str>, Vec<&str>> {
        let selectors = self.0.iter().map(|(name, selector)| (name.as_str(), selector));
        berth_planner::pool_of(selectors, labels)
    }

    /// How many of these nodes each pool has, whoever has them.
    pub fn totals<'a>(&self, nodes: impl IntoIterator<Item = &'a BTreeMap<String, String>>) -> BTreeMap<String, usize> {
        let mut totals = BTreeMap::new();
        for labels in nodes {
            if let Ok(Some(pool)) = self.pool_of(labels) {
                *totals.entry(pool.to_owned()).or_default() += 1;
            }
        }
        totals
    }
}
