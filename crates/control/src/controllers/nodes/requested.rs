//! Nodes that are requested of autoscalers.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

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

/// What is requested, by pool; none before the first plan.
#[derive(Default)]
pub struct RequestTracker(Mutex<Option<BTreeMap<String, Request>>>);

impl RequestTracker {
    /// What is requested in a pool; `None` before the first plan.
    pub fn get(&self, pool: &str) -> Option<Request> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.as_ref().map(|all| all.get(pool).cloned().unwrap_or_default())
    }

    /// Sets what is requested. Returns the pools for which that changed.
    pub(super) fn update(&self, new: BTreeMap<String, Request>) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.take();
        let mut changed: Vec<String> = new
            .iter()
            .filter(|(pool, request)| known.as_ref().and_then(|known| known.get(*pool)) != Some(request))
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
