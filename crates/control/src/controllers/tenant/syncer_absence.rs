//! For how long the syncer of a tenant has not worked, as control has seen it: pure.
//!
//! Only time counts in which control itself has looked again and again. Neither a control that stood still nor one that has just started takes a syncer for
//! missing, whatever a clock says.

use std::time::Duration;
use tokio::time::Instant;

/// Time without a syncer after which its tenant's own endpoints are deleted on the host. A syncer that is restarted or upgraded needs seconds.
const LIMIT: Duration = Duration::from_mins(2);
/// Pause before control looks again for a syncer that did not work.
pub(super) const CHECK: Duration = Duration::from_secs(15);
/// Most that the time between two looks counts: three looks at least find no syncer before it is missing. A reconcile that waits for its tenant takes 100 s
/// at most, and a tenant that makes each take that long must not have much more time than others.
const STEP: Duration = Duration::from_secs(60);
/// Pause before it is said again that endpoints are left: the host may refuse at each look, for each of them, and each time in other words.
const REPORT: Duration = Duration::from_mins(10);
/// How long a syncer counts as working that was seen so. A tenant that is ready is reconciled once a minute, and its syncer is probed then.
const TRUSTED: Duration = Duration::from_secs(90);

/// What is known of it. Lost with the process: the time begins again then.
#[derive(Debug, Default)]
pub(super) struct SyncerAbsence {
    /// When the syncer was seen working, if nothing has said otherwise since.
    seen_at: Option<Instant>,
    /// When control has looked last, if it did not find it working.
    looked_at: Option<Instant>,
    /// When it has looked last and the syncer did not work.
    missed_at: Option<Instant>,
    /// For how long it has not worked, since the last deletion.
    missed: Duration,
    /// Whether endpoints were deleted since it has worked last.
    has_deleted: bool,
    /// When it was said last that endpoints are left, if some are.
    reported_at: Option<Instant>,
}

impl SyncerAbsence {
    /// The syncer works.
    pub(super) fn note_working(&mut self, now: Instant) {
        *self = Self {
            seen_at: Some(now),
            ..Self::default()
        };
    }

    /// Control has looked, and does not reach the syncer, which works.
    pub(super) fn note_hidden(&mut self, now: Instant) {
        *self = Self {
            looked_at: Some(now),
            ..Self::default()
        };
    }

