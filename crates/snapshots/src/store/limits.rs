//! How long is waited for a store.

use crate::error::StoreError;
use std::time::Duration;

/// The longest that a call waits for one request to the store, with everything that the client of the store repeats.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(150);

/// How long is waited for a store. A part of 8 MiB takes longer than a request may at less than 140 kB/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    /// One request, with all of its answer.
    pub(super) request: Duration,
    /// After this a request is not repeated.
    pub(super) repeat: Duration,
    pub(super) max_repeats: usize,
    /// All of it.
    pub(super) total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(60),
            repeat: Duration::from_secs(60),
            max_repeats: 3,
            total: STORE_TIMEOUT,
        }
    }
}

impl Limits {
    /// The result of a request, or that there is none in time.
    pub(super) async fn wait<T>(self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        tokio::time::timeout(self.total, request).await.unwrap_or_else(|_| {
            let seconds = self.total.as_secs_f32();
            Err(StoreError::Unreachable(format!(
                "it did not answer within {seconds} seconds"
            )))
        })
    }
}
