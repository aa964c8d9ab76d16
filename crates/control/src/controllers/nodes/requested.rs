//! What the last plan says of pools, for their status: nodes that are requested of autoscalers, nodes that cannot be assigned, and how many are not Ready.

use berth_planner::PoolHealth;
use berth_runtime::locks::lock;
use std::{collections::BTreeMap, sync::Mutex};

/// What is requested in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Nodes that autoscalers have to add.
    pub nodes: u32,
    /// Placeholders.
    pub pods: u32,
    /// Why no more is requested.
    pub held_back: Option<String>,
}

/// What is requested, by pool.
pub type RequestTracker = ByPool<Request>;

/// Why nodes without a tenant cannot be assigned, by name.
pub type UnavailableNodes = BTreeMap<String, String>;

/// The same by pool.
pub type UnavailableTracker = ByPool<UnavailableNodes>;

/// How many nodes are not Ready, by pool; only pools that repair their nodes.
pub type HealthTracker = ByPool<PoolHealth>;

/// What the last plan says, by pool; none before the first plan.
#[derive(Default)]
pub struct ByPool<T>(Mutex<Option<BTreeMap<String, T>>>);

impl<T: Clone + Default + PartialEq> ByPool<T> {
    /// What it says of a pool; `None` before the first plan.
    pub fn get(&self, pool: &str) -> Option<T> {
        let all = lock(&self.0);
        all.as_ref().map(|all| all.get(pool).cloned().unwrap_or_default())
    }

    /// Sets what a new plan says. Returns the pools for which that changed.
    pub(super) fn update(&self, new: BTreeMap<String, T>) -> Vec<String> {
        let mut all = lock(&self.0);
        let known = all.take();
        let mut changed: Vec<String> = new
            .iter()
            .filter(|(pool, said)| known.as_ref().and_then(|known| known.get(*pool)) != Some(said))
            .map(|(pool, _)| pool.clone())
            .collect();
        let gone = known.into_iter().flat_map(BTreeMap::into_keys);
        changed.extend(gone.filter(|pool| !new.contains_key(pool)));
        *all = Some(new);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_requests_are_reported_once() {
        let requested = RequestTracker::default();
        assert_eq!(requested.get("h100"), None, "no plan yet");
        let asks = |pods| {
            let request = Request {
                pods,
                ..Request::default()
            };
            BTreeMap::from([("h100".to_owned(), request)])
        };
        assert_eq!(requested.update(asks(1)), ["h100"]);
        assert!(requested.update(asks(1)).is_empty());
        assert_eq!(requested.update(BTreeMap::new()), ["h100"], "no longer asked for");
        assert_eq!(requested.get("h100"), Some(Request::default()));
    }
}
