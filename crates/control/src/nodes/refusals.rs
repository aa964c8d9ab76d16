//! Free nodes whose record the API server did not take, as an admission webhook can have it. They rest for a while, so that
//! tenants are promised others. Only kept in memory: the next control finds it out again.

use berth_planner::Seconds;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// How long a node rests, in seconds.
const REST: Seconds = 60;

/// Until when nodes rest and why, by name.
#[derive(Default)]
pub struct Refusals(Mutex<HashMap<String, (Seconds, String)>>);

impl Refusals {
    /// A node rests from now on.
    pub fn note(&self, node: &str, why: &str, now: Seconds) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(node.to_owned(), (now + REST, why.to_owned()));
    }

    /// Why a node rests; none if it does not.
    pub fn of(&self, node: &str, now: Seconds) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(node)
            .filter(|(until, _)| rests(*until, now))
            .map(|(_, why)| why.clone())
    }

    /// In how many seconds the first of them has rested. Those that have are forgotten.
    pub fn soonest(&self, now: Seconds) -> Option<Seconds> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (until, _)| rests(*until, now));
        all.values().map(|(until, _)| until - now + 1).min()
    }
}

/// Whether it is not over yet. A clock that went back must not keep a node for longer.
fn rests(until: Seconds, now: Seconds) -> bool {
    (now..=now + REST).contains(&until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_rests_for_a_while() {
        let refusals = Refusals::default();
        assert_eq!((refusals.of("a", 100), refusals.soonest(100)), (None, None));
        refusals.note("a", "denied", 100);
        refusals.note("b", "denied", 130);
        assert_eq!(refusals.of("a", 160).as_deref(), Some("denied"));
        assert_eq!(refusals.soonest(150), Some(11));
        assert_eq!(refusals.of("a", 161), None);
        assert_eq!(refusals.soonest(161), Some(30));
        assert_eq!(refusals.of("b", 60), None, "the clock went back");
    }
}
