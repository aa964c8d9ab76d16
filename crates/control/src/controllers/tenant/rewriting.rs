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
    /// Key of the last object of it that was looked at.
    pub(super) after: Option<Vec<u8>>,
    /// What this round has come to so far.
    round: Round,
    /// What the last complete round has come to.
    before: Round,
    /// Objects that were rewritten before this round.
    rewritten_before: u64,
    /// Why the last complete round has come no further.
    obstacle: Option<Obstacle>,
    /// Whether an API server may have run in this round that writes otherwise.
    is_interrupted: bool,
    /// The same of the last complete round.
    was_interrupted: bool,
}

/// What became of the objects that a round has found stored otherwise. All others are stored as they are to be.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Those of which the API server has answered that they are stored again.
    rewritten: Objects,
    /// Those that it refused to rewrite. Why is beside the first of them.
    refused: Objects,
}

/// How many objects, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Objects {
    count: u64,
    first: String,
}

/// Why a round has come no further.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Nothing was rewritten: all that was found was refused.
    Refused,
    /// These were found again of which was answered in the round before that they are stored: what answers does not store them.
    NotStored(Objects),
}

impl Objects {
    fn add(&mut self, describe: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = describe();
        }
        self.count += 1;
    }
}

impl Round {
    /// How many objects were found stored otherwise.
    fn found(&self) -> u64 {
        self.rewritten.count + self.refused.count
    }
}

impl Rewriting {
    /// Notes that an API server may run that writes otherwise: this round is not the last one, whatever it finds.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// Notes that an object was stored otherwise, and that the API server has answered that it is stored again.
    pub(super) fn add_rewritten(&mut self, object: &str) {
        self.round.rewritten.add(|| printable_start(object, MAX_OBJECT));
    }

    /// Notes that an object is stored otherwise, and that the API server refused to rewrite it.
    pub(super) fn add_refused(&mut self, object: &str, why: &str) {
        self.round.refused.add(|| {
            let object = printable_start(object, MAX_OBJECT);
            format!("{object}: {}", printable_start(why, MAX_REFUSAL))
        });
    }

    /// Objects that this round has found stored otherwise.
    pub(super) fn found(&self) -> u64 {
        self.round.found()
    }

    /// Ends a round. Returns whether everything was stored as it is to be.
    pub(super) fn end_round(&mut self) -> bool {
        let is_last = self.round.found() == 0 && !self.is_interrupted;
        *self = Self {
            rewritten_before: self.rewritten(),
            obstacle: self.find_obstacle(),
            before: std::mem::take(&mut self.round),
            was_interrupted: self.is_interrupted,
            ..Self::default()
        };
        is_last
    }

    /// API servers store nothing otherwise, so a round finds no objects but some of those that the round before has found. If it finds as many, none of
    /// these is stored as it is to be, although that was answered of some.
    fn find_obstacle(&self) -> Option<Obstacle> {
        let Round { rewritten, refused } = &self.round;
        if refused.count > 0 && rewritten.count == 0 {
            return Some(Obstacle::Refused);
        }
        let answered = &self.before.rewritten;
        let is_comparable = !self.is_interrupted && !self.was_interrupted;
        let is_in_vain = answered.count > 0 && self.round.found() >= self.before.found();
        (is_comparable && is_in_vain).then(|| Obstacle::NotStored(answered.clone()))
    }

    /// Objects of which the API server has answered that they are stored again, in all rounds.
    fn rewritten(&self) -> u64 {
        self.rewritten_before + self.round.rewritten.count
    }

    /// Whether the last complete round has come no further.
    pub(super) fn is_refused(&self) -> bool {
        self.obstacle.is_some()
    }

    /// Whether to try again soon is of no use: the last complete round has come no further, and neither has this one so far. What was refused may have
    /// been for a reason that is gone, and there may be many objects.
    pub(super) fn is_in_vain(&self) -> bool {
        self.is_refused() && self.round.rewritten.count == 0
    }

