//! How far the rewriting of a tenant's objects is, which are stored otherwise than their encryption says: pure.

use berth_api::text::printable_start;

/// Bytes of the message of a refusal that are shown.
const MAX_REFUSAL: usize = 512;
/// Bytes of the name of an object that are shown: what etcd has below the prefix of a tenant may have any name.
const MAX_OBJECT: usize = 512;

/// How far the rewriting is. One round goes through all objects, and one that has found all of them stored as they are to be is the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewriting {
    /// Number of the resource that the round is at.
    pub(super) resource: usize,
    /// Last object of it that was looked at.
    pub(super) after: Option<String>,
    /// Objects of this round that were stored otherwise.
    found: Found,
    /// Those of the last complete round; none before there was one, or if it was interrupted.
    found_before: Option<Found>,
    /// Objects that were rewritten, in all rounds.
    rewritten: u64,
    /// Objects of this round that were refused.
    refused: Refused,
    /// Those of the last complete round.
    refused_before: Refused,
    /// Objects that were rewritten before this round.
    rewritten_before: u64,
    /// Why the last complete round has come no further.
    obstacle: Option<Obstacle>,
    /// Whether an API server may have run in this round that writes otherwise.
    is_interrupted: bool,
}

/// How many objects were stored otherwise, and the first of them.
#[derive(Clone, Debug, Default)]
struct Found {
    objects: u64,
    first: String,
}

/// Why a round has come no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Nothing was rewritten: all that was found was refused.
    Refused,
    /// No fewer objects were stored otherwise than in the round before, in which each of them was rewritten or refused: what answers does not store them.
    NotStored,
}

/// How many objects the tenant's API server refused to rewrite, and why the first of them.
#[derive(Clone, Debug, Default)]
struct Refused {
    objects: u64,
    first: String,
}

impl Rewriting {
    /// Notes that so many objects are stored otherwise, and the first of them.
    pub(super) fn add_found(&mut self, objects: usize, first: &str) {
        if self.found.objects == 0 {
            self.found.first = printable_start(first, MAX_OBJECT);
        }
        let objects = u64::try_from(objects).unwrap_or(u64::MAX);
        self.found.objects = self.found.objects.saturating_add(objects);
    }

    /// Notes that an API server may run that writes otherwise: this round is not the last one, whatever it finds.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// Notes that an object was rewritten.
    pub(super) fn add_rewritten(&mut self) {
        self.rewritten += 1;
    }

    /// Notes that the API server refused to rewrite an object.
    pub(super) fn add_refused(&mut self, object: &str, why: &str) {
        if self.refused.objects == 0 {
            let object = printable_start(object, MAX_OBJECT);
            self.refused.first = format!("{object}: {}", printable_start(why, MAX_REFUSAL));
        }
        self.refused.objects += 1;
    }

    /// Objects of which the API server has answered. Those that it refused count once in a round.
    pub(super) fn tried(&self) -> u64 {
        self.rewritten + self.refused.objects
    }

    /// Ends a round. Returns whether everything was stored as it is to be.
    pub(super) fn end_round(&mut self) -> bool {
        let is_last = self.found.objects == 0 && !self.is_interrupted;
        let obstacle = self.find_obstacle();
        *self = Self {
            rewritten: self.rewritten,
            rewritten_before: self.rewritten,
            obstacle,
            refused_before: std::mem::take(&mut self.refused),
            found_before: (!self.is_interrupted).then(|| std::mem::take(&mut self.found)),
            ..Self::default()
        };
        is_last
    }

    fn find_obstacle(&self) -> Option<Obstacle> {
        let before = self.found_before.as_ref().map(|found| found.objects);
        if self.refused.objects > 0 && self.rewritten == self.rewritten_before {
            return Some(Obstacle::Refused);
        }
        // API servers store nothing otherwise, so there are no other objects than in the round before.
        let is_in_vain = self.found.objects > 0 && before.is_some_and(|before| self.found.objects >= before);
        (is_in_vain && !self.is_interrupted).then_some(Obstacle::NotStored)
    }

