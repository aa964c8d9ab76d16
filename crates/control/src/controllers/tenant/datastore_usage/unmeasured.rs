//! What the API server does not measure: control reads it in etcd.
//!
//! These are Events, which the API server does not cache, and custom resources that it does not serve: their definition was removed by
//! force, serves no version, or an aggregated API has taken its place. Control reads the Events, page by page, over as many reconciles as
//! that takes. If these do not explain all keys, it reads the others as well, and subtracts what the API server has measured.

use crate::datastore::{DatastoreError, KeyRange, SizePage, TenantDatastore};
use berth_api::names::TenantId;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Keys that never count: those that are no objects, and those that came and went between two measurements. At most 75 MB.
const TOLERATED: u64 = 50;
/// Age at which a result is replaced, and an interrupted reading starts again.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Age before which a result is not replaced because further keys may be large.
const MIN_AGE: Duration = Duration::from_secs(60);
/// Further keys, besides as many as there were, with which a result is replaced earlier.
const MANY: u64 = 1000;
/// Bytes that one key may have: etcd accepts no larger request.
const MAX_KEY: u64 = 3 << 19;
/// Time that one reconcile reads, pauses included.
const READING: Duration = Duration::from_secs(5);

/// What the API server does not measure, as far as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Unmeasured {
    /// The reading that is under way.
    progress: Option<Progress>,
    result: Option<Reading>,
}

/// What a complete reading has found.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    keys: u64,
    bytes: u64,
}

/// How far a reading is.
#[derive(Clone, Debug)]
struct Progress {
    range: KeyRange,
    /// Where to go on; none at the start of the range.
    next: Option<Vec<u8>>,
    /// When it was continued last.
    at: Instant,
    events: Sizes,
    others: Sizes,
}

/// Keys and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    keys: u64,
    bytes: u64,
}

impl Progress {
    fn new() -> Self {
        Self {
            range: KeyRange::Events,
            next: None,
            at: Instant::now(),
            events: Sizes::default(),
            others: Sizes::default(),
        }
    }

    /// Adds a page. Returns whether all of so many keys that the API server does not measure are explained.
    fn add(&mut self, page: SizePage, keys: u64) -> bool {
        let sizes = match self.range {
            KeyRange::Events => &mut self.events,
            KeyRange::Others => &mut self.others,
        };
        sizes.keys = sizes.keys.saturating_add(page.keys);
        sizes.bytes = sizes.bytes.saturating_add(page.bytes);
        self.at = Instant::now();
        self.next = page.next;
        if self.next.is_some() {
            return false;
        }
        let are_explained = self.range == KeyRange::Others || keys.saturating_sub(self.events.keys) <= TOLERATED;
        self.range = KeyRange::Others;
        are_explained
    }

    /// Bytes that were found besides those that the API server has measured.
    const fn bytes(&self, measured: u64) -> u64 {
        self.events
            .bytes
            .saturating_add(self.others.bytes.saturating_sub(measured))
    }
}

impl Unmeasured {
    /// Forgets what no longer says anything, if there are so many keys that the API server does not measure.
    pub(super) fn forget_outdated(&mut self, keys: u64) {
        if keys <= TOLERATED {
            *self = Self::default();
        }
        // It would add up bytes of different times.
        if self.is_interrupted() {
            self.progress = None;
        }
    }

    fn is_interrupted(&self) -> bool {
        self.progress
            .as_ref()
            .is_some_and(|progress| progress.at.elapsed() >= MAX_AGE)
    }

    /// Whether a reading is under way.
    pub(super) const fn is_reading(&self) -> bool {
        self.progress.is_some()
    }

    /// Whether to read, if there are so many keys that the API server does not measure. `limit` are the bytes that the tenant may store.
    pub(super) fn is_due(&self, keys: u64, limit: u64) -> bool {
        let is_outdated = |result: Reading| {
            let age = result.at.elapsed();
            let many = result.keys.saturating_mul(2).saturating_add(MANY);
            let more = keys.saturating_sub(result.keys).saturating_mul(MAX_KEY);
            age >= MAX_AGE || keys > many || age >= MIN_AGE && more > limit / 10
        };
        keys > TOLERATED && (self.is_reading() || self.result.is_none_or(is_outdated))
    }

    /// Reads for some time. `measured` are the bytes that the API server has measured, `keys` the number of those that it has not.
    ///
    /// # Errors
    /// The datastore refuses or does not answer. What was read is kept.
    pub(super) async fn read(
        &mut self,
        datastore: &dyn TenantDatastore,
        tenant: &TenantId,
        measured: u64,
        keys: u64,
    ) -> Result<(), DatastoreError> {
        let deadline = Instant::now() + READING;
        loop {
            let progress = self.progress.get_or_insert_with(Progress::new);
            let start = Instant::now();
            let page = datastore
                .read_sizes(tenant, progress.range, progress.next.as_deref())
                .await?;
            if progress.add(page, keys) {
                self.result = Some(Reading {
                    at: Instant::now(),
                    keys,
                    bytes: progress.bytes(measured),
                });
                self.progress = None;
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Ok(());
            }
            // While etcd reads, writes of all tenants wait.
            sleep(start.elapsed()).await;
        }
    }

