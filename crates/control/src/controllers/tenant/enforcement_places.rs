//! Places of tenants that sleep and whose class has changed: few of them are started for that at the same time, in the order in which they asked.

use crate::key::Key;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Tenants that have a place at the same time. Each needs it for some seconds.
const MOST: usize = 10;
/// How long a tenant has its place. One whose API server does not start, or whose syncer cannot list, goes on and keeps others from nothing.
const HELD: Duration = Duration::from_mins(2);
/// How long one is remembered that does not ask again. Each asks about once a minute.
const REMEMBERED: Duration = Duration::from_mins(3);

/// Who has a place, and who waits for one. Lost with the process: then as many more are started at once.
#[derive(Debug, Default)]
pub(super) struct EnforcementPlaces(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Since when each has its place.
    held: HashMap<Key, Instant>,
    /// Who waits, and when each has asked last, in the order in which they came.
    waiting: Vec<(Key, Instant)>,
}

impl Places {
    fn forget_old(&mut self, now: Instant) {
        self.held.retain(|_, since| now.duration_since(*since) < HELD);
        self.waiting
            .retain(|(_, asked)| now.duration_since(*asked) < REMEMBERED);
    }

    fn free(&self) -> usize {
        MOST.saturating_sub(self.held.len())
    }
}

impl EnforcementPlaces {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a place for a tenant. Returns whether it has one.
    pub(super) fn ask(&self, tenant: &Key, now: Instant) -> bool {
        let mut places = self.places();
        places.forget_old(now);
        if places.held.contains_key(tenant) {
            return true;
        }
        let known = places.waiting.iter().position(|(waiting, _)| waiting == tenant);
        let position = known.unwrap_or(places.waiting.len());
        if position < places.free() {
            places.waiting.retain(|(waiting, _)| waiting != tenant);
            places.held.insert(tenant.clone(), now);
            return true;
        }
        match places.waiting.get_mut(position) {
            Some((_, asked)) => *asked = now,
            None => places.waiting.push((tenant.clone(), now)),
        }
        false
    }

    /// A tenant needs no place, or none any more. Returns those that get one if they ask now.
    pub(super) fn leave(&self, tenant: &Key) -> Vec<Key> {
        let mut places = self.places();
        places.waiting.retain(|(waiting, _)| waiting != tenant);
        if places.held.remove(tenant).is_none() {
            return Vec::new();
        }
        let next = places.waiting.iter().take(places.free());
        next.map(|(waiting, _)| waiting.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: usize) -> Key {
        Key::Tenant {
            namespace: "team".into(),
            name: number.to_string(),
        }
    }

    /// Places that are all taken, and a tenant that waits.
    fn taken(now: Instant) -> EnforcementPlaces {
        let places = EnforcementPlaces::default();
        for number in 0..MOST {
            assert!(places.ask(&tenant(number), now));
        }
        assert!(!places.ask(&tenant(MOST), now));
        places
    }

    #[test]
    fn of_a_thousand_tenants_few_have_a_place_and_all_get_one() {
        let (places, now) = (EnforcementPlaces::default(), Instant::now());
        let mut done = Vec::new();
        let mut asking: Vec<Key> = (0..1000).map(tenant).collect();
        while !asking.is_empty() {
            let have: Vec<Key> = asking.iter().filter(|key| places.ask(key, now)).cloned().collect();
            assert!((1..=MOST).contains(&have.len()), "{}", have.len());
            for key in &have {
                assert!(places.ask(key, now), "it keeps its place");
                places.leave(key);
            }
            asking.retain(|key| !have.contains(key));
            done.extend(have);
        }
        assert_eq!(done, (0..1000).map(tenant).collect::<Vec<_>>(), "in their order");
    }

    #[test]
    fn a_tenant_that_asks_again_and_again_comes_after_those_that_wait() {
        let now = Instant::now();
        let places = taken(now);
        assert_eq!(places.leave(&tenant(0)), [tenant(MOST)]);
        assert!(!places.ask(&tenant(0), now), "the place is that of another one");
        assert!(places.ask(&tenant(MOST), now));
        assert!(!places.ask(&tenant(0), now));
    }

    #[test]
    fn a_tenant_that_is_not_done_keeps_no_place_for_ever() {
        let now = Instant::now();
        let places = taken(now);
        assert!(!places.ask(&tenant(MOST), now + HELD / 2));
        assert!(places.ask(&tenant(MOST), now + HELD));
    }

    #[test]
    fn who_does_not_ask_again_keeps_nobody_waiting() {
        let now = Instant::now();
        let places = taken(now);
        let later = now + REMEMBERED;
        for number in 0..MOST {
            assert!(places.ask(&tenant(100 + number), later), "{number}");
        }
        assert!(!places.ask(&tenant(MOST), later));
        places.leave(&tenant(MOST));
        assert!(places.leave(&tenant(100)).is_empty(), "nobody waits");
    }
}
