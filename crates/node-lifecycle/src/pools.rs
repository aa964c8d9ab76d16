//! Which pool a host node is in.

use berth_api::HostNodePool;
use kube_core::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};

/// The node selectors of all pools.
pub struct PoolSelectors(Vec<(String, BTreeMap<String, String>)>);

impl PoolSelectors {
    /// The selectors of these pools.
    pub fn from_pools(pools: &[Arc<HostNodePool>]) -> Self {
        Self::new(
            pools
                .iter()
                .map(|pool| (pool.name_any(), pool.spec.node_selector.clone())),
        )
    }

    /// Names of pools with their selectors.
    pub fn new(pools: impl IntoIterator<Item = (String, BTreeMap<String, String>)>) -> Self {
        let mut all: Vec<_> = pools.into_iter().collect();
        all.sort();
        Self(all)
    }

    /// The pool of a node with these labels. `Err` names several pools: no tenant gets the node.
    pub fn pool_of(&self, labels: &BTreeMap<String, String>) -> Result<Option<&str>, Vec<&str>> {
        let selectors = self.0.iter().map(|(name, selector)| (name.as_str(), selector));
        berth_planner::pool_of(selectors, labels)
    }

    /// How many of these nodes each pool has.
    pub fn count_nodes<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    ) -> BTreeMap<String, usize> {
        let mut totals = BTreeMap::new();
        for labels in nodes {
            if let Ok(Some(pool)) = self.pool_of(labels) {
                *totals.entry(pool.to_owned()).or_default() += 1;
            }
        }
        totals
    }
}
