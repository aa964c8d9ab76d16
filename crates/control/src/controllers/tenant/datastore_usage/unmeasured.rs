//! What the API server does not measure: control reads it in etcd.
//!
//! These are Events, which the API server does not cache, and custom resources that it does not serve: their definition was removed by
//! force, serves no version, or an aggregated API has taken its place. Control reads all keys of the tenant, page by page, over as many
//! reconciles as that takes, and subtracts what the API server has measured.

use crate::datastore::{DatastoreError, TenantDatastore};
use berth_api::names::TenantId;
use std::time::Duration;
use tokio::time::Instant;

/// Keys that never count: those that are no objects, and those that came and went between two measurements. At most 75 MB.
const TOLERATED: u64 = 50;
/// Age at which a result is replaced.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Further keys, besides as many as there were, with which a result is replaced earlier.
const MANY: u64 = 1000;
/// Time that one reconcile reads.
const READING: Duration = Duration::from_secs(5);

/// What the API server does not measure, as far as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Unmeasured {
    /// Where to go on; none if no reading is under way.
    next: Option<Vec<u8>>,
    /// Bytes of all keys before.
    bytes: u64,
    result: Option<Reading>,
}

/// What a complete reading has found.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    keys: u64,
    bytes: u64,
}

impl Unmeasured {
    /// Whether to read, if there are so many keys that the API server does not measure.
    pub(super) fn is_due(&self, keys: u64) -> bool {
        let is_outdated = |result: Reading| {
            let many = result.keys.saturating_mul(2).saturating_add(MANY);
            result.at.elapsed() >= MAX_AGE || keys > many
        };
        keys > TOLERATED && (self.next.is_some() || self.result.is_none_or(is_outdated))
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
            let page = datastore.read_sizes(tenant, self.next.as_deref()).await?;
            self.bytes = self.bytes.saturating_add(page.bytes);
            self.next = page.next;
            if self.next.is_none() {
                self.result = Some(Reading {
                    at: Instant::now(),
                    keys,
                    bytes: std::mem::take(&mut self.bytes).saturating_sub(measured),
                });
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Bytes of so many keys that the API server does not measure; none if that is not known yet. Fewer keys than were read count by
    /// their share, so that deletions have an effect at once.
    pub(super) fn estimate(&self, keys: u64) -> Option<u64> {
        if keys <= TOLERATED {
            return Some(0);
        }
        let Reading { keys: read, bytes, .. } = self.result?;
        let share = u128::from(bytes) * u128::from(keys.min(read)) / u128::from(read.max(1));
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_few_keys_are_neither_read_nor_counted() {
        let nothing = Unmeasured::default();
        assert!(!nothing.is_due(TOLERATED));
        assert_eq!(nothing.estimate(TOLERATED), Some(0));
        assert!(nothing.is_due(TOLERATED + 1));
        assert_eq!(nothing.estimate(TOLERATED + 1), None);
    }

    #[test]
    fn a_result_is_used_until_there_are_many_more_keys() {
        let known = read(100, 5000);
        assert!(!known.is_due(1200));
        assert!(known.is_due(1201));
        assert_eq!((known.estimate(100), known.estimate(1200)), (Some(5000), Some(5000)));
    }

    #[test]
    fn deleted_keys_count_no_more() {
        let known = read(1000, 5000);
        assert_eq!((known.estimate(500), known.estimate(0)), (Some(2500), Some(0)));
    }

    #[test]
    fn a_reading_that_has_begun_goes_on() {
        let mut begun = read(100, 5000);
        begun.next = Some(b"key".to_vec());
        assert!(begun.is_due(100));
    }
}
