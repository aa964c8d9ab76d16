//! Requests that keys have taken, and have not used yet because their writes wait or fail.
//!
//! They come on top of what an allowance has saved meanwhile, and could all be used at once. So all keys together have no more of them than the
//! allowance, and a key loses what it does not use in time. Otherwise keys that never write would keep others from theirs for ever. The time begins when
//! a whole reconciliation has not used it: until then the key may wait for [long](super::slow_queue).

use berth_sync_rules::model::resource::Key;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Time for which a key keeps what it has taken and not used.
const LASTS: Duration = Duration::from_mins(10);

/// The requests of all keys.
#[derive(Debug)]
pub(super) struct Grants {
    /// Requests that all keys together may have.
    most: u64,
    of: HashMap<Key, Grant>,
    /// Requests of all of them.
    total: u64,
}

/// What a key has.
#[derive(Clone, Copy, Debug)]
struct Grant {
    requests: u64,
    /// When a reconciliation has not used it, for the first time.
    unused_since: Option<Instant>,
}

impl Grant {
    fn is_over(self, now: Instant) -> bool {
        self.unused_since
            .is_some_and(|since| now.saturating_duration_since(since) >= LASTS)
    }
}

impl Grants {
    /// None yet; keys together may have `most` requests.
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            of: HashMap::new(),
            total: 0,
        }
    }

    /// What a key has. What it has not used in time is lost.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> u64 {
        if self.of.get(key).is_some_and(|grant| grant.is_over(now)) {
            self.remove(key);
        }
        self.of.get(key).map_or(0, |grant| grant.requests)
    }

    /// Whether a key has any.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.of.contains_key(key)
    }

    /// Whether a key may get so many more now. One that needs more than all may have gets them once no key has any.
    pub(super) fn has_room(&mut self, requests: u64, now: Instant) -> bool {
        if self.fits(requests) {
            return true;
        }
        self.of.retain(|_, grant| !grant.is_over(now));
        self.total = self.of.values().map(|grant| grant.requests).sum();
        self.fits(requests)
    }

    fn fits(&self, requests: u64) -> bool {
        self.total == 0 || self.total.saturating_add(requests) <= self.most
    }

    /// Gives a key so many more. What it has already does not last longer by that.
    pub(super) fn add(&mut self, key: &Key, requests: u64) {
        let grant = self.of.entry(key.clone()).or_insert(Grant {
            requests: 0,
            unused_since: None,
        });
        grant.requests += requests;
        self.total += requests;
    }

    /// A key has not used what it has, if it has any.
    pub(super) fn start(&mut self, key: &Key, now: Instant) {
        if let Some(grant) = self.of.get_mut(key) {
            grant.unused_since.get_or_insert(now);
        }
    }

    /// Takes away all that a key has. Returns how many these were.
    pub(super) fn remove(&mut self, key: &Key) -> u64 {
        let requests = self.of.remove(key).map_or(0, |grant| grant.requests);
        self.total -= requests;
        requests
    }

    /// Requests of all keys.
    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::{KindId, resource::Name};

    #[test]
    fn keys_share_what_all_may_have_and_lose_it_in_time() {
        let (start, mut grants) = (Instant::now(), Grants::new(10));
        let [one, two] = ["one", "two"].map(|name| KindId::Pod.key(Name::new("team", name)));
        assert!(grants.has_room(10, start));
        grants.add(&one, 6);
        assert_eq!(grants.get(&one, start + 10 * LASTS), 6, "it had no time to use it");
        grants.start(&one, start);
        assert!(grants.has_room(4, start) && !grants.has_room(5, start));
        grants.add(&one, 4);
        grants.start(&one, start + LASTS / 2);
        assert_eq!((grants.get(&one, start), grants.total()), (10, 10));
        assert!(!grants.has_room(1, start + LASTS / 2));
        assert!(
            grants.has_room(1, start + LASTS),
            "more of it does not make it last longer"
        );
        grants.add(&two, 3);
        assert_eq!((grants.get(&one, start + LASTS), grants.total()), (0, 3));
        assert_eq!((grants.remove(&two), grants.total()), (3, 0));
        assert!(grants.has_room(11, start), "nobody has any");
    }
}
