//! Which snapshots this process takes now, and which it does not begin again yet.

use super::tries::{Failure, Failures};
use berth_runtime::locks::lock;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Snapshots that are taken at the same time: each reads etcd and compresses.
const MOST_RUNS: usize = 2;

/// Snapshots that are being taken, by their UIDs. They end with this.
#[derive(Debug, Default)]
pub struct Runs(Mutex<BTreeMap<String, AbortOnDropHandle<()>>>);

/// Until when snapshots are not begun.
#[derive(Debug, Default)]
pub struct Pauses {
    /// Those of which a try has failed, by their UIDs.
    of_snapshots: Mutex<BTreeMap<String, Instant>>,
    /// Tries in a row that the object store has failed, of any snapshots.
    of_store: Mutex<Failures>,
}

impl Runs {
    /// UIDs of the snapshots that are being taken.
    pub(super) fn running(&self) -> BTreeSet<String> {
        let mut runs = lock(&self.0);
        runs.retain(|_, run| !run.is_finished());
        runs.keys().cloned().collect()
    }

    /// Whether another one may begin.
    pub(super) fn has_room(&self) -> bool {
        self.running().len() < MOST_RUNS
    }

    /// Notes one that has begun.
    pub(super) fn add(&self, uid: &str, run: AbortOnDropHandle<()>) {
        lock(&self.0).insert(uid.to_owned(), run);
    }

    /// Ends one, and returns once nothing of it runs any more.
    pub(super) async fn end(&self, uid: &str) {
        let run = lock(&self.0).remove(uid);
        if let Some(run) = run {
            run.abort();
            // Its end is an error that says so.
            let _ = run.await;
        }
    }
}

impl Pauses {
    /// UIDs of the snapshots that are not begun yet, and when the first of them is.
    pub(super) fn paused(&self, now: Instant) -> (BTreeSet<String>, Option<Duration>) {
        let mut pauses = lock(&self.of_snapshots);
        pauses.retain(|_, until| *until > now);
        let first = pauses.values().min().map(|until| until.duration_since(now));
        (pauses.keys().cloned().collect(), first)
    }

    /// Does not begin a snapshot again for this time.
    pub(super) fn pause(&self, uid: &str, pause: Duration) {
        lock(&self.of_snapshots).insert(uid.to_owned(), Instant::now() + pause);
    }

    /// Notes what the object store has made of a try: none if it has taken the snapshot.
    pub(super) fn note_store(&self, failure: Option<Failure>) {
        lock(&self.of_store).note(failure, Instant::now());
    }

    /// Why no snapshot is begun, and for how long.
    pub(super) fn postponed(&self, now: Instant) -> Option<(Failure, Duration)> {
        lock(&self.of_store).postponed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn run() -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(pending()))
    }

    #[tokio::test]
    async fn few_snapshots_are_taken_at_the_same_time() {
        let runs = Runs::default();
        for uid in ["a", "b"] {
            assert!(runs.has_room());
            runs.add(uid, run());
        }
        assert!(!runs.has_room());
        runs.end("a").await;
        assert!(runs.has_room());
        assert_eq!(runs.running(), BTreeSet::from(["b".to_owned()]));
        runs.end("never begun").await;
    }

    #[tokio::test]
    async fn what_has_ended_makes_room() {
        let runs = Runs::default();
        runs.add("a", AbortOnDropHandle::new(tokio::spawn(async {})));
        for _ in 0..1000 {
            if runs.running().is_empty() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("it is still there");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_failed_is_begun_again_after_a_pause() {
        let pauses = Pauses::default();
        pauses.pause("a", Duration::from_secs(30));
        pauses.pause("b", Duration::from_secs(60));
        let (paused, first) = pauses.paused(Instant::now());
        assert_eq!((paused.len(), first), (2, Some(Duration::from_secs(30))));
        tokio::time::advance(Duration::from_secs(30)).await;
        let (paused, _) = pauses.paused(Instant::now());
        assert_eq!(paused, BTreeSet::from(["b".to_owned()]));
    }
}
