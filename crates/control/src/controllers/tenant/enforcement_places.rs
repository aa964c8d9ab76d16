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

/// Who has a place, and who waits for one. Lost with the process: those that were started have one again as soon as they are looked at.
#[derive(Debug, Default)]
pub(super) struct EnforcementPlaces(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Who was started, until it leaves, and since when it has its place. Once its time is over, it keeps nobody waiting.
    started: HashMap<Key, Instant>,
    /// Who waits, and when each has asked last, in the order in which they came.
    waiting: Vec<(Key, Instant)>,
}

/// Whether a place is held at `now` since then.
fn is_held(since: Instant, now: Instant) -> bool {
    now.duration_since(since) < HELD
}

impl Places {
    fn free(&self, now: Instant) -> usize {
        let held = self.started.values().filter(|since| is_held(**since, now)).count();
        MOST.saturating_sub(held)
    }

    fn forget_waiting(&mut self, tenant: &Key) {
        self.waiting.retain(|(waiting, _)| waiting != tenant);
    }
}

impl EnforcementPlaces {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a place for a tenant. Returns whether it has one.
    pub(super) fn ask(&self, tenant: &Key, now: Instant) -> bool {
        let mut places = self.places();
        if places.started.get(tenant).is_some_and(|since| is_held(*since, now)) {
            return true;
        }
        places.started.remove(tenant);
        places
            .waiting
            .retain(|(_, asked)| now.duration_since(*asked) < REMEMBERED);
        let known = places.waiting.iter().position(|(waiting, _)| waiting == tenant);
        let position = known.unwrap_or(places.waiting.len());
        if position < places.free(now) {
            places.forget_waiting(tenant);
            places.started.insert(tenant.clone(), now);
            return true;
        }
        match places.waiting.get_mut(position) {
            Some((_, asked)) => *asked = now,
            None => places.waiting.push((tenant.clone(), now)),
        }
        false
    }

    /// A tenant was started. It has a place from now on, unless it is known to have had one: an earlier process may have started it.
    pub(super) fn note_started(&self, tenant: &Key, now: Instant) {
        let mut places = self.places();
        places.forget_waiting(tenant);
        places.started.entry(tenant.clone()).or_insert(now);
    }

    /// Whether a tenant that was started has its place still. One that has not follows its class much later than others, or never.
    pub(super) fn has_place(&self, tenant: &Key, now: Instant) -> bool {
        let places = self.places();
        places.started.get(tenant).is_some_and(|since| is_held(*since, now))
    }

    /// A tenant needs no place, or none any more. Returns those that get one if they ask now.
    pub(super) fn leave(&self, tenant: &Key, now: Instant) -> Vec<Key> {
        let mut places = self.places();
        places.forget_waiting(tenant);
        if places.started.remove(tenant).is_none() {
            return Vec::new();
        }
        let next = places.waiting.iter().take(places.free(now));
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
                places.leave(key, now);
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
        assert_eq!(places.leave(&tenant(0), now), [tenant(MOST)]);
        assert!(!places.ask(&tenant(0), now), "the place is that of another one");
        assert!(places.ask(&tenant(MOST), now));
        assert!(!places.ask(&tenant(0), now));
    }

    #[test]
    fn a_tenant_that_is_not_done_keeps_no_place_for_ever() {
        let now = Instant::now();
        let places = taken(now);
        assert!(!places.ask(&tenant(MOST), now + HELD / 2));
        assert!(places.has_place(&tenant(0), now + HELD / 2));
        assert!(places.ask(&tenant(MOST), now + HELD));
        assert!(!places.has_place(&tenant(0), now + HELD));
        assert!(places.has_place(&tenant(MOST), now + HELD));
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
        places.leave(&tenant(MOST), later);
        assert!(places.leave(&tenant(100), later).is_empty(), "nobody waits");
    }

    #[test]
    fn those_that_an_earlier_process_has_started_have_places_for_their_time() {
        let (places, now) = (EnforcementPlaces::default(), Instant::now());
        for number in 0..=MOST {
            places.note_started(&tenant(number), now);
        }
        let other = tenant(100);
        assert!(!places.ask(&other, now));
        // They are looked at again and again.
        for number in 0..=MOST {
            places.note_started(&tenant(number), now + HELD / 2);
        }
        assert!(!places.ask(&other, now + HELD / 2));
        assert!(places.ask(&other, now + HELD));
    }

    #[test]
    fn a_tenant_that_is_started_again_later_waits_as_others_do() {
        let now = Instant::now();
        let places = taken(now);
        let later = now + HELD;
        for number in MOST..2 * MOST {
            assert!(places.ask(&tenant(number), later), "{number}");
        }
        assert!(!places.ask(&tenant(0), later), "it has had its time");
    }
}
