//! Contents of ConfigMaps and Secrets. Both sides are watched for metadata only, and the content of the tenant's object is read when it is needed.
//!
//! A user decides how much structure that has: 1.5 MiB of short keys take 25 MiB as a tree. It is in memory several times while it is written to the host, and a syncer
//! works on 42 objects at a time. So a content is read part by part, and once it is large it takes a part of a [room](ContentRoom) until it is written.
//! Others wait, and are not read on until there is room. A wait counts as one for the tenant's API server: see [`tenant_waits`](super::tenant_waits).
//! What has more structure than an object may have is not read again until it changes.

use super::{DENIED, Outcome, api::CallError, lock, to_host::ObjectSync};
use crate::store::{Content, MAX_TENANT_TREE, TreeSize};
use berth_runtime::{answers::is_too_long, tree::Tree};
use berth_sync_rules::model::{
    DeniedField, json,
    resource::Key,
    store::{Detail, Stored},
};
use futures::{AsyncBufRead, AsyncBufReadExt};
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::HashMap,
    ops::Deref,
    pin::pin,
    sync::{Arc, Mutex},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory of a content that needs no room. Ordinary ones have less.
const SMALL: u64 = 512 << 10;
/// Contents of the largest size that have room at the same time. With the copies that are made of each, and with the answer of the host, each takes 64 MiB.
const LARGEST_AT_A_TIME: u64 = 2;
/// Bytes for which a permit of the room stands.
const UNIT: u64 = 1 << 10;

/// Why the content of an object is not read.
const TOO_MUCH_STRUCTURE: &str =
    "they have more keys than Berth reads of one object: divide them among several objects";

/// Room for contents that are large, of all objects together.
#[derive(Debug)]
pub(super) struct ContentRoom {
    permits: Arc<Semaphore>,
    /// Versions of the objects whose contents have too much structure.
    too_large: Mutex<HashMap<Key, u64>>,
}

/// Room that a content has until this is dropped.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

/// What was read of an object.
#[derive(Debug)]
pub(super) enum Read {
    /// All of it, and its room if it is large.
    Whole(Value, Option<Room>),
    /// It has more structure than an object may have.
    TooLarge,
}

/// An object in full, and its room as long as it is used.
#[derive(Debug)]
pub(super) struct Contents<'v> {
    object: Cow<'v, Value>,
    _room: Option<Room>,
}

impl Deref for Contents<'_> {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.object
    }
}

impl Default for ContentRoom {
    fn default() -> Self {
        let permits = LARGEST_AT_A_TIME * u64::from(permits_of(MAX_TENANT_TREE));
        Self {
            permits: Arc::new(Semaphore::new(
                usize::try_from(permits).unwrap_or(Semaphore::MAX_PERMITS),
            )),
            too_large: Mutex::default(),
        }
    }
}

/// Permits for so many bytes, at least one.
fn permits_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

impl Room {
    /// Leaves to others what is more than a content of this size needs.
    fn shrink_to(&mut self, bytes: u64) {
        let needed = usize::try_from(permits_of(bytes)).unwrap_or(usize::MAX);
        let surplus = self.0.num_permits().saturating_sub(needed);
        drop(self.0.split(surplus));
    }
}

impl ContentRoom {
    /// Reads the answer of an API server that is an object. Once it is large, waits until the largest one would have room.
    ///
    /// # Errors
    /// The answer does not come to its end, or is no object.
    pub(super) async fn read(&self, answer: impl AsyncBufRead) -> kube::Result<Read> {
        let mut answer = pin!(answer);
        let (mut tree, mut text, mut room) = (Tree::default(), Vec::new(), None);
        loop {
            let part = match answer.fill_buf().await.map_err(kube::Error::ReadEvents) {
                Ok([]) => break,
                Ok(part) => part,
                // By its managed fields, which are not parsed. To read it again changes nothing.
                Err(error) if is_too_long(&error) => return Ok(Read::TooLarge),
                Err(error) => return Err(error),
            };
            let length = part.len();
            tree.read(part);
            text.extend_from_slice(part);
            answer.consume_unpin(length);
            if room.is_none() && tree.bytes() > SMALL {
                room = self.take().await;
            }
        }
        let text = String::from_utf8(text).map_err(kube::Error::FromUtf8)?;
        let size = TreeSize::of_text(&text);
        if size.exceeds(MAX_TENANT_TREE) {
            return Ok(Read::TooLarge);
        }
        let Content(object) = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        if let Some(room) = &mut room {
            room.shrink_to(size.all);
        }
        Ok(Read::Whole(object, room))
    }

    /// Waits for room for the largest content.
    async fn take(&self) -> Option<Room> {
        let permits = Arc::clone(&self.permits).acquire_many_owned(permits_of(MAX_TENANT_TREE));
        // Nobody closes the semaphore.
        permits.await.ok().map(Room)
    }

    /// Notes that the content of this version of an object has too much structure.
    pub(super) fn note_too_large(&self, key: Key, version: u64) {
        lock(&self.too_large).insert(key, version);
    }

    /// Whether the content of this version of an object has too much structure.
    pub(super) fn is_too_large(&self, key: &Key, version: u64) -> bool {
        lock(&self.too_large).get(key) == Some(&version)
    }

    /// Forgets what was noted of an object that is gone, or was read.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.too_large).remove(key);
    }
}

impl ObjectSync<'_> {
    /// The tenant's object in full: from the store, or read if only its metadata is watched. If there is none, the error within is what to do then.
    pub(super) async fn content<'v>(
        &self,
        stored: &Stored,
        object: &'v Value,
    ) -> Result<Result<Contents<'v>, Outcome>, CallError> {
        let (engine, key) = (self.engine, self.key());
        let watched = engine.cache.kind(self.id).tenant.map(|spec| spec.detail);
        if watched != Some(Detail::Metadata) {
            return Ok(Ok(Contents {
                object: Cow::Borrowed(object),
                _room: None,
            }));
        }
        if engine.contents.is_too_large(&key, stored.version) {
            return Ok(Err(self.deny_content().await));
        }
        let room = &engine.contents;
        let (object, room) = match engine.tenant.read(self.kind.resource(), self.name, room).await {
            Ok(Read::Whole(object, room)) => (object, room),
            Ok(Read::TooLarge) => {
                engine.contents.note_too_large(key, stored.version);
                return Ok(Err(self.deny_content().await));
            }
            Err(CallError::NotFound) => return Ok(Err(Outcome::new("vanished"))),
            Err(error) => return Err(error),
        };
        // Another object may have the name now: the watch will report that.
        if json::text(&object, &["metadata", "uid"]) != Some(&*stored.uid) {
            return Ok(Err(Outcome::new("vanished")));
        }
        engine.contents.forget(&key);
        Ok(Ok(Contents {
            object: Cow::Owned(object),
            _room: room,
        }))
    }

    /// Says that the content has too much structure. What is on the host of an earlier one stays, as for other content that is denied.
    async fn deny_content(&self) -> Outcome {
        self.record_denied(&[DeniedField::new("data and binaryData", TOO_MUCH_STRUCTURE)])
            .await;
        Outcome::new(DENIED)
    }
}

#[cfg(test)]
mod tests;
