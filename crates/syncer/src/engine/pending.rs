//! Host objects that are ahead of the tenant's: they are left alone until the tenant's object arrives, or until it is known that its API server has
//! not stored it. A plug-in of the tenant may have rejected it, and what it opens on the host must not stay open.

use super::{Engine, api::CallError, host_first, lock, queued_key::QueuedKey, to_host::ObjectSync};
use berth_sync_rules::model::{
    json,
    resource::{Key, Name},
    store::{Stored, is_origin},
};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest time for which a reservation is pending: the API server has given up by then.
const RESERVATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from the answer until the tenant's API server is asked whether it has stored the object. It takes milliseconds for that, unless another
/// webhook of the tenant is slow; then the host object is changed once more when the object arrives.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The least time until then. Updates that are rejected and repeated do not put off the look.
const EARLIEST_LOOK: Duration = Duration::from_millis(250);

/// The pending reservations.
#[derive(Default)]
pub(super) struct PendingReservations {
    pending: Mutex<HashMap<Key, PendingReservation>>,
    next: AtomicU64,
}

struct PendingReservation {
    /// Tells it from another one of the same object.
    number: u64,
    since: Instant,
    /// When the host object got ahead of the tenant's: the first of the reservations that were answered and whose objects have not arrived.
    ahead_since: Option<Instant>,
    /// When the one before would have been looked at: it was answered, and its object has not arrived.
    look_at: Option<Instant>,
    /// What the object of that one will have allocated.
    answered_before: Option<Value>,
    /// What the tenant's object will have allocated; none until that is known.
    answer: Option<Answer>,
}

struct Answer {
    allocated: Value,
    look_at: Instant,
    /// Until the look after that one.
    pause: Duration,
}

/// What is known of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none, or the tenant's object has arrived.
    Settled,
    /// The object must still be left alone for so long.
    Wait(Duration),
    /// It is time to ask the tenant's API server about the reservation of this number.
    Look(u64),
    /// The tenant's API server has given up.
    Dropped,
}

/// What a reservation means for the host object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// There is none, or the tenant's object has arrived.
    Settled,
    /// The host object is ahead of the tenant's: it is left alone for so long.
    Wait(Duration),
    /// The tenant's API server did not store the object: what was reserved is undone.
    Dropped,
}

impl PendingReservations {
    /// Begins a reservation at `now`, unless one began less than `turn` before. Returns its number.
    pub(super) fn start(&self, key: &Key, turn: Duration, now: Instant) -> Option<u64> {
        let age = |since: Instant| now.saturating_duration_since(since);
        let mut pending = lock(&self.pending);
        pending.retain(|_, reservation| age(reservation.since) < RESERVATION_TIMEOUT);
        if pending.get(key).is_some_and(|before| age(before.since) < turn) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let before = pending.remove(key);
        let ahead_since = before.as_ref().and_then(|before| before.ahead_since);
        let (look_at, answered_before) = match before {
            Some(PendingReservation {
                answer: Some(answer), ..
            }) => (Some(answer.look_at), Some(answer.allocated)),
            Some(before) => (before.look_at, before.answered_before),
            None => (None, None),
        };
        let reservation = PendingReservation {
            number,
            since: now,
            ahead_since,
            look_at,
            answered_before,
            answer: None,
        };
        pending.insert(key.clone(), reservation);
        Some(number)
    }

    /// Ends whatever is reserved for an object.
    pub(super) fn end(&self, key: &Key) {
        lock(&self.pending).remove(key);
    }

    /// Ends this reservation. Returns whether it was still the one that is pending.
    fn end_one(&self, key: &Key, number: u64) -> bool {
        let mut pending = lock(&self.pending);
        let is_this = pending.get(key).is_some_and(|reservation| reservation.number == number);
        if is_this {
            pending.remove(key);
        }
        is_this
    }