    /// What people read.
    pub(super) fn describe(&self) -> String {
        let mut parts = vec![format!("{} objects were rewritten so far", self.rewritten())];
        if let Some(Obstacle::NotStored(Objects { count, first })) = &self.obstacle {
            parts.push(format!(
                "{count} are stored as they were although the tenant's API server has answered, the first is {first}. Look for APIServices in the \
                 tenant whose servers answer for these objects"
            ));
        }
        let mut refused = [&self.round, &self.before].into_iter().map(|round| &round.refused);
        if let Some(Objects { count, first }) = refused.find(|refused| refused.count > 0) {
            parts.push(format!(
                "the tenant's API server refused {count}, the first is {first}. Look for webhooks and policies in the tenant"
            ));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_has_found_an_object_is_not_the_last() {
        let mut rewriting = Rewriting::default();
        rewriting.add_rewritten("secrets team/c");
        rewriting.add_refused("secrets team/a", "the webhook says \u{1b}no");
        rewriting.add_refused("secrets team/b", "no");
        assert_eq!(rewriting.found(), 3);
        (rewriting.resource, rewriting.after) = (1, Some(b"team/b".to_vec()));
        assert!(!rewriting.end_round());
        assert_eq!((rewriting.resource, &rewriting.after, rewriting.found()), (0, &None, 0));
        // What was refused is known until the next round says more.
        let message = rewriting.describe();
        assert!(message.starts_with("1 objects were rewritten so far; the tenant's API server refused 2, the first is secrets team/a: the webhook"));
        assert!(!message.contains('\u{1b}'), "{message}");
        assert!(!rewriting.is_refused(), "one was rewritten");
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
            for number in 0..objects {
                rewriting.add_rewritten(&format!("widgets.example.com team/{number}"));
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
                && message.contains("the first is widgets.example.com team/0"),
            "{message}"
        );
        assert!(!message.contains("webhooks"), "{message}");
        assert!(!round(1).0);
    }

    /// A webhook that refuses all is deleted in the middle of a round.
    #[test]
    fn what_was_refused_before_is_not_said_to_be_answered() {
        let mut rewriting = Rewriting::default();
        for _ in 0..3 {
            rewriting.add_refused("secrets team/a", "no");
        }
        rewriting.end_round();
        assert!(rewriting.is_in_vain());
        rewriting.add_refused("secrets team/a", "no");
        assert!(rewriting.is_in_vain());
        rewriting.add_rewritten("secrets team/b");
        assert!(
            rewriting.is_refused() && !rewriting.is_in_vain(),
            "what follows need not wait"
        );
        rewriting.add_rewritten("secrets team/c");
        rewriting.end_round();
        assert!(!rewriting.is_refused(), "{}", rewriting.describe());

        // The next one is answered and not stored, and others are refused again.
        let mut round = || {
            rewriting.add_rewritten("widgets.example.com team/w");
            rewriting.add_refused("secrets team/a", "no");
            rewriting.end_round();
            rewriting.describe()
        };
        let message = round();
        assert!(!message.contains("stored as they were"), "{message}");
        let message = round();
        assert!(
            message.contains("; 1 are stored as they were")
                && message.contains("the first is widgets.example.com team/w")
                && message.contains("refused 1, the first is secrets team/a: no"),
            "{message}"
        );
    }

    #[test]
    fn a_round_in_which_an_api_server_may_have_written_otherwise_is_not_the_last() {
        let mut rewriting = Rewriting::default();
        rewriting.interrupt();
        assert!(!rewriting.end_round());
        rewriting.add_rewritten("secrets team/a");
        assert!(!rewriting.end_round());
        rewriting.add_rewritten("secrets team/a");
        rewriting.interrupt();
        assert!(
            !rewriting.end_round() && !rewriting.is_refused(),
            "the object is a new one"
        );
        rewriting.add_rewritten("secrets team/a");
        assert!(!rewriting.end_round() && !rewriting.is_refused(), "so may this be");
        assert!(rewriting.end_round());
    }

    #[test]
    fn of_a_long_name_little_is_shown() {
        let mut rewriting = Rewriting::default();
        let name = format!("secrets {}", "x".repeat(1 << 20));
        for _ in 0..3 {
            rewriting.add_refused(&name, &name);
            rewriting.add_rewritten(&name);
            assert!(rewriting.describe().len() < 3000);
            rewriting.end_round();
        }
        let message = rewriting.describe();
        assert!(
            rewriting.is_refused() && message.len() < 3000 && message.contains("stored as they were"),
            "{message}"
        );
    }
}
