//! What is remembered of tries to delete the files of snapshots: which come next, and whether any are tried now. Pure.

use berth_api::TenantSnapshot;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Time for the deletion of the files of one snapshot.
pub(super) const DELETED_WITHIN: Duration = Duration::from_secs(20);
/// Pause before it is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(15);
/// Tries in a row that have failed, after which no other one begins before the pause is over.
const MOST_FAILURES: usize = 4;

/// Why the files of a snapshot were not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The store has not answered.
    Silent,
    /// It has answered with an error.
    Refused,
}

impl Failure {
    /// What is said of snapshots that are not tried for that.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Silent => format!("it does not answer within {} s", DELETED_WITHIN.as_secs()),
            Self::Refused => "it does not delete other files either".into(),
        }
    }
}

/// What is remembered of tries.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// When it was tried last to delete the files of a snapshot.
    pub(super) tried_at: BTreeMap<String, Instant>,
    /// Until when nothing is done about one that could not go.
    pub(super) paused_until: BTreeMap<String, Instant>,
    /// Since when nothing writes files of a snapshot: this process has ended what it did about it, and another one has ended before this one began.
    ended_at: BTreeMap<String, Instant>,
    /// Tries in a row that have failed.
    failures: usize,
    /// The last of these, and when it ended.
    last_failure: Option<(Failure, Instant)>,
}

impl Tries {
    /// Forgets all but these.
    pub(super) fn forget_others(&mut self, uids: &BTreeSet<String>) {
        self.tried_at.retain(|uid, _| uids.contains(uid));
        self.paused_until.retain(|uid, _| uids.contains(uid));
        self.ended_at.retain(|uid, _| uids.contains(uid));
    }

    /// Those about which something may be done, first those that were not tried for the longest time.
    pub(super) fn in_turn(&self, mut snapshots: Vec<Arc<TenantSnapshot>>, now: Instant) -> Vec<Arc<TenantSnapshot>> {
        let is_paused = |uid: &String| self.paused_until.get(uid).is_some_and(|until| *until > now);
        snapshots.retain(|snapshot| !is_paused(&uid(snapshot)));
        snapshots.sort_by_cached_key(|snapshot| self.tried_at.get(&uid(snapshot)).copied());
        snapshots
    }

    /// Notes that nothing writes files of a snapshot any more.
    pub(super) fn note_ended(&mut self, uid: &str, now: Instant) {
        self.ended_at.entry(uid.to_owned()).or_insert(now);
    }

    /// How long nothing has written files of a snapshot.
    pub(super) fn ended_for(&self, uid: &str, now: Instant) -> Duration {
        let ended_at = self.ended_at.get(uid);
        ended_at.map_or(Duration::ZERO, |at| now.duration_since(*at))
    }

    /// Notes how a try ended.
    pub(super) fn note(&mut self, failure: Option<Failure>, now: Instant) {
        self.failures = failure.map_or(0, |_| self.failures.saturating_add(1));
        self.last_failure = failure.map(|failure| (failure, now));
    }

    /// Why nothing is tried now: several tries in a row have failed a moment ago.
    pub(super) fn postponed(&self, now: Instant) -> Option<Failure> {
        let (failure, at) = self.last_failure?;
        (self.failures >= MOST_FAILURES && now.duration_since(at) < RETRY).then_some(failure)
    }
}

/// UID of a snapshot.
pub(super) fn uid(snapshot: &TenantSnapshot) -> String {
    snapshot.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(uid: &str) -> Arc<TenantSnapshot> {
        let snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": uid, "namespace": "team", "uid": uid}, "spec": {"tenantClusterName": "vision"},
        });
        Arc::new(serde_json::from_value(snapshot).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_were_not_tried_for_the_longest_time_come_first() {
        let (mut tries, begun) = (Tries::default(), Instant::now());
        let in_turn = |tries: &Tries, now: Instant| -> Vec<String> {
            let all = ["a", "b", "c", "d"].map(snapshot).to_vec();
            let found = tries.in_turn(all, now);
            found.iter().map(|snapshot| uid(snapshot)).collect()
        };
        assert_eq!(in_turn(&tries, begun), ["a", "b", "c", "d"]);
        let second = Duration::from_secs(1);
        for (uid, after) in [("a", 3), ("b", 1), ("d", 2)] {
            tries.tried_at.insert(uid.into(), begun + second * after);
        }
        assert_eq!(in_turn(&tries, begun), ["c", "b", "d", "a"]);
        tries.paused_until.insert("b".into(), begun + RETRY);
        assert_eq!(in_turn(&tries, begun), ["c", "d", "a"]);
        assert_eq!(in_turn(&tries, begun + RETRY), ["c", "b", "d", "a"]);
        tries.note_ended("a", begun);
        tries.note_ended("a", begun + RETRY);
        tries.note_ended("b", begun);
        tries.forget_others(&BTreeSet::from(["a".to_owned()]));
        assert_eq!((tries.tried_at.len(), tries.paused_until.len()), (1, 0));
        // Since it was noted first, and not at all if that is not known.
        assert_eq!(tries.ended_for("a", begun + RETRY), RETRY);
        assert_eq!(tries.ended_for("b", begun + RETRY), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_tried_for_a_while_after_several_tries_in_a_row_have_failed() {
        let (mut tries, begun) = (Tries::default(), Instant::now());
        for _ in 1..MOST_FAILURES {
            tries.note(Some(Failure::Refused), begun);
            assert_eq!(tries.postponed(begun), None);
        }
        tries.note(Some(Failure::Silent), begun);
        assert_eq!(tries.postponed(begun), Some(Failure::Silent));
        assert_eq!(tries.postponed(begun + RETRY), None);
        // Only some files cannot be deleted.
        tries.note(None, begun);
        tries.note(Some(Failure::Silent), begun);
        assert_eq!(tries.postponed(begun), None);
    }
}
