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

/// A key that [waits long](super::tenant_waits) for the tenant's API server, or of a kind that does, as its [queue](super::slow_queue) takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlowKey(pub Key);

impl QueueKey for SlowKey {
    /// Kinds take turns as well: the tenant decides which of them are slow, and how many objects they have.
    fn group(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.0.name.namespace, self.0.kind).hash(&mut hasher);
        hasher.finish()
    }
}
