//! When pods of tenants came and went. A tenant that had a pod between two reconciles was not idle.

use jiff::Timestamp;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// When pods of each tenant came, changed or went last, by slug. Empty after a start: pods that came and went while control did not
/// run are not known.
#[derive(Debug, Default)]
pub struct PodActivity(Mutex<HashMap<String, Timestamp>>);

impl PodActivity {
    /// A pod of the tenant came, changed or went.
    pub fn record(&self, tenant: &str, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(tenant) {
            Some(last) => *last = now,
            None => {
                all.insert(tenant.to_owned(), now);
            }
        }
    }

    /// When [`PodActivity::record`] was called last.
    pub fn last(&self, tenant: &str) -> Option<Timestamp> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(tenant).copied()
    }

    /// Forgets a tenant that is gone.
    pub fn forget(&self, tenant: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(tenant);
    }
}