    /// Whether to try again soon is of no use: the last complete round has come no further.
    pub(super) fn is_refused(&self) -> bool {
        self.obstacle.is_some()
    }

    /// What people read.
    pub(super) fn describe(&self) -> String {
        let rewritten = format!("{} objects were rewritten so far", self.rewritten);
        if let (Some(Obstacle::NotStored), Some(Found { objects, first })) = (self.obstacle, &self.found_before) {
            return format!(
                "{rewritten}; {objects} are stored as they were although the tenant's API server has answered, the first is {first}. Look for \
                 APIServices in the tenant whose servers answer for these objects"
            );
        }
        let refused = if self.refused.objects > 0 {
            &self.refused
        } else {
            &self.refused_before
        };
        if refused.objects == 0 {
            return rewritten;
        }
        format!(
            "{rewritten}; the tenant's API server refused {}, the first is {}. Look for webhooks and policies in the tenant",
            refused.objects, refused.first
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_has_found_an_object_is_not_the_last() {
        let mut rewriting = Rewriting::default();
        rewriting.add_found(2, "secrets team/a");
        rewriting.add_rewritten();
        rewriting.add_refused("secrets team/a", "the webhook says \u{1b}no");
        rewriting.add_refused("secrets team/b", "no");
        assert_eq!(rewriting.tried(), 3);
        (rewriting.resource, rewriting.after) = (1, Some("team/b".into()));
        assert!(!rewriting.end_round());
        assert_eq!((rewriting.resource, rewriting.after.as_deref()), (0, None));
        // What was refused is known until the next round says more.
        let message = rewriting.describe();
        assert!(message.starts_with("1 objects were rewritten so far; the tenant's API server refused 2, the first is secrets team/a: the webhook"));
        assert!(!message.contains('\u{1b}'), "{message}");
        assert!(!rewriting.is_refused(), "one was rewritten");
        rewriting.add_found(1, "secrets team/a");
        rewriting.add_refused("secrets team/a", "no");
        assert!(!rewriting.end_round() && rewriting.is_refused());
        assert!(rewriting.end_round() && !rewriting.is_refused());
        assert_eq!(rewriting.describe(), "1 objects were rewritten so far");
    }

    /// A server of the tenant's own answers that it has stored them.
    #[test]
    fn objects_that_are_left_although_all_were_answered_are_named() {
        let mut rewriting = Rewriting::default();
        let mut round = |objects: usize| {
            rewriting.add_found(objects, "widgets.example.com team/a");
            for _ in 0..objects {
                rewriting.add_rewritten();
            }
            assert!(!rewriting.end_round());
            (rewriting.is_refused(), rewriting.describe())
        };
        assert_eq!(round(3), (false, "3 objects were rewritten so far".into()));
        assert!(!round(2).0, "one was stored again");
        let (is_refused, message) = round(2);
        assert!(is_refused);
        assert!(
            message.contains("2 are stored as they were")
                && message.contains("the first is widgets.example.com team/a"),
            "{message}"
        );
        assert!(!round(1).0);
    }

    #[test]
    fn a_round_in_which_an_api_server_may_have_written_otherwise_is_not_the_last() {
        let mut rewriting = Rewriting::default();
        rewriting.interrupt();
        assert!(!rewriting.end_round());
        rewriting.add_found(1, "secrets team/a");
        rewriting.add_rewritten();
        rewriting.interrupt();
        assert!(
            !rewriting.end_round() && !rewriting.is_refused(),
            "the object is a new one"
        );
        assert!(rewriting.end_round());
    }

    #[test]
    fn of_a_long_name_little_is_shown() {
        let mut rewriting = Rewriting::default();
        let name = format!("secrets {}", "x".repeat(1 << 20));
        for _ in 0..2 {
            rewriting.add_found(1, &name);
            rewriting.add_refused(&name, "no");
            assert!(rewriting.describe().len() < 2000);
            rewriting.add_rewritten();
            rewriting.end_round();
        }
        assert!(rewriting.describe().len() < 2000);
    }
}
