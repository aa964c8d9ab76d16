//! Whether the host's API server answers the syncer. One that does not hear of pods that end keeps no endpoints up to date, and cannot say so on the host:
//! control reads it in the metrics, and deletes endpoints of the tenant's own in its place.

use super::Engine;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Pause between two requests.
const INTERVAL: Duration = Duration::from_secs(30);

impl Engine {
    /// Publishes for how long the host's API server has not answered.
    pub(super) async fn follow_host(self: Arc<Self>) {
        let mut answered_at = Instant::now();
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.host.answers().await {
                answered_at = Instant::now();
            }
            let silent = answered_at.elapsed().as_secs();
            self.metrics
                .host_silent_seconds
                .set(i64::try_from(silent).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        lock,
        scripted::{Failure, Scripted},
        test_engine::tenant,
    };
    use super::*;
    use berth_api::SyncPolicy;
    use std::sync::Mutex;

    #[tokio::test(start_paused = true)]
    async fn the_time_without_an_answer_of_the_host_is_known() {
        let failure = Arc::new(Mutex::new(None));
        let of_script = Arc::clone(&failure);
        let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
            if call == "host GET /version" {
                *lock(&of_script)
            } else {
                None
            }
        });
        let engine = &scripted.engine;
        let task = tokio::spawn(Arc::clone(engine).follow_host());
        let silent_after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            engine.metrics.host_silent_seconds.get()
        };
        assert_eq!(silent_after(100).await, 0);
        for case in [Failure::Silence, Failure::Refused(401), Failure::Refused(500)] {
            *lock(&failure) = Some(case);
            assert!(silent_after(200).await >= 100, "{case:?}");
            *lock(&failure) = None;
            assert_eq!(silent_after(100).await, 0, "{case:?}");
        }
        // It is busy, or it does not allow that: it answers.
        for case in [
            Failure::Refused(429),
            Failure::RefusedLate(429, 15),
            Failure::Refused(403),
        ] {
            *lock(&failure) = Some(case);
            assert_eq!(silent_after(200).await, 0, "{case:?}");
        }
        task.abort();
    }
}