    /// Bytes of so many keys that the API server does not measure, and whether all were read. Fewer keys than were read count by their
    /// share, so that deletions have an effect at once. What a reading has found counts before it is complete.
    pub(super) fn estimate(&self, keys: u64, measured: u64) -> (u64, bool) {
        if keys <= TOLERATED {
            return (0, true);
        }
        let so_far = self.progress.as_ref().map_or(0, |progress| progress.bytes(measured));
        let Some(Reading { keys: read, bytes, .. }) = self.result else {
            return (so_far, false);
        };
        let share = u128::from(bytes) * u128::from(keys.min(read)) / u128::from(read.max(1));
        (u64::try_from(share).unwrap_or(u64::MAX).max(so_far), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of it is 200 of the largest keys.
    const LIMIT: u64 = MAX_KEY * 2000;

    fn read(keys: u64, bytes: u64) -> Unmeasured {
        let reading = Reading {
            at: Instant::now(),
            keys,
            bytes,
        };
        Unmeasured {
            result: Some(reading),
            ..Unmeasured::default()
        }
    }

    fn page(keys: u64, bytes: u64, has_more: bool) -> SizePage {
        SizePage {
            keys,
            bytes,
            next: has_more.then(|| b"next".to_vec()),
        }
    }

    #[test]
    fn a_few_keys_are_neither_read_nor_counted() {
        let nothing = Unmeasured::default();
        assert!(!nothing.is_due(TOLERATED, LIMIT));
        assert_eq!(nothing.estimate(TOLERATED, 0), (0, true));
        assert!(nothing.is_due(TOLERATED + 1, LIMIT));
        assert_eq!(nothing.estimate(TOLERATED + 1, 0), (0, false));
    }

    #[test]
    fn a_result_is_used_until_there_are_many_more_keys() {
        let known = read(100, 5000);
        assert!(!known.is_due(1200, LIMIT));
        assert!(known.is_due(1201, LIMIT));
        assert_eq!(
            (known.estimate(100, 0), known.estimate(1200, 0)),
            ((5000, true), (5000, true))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_used_for_a_minute_if_further_keys_may_be_large() {
        let known = read(100, 5000);
        assert!(!known.is_due(301, LIMIT), "it is new");
        sleep(MIN_AGE).await;
        assert!(!known.is_due(300, LIMIT));
        assert!(known.is_due(301, LIMIT));
        sleep(MAX_AGE).await;
        assert!(known.is_due(100, LIMIT));
    }

    #[test]
    fn deleted_keys_count_no_more() {
        let known = read(1000, 5000);
        assert_eq!((known.estimate(500, 0).0, known.estimate(0, 0).0), (2500, 0));
    }

    #[test]
    fn other_keys_are_read_if_events_do_not_explain_all() {
        let mut explained = Progress::new();
        assert!(!explained.add(page(500, 10, true), 1000));
        assert!(explained.add(page(500, 20, false), 1000));
        assert_eq!(explained.bytes(7), 30);
        let mut open = Progress::new();
        assert!(!open.add(page(100, 30, false), 1000));
        assert_eq!((open.range, &open.next), (KeyRange::Others, &None));
        assert!(open.add(page(2000, 100, false), 1000));
        assert_eq!(open.bytes(60), 70);
    }

    #[test]
    fn what_was_found_counts_before_a_reading_is_complete() {
        let mut known = read(100, 5000);
        let mut progress = Progress::new();
        progress.add(page(100, 9000, true), 1000);
        known.progress = Some(progress.clone());
        assert_eq!(known.estimate(1000, 0), (9000, true));
        known.result = None;
        assert_eq!(known.estimate(1000, 0), (9000, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_has_begun_goes_on_unless_it_is_old() {
        let mut begun = read(100, 5000);
        begun.progress = Some(Progress::new());
        begun.forget_outdated(100);
        assert!(begun.is_reading() && begun.is_due(100, LIMIT));
        sleep(MAX_AGE).await;
        begun.forget_outdated(100);
        assert!(!begun.is_reading());
    }

    #[test]
    fn a_reading_ends_when_few_keys_are_left() {
        let mut begun = read(100, 5000);
        begun.progress = Some(Progress::new());
        begun.forget_outdated(TOLERATED);
        assert!(!begun.is_reading() && begun.result.is_none());
    }
}
