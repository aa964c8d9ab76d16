//! The second queue of a priority: keys that have something to ask the tenant's API server, which takes long for them or for their kind.
//!
//! Such a key is not being processed in the first queue meanwhile, and may wait there as well: what happens to it, or a time that comes, lets its
//! [host's part](super::host_first) run again.

use super::{
    lock,
    queued_key::{KeyOfKind, QueuedKey},
    tenant_waits::FEW,
};
use berth_runtime::queue::{Queue, Taken};
use berth_sync_rules::model::{
    KindId,
    resource::{Key, Name},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

/// The queue, and what waits in it.
#[derive(Debug, Default)]
pub(super) struct SlowQueue {
    queue: Queue<KeyOfKind>,
    names: Mutex<HashMap<KindId, HashSet<Name>>>,
}

impl SlowQueue {
    /// Puts a key at the end of its group, unless it waits already.
    pub(super) fn add(&self, key: Key) {
        if lock(&self.names).entry(key.kind).or_default().insert(key.name.clone()) {
            self.queue.add(KeyOfKind(key));
        }
    }

    /// Waits for the next key. It can be added again at once. Cancel-safe.
    pub(super) async fn take(&self) -> Taken<QueuedKey> {
        let Taken { key, queued_for } = self.queue.take().await;
        self.queue.done(&key);
        let KeyOfKind(key) = key;
        if let Some(names) = lock(&self.names).get_mut(&key.kind) {
            names.remove(&key.name);
        }
        Taken {
            key: QueuedKey(key),
            queued_for,
        }
    }

    /// Whether a key waits.
    pub(super) fn has(&self, key: &Key) -> bool {
        lock(&self.names)
            .get(&key.kind)
            .is_some_and(|names| names.contains(&key.name))
    }

    /// Whether a [few](FEW) keys wait, with one of a kind. Fewer do not count for their kind.
    pub(super) fn has_a_few_with(&self, kind: KindId) -> bool {
        self.len() >= FEW && lock(&self.names).get(&kind).is_some_and(|names| !names.is_empty())
    }

    /// Number of keys that wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
