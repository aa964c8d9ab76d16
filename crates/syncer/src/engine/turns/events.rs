//! Turns of new pods, while the host writes Events about the tenant's objects.
//!
//! Scheduler, kubelets and controllers write Events, the host's etcd keeps them for an hour by default, and no quota of Kubernetes counts them. About one pod
//! a kubelet writes 25 at once at most, and then one in five minutes: many come only from pods that are made again and again, or have many containers. So
//! the bytes of all Events that the watch reports are taken from an allowance that grows again at a [part](PART_OF_RATE) of the rate of writes, and a pod
//! that is made waits while nothing is left.
//!
//! How many Events a pod will have nobody knows before, so the pod itself takes [little](OF_POD), by which pods come one after another again when something
//! is left.

use super::{DELAYED, LONG_WAIT, LineKind, Turn, Turns, now};
use crate::engine::{Engine, lock, recorder::Level};
use berth_sync_rules::model::{
    KindId,
    resource::{Key, Name},
};

/// Events get one in so many of the bytes a second that may be written: four Events for each pod of 13 KB, and more.
pub(super) const PART_OF_RATE: u64 = 2;
/// Bytes that a pod takes itself: about those of one Event.
pub(super) const OF_POD: u64 = 1 << 10;

impl Turns {
    /// Takes the bytes of an Event that somebody has written. Pods that are made next wait longer.
    pub(super) fn take_event(&self, bytes: u64) {
        lock(&self.line(LineKind::Events).pace).reserve(bytes, now());
    }

    /// The key of a pod asks to make it. If its turn comes later, it is reconciled again then. It keeps its turn until the write is
    /// [done](Turns::spend), or until it does not want to write any more.
    pub(in crate::engine) fn ask_for_events(&self, key: &Key) -> Turn {
        if lock(&self.granted_events).contains(key) {
            return Turn::Now;
        }
        let line = self.line(LineKind::Events);
        if line.ask(key, OF_POD, true) == Turn::Now {
            self.grant(LineKind::Events, key, OF_POD);
            return Turn::Now;
        }
        let before = lock(&line.waiting).amount;
        let wait = lock(&line.pace).wait_for(before, now());
        Turn::Later {
            takes_long: wait >= LONG_WAIT,
        }
    }
}

impl Engine {
    /// Counts an Event that the host's watch reports. What a list has was written before.
    pub(in crate::engine) fn count_event(&self, name: &Name) {
        let store = self.cache.stores.host(KindId::Event);
        if let Some(event) = store.get(name).filter(|_| !store.is_listing()) {
            let bytes = u64::from(event.bytes);
            self.turns.take_event(bytes);
            self.metrics.host_writes.event_bytes.inc_by(bytes);
        }
    }

    /// Says in the tenant that a pod waits for long because of Events.
    pub(in crate::engine) async fn report_wait_for_events(&self, key: &Key) {
        let rate = self.cache.tenant.host_limits.write_bytes_per_second / PART_OF_RATE;
        let message = format!(
            "The pod waits for its turn to be made on the host cluster: more than {rate} bytes of Events a second are written there about pods of this \
             cluster. Look for pods that fail and are made again and again, or ask the platform team to raise spec.limits.hostWriteBytesPerSecond of the class."
        );
        self.record_event(key, Level::Normal, DELAYED, &message).await;
    }
}