    /// Control has looked, and nothing is known: it looks again after the same pause.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.looked_at = Some(now);
    }

    /// The syncer may not work: control has to look.
    pub(super) fn suspect(&mut self) {
        self.seen_at = None;
    }

    /// Forgets everything: the tenant has no syncer, and should have none.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether control has to look whether the syncer works.
    pub(super) fn is_check_due(&self, now: Instant) -> bool {
        let is_recent = |at: Option<Instant>, age: Duration| at.is_some_and(|at| now.duration_since(at) < age);
        !is_recent(self.seen_at, TRUSTED) && !is_recent(self.looked_at, CHECK)
    }

    /// Control has looked, and the syncer does not work. Returns whether that is so for too long.
    pub(super) fn note_missing(&mut self, now: Instant) -> bool {
        let since = self.missed_at.map(|at| now.duration_since(at).min(STEP));
        self.missed += since.unwrap_or_default();
        self.missed_at = Some(now);
        self.looked_at = Some(now);
        self.seen_at = None;
        self.missed >= LIMIT
    }

    /// Endpoints were deleted, or there were none. If these are all, more are looked for after the same time: a syncer may have worked in between, unseen.
    /// Otherwise with the next look.
    pub(super) fn note_deletion(&mut self, has_deleted: bool, is_complete: bool) {
        if is_complete {
            self.missed = Duration::ZERO;
            self.reported_at = None;
        }
        self.has_deleted |= has_deleted;
    }

    /// Endpoints are left that could not be deleted. Returns whether to say so now.
    pub(super) fn note_left(&mut self, now: Instant) -> bool {
        let is_due = self.reported_at.is_none_or(|at| now.duration_since(at) >= REPORT);
        if is_due {
            self.reported_at = Some(now);
        }
        is_due
    }

    /// Whether the tenant lacks endpoints because of that.
    pub(super) fn has_deleted(&self) -> bool {
        self.has_deleted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks every `pause` until the time is over. Returns when that is.
    fn time_until_over(absence: &mut SyncerAbsence, start: Instant, pause: Duration) -> Duration {
        let mut now = start;
        while !absence.note_missing(now) {
            now += pause;
            assert!(now.duration_since(start) < 3600 * SECOND, "it is never over");
        }
        now.duration_since(start)
    }

    #[test]
    fn a_syncer_is_missing_after_two_minutes_and_not_before() {
        let start = Instant::now();
        let over = time_until_over(&mut SyncerAbsence::default(), start, CHECK);
        assert_eq!(over, LIMIT);
        let mut absence = SyncerAbsence::default();
        assert!(!absence.note_missing(start));
        for seconds in (15..120).step_by(15) {
            assert!(!absence.note_missing(start + seconds * SECOND), "{seconds}");
        }
        assert!(!absence.note_missing(start + LIMIT - SECOND));
        assert!(absence.note_missing(start + LIMIT));
        assert!(absence.note_missing(start + LIMIT + SECOND), "the deletion has failed");
    }

    #[test]
    fn a_syncer_that_has_worked_in_between_is_not_missing() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        for number in 0..100 {
            let now = start + number * 2 * LIMIT;
            absence.note_working(now);
            assert!(!absence.note_missing(now + SECOND));
            assert!(!absence.note_missing(now + STEP));
            assert!(!absence.note_missing(now + LIMIT), "{number}");
        }
    }

    #[test]
    fn time_in_which_control_did_not_look_does_not_count() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        assert!(!absence.note_missing(start));
        let hour = 3600 * SECOND;
        assert!(
            !absence.note_missing(start + hour),
            "an hour counts as little as a minute"
        );
        assert!(absence.note_missing(start + 2 * hour));
        // Reconciles in which the tenant takes all the time that it can.
        let slow = time_until_over(&mut SyncerAbsence::default(), start, 100 * SECOND);
        assert_eq!(slow, 200 * SECOND);
    }

    #[test]
    fn a_syncer_that_works_is_not_looked_for() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        assert!(absence.is_check_due(start), "control has just started");
        absence.note_working(start);
        assert!(!absence.is_check_due(start + TRUSTED - SECOND));
        assert!(absence.is_check_due(start + TRUSTED));
        absence.suspect();
        assert!(absence.is_check_due(start));
        absence.note_missing(start);
        assert!(!absence.is_check_due(start + CHECK - SECOND));
        assert!(absence.is_check_due(start + CHECK));
    }

    #[test]
    fn the_time_begins_again_after_a_syncer_that_control_does_not_reach() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        for number in 0..100 {
            let now = start + number * LIMIT;
            absence.note_hidden(now);
            assert!(!absence.is_check_due(now + CHECK - SECOND) && absence.is_check_due(now + CHECK));
            assert!(!absence.note_missing(now + CHECK));
            assert!(!absence.note_missing(now + LIMIT - SECOND), "{number}");
        }
    }

    #[test]
    fn a_look_that_says_nothing_neither_counts_nor_begins_again() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        assert!(!absence.note_missing(start));
        assert!(!absence.note_missing(start + STEP));
        absence.postpone(start + STEP + CHECK);
        assert!(!absence.is_check_due(start + STEP + CHECK + SECOND));
        assert!(absence.note_missing(start + LIMIT));
    }

    #[test]
    fn endpoints_are_looked_for_once_in_two_minutes() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        time_until_over(&mut absence, start, CHECK);
        absence.note_deletion(true, true);
        let later = start + LIMIT;
        assert_eq!(
            time_until_over(&mut absence, later + CHECK, CHECK),
            LIMIT.saturating_sub(CHECK)
        );
        absence.note_deletion(false, true);
        assert!(absence.has_deleted());
        absence.note_working(later);
        assert!(!absence.has_deleted());
    }

    #[test]
    fn endpoints_that_are_left_are_looked_for_with_the_next_look() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        time_until_over(&mut absence, start, CHECK);
        absence.note_deletion(true, false);
        assert!(absence.has_deleted());
        assert!(absence.note_missing(start + LIMIT + CHECK));
        absence.note_deletion(false, true);
        assert!(absence.has_deleted());
        assert!(!absence.note_missing(start + LIMIT + 2 * CHECK));
    }

    #[test]
    fn what_is_left_is_said_once_in_a_while() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        assert!(absence.note_left(start));
        absence.note_deletion(true, false);
        assert!(!absence.note_left(start + REPORT.saturating_sub(SECOND)));
        assert!(absence.note_left(start + REPORT));
        // Nothing was left in between.
        absence.note_deletion(true, true);
        assert!(absence.note_left(start + REPORT + SECOND));
    }

    #[test]
    fn a_tenant_that_has_slept_begins_anew() {
        let start = Instant::now();
        let mut absence = SyncerAbsence::default();
        time_until_over(&mut absence, start, CHECK);
        absence.forget();
        assert!(!absence.note_missing(start + 2 * LIMIT));
    }
}
