//! How many bytes the tenant's objects have on the host: no more than its class allows. Numbers of objects are limited by the host's
//! ResourceQuota, which knows no bytes. The size of each object that the syncer made is in its store.

use super::{
    Engine, lock,
    turns::{LineKind, Size},
};
use crate::metrics::SizeLabels;
use berth_sync_rules::{
    model::{Direction, KindId, resource::Key},
    translation::{quota::QuotaExceeded, sizes::count_bytes},
};
use serde_json::Value;

/// An object may grow by as much at the limit: labels that close a pod have to reach it.
const ROOM: u64 = 4 << 10;
/// Part of the limit by which all objects together may exceed it so. Beyond it nothing grows: of what closes a pod, new labels are left out, and longer ones
/// are taken away.
const ROOM_OF_ALL: u64 = 8;

/// Bytes that are being written to the host.
#[must_use]
pub(super) struct BytesInFlight<'a> {
    engine: &'a Engine,
    bytes: u64,
}

impl Drop for BytesInFlight<'_> {
    fn drop(&mut self) {
        let mut in_flight = lock(&self.engine.bytes_in_flight);
        *in_flight = in_flight.saturating_sub(self.bytes);
    }
}

impl Engine {
    /// Kinds of which the syncer makes objects on the host.
    fn kinds_on_host(&self) -> impl Iterator<Item = KindId> {
        let kinds = self.cache.kinds.iter().copied();
        kinds.filter(|id| matches!(self.cache.kind(*id).direction, Direction::ToHost(_) | Direction::Tokens))
    }

    /// Bytes of all objects of the tenant on the host, as JSON.
    pub(super) fn host_bytes(&self) -> u64 {
        self.cache.stores.host_bytes(self.kinds_on_host())
    }

    /// Why nothing can be created on the host, if the tenant has all that it may have.
    pub(super) fn refuse_if_full(&self) -> Option<QuotaExceeded> {
        self.refuse_beyond(self.cache.tenant.host_limits.bytes, 1).err()
    }

    /// Remembers what of a host object can change, as it was written.
    pub(super) fn set_applied(&self, key: Key, mutable: &Value) {
        lock(&self.applied_bytes).insert(key, count_bytes(mutable) as u64);
    }

    /// The same of an object that the host has as it should be. After the first time it is known: nothing has been written since.
    pub(super) fn learn_applied(&self, key: Key, mutable: &Value) {
        let mut applied = lock(&self.applied_bytes);
        applied.entry(key).or_insert_with(|| count_bytes(mutable) as u64);
    }

    /// By how many bytes the host object of `key`, of `known` bytes, grows if it becomes `desired`, of which `mutable` can change. The host's
    /// own fields are in `known` alone: if they were compared, an object could grow by as much as they have, again and again.
    pub(super) fn growth(&self, key: &Key, known: u64, desired: &Value, mutable: &Value) -> u64 {
        let applied = lock(&self.applied_bytes).get(key).copied();
        match applied.filter(|_| known > 0) {
            Some(applied) => (count_bytes(mutable) as u64).saturating_sub(applied),
            None => (count_bytes(desired) as u64).saturating_sub(known),
        }
    }

    /// The same of a host object of which nothing but `mutable` is written. If it is not known what was written of that before, all of it counts.
    pub(super) fn growth_of_part(&self, key: &Key, mutable: &Value) -> u64 {
        let applied = lock(&self.applied_bytes).get(key).copied().unwrap_or_default();
        (count_bytes(mutable) as u64).saturating_sub(applied)
    }

