//! Keys that ask for their [turns](super::turns), and get them.

use super::{
    Engine,
    recorder::Level,
    turns::{DELAYED, LineKind, Size, Turn},
};
use berth_sync_rules::model::resource::Key;
use std::sync::Arc;

impl Engine {
    /// Lets keys write when it is their turn, for ever.
    pub(super) async fn take_turns(self: Arc<Self>, kind: LineKind) {
        loop {
            let key = self.turns.next(kind).await;
            self.add(key);
        }
    }

    /// Asks whether a key may write an object of `bytes` to the host now. If not, it is reconciled again when its turn has come.
    pub(super) fn ask_to_write(&self, key: &Key, bytes: u64) -> Turn {
        let turn = self.turns.ask(key, bytes);
        if turn == Turn::Now {
            self.metrics.host_writes.count(Size::of(bytes).label(), bytes);
        }
        turn
    }

    /// Says in the tenant that an object waits for long. What happens on the host comes before: the tenant's API server may not answer.
    pub(super) async fn report_wait(&self, key: &Key, turn: Turn) {
        if turn == (Turn::Later { takes_long: true }) {
            let rate = self.cache.tenant.host_limits.write_bytes_per_second;
            let message = format!(
                "The object waits for its turn to be written to the host cluster: this cluster writes more than {rate} bytes a second there. \
                 Change fewer or smaller objects at a time, or ask the platform team to raise spec.limits.hostWriteBytesPerSecond of the class."
            );
            self.record_event(key, Level::Normal, DELAYED, &message).await;
        }
    }

    /// Asks, and reports a long wait at once: for writes before which nothing has to be closed on the host. Returns whether the key may write.
    pub(super) async fn may_write(&self, key: &Key, bytes: u64) -> bool {
        let turn = self.ask_to_write(key, bytes);
        self.report_wait(key, turn).await;
        turn == Turn::Now
    }
}