    /// What the tenant's object will have allocated. Returns the time until the first look.
    fn set_allocated(&self, key: &Key, number: u64, allocated: Value, now: Instant) -> Duration {
        let mut pending = lock(&self.pending);
        let this = pending.get_mut(key).filter(|reservation| reservation.number == number);
        let Some(reservation) = this else { return FIRST_LOOK };
        reservation.ahead_since.get_or_insert(now);
        let latest = now + FIRST_LOOK;
        let look_at = reservation
            .look_at
            .map_or(latest, |at| at.clamp(now + EARLIEST_LOOK, latest));
        reservation.answer = Some(Answer {
            allocated,
            look_at,
            pause: FIRST_LOOK,
        });
        look_at - now
    }

    /// The state, given what the tenant's object has allocated as it is known here. Ends the reservation if that is what it waits for.
    fn state(&self, key: &Key, allocated: &Value, now: Instant) -> State {
        let mut pending = lock(&self.pending);
        let Some(reservation) = pending.get_mut(key) else {
            return State::Settled;
        };
        if reservation.answered_before.as_ref() == Some(allocated) {
            // The object of the one before has arrived: until this one is answered, the host object is not ahead.
            reservation.answered_before = None;
            if reservation.answer.is_none() {
                (reservation.ahead_since, reservation.look_at) = (None, None);
            }
        }
        // Updates that are rejected and repeated do not put off the end either: where the tenant's API server is not asked, nothing else ends them.
        let begun = reservation
            .ahead_since
            .map_or(reservation.since, |ahead| ahead.min(reservation.since));
        let left = RESERVATION_TIMEOUT.saturating_sub(now.saturating_duration_since(begun));
        let answer = reservation.answer.as_ref();
        let state = match answer {
            Some(answer) if answer.allocated == *allocated => State::Settled,
            _ if left.is_zero() => State::Dropped,
            None => State::Wait(left),
            Some(answer) if answer.look_at > now => State::Wait(left.min(answer.look_at - now)),
            Some(_) => State::Look(reservation.number),
        };
        if matches!(state, State::Settled | State::Dropped) {
            pending.remove(key);
        }
        state
    }

    /// The tenant's API server has not said what has become of the object. Returns the time until the next look.
    fn look_again(&self, key: &Key, now: Instant) -> Duration {
        let mut pending = lock(&self.pending);
        let answer = pending.get_mut(key).and_then(|reservation| reservation.answer.as_mut());
        let Some(answer) = answer else { return Duration::ZERO };
        let pause = answer.pause;
        answer.look_at = now + pause;
        answer.pause = pause * 2;
        pause
    }
}

/// A reservation that is being made. It ends when this is dropped, unless it was [answered](ReservationInProgress::answered): an API server that gave up
/// stores nothing.
pub(super) struct ReservationInProgress<'a> {
    engine: &'a Engine,
    key: Key,
    number: u64,
    is_answered: bool,
}

impl<'a> ReservationInProgress<'a> {
    pub(super) fn new(engine: &'a Engine, key: Key, number: u64) -> Self {
        Self {
            engine,
            key,
            number,
            is_answered: false,
        }
    }

    /// The tenant's API server learns what the host has allocated.
    pub(super) fn answered(mut self, allocated: Value) {
        let Self {
            engine, key, number, ..
        } = &self;
        let first_look = engine.pending.set_allocated(key, *number, allocated, Instant::now());
        engine.compare_later(key);
        engine.queue_of(key.kind).add_after(QueuedKey(key.clone()), first_look);
        self.is_answered = true;
    }
}

impl Drop for ReservationInProgress<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.engine.pending.end_one(&self.key, self.number);
            // The host may have carried out the request all the same.
            self.engine.add(self.key.clone());
        }
    }
}

