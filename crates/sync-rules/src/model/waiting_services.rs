//! Services that wait to be changed on the host because [few changes of endpoints](super::endpoint_changes) are left, in the order in which they asked
//! first.
//!
//! What grows again may be used up for ever, by pods that flip as often as the class allows. So a Service that has waited for [`PATIENCE`] is written all
//! the same, when its turn has come. Such writes are half as many as the class allows changes, so that they leave something to pods.

use super::resource::Name;
use crate::admission::writes::Pace;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// How long a Service waits for something to be left.
const PATIENCE: Duration = Duration::from_mins(1);
/// What a write takes of the pace, which is that of the class: half as many may be written.
const WRITE: u64 = 2;
/// Seconds in which writes are saved up: a Service that waits asks about every ten seconds.
const SAVED_SECONDS: u64 = 10;
/// Time after which a Service that has not asked again holds no other one up: its change may have been taken back.
const LEFT: Duration = Duration::from_secs(30);
/// Time after which its place is lost. It may have waited for something else meanwhile.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// The Services, and how fast they are written.
#[derive(Debug)]
pub(super) struct WaitingServices {
    pace: Pace,
    /// Most that are written at once.
    most: usize,
    places: HashMap<Name, Place>,
    order: BTreeMap<u64, Name>,
    next_number: u64,
}

/// Where a Service is in the order.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    since: Instant,
    asked_at: Instant,
    /// Whether those after it leave something for it.
    holds_others_up: bool,
}

impl WaitingServices {
    /// Nothing waits, and `rate` changes a second are allowed.
    pub(super) fn new(rate: u64, now: Instant) -> Self {
        let allowance = rate * SAVED_SECONDS;
        Self {
            pace: Pace::with_allowance(allowance, rate, now),
            most: usize::try_from(allowance / WRITE).unwrap_or(usize::MAX),
            places: HashMap::new(),
            order: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Whether a Service may be written although too little is left. It waits from now on if it did not before.
    pub(super) fn may_write(&mut self, service: &Name, now: Instant) -> bool {
        let place = self.ask(service, now);
        if now.saturating_duration_since(place.since) < PATIENCE {
            return false;
        }
        let earlier = self.order.range(..place.number).map(|(_, service)| service);
        let waits = |service: &&Name| {
            let place = self.places.get(*service);
            place.is_some_and(|place| place.holds_others_up && now.saturating_duration_since(place.asked_at) < LEFT)
        };
        // There is enough for those before it as well, whoever asks first.
        let before = earlier.filter(waits).take(self.most).count() as u64;
        self.pace.has(WRITE * (before + 1), now)
    }

    /// Counts the write of a Service that [may be written](Self::may_write).
    pub(super) fn count_write(&mut self, now: Instant) {
        self.pace.reserve(WRITE, now);
    }

    /// A Service waits for something else from now on, until it asks again. It keeps its place, and holds no other one up meanwhile.
    pub(super) fn step_aside(&mut self, service: &Name) {
        if let Some(place) = self.places.get_mut(service) {
            place.holds_others_up = false;
        }
    }

    /// A Service does not wait any more.
    pub(super) fn remove(&mut self, service: &Name) {
        if let Some(place) = self.places.remove(service) {
            self.order.remove(&place.number);
        }
    }

    /// Forgets Services that have not asked for long.
    pub(super) fn forget_old(&mut self, now: Instant) {
        let places = &mut self.places;
        self.order.retain(|_, service| {
            let place = places.get(service);
            let is_kept = place.is_some_and(|place| now.saturating_duration_since(place.asked_at) < FORGOTTEN);
            if !is_kept {
                places.remove(service);
            }
            is_kept
        });
    }

    /// Notes that a Service asks. Returns its place.
    fn ask(&mut self, service: &Name, now: Instant) -> Place {
        if let Some(place) = self.places.get_mut(service) {
            place.asked_at = now;
            place.holds_others_up = true;
            return *place;
        }
        let place = Place {
            number: self.next_number,
            since: now,
            asked_at: now,
            holds_others_up: true,
        };
        self.next_number += 1;
        self.places.insert(service.clone(), place);
        self.order.insert(place.number, service.clone());
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(number: usize) -> Name {
        Name::new("team", &format!("s{number}"))
    }

    /// Services ask one after the other, and are written if they may be. Returns those that are.
    fn write(waiting: &mut WaitingServices, numbers: impl Iterator<Item = usize>, now: Instant) -> Vec<usize> {
        let mut written = Vec::new();
        for number in numbers {
            if waiting.may_write(&service(number), now) {
                waiting.count_write(now);
                waiting.remove(&service(number));
                written.push(number);
            }
        }
        written
    }

    #[test]
    fn those_that_have_waited_longest_are_written_whoever_asks_first() {
        let start = Instant::now();
        let mut waiting = WaitingServices::new(1, start);
        let now = start + PATIENCE;
        for early in [start, now.checked_sub(Duration::from_secs(10)).unwrap()] {
            assert!(
                write(&mut waiting, 0..20, early).is_empty(),
                "something may be left soon"
            );
        }
        assert_eq!(write(&mut waiting, (0..20).rev(), now), [4, 3, 2, 1, 0]);
        let now = now + Duration::from_secs(WRITE);
        assert_eq!(write(&mut waiting, (5..20).rev(), now), [5], "one in two seconds");
    }

    #[test]
    fn those_that_wait_for_something_else_hold_nobody_up_and_keep_their_places() {
        let start = Instant::now();
        for steps_aside in [true, false] {
            let mut waiting = WaitingServices::new(1, start);
            write(&mut waiting, 0..20, start);
            let now = start + PATIENCE;
            for number in 0..10 {
                waiting.may_write(&service(number), now);
                if steps_aside {
                    waiting.step_aside(&service(number));
                }
            }
            let written = write(&mut waiting, (10..20).rev(), now);
            assert_eq!(written.len(), if steps_aside { 5 } else { 0 });
            if steps_aside {
                let now = now + Duration::from_secs(WRITE);
                assert_eq!(
                    write(&mut waiting, 0..1, now),
                    [0],
                    "it does not wait again from the start"
                );
            }
        }
    }

    #[test]
    fn those_that_do_not_ask_any_more_hold_nobody_up_and_are_forgotten() {
        let start = Instant::now();
        let mut waiting = WaitingServices::new(1, start);
        write(&mut waiting, 0..20, start);
        assert_eq!(write(&mut waiting, 19..20, start + PATIENCE), [19]);
        waiting.forget_old(start + FORGOTTEN);
        assert!(waiting.places.is_empty() && waiting.order.is_empty());
    }
}
