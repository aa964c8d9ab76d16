//! Keys as the queue takes them.

use berth_runtime::{hashes::hash_of, queue::QueueKey};
use berth_sync_rules::model::resource::Key;

/// A key that waits in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueuedKey(pub Key);

impl QueueKey for QueuedKey {
    /// Namespaces take turns: one that floods delays no other. Host Events are their own queue.
    fn group(&self) -> u64 {
        hash_of(&self.0.name.namespace)
    }
}

/// A key in a queue in which kinds take turns as well: one that [waits long](super::tenant_waits) for the tenant's API server, or of a kind that
/// [does](super::slow_queue), and one that waits for its [turn](super::turns).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyOfKind(pub Key);

impl QueueKey for KeyOfKind {
    /// The tenant decides which kinds are slow, and how many objects they have. And pods that end the wait of claims on the host must not come after
    /// all claims that are not there yet.
    fn group(&self) -> u64 {
        hash_of(&(&self.0.name.namespace, self.0.kind))
    }
}
