//! How many logs, commands and forwarded ports a tenant may begin on the host.
//!
//! API servers hand requests for them out to no queue: their priority and fairness leaves requests out that last long, however short one
//! is. Each of them costs the host's API server a handshake and a connection to a kubelet, so the syncer limits them for its tenant.

use super::request::Denial;
use axum::http::StatusCode;
use berth_sync_rules::admission::writes::Pace;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Requests a second, in the long run.
const RATE: u64 = 50;
/// Requests at once: as many as there may be [`super::CONNECTIONS`].
const AT_ONCE: u64 = 384;

/// The rate of one tenant.
pub(super) struct Rate(Mutex<Pace>);

impl Rate {
    /// A rate of which nothing is used at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(Pace::with_allowance(AT_ONCE, RATE, now)))
    }

    /// Counts a request. Returns the time after which it may be made.
    ///
    /// # Errors
    /// That would be too late. Nothing was counted.
    pub(super) fn take(&self, now: Instant) -> Result<Duration, Denial> {
        let mut pace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pace.take(1, now).map_err(|_| {
            let message = format!(
                "your cluster begins more than {RATE} logs, commands and forwarded ports a second; try again later"
            );
            Denial::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_begin_at_once_and_then_some_each_second() {
        let start = Instant::now();
        let rate = Rate::new(start);
        assert_eq!(usize::try_from(AT_ONCE), Ok(super::super::CONNECTIONS));
        for _ in 0..AT_ONCE {
            assert_eq!(rate.take(start), Ok(Duration::ZERO));
        }
        let waits: Vec<Duration> = (0..1000).map_while(|_| rate.take(start).ok()).collect();
        assert!(waits.is_sorted() && !waits[0].is_zero());
        assert_eq!(waits.len(), 250, "five seconds of them wait");
        assert_eq!(rate.take(start).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        let later = start + Duration::from_secs(1);
        let more = (0..1000).map_while(|_| rate.take(later).ok()).count();
        assert_eq!(more, 50);
    }
}