    /// Room for an object of `bytes` on the host, which has `known` bytes there now.
    ///
    /// # Errors
    /// The tenant would have more than it may have.
    pub(super) fn reserve_host_bytes(&self, known: u64, bytes: u64) -> Result<BytesInFlight<'_>, QuotaExceeded> {
        self.reserve_growth(known, bytes.saturating_sub(known))
    }

    /// Room for `more` bytes of an object that has `known` bytes on the host. They count until the result is dropped, which must be after the store
    /// has the object: writes at the same time do not get the same room.
    ///
    /// # Errors
    /// The tenant would have more than it may have.
    pub(super) fn reserve_growth(&self, known: u64, more: u64) -> Result<BytesInFlight<'_>, QuotaExceeded> {
        let limit = self.cache.tenant.host_limits.bytes;
        let most = if known > 0 && more == 0 {
            u64::MAX
        } else if known > 0 && more <= ROOM {
            limit.saturating_add(limit / ROOM_OF_ALL)
        } else {
            limit
        };
        let mut in_flight = lock(&self.bytes_in_flight);
        self.refuse_beyond(most, in_flight.saturating_add(more))?;
        *in_flight = in_flight.saturating_add(more);
        Ok(BytesInFlight {
            engine: self,
            bytes: more,
        })
    }

    /// Refuses more bytes if the tenant would have more than `most` then.
    fn refuse_beyond(&self, most: u64, more: u64) -> Result<(), QuotaExceeded> {
        let limit = self.cache.tenant.host_limits.bytes;
        if self.host_bytes().saturating_add(more) > most {
            return Err(QuotaExceeded::of_host_bytes(limit));
        }
        Ok(())
    }

    /// Publishes how much the tenant has and may have, and what waits to be written.
    pub(super) fn publish_host_bytes(&self) {
        let writes = &self.metrics.host_writes;
        let waiting = |kind| i64::try_from(self.turns.waiting(kind)).unwrap_or(i64::MAX);
        for size in Size::ALL {
            let objects = writes.objects_waiting.get_or_create(&SizeLabels { size: size.label() });
            objects.set(waiting(LineKind::Bytes(size)));
        }
        writes.controller_requests_waiting.set(waiting(LineKind::Requests));
        writes.pods_waiting_for_events.set(waiting(LineKind::Events));
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.metrics.host_bytes.set(number(self.host_bytes()));
        self.metrics
            .host_bytes_limit
            .set(number(self.cache.tenant.host_limits.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lists, test_engine::engine};
    use super::*;
    use berth_sync_rules::model::{
        resource::{Name, Side},
        store::Stored,
    };
    use serde_json::json;
    use std::sync::Arc;
    use tokio_util::sync::CancellationToken;

    /// Puts an object of a kind on the host.
    fn put_on_host(engine: &Engine, kind: KindId, bytes: u64) {
        let object = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
        let stored = Stored::new(&object).of_bytes(usize::try_from(bytes).unwrap());
        engine.cache.stores.host(kind).watched(Name::new("team", "a"), stored);
    }

    #[tokio::test]
    async fn bytes_are_published_before_the_syncer_is_ready() {
        let engine = engine();
        put_on_host(&engine, KindId::Pod, 4096);
        for id in engine.cache.kinds.iter().copied() {
            for side in [Side::Tenant, Side::Host] {
                engine.cache.stores.of(side, id).set_listed();
            }
        }
        let (stop, mut published) = (CancellationToken::new(), None);
        let ready = |_: Lists<'_>| {
            let metrics = engine.metrics();
            published = Some((metrics.host_bytes.get(), metrics.host_bytes_limit.get()));
            stop.cancel();
        };
        Arc::clone(&engine).run(stop.clone(), ready).await;
        assert_eq!(published, Some((4096, 512 << 20)));
    }

    #[tokio::test]
    async fn objects_on_the_host_have_no_more_bytes_than_the_class_allows() {
        let engine = engine();
        let limit = engine.cache.tenant.host_limits.bytes;
        let put = |kind: KindId, bytes: u64| put_on_host(&engine, kind, bytes);
        put(KindId::Pod, limit - 200_000);
        put(KindId::PodToken, 100_000);
        // What is only mirrored to the tenant is not the tenant's.
        put(KindId::Node, limit);
        assert_eq!(engine.host_bytes(), limit - 100_000);
        assert!(engine.reserve_host_bytes(0, 100_000).is_ok());
        let refused = engine.reserve_host_bytes(0, 100_001).err().unwrap();
        assert!(refused.to_string().contains("spec.limits.hostBytes"), "{refused}");
        assert!(engine.reserve_host_bytes(50_000, 150_001).is_err());
        assert!(engine.reserve_host_bytes(50_000, 150_000).is_ok());
        assert_eq!(engine.refuse_if_full(), None);
        put(KindId::Service, 200_000);
        assert!(engine.refuse_if_full().is_some());
        assert!(
            engine.reserve_host_bytes(1000, 1000 + ROOM).is_ok(),
            "labels can change"
        );
        assert!(engine.reserve_host_bytes(1000, 1001 + ROOM).is_err());
        engine.publish_host_bytes();
        assert_eq!(engine.metrics.host_bytes_limit.get(), 512 << 20);
        // Growing little by little ends, too.
        put(KindId::Service, 100_000 + limit / ROOM_OF_ALL);
        assert!(engine.reserve_host_bytes(1000, 1001).is_err());
        assert!(engine.reserve_host_bytes(1000, 1000).is_ok() && engine.reserve_host_bytes(1000, 900).is_ok());
    }

    #[tokio::test]
    async fn writes_at_the_same_time_do_not_get_the_same_room() {
        let engine = engine();
        let limit = engine.cache.tenant.host_limits.bytes;
        let first = engine.reserve_host_bytes(0, limit / 2).unwrap();
        let second = engine.reserve_growth(1000, limit / 2).unwrap();
        assert!(engine.reserve_host_bytes(0, 1).is_err());
        assert!(engine.reserve_growth(1000, 0).is_ok(), "what does not grow is written");
        drop(first);
        // It was rejected, or the store has it.
        assert!(engine.reserve_host_bytes(0, limit / 2 + 1).is_err());
        assert!(engine.reserve_host_bytes(0, limit / 2).is_ok());
        drop(second);
        assert!(engine.reserve_host_bytes(0, limit).is_ok());
    }

    #[tokio::test]
    async fn what_the_host_adds_to_an_object_leaves_it_no_room_to_grow() {
        let engine = engine();
        let key = KindId::ConfigMap.key(Name::new("team", "a"));
        let of = |bytes: usize| json!({"data": {"a": "x".repeat(bytes)}});
        // Of 10,000 bytes on the host, 4,000 are managed fields and the like.
        let growth = |bytes| engine.growth(&key, 10_000, &of(bytes), &of(bytes));
        assert_eq!(growth(9_000), 0, "nothing is known after a start");
        engine.set_applied(key.clone(), &of(6_000));
        assert_eq!([growth(5_000), growth(6_000), growth(6_500)], [0, 0, 500]);
        assert!(engine.growth(&key, 0, &of(100), &of(100)) > 100, "it is created");
    }
}