impl ObjectSync<'_> {
    /// Whether the host object must be left alone because it is ahead of the tenant's.
    pub(super) async fn pending(&self, stored: &Stored, object: &Value, host: &Stored) -> Pending {
        if !is_origin(stored, host) {
            return Pending::Settled;
        }
        let (engine, key) = (self.engine, self.key());
        let allocated = self.kind.allocated(object);
        match engine.pending.state(&key, &allocated, Instant::now()) {
            State::Settled => Pending::Settled,
            State::Wait(left) => Pending::Wait(left),
            State::Dropped => Pending::Dropped,
            // It stays due until the tenant's API server is asked.
            State::Look(_) if host_first::defers() => Pending::Wait(FIRST_LOOK),
            State::Look(number) if self.is_stored_with(stored, &allocated).await => {
                if engine.pending.end_one(&key, number) {
                    Pending::Dropped
                } else {
                    // Meanwhile another one has begun, or the object has arrived.
                    Pending::Wait(Duration::ZERO)
                }
            }
            // The watch will report what the object has become, or the API server does not answer.
            State::Look(_) => Pending::Wait(engine.pending.look_again(&key, Instant::now())),
        }
    }

    /// Whether the tenant's API server has this very object, and with this allocated.
    async fn is_stored_with(&self, stored: &Stored, allocated: &Value) -> bool {
        let Name { namespace, name } = self.name;
        let live = self.engine.tenant.get(self.kind.resource(), namespace, name).await;
        let live = CallError::found(live).ok().flatten();
        live.is_some_and(|live| {
            json::text(&live, &["metadata", "uid"]) == Some(&*stored.uid) && self.kind.allocated(&live) == *allocated
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::engine;
    use berth_sync_rules::model::KindId;
    use serde_json::json;

    const TURN: Duration = Duration::from_secs(2);

    fn key() -> Key {
        KindId::Service.key(Name::new("shop", "web"))
    }

    #[test]
    fn a_pending_reservation_ends_when_the_allocated_address_arrives() {
        let (pending, key, now) = (PendingReservations::default(), key(), Instant::now());
        let number = pending.start(&key, TURN, now).unwrap();
        assert_eq!(pending.start(&key, TURN, now), None, "one at a time");
        let next = pending.start(&key, Duration::ZERO, now).unwrap();
        assert_ne!(number, next, "an update does not wait");
        let waits = |allocated: &str| matches!(pending.state(&key, &json!(allocated), now), State::Wait(_));
        assert!(waits("old"));
        pending.set_allocated(&key, number, json!("old"), now);
        assert!(waits("old"), "another reservation has taken its place");
        pending.set_allocated(&key, next, json!("new"), now);
        assert!(waits("old"));
        assert_eq!(pending.state(&key, &json!("new"), now), State::Settled);
        assert_eq!(pending.state(&key, &json!("old"), now), State::Settled, "it has ended");
        assert!(pending.start(&key, TURN, now).is_some());
        let other = KindId::ConfigMap.key(key.name);
        assert_eq!(
            pending.state(&other, &json!("old"), now),
            State::Settled,
            "of another kind"
        );
    }

    #[test]
    fn what_the_tenant_does_not_store_is_looked_for_soon_and_then_less_and_less_often() {
        let (pending, key, now) = (PendingReservations::default(), key(), Instant::now());
        let number = pending.start(&key, TURN, now).unwrap();
        let state = |seconds: u64| pending.state(&key, &json!("old"), now + Duration::from_secs(seconds));
        assert!(matches!(state(20), State::Wait(_)), "it is being made");
        pending.set_allocated(&key, number, json!("new"), now);
        assert!(matches!(state(1), State::Wait(left) if left < FIRST_LOOK));
        let mut seconds = 3;
        for pause in [2, 4, 8] {
            assert_eq!(state(seconds), State::Look(number));
            let next = pending.look_again(&key, now + Duration::from_secs(seconds));
            assert_eq!(next, Duration::from_secs(pause));
            assert_eq!(state(seconds), State::Wait(next));
            seconds += pause;
        }
        assert_eq!(state(31), State::Dropped);
        assert_eq!(state(31), State::Settled);
    }

    #[test]
    fn updates_that_are_rejected_and_repeated_do_not_put_off_the_look() {
        let (pending, key, now) = (PendingReservations::default(), key(), Instant::now());
        let answer = |seconds: f64| {
            let number = pending.start(&key, Duration::ZERO, now).unwrap();
            pending.set_allocated(&key, number, json!("new"), now + Duration::from_secs_f64(seconds))
        };
        assert_eq!(answer(0.0), FIRST_LOOK);
        assert_eq!(answer(1.5), Duration::from_millis(500));
        assert_eq!(answer(3.0), EARLIEST_LOOK);
        // One that was not answered hides nothing.
        pending.start(&key, Duration::ZERO, now).unwrap();
        assert_eq!(answer(3.1), EARLIEST_LOOK);
        // The object has arrived.
        assert_eq!(pending.state(&key, &json!("new"), now), State::Settled);
        assert_eq!(answer(3.2), FIRST_LOOK);
    }

    #[test]
    fn updates_that_are_rejected_and_repeated_end_even_if_nobody_looks() {
        let (pending, key, start) = (PendingReservations::default(), key(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let update = |seconds: u64| pending.start(&key, Duration::ZERO, after(seconds)).unwrap();
        let state = |seconds: u64| pending.state(&key, &json!("old"), after(seconds));
        for seconds in (0..30).step_by(5) {
            let number = update(seconds);
            pending.set_allocated(&key, number, json!("new"), after(seconds));
            assert!(
                matches!(state(seconds + 1), State::Wait(_) | State::Look(_)),
                "{seconds}"
            );
        }
        assert_eq!(state(30), State::Dropped);
        assert_eq!(state(30), State::Settled);
        // Also while another one is being made.
        let number = update(31);
        pending.set_allocated(&key, number, json!("new"), after(31));
        update(59);
        assert!(matches!(state(60), State::Wait(_)));
        assert_eq!(state(61), State::Dropped);
        // One that has arrived begins anew.
        let number = update(62);
        pending.set_allocated(&key, number, json!("new"), after(62));
        assert_eq!(pending.state(&key, &json!("new"), after(63)), State::Settled);
        update(91);
        assert!(matches!(state(93), State::Wait(_)));
    }

    #[test]
    fn updates_that_are_accepted_one_after_another_are_not_dropped() {
        let (pending, key, start) = (PendingReservations::default(), key(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let update = |seconds: u64| pending.start(&key, Duration::ZERO, after(seconds)).unwrap();
        let mut number = update(0);
        for round in 0..10_u64 {
            let (allocated, seconds) = (json!(round), round * 10);
            pending.set_allocated(&key, number, allocated.clone(), after(seconds + 1));
            // The next one begins before the object of this one arrives.
            number = update(seconds + 8);
            let state = pending.state(&key, &allocated, after(seconds + 9));
            assert!(matches!(state, State::Wait(_)), "{round}: {state:?}");
        }
    }

    #[tokio::test]
    async fn a_reservation_that_nobody_waits_for_any_more_is_not_pending() {
        let (engine, key) = (engine(), key());
        let in_progress = |turn| {
            let number = engine.pending.start(&key, turn, Instant::now())?;
            Some(ReservationInProgress::new(&engine, key.clone(), number))
        };
        let state = || engine.pending.state(&key, &json!("old"), Instant::now());
        let first = in_progress(TURN).unwrap();
        let second = in_progress(Duration::ZERO).unwrap();
        drop(first);
        assert!(
            matches!(state(), State::Wait(_)),
            "it is the second one that is pending"
        );
        let number = |in_progress: &ReservationInProgress<'_>| in_progress.number;
        assert!(
            !engine.pending.end_one(&key, number(&second) - 1),
            "a look at the first one does not end it"
        );
        drop(second);
        assert_eq!(state(), State::Settled);
        assert!(in_progress(TURN).is_some());
        assert_eq!(engine.queue_of(key.kind).len(), 1, "the host object is compared");
        in_progress(TURN).unwrap().answered(json!("new"));
        assert!(matches!(state(), State::Wait(left) if left <= FIRST_LOOK));
    }
}
