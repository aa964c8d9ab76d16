//! What was decided last about the users of Projects.
//!
//! A pod that may start is kept here before its gate is taken off, until the watch shows that it is off. So a decision knows all earlier
//! ones of this process even if the watch is behind, or a request had no answer. Another process finds what is done on the pods; what was
//! decided and not done, it decides again.

use berth_api::UserStatus;
use berth_runtime::locks::lock;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Pause before a pod is written again that the host refused to change. Often enough for the alert `BerthReconcileErrors`, if that goes on.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(15);

/// The users of a Project, for its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectUsers {
    /// Users with pods.
    pub users: Vec<UserStatus>,
    /// Number of those that are too many to list.
    pub not_listed: u32,
}

/// The last decision.
#[derive(Debug, Default)]
pub struct UserQuotaLedger {
    granted: Mutex<BTreeSet<String>>,
    projects: Mutex<BTreeMap<String, ProjectUsers>>,
    changes: AtomicU64,
    turns: AtomicUsize,
    /// When the host refused to change a pod, by its UID.
    refused: Mutex<HashMap<String, Instant>>,
}

impl UserQuotaLedger {
    /// UIDs of pods that may start. Those that are not among the pods with a gate are forgotten.
    pub fn granted(&self, gated: &HashSet<&str>) -> BTreeSet<String> {
        let mut granted = lock(&self.granted);
        granted.retain(|uid| gated.contains(uid.as_str()));
        granted.clone()
    }

    /// Keeps that pods may start.
    pub fn grant(&self, uids: impl IntoIterator<Item = String>) {
        lock(&self.granted).extend(uids);
    }

    /// Keeps the users of all Projects that limit them. Returns whether that changed.
    pub fn set_projects(&self, projects: BTreeMap<String, ProjectUsers>) -> bool {
        let mut known = lock(&self.projects);
        let is_new = *known != projects;
        *known = projects;
        if is_new {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// How often the users of any Project changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The number of a pass that writes pods.
    pub fn next_turn(&self) -> usize {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that the host refuses to change a pod.
    pub fn note_refused(&self, uid: &str, now: Instant) {
        lock(&self.refused).insert(uid.to_owned(), now);
    }

    /// UIDs of the pods that the host refused to change in the last [`REFUSED_PAUSE`].
    pub fn refused(&self, now: Instant) -> HashSet<String> {
        let mut refused = lock(&self.refused);
        refused.retain(|_, at| now.duration_since(*at) < REFUSED_PAUSE);
        refused.keys().cloned().collect()
    }

    /// The users of a Project.
    pub fn users_of(&self, project: &str) -> ProjectUsers {
        lock(&self.projects).get(project).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_stays_granted_until_its_gate_is_seen_to_be_off() {
        let ledger = UserQuotaLedger::default();
        ledger.grant(["a".to_owned(), "b".to_owned()]);
        assert_eq!(ledger.granted(&HashSet::from(["a", "b", "c"])).len(), 2);
        assert_eq!(ledger.granted(&HashSet::from(["b"])), ["b".to_owned()].into());
        assert_eq!(ledger.granted(&HashSet::from(["a", "b"])), ["b".to_owned()].into());
    }

    #[test]
    fn a_pod_that_the_host_refused_to_change_is_left_out_for_a_while() {
        let (ledger, now) = (UserQuotaLedger::default(), Instant::now());
        ledger.note_refused("a", now);
        ledger.note_refused("b", now + REFUSED_PAUSE / 2);
        assert_eq!(ledger.refused(now + REFUSED_PAUSE / 2).len(), 2);
        assert_eq!(ledger.refused(now + REFUSED_PAUSE), ["b".to_owned()].into());
        assert!(ledger.refused(now + 2 * REFUSED_PAUSE).is_empty());
    }
}
