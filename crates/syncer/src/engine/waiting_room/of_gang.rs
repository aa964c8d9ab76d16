//! What a gang may take of the waiting room.
//!
//! | a gang | its pods |
//! |---|---|
//! | all of its pods are known | get places for all together, when it is the gang's turn |
//! | some do not exist yet, and half of the room has room for the whole gang | get places at once, and those of the others are kept: for a minute, or for ten seconds if other pods could have them |
//! | some do not exist yet, and it has less room | wait for each other for a minute |
//! | waits, or has kept places, for longer than that | come to their turn one by one, until all are known |
//! | some wait for a place of their user | come to their turn one by one, at once |
//! | is larger than the room | come to their turn one by one |
//!
//! Known are pods that wait, have a place, need none, have a node or have succeeded. What a gang may take is counted when it begins: if its size grows later,
//! it takes no more at once.

use std::time::{Duration, Instant};

/// Time for which members wait for each other, and for which places of members that are missing are kept.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// Time for which these are kept while other pods could have them.
pub(super) const PATIENCE_OF_OTHERS: Duration = Duration::from_secs(10);

/// The pods of one gang.
#[derive(Debug, Default)]
pub(super) struct OfGang {
    /// Pods that start together, as the last of its pods says.
    pub(super) size: usize,
    /// Pods that have a node, or have succeeded.
    pub(super) started: usize,
    /// Pods with a place.
    pub(super) placed: usize,
    /// Pods that wait for one.
    pub(super) waiting: usize,
    /// Pods that need none.
    pub(super) exempt: usize,
    /// Places that it may have: those that its pods have not taken are kept for them.
    claim: usize,
    /// Whether it has got such places, or its pods have waited for each other for long enough.
    has_begun: bool,
    /// Since when pods wait.
    waits_since: Option<Instant>,
    /// Since when places are kept for it.
    lacks_since: Option<Instant>,
}

/// What a gang lacks whose pods wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lack {
    /// Places that it needs and does not have.
    pub(super) places: usize,
    /// Pods of those that need them which are not known.
    pub(super) missing: usize,
}

impl OfGang {
    /// Pods of it that have no node yet, of those that start together and need places.
    fn needs(&self) -> usize {
        self.size.saturating_sub(self.started + self.exempt)
    }

    /// Places that are kept for it.
    pub(super) fn kept(&self) -> usize {
        self.claim.saturating_sub(self.placed)
    }

    /// Places that it needs besides those that it has, and that are kept for it.
    pub(super) fn lacks(&self) -> usize {
        self.needs().saturating_sub(self.placed.max(self.claim))
    }

    /// The same, and how many of the pods that need them are not known.
    pub(super) fn lack(&self) -> Lack {
        Lack {
            places: self.lacks(),
            missing: self.missing(),
        }
    }

    /// Pods that it needs and that are not known.
    fn missing(&self) -> usize {
        self.needs().saturating_sub(self.placed + self.waiting)
    }

    /// Whether all pods that it lacks wait, and a room of so many places can hold it.
    pub(super) fn is_whole(&self, most: usize) -> bool {
        self.lacks() > 0 && self.missing() == 0 && self.needs() <= most
    }

    /// Whether some of its pods have a place or a node.
    pub(super) fn is_partly_there(&self) -> bool {
        self.placed + self.started > 0
    }

    /// Whether its pods wait for others. More than `most` are not expected to come.
    pub(super) fn gathers(&self, most: usize) -> bool {
        !self.has_begun && self.waiting > 0 && self.missing() > 0 && (2..=most).contains(&self.needs())
    }

    /// Whether no pod of it is known.
    pub(super) fn is_empty(&self) -> bool {
        self.placed + self.started + self.waiting + self.exempt == 0
    }

    /// One of its pods waits since then.
    pub(super) fn wait(&mut self, since: Instant) {
        self.waits_since.get_or_insert(since);
    }

    /// It gets all places that it needs.
    pub(super) fn claim_all(&mut self) {
        self.claim = self.claim.max(self.needs());
        self.has_begun = true;
    }

    /// One of its pods does not need its place any more, or takes it along.
    pub(super) fn drop_place(&mut self) {
        self.claim = self.claim.saturating_sub(1);
    }

    /// Brings up to date what follows from its numbers.
    pub(super) fn settle(&mut self) {
        // For good: a size that becomes smaller and larger again gives no time anew.
        self.claim = self.claim.min(self.needs());
        if self.is_empty() {
            self.claim = 0;
        }
        if self.kept() == 0 {
            self.lacks_since = None;
        }
        if self.waiting == 0 {
            self.waits_since = None;
        }
        if self.placed + self.waiting + self.claim == 0 {
            self.has_begun = false;
        }
    }

    /// Whether it has waited for its missing pods for long enough. `others_wait` for places that are kept for them.
    pub(super) fn is_over(&mut self, most_gathered: usize, others_wait: bool, now: Instant) -> bool {
        let has_places = self.kept() > 0;
        let since = if has_places {
            Some(*self.lacks_since.get_or_insert(now))
        } else {
            self.waits_since.filter(|_| self.gathers(most_gathered))
        };
        let patience = if has_places && others_wait {
            PATIENCE_OF_OTHERS
        } else {
            PATIENCE
        };
        since.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// It does not wait for missing pods any more.
    pub(super) fn give_up(&mut self) {
        self.claim = self.claim.min(self.placed);
        self.has_begun = true;
    }
}
