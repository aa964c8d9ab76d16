//! What the host has had since before the syncer started, and what of it was not compared with the rules of the class yet.
//!
//! A class that takes something away restarts the syncer, which compares every object again. Control lets a tenant sleep only once that is done: nothing
//! compares anything then. Only kinds count whose objects have an effect while no pod of the tenant runs.
//!
//! A key counts as compared once nothing is left to do for it on the host. It does not matter what the tenant's API server answers: what happens on the
//! host does not depend on that. So a change that waits says so itself: its status, which is written while it waits, may be refused.

use super::{Engine, OUTDATED, Outcome, api::CallError, lock, update::REFUSED};
use berth_sync_rules::model::resource::Key;
use std::{cell::Cell, collections::HashSet};

/// Result of a reconciliation of an object whose kind is not known on one side.
pub(super) const UNAVAILABLE: &str = "unavailable";
/// Results after which the object on the host is as it was.
const NOT_COMPARED: [&str; 5] = [UNAVAILABLE, OUTDATED, REFUSED, "reserved", "vanished"];

/// Keys of objects that were not compared yet; none before both sides are listed.
pub(super) type Uncompared = Option<HashSet<Key>>;

tokio::task_local! {
    /// Whether this task leaves something to do on the host.
    static IS_LEFT: Cell<bool>;
}

/// The result of a task, and whether it leaves something to do on the host.
pub(super) async fn with_what_is_left<T: Future>(task: T) -> (T::Output, bool) {
    let noting = async {
        let output = task.await;
        (output, IS_LEFT.try_with(Cell::get).unwrap_or_default())
    };
    IS_LEFT.scope(Cell::default(), noting).await
}

fn set_left(is_left: bool) {
    // Elsewhere nobody asks.
    let _ = IS_LEFT.try_with(|left| left.set(is_left));
}

/// Notes that the host's API server has not done what this task has asked of it. What is gone already needs nothing.
pub(super) fn note_host_failure(error: &CallError) {
    if !matches!(error, CallError::NotFound) {
        set_left(true);
    }
}

/// Notes that this task changes an object on the host later.
pub(super) fn note_later() {
    set_left(true);
}

/// Notes that an object on the host was reduced to what is harmless, whatever the host has refused before.
pub(super) fn note_reduced() {
    set_left(false);
}

impl Engine {
    /// Notes what the host has, before anything is reconciled.
    pub(super) fn begin_first_comparison(&self) {
        let kinds = self.cache.kinds.iter().copied();
        let acting = kinds.filter(|id| self.cache.kind(*id).acts_without_pods);
        let keys = acting.flat_map(|id| {
            self.cache
                .stores
                .host(id)
                .names()
                .into_iter()
                .map(move |name| id.key(name))
        });
        *lock(&self.uncompared) = Some(keys.collect());
        self.publish_uncompared();
    }

    /// Notes the result of a reconciliation that has compared both objects as a whole. `is_left` says whether it leaves something to do on the host.
    pub(super) fn note_comparison(&self, key: &Key, result: &Result<Outcome, CallError>, is_left: bool) {
        let is_as_before = match result {
            Ok(outcome) => outcome.waits_for_turn() || NOT_COMPARED.contains(&outcome.result),
            // Of the tenant's API server: that of the host has not failed.
            Err(_) => false,
        };
        if is_as_before || is_left || self.turns.waits(key) {
            return;
        }
        let mut uncompared = lock(&self.uncompared);
        if let Some(uncompared) = uncompared.as_mut()
            && uncompared.remove(key)
        {
            self.publish_left(uncompared);
        }
    }

    /// Publishes how many objects are left. Those that are gone from the host need no comparison.
    pub(super) fn publish_uncompared(&self) {
        if let Some(uncompared) = lock(&self.uncompared).as_mut() {
            uncompared.retain(|key| self.cache.stores.host(key.kind).contains(&key.name));
            self.publish_left(uncompared);
        }
    }

    fn publish_left(&self, uncompared: &HashSet<Key>) {
        let left = i64::try_from(uncompared.len()).unwrap_or(i64::MAX);
        self.metrics.uncompared_objects.set(left);
    }
}

#[cfg(test)]
mod tests;
