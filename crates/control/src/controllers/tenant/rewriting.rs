//! How far the rewriting of a tenant's objects is, which are stored otherwise than their encryption says: pure.

use berth_api::text::printable_start;

/// Bytes of the message of a refusal that are shown.
const MAX_REFUSAL: usize = 512;

/// How far the rewriting is. One round goes through all objects, and one that has found all of them stored as they are to be is the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewriting {
    /// Number of the resource that the round is at.
    pub(super) resource: usize,
    /// Last object of it that was looked at.
    pub(super) after: Option<String>,
    /// Objects of this round that were stored otherwise.
    found: u64,
    /// Objects that were rewritten, in all rounds.
    rewritten: u64,
    /// Objects of this round that were refused.
    refused: Refused,
    /// Those of the last complete round.
    refused_before: Refused,
    /// Objects that were rewritten before this round.
    rewritten_before: u64,
    /// Whether the last complete round has rewritten nothing, because all that it found was refused.
    is_refused: bool,
}

/// How many objects the tenant's API server refused to rewrite, and why the first of them.
#[derive(Clone, Debug, Default)]
struct Refused {
    objects: u64,
    first: String,
}

impl Rewriting {
    /// Notes that so many objects are stored otherwise.
    pub(super) fn add_found(&mut self, objects: usize) {
        self.found += u64::try_from(objects).unwrap_or(u64::MAX);
    }

    /// Notes that an object was rewritten.
    pub(super) fn add_rewritten(&mut self) {
        self.rewritten += 1;
    }

    /// Notes that the API server refused to rewrite an object.
    pub(super) fn add_refused(&mut self, object: &str, why: &str) {
        if self.refused.objects == 0 {
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
        let is_last = self.found == 0;
        *self = Self {
            rewritten: self.rewritten,
            rewritten_before: self.rewritten,
            is_refused: self.refused.objects > 0 && self.rewritten == self.rewritten_before,
            refused_before: std::mem::take(&mut self.refused),
            ..Self::default()
        };
        is_last
    }

    /// Whether to try again soon is of no use: the last complete round has found nothing but what the API server refuses.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// What people read.
    pub(super) fn describe(&self) -> String {
        let rewritten = format!("{} objects were rewritten so far", self.rewritten);
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
        rewriting.add_found(2);
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
        rewriting.add_found(1);
        rewriting.add_refused("secrets team/a", "no");
        assert!(!rewriting.end_round() && rewriting.is_refused());
        assert!(rewriting.end_round() && !rewriting.is_refused());
        assert_eq!(rewriting.describe(), "1 objects were rewritten so far");
    }
}
