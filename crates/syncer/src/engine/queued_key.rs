//! Keys as the queue takes them.

use berth_runtime::queue::QueueKey;
use berth_sync_rules::model::resource::Key;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A key that waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueuedKey(pub Key);

impl QueueKey for QueuedKey {
    /// Namespaces take turns: one that floods delays no other. Host Events are their own queue.
    fn group(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.name.namespace.hash(&mut hasher);
        hasher.finish()
    }
}
