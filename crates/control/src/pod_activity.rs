//! When pods of tenants came and went. A tenant that had a pod between two reconciles was not idle.

use jiff::Timestamp;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// When each tenant last had a pod that had not ended or might start none, by slug. Empty after a start: pods that came and went while control did not run
/// are not known.
#[derive(Debug)]
pub struct PodActivity {
    watched_since: Timestamp,
    tenants: Mutex<HashMap<String, Activity>>,
}

#[derive(Clone, Copy, Debug)]
struct Activity {
    has_pods: bool,
    last: Timestamp,
}

impl Default for PodActivity {
    fn default() -> Self {
        Self::watched_since(Timestamp::now())
    }
}

impl PodActivity {
    /// No activity so far, of pods that are watched since then.
    pub fn watched_since(start: Timestamp) -> Self {
        Self {
            watched_since: start,
            tenants: Mutex::default(),
        }
    }

    /// Since when pods are watched.
    pub fn start(&self) -> Timestamp {
        self.watched_since
    }

    /// A pod of the tenant came, changed or went. `has_pods` says whether the tenant has one now that has not ended.
    pub fn record(&self, tenant: &str, has_pods: bool, now: Timestamp) {
        let mut all = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let had_pods = all.get(tenant).is_some_and(|activity| activity.has_pods);
        // Pods that have ended long ago are no activity.
        if has_pods || had_pods {
            all.insert(tenant.to_owned(), Activity { has_pods, last: now });
        }
    }

    /// The tenant may start no pod now: it is not idle for that.
    pub fn record_no_starts(&self, tenant: &str, now: Timestamp) {
        let mut all = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let activity = all.entry(tenant.to_owned()).or_insert(Activity {
            has_pods: false,
            last: now,
        });
        activity.last = now;
    }

    /// When the tenant last had a pod or might start none, as far as that is known.
    pub fn last(&self, tenant: &str) -> Option<Timestamp> {
        let all = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(tenant).map(|activity| activity.last)
    }

    /// Forgets a tenant that is gone.
    pub fn forget(&self, tenant: &str) {
        self.tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_is_that_of_the_end_of_the_last_pod() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let activity = PodActivity::default();
        activity.record("t", false, at(1));
        assert_eq!(activity.last("t"), None, "a pod that has ended is listed");
        activity.record("t", true, at(2));
        activity.record("t", false, at(3));
        activity.record("t", false, at(4));
        assert_eq!(activity.last("t"), Some(at(3)));
        activity.forget("t");
        assert_eq!(activity.last("t"), None);
    }

    #[test]
    fn time_in_which_no_pod_may_start_is_activity() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let activity = PodActivity::default();
        activity.record_no_starts("t", at(1));
        activity.record_no_starts("t", at(2));
        assert_eq!(activity.last("t"), Some(at(2)));
        activity.record("t", false, at(3));
        assert_eq!(activity.last("t"), Some(at(2)), "it still has no pods");
    }
}
