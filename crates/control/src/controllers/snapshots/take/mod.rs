//! Reads what a tenant stores, at one revision of etcd, and writes it into the object store.
//!
//! What is left out: Events, which end by themselves after an hour, and whatever else has a lease in etcd. It would never end after a restore.

use super::tries::{Failure, STORE_ERROR};
use crate::{
    control_plane::encryption::key_of,
    controllers::tenant::IDENTITY_KEY,
    datastore::{ContentPage, DatastoreError, RestorePhase, RestoreRecord, TenantContents},
};
use berth_api::names::TenantId;
use berth_runtime::locks::lock;
use berth_snapshots::{Entry, Store, StoreError, WriteError, Written};
use futures::{Stream, stream};
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

/// How often everything is read from the beginning because etcd has dropped the history meanwhile.
const MOST_REVISIONS: u32 = 3;
/// Bytes of a value that are looked at.
const HEAD: usize = 128;
/// Names of keys in the objects of a tenant, as many as the status may list. A tenant has two keys, and those that somebody restored. Who writes past its API
/// server could make control remember one for each object, and the status of the snapshot would be refused.
const MOST_KEYS: usize = 32;

/// A snapshot that is in the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) written: Written,
    /// Revision of etcd.
    pub(super) revision: i64,
    /// Names of the keys with which objects are encrypted.
    pub(super) encryption_keys: BTreeSet<String>,
}

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeError {
    /// etcd.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// A restore replaces what the tenant stores.
    #[error("a restore of the tenant is under way")]
    Restoring,
    /// There is nothing to restore.
    #[error(
        "the datastore does not have the namespace kube-system of the tenant, so that no API server has served it yet"
    )]
    NoDatabase,
    /// The record of a restore is not of this version of Berth.
    #[error("the record of a restore of the tenant cannot be read: {0}")]
    Record(String),
    /// The object store.
    #[error(transparent)]
    Store(StoreError),
    /// An object that cannot be stored.
    #[error("an object of the tenant cannot be in a snapshot: {0}")]
    Unstorable(String),
}

impl TakeError {
    /// The reason of the condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Datastore(error) if error.is_compacted() => "HistoryCompacted",
            Self::Datastore(_) | Self::Record(_) => "DatastoreError",
            Self::Restoring => "Restoring",
            Self::NoDatabase => "TenantNotStarted",
            Self::Store(_) => STORE_ERROR,
            Self::Unstorable(_) => "Unstorable",
        }
    }

    /// Whether another try may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Datastore(_) | Self::Restoring | Self::Record(_) | Self::Store(_) => true,
            Self::NoDatabase | Self::Unstorable(_) => false,
        }
    }

    /// What the object store has made of it; none if that is not the reason.
    pub(super) fn store_failure(&self) -> Option<Failure> {
        match self {
            Self::Store(StoreError::Unreachable(_)) => Some(Failure::Silent),
            Self::Store(StoreError::NotFound(_) | StoreError::Denied(_)) => Some(Failure::Refused),
            Self::Datastore(_) | Self::Restoring | Self::NoDatabase | Self::Record(_) | Self::Unstorable(_) => None,
        }
    }

    fn is_compacted(&self) -> bool {
        matches!(self, Self::Datastore(error) if error.is_compacted())
    }
}

/// Takes a snapshot of a tenant. `name` is that of the TenantSnapshot.
pub(super) async fn take(
    contents: &Arc<dyn TenantContents>,
    store: &Store,
    tenant: &TenantId,
    (name, location): (&str, &str),
) -> Result<Taken, TakeError> {
    let mut tried = 1;
    loop {
        match take_once(contents, store, tenant, (name, location)).await {
            Err(error) if error.is_compacted() && tried < MOST_REVISIONS => tried += 1,
            taken => return taken,
        }
    }
}

async fn take_once(
    contents: &Arc<dyn TenantContents>,
    store: &Store,
    tenant: &TenantId,
    (name, location): (&str, &str),
) -> Result<Taken, TakeError> {
    let first = contents.read_contents(tenant, None, None).await?;
    let revision = first.revision;
    // At the same revision: a restore may have begun or ended since then.
    if let Some(stored) = contents.read_restore(tenant, Some(revision)).await? {
        let record = RestoreRecord::parse(&stored.text).map_err(|error| TakeError::Record(error.to_string()))?;
        if record.phase != RestorePhase::Saving || record.saved_as.as_deref() != Some(name) {
            return Err(TakeError::Restoring);
        }
    }
    let found = Arc::new(Mutex::new(Found::default()));
    let entries = entries(Reading {
        contents: Arc::clone(contents),
        tenant: tenant.clone(),
        revision,
        waiting: VecDeque::new(),
        page: Some(first),
        found: Arc::clone(&found),
    });
    let written = store.write(location, entries).await.map_err(|error| match error {
        WriteError::Source(error) => error,
        WriteError::Damaged(why) => TakeError::Unstorable(why),
        WriteError::Store(error) => TakeError::Store(error),
    })?;
    let found = lock(&found);
    Ok(Taken {
        written,
        revision,
        encryption_keys: found.keys.clone(),
    })
}

/// What was found in the objects.
#[derive(Debug, Default)]
struct Found {
    keys: BTreeSet<String>,
    has_identity: bool,
}

/// How far the objects of a tenant are read.
struct Reading {
    contents: Arc<dyn TenantContents>,
    tenant: TenantId,
    revision: i64,
    /// Entries that were read and not given out.
    waiting: VecDeque<Entry>,
    /// The page that was read last; none once all of it is in `waiting`, and no other follows.
    page: Option<ContentPage>,
    found: Arc<Mutex<Found>>,
}

/// The objects in the order of their keys. Fails at the end if they are not a tenant's database.
fn entries(reading: Reading) -> impl Stream<Item = Result<Entry, TakeError>> + Send {
    stream::try_unfold(reading, |mut reading| async move {
        loop {
            if let Some(entry) = reading.waiting.pop_front() {
                return Ok(Some((entry, reading)));
            }
            let Some(page) = reading.page.take() else {
                let has_identity = lock(&reading.found).has_identity;
                return if has_identity {
                    Ok(None)
                } else {
                    Err(TakeError::NoDatabase)
                };
            };
            let next = page.next.clone();
            reading.keep(page)?;
            if let Some(next) = next {
                let contents = Arc::clone(&reading.contents);
                let page = contents
                    .read_contents(&reading.tenant, Some(&next), Some(reading.revision))
                    .await?;
                reading.page = Some(page);
            }
        }
    })
}

impl Reading {
    fn keep(&mut self, page: ContentPage) -> Result<(), TakeError> {
        let mut found = lock(&self.found);
        for entry in page.entries.into_iter().filter(|entry| !entry.is_transient) {
            found.has_identity |= entry.key == IDENTITY_KEY.as_bytes();
            let head = entry.value.get(..HEAD).unwrap_or(&entry.value);
            found.keys.extend(key_of(head));
            if found.keys.len() > MOST_KEYS {
                let why = format!("objects are encrypted with more than {MOST_KEYS} keys");
                return Err(TakeError::Unstorable(why));
            }
            self.waiting.push_back(Entry {
                key: entry.key,
                value: entry.value,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
