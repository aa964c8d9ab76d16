//! Free nodes whose assignment the API server rejected, for example an admission webhook. They are not reserved for a while, so that
//! tenants get others. Kept in memory only: a new control tries them again.

use berth_planner::Seconds;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Seconds until a rejected node can be reserved again.
const RETRY_AFTER: Seconds = 60;

/// Until when nodes are not reserved, and why; by name.
#[derive(Default)]
pub struct RejectedNodes(Mutex<HashMap<String, (Seconds, String)>>);

impl RejectedNodes {
    /// Keeps a node from being reserved for a minute. `why`: what the API server answered.
    pub fn add(&self, node: &str, why: &str, now: Seconds) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(node.to_owned(), (now + RETRY_AFTER, why.to_owned()));
    }

    /// Why a node is not reserved; none if it can be.
    pub fn reason(&self, node: &str, now: Seconds) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(node)
            .filter(|(until, _)| is_rejected(*until, now))
            .map(|(_, why)| why.clone())
    }

    /// Seconds until the first of them can be reserved again.
    pub fn seconds_until_next_retry(&self, now: Seconds) -> Option<Seconds> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (until, _)| is_rejected(*until, now));
        all.values().map(|(until, _)| until - now + 1).min()
    }
}

/// Whether the pause is not over yet. A clock that went back must not make it longer.
fn is_rejected(until: Seconds, now: Seconds) -> bool {
    (now..=now + RETRY_AFTER).contains(&until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_node_is_paused_for_a_while() {
        let rejected = RejectedNodes::default();
        assert_eq!(
            (rejected.reason("a", 100), rejected.seconds_until_next_retry(100)),
            (None, None)
        );
        rejected.add("a", "denied", 100);
        rejected.add("b", "denied", 130);
        assert_eq!(rejected.reason("a", 160).as_deref(), Some("denied"));
        assert_eq!(rejected.seconds_until_next_retry(150), Some(11));
        assert_eq!(rejected.reason("a", 161), None);
        assert_eq!(rejected.seconds_until_next_retry(161), Some(30));
        assert_eq!(rejected.reason("b", 60), None, "the clock went back");
    }
}
