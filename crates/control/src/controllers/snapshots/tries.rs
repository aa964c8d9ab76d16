//! What is remembered of tries to take snapshots and to delete their files: whether any are tried now, and which deletions come next. Pure.

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
/// Pause before it is tried again, and before anything is after several tries in a row have failed.
pub(super) const RETRY: Duration = Duration::from_secs(15);
/// Tries in a row that have failed, after which no other one begins before the pause is over.
const MOST_FAILURES: usize = 4;

/// Reason of what the object store refuses, or does not answer.
pub(super) const STORE_ERROR: &str = "StoreError";

/// Why a snapshot was not taken, or its files were not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The store has not answered, or with an error of its own.
    Silent,
    /// It has answered that it does not do that.
    Refused,
}

impl Failure {
    /// What is said of snapshots whose files are not deleted now, because that has failed for others.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Silent => format!("it does not answer within {} s", DELETED_WITHIN.as_secs()),
            Self::Refused => "it does not delete other files either".into(),
        }
    }

    /// What is said of snapshots that are not taken now, because others could not be.
    pub(super) fn describe_untaken(self) -> &'static str {
        match self {
            Self::Silent => "the object store could not be used for other snapshots a moment ago; Berth tries again",
            Self::Refused => "the object store has refused other snapshots a moment ago; Berth tries again",
        }
    }
}

/// Tries in a row that the store has failed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    in_a_row: usize,
    /// The last of these, and when it ended.
    last: Option<(Failure, Instant)>,
}

impl Failures {
    /// Notes how a try ended.
    pub(super) fn note(&mut self, failure: Option<Failure>, now: Instant) {
        self.in_a_row = failure.map_or(0, |_| self.in_a_row.saturating_add(1));
        self.last = failure.map(|failure| (failure, now));
    }

    /// Why nothing is tried now, and for how long: several tries in a row have failed a moment ago.
    pub(super) fn postponed(&self, now: Instant) -> Option<(Failure, Duration)> {
        let (failure, at) = self.last?;
        let left = RETRY.saturating_sub(now.duration_since(at));
        (self.in_a_row >= MOST_FAILURES && !left.is_zero()).then_some((failure, left))
    }
}

/// What is remembered of tries to delete files.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// When it was tried last to delete the files of a snapshot.
    pub(super) tried_at: BTreeMap<String, Instant>,
    /// Until when nothing is done about one that could not go.
    pub(super) paused_until: BTreeMap<String, Instant>,
    /// Since when nothing writes files of a snapshot: this process has ended what it did about it, and another one has ended before this one began.
    ended_at: BTreeMap<String, Instant>,
    /// How the last of all tries ended.
    pub(super) failures: Failures,
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
}

/// Whether a snapshot says in its condition of this type that the object store fails.
pub(super) fn has_store_error(snapshot: &TenantSnapshot, type_: &str) -> bool {
    let mut conditions = snapshot.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == type_ && condition.reason == STORE_ERROR)
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
        let (mut failures, begun) = (Failures::default(), Instant::now());
        let second = Duration::from_secs(1);
        for _ in 1..MOST_FAILURES {
            failures.note(Some(Failure::Refused), begun);
            assert_eq!(failures.postponed(begun), None);
        }
        failures.note(Some(Failure::Silent), begun);
        assert_eq!(failures.postponed(begun), Some((Failure::Silent, RETRY)));
        assert_eq!(
            failures.postponed(begun + second),
            Some((Failure::Silent, RETRY.saturating_sub(second)))
        );
        assert_eq!(failures.postponed(begun + RETRY), None);
        // The next one that fails is enough.
        failures.note(Some(Failure::Refused), begun + RETRY);
        assert_eq!(failures.postponed(begun + RETRY), Some((Failure::Refused, RETRY)));
        // Only some files cannot be deleted.
        failures.note(None, begun);
        failures.note(Some(Failure::Silent), begun);
        assert_eq!(failures.postponed(begun), None);
    }

    #[test]
    fn what_a_snapshot_says_of_the_store_is_said_of_one_thing() {
        let mut found = TenantSnapshot::clone(&snapshot("a"));
        assert!(!has_store_error(&found, "Completed"));
        let condition = json!({"type": "Completed", "status": "False", "reason": STORE_ERROR, "message": "",
            "lastTransitionTime": "2026-11-30T12:00:00Z"});
        found.status = Some(serde_json::from_value(json!({"phase": "Pending", "conditions": [condition]})).unwrap());
        assert!(has_store_error(&found, "Completed") && !has_store_error(&found, "Deleting"));
    }
}
