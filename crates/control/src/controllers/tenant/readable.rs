//! With which keys everything that a tenant stores was found to be readable: pure.

use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// Time of a look at a tenant that sleeps.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Pause after it, before another one is looked at that sleeps: as long as a look at most, so that etcd has nothing to read for them half of the time.
const PAUSE: Duration = Duration::from_secs(1);

/// When tenants that sleep are looked at: one at a time, with pauses.
#[derive(Debug, Default)]
pub(super) struct LooksWhileAsleep {
    /// Not before; none: now.
    next: Option<Instant>,
}

impl LooksWhileAsleep {
    /// Begins a look of at most [`LOOK`]. Returns whether that may be now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let is_now = self.next.is_none_or(|next| now >= next);
        if is_now {
            self.end(now + LOOK);
        }
        is_now
    }

    /// Ends a look.
    pub(super) fn end(&mut self, now: Instant) {
        self.next = Some(now + PAUSE);
    }
}

/// What was found, and how far the look at it is.
#[derive(Debug, Default)]
pub(super) struct Readable {
    /// The keys with which everything was readable.
    keys: Option<BTreeSet<String>>,
    /// The keys with which it is being looked at, and the resource and the last object of it that was readable.
    look: Option<(BTreeSet<String>, Place)>,
}

/// A place among the objects of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) resource: String,
    /// Key of the last object that was looked at; empty if there is none.
    pub(super) after: Vec<u8>,
}

impl Readable {
    /// Whether everything is readable with these keys, because it was with them or with fewer.
    pub(super) fn is_readable_with(&self, keys: &BTreeSet<String>) -> bool {
        self.keys.as_ref().is_some_and(|known| known.is_subset(keys))
    }

    /// Notes that everything is readable with these keys.
    pub(super) fn note(&mut self, keys: BTreeSet<String>) {
        *self = Self {
            keys: Some(keys),
            look: None,
        };
    }

    /// Where a look with these keys goes on; none: at the beginning.
    pub(super) fn place(&self, keys: &BTreeSet<String>) -> Option<Place> {
        let (known, place) = self.look.as_ref()?;
        known.is_subset(keys).then(|| place.clone())
    }

    /// Notes that everything up to here is readable with these keys.
    pub(super) fn note_place(&mut self, keys: &BTreeSet<String>, place: Place) {
        self.look = Some((keys.clone(), place));
    }

    /// Forgets how far the look is: something was not readable, and may be replaced.
    pub(super) fn forget_place(&mut self) {
        self.look = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_tenants_that_sleep_have_a_pause_between_them() {
        let (mut looks, start) = (LooksWhileAsleep::default(), Instant::now());
        assert!(looks.begin(start));
        assert!(!looks.begin(start + LOOK), "one at a time");
        let ended = start + LOOK / 2;
        looks.end(ended);
        assert!(!looks.begin(ended + PAUSE / 2));
        assert!(looks.begin(ended + PAUSE));
        // Its end is not known if control gives it up.
        assert!(looks.begin(ended + PAUSE + LOOK + PAUSE));
    }

    #[test]
    fn what_was_readable_is_so_with_more_keys_and_not_with_others() {
        let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(ToString::to_string).collect() };
        let mut readable = Readable::default();
        assert!(!readable.is_readable_with(&set(&[])));
        let place = Place {
            resource: "secrets".into(),
            after: b"team/a".to_vec(),
        };
        readable.note_place(&set(&["a"]), place.clone());
        assert_eq!(readable.place(&set(&["a", "b"])), Some(place.clone()));
        assert_eq!(readable.place(&set(&["b"])), None);
        readable.forget_place();
        assert_eq!(readable.place(&set(&["a"])), None);
        readable.note_place(&set(&["a"]), place);
        readable.note(set(&["a"]));
        assert_eq!(readable.place(&set(&["a"])), None);
        assert!(readable.is_readable_with(&set(&["a", "b"])));
        assert!(!readable.is_readable_with(&set(&["b"])) && !readable.is_readable_with(&set(&[])));
    }
}
