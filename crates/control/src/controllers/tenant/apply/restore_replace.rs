//! Replaces what a tenant stores by what is in a snapshot. Nothing of the tenant runs meanwhile.

use super::{super::build::stored_namespace::PATH as IDENTITY, restore_check::check_room};
use crate::datastore::{DatastoreError, KeyRange, RestoreRecord, TenantContents};
use berth_api::names::TenantId;
use berth_snapshots::{Entry, ReadError, Store};
use futures::TryStreamExt;

/// Objects that are written at once. etcd accepts 128 operations.
const MOST_OBJECTS: usize = 100;
/// Bytes that are written at once, unless a single object has more. etcd accepts 1.5 MiB.
const MOST_BYTES: usize = 1 << 20;

/// Why not everything was replaced.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplaceError {
    /// etcd.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The object store.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Who writes more could keep all tenants from writing.
    #[error("{0}")]
    Full(String),
    /// The snapshot is not a tenant's database.
    #[error("the snapshot does not have the namespace kube-system")]
    NoDatabase,
    /// Something else writes, or etcd has lost something.
    #[error("the datastore has {found} objects of the tenant instead of {expected}")]
    Count {
        /// How many there are.
        found: u64,
        /// How many there should be.
        expected: u64,
    },
}

/// Objects that are written at once.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<Entry>,
    bytes: usize,
}

impl Batch {
    /// Adds an object. Returns those before if there is no room for it with them.
    fn add(&mut self, entry: Entry) -> Option<Vec<Entry>> {
        let bytes = entry.key.len() + entry.value.len();
        let is_full = self.entries.len() >= MOST_OBJECTS || self.bytes + bytes > MOST_BYTES;
        let full = (is_full && !self.entries.is_empty()).then(|| self.take());
        self.bytes += bytes;
        self.entries.push(entry);
        full
    }

    fn take(&mut self) -> Vec<Entry> {
        self.bytes = 0;
        std::mem::take(&mut self.entries)
    }
}

/// Replaces everything but the namespace `kube-system`, which is deleted first. Returns that of the snapshot. `revision` is that of the record, with which
/// each write is compared.
pub(super) async fn replace(
    contents: &dyn TenantContents,
    store: &Store,
    tenant: &TenantId,
    record: &RestoreRecord,
    revision: i64,
) -> Result<Vec<u8>, ReplaceError> {
    contents.delete_content(tenant, IDENTITY.as_bytes(), revision).await?;
    for range in [KeyRange::Events, KeyRange::Others] {
        let mut next = contents.clear_contents(tenant, range, None, revision).await?;
        while let Some(start) = next {
            next = contents.clear_contents(tenant, range, Some(&start), revision).await?;
        }
    }
    // Each try leaves as much as it has written in the history of etcd, for minutes.
    let room = check_room(&contents.read_database().await?, record.bytes);
    room.map_err(|refusal| ReplaceError::Full(refusal.message))?;
    let mut entries = store.read(&record.location, &record.written());
    let (mut batch, mut identity) = (Batch::default(), None);
    while let Some(entry) = entries.try_next().await? {
        if entry.key == IDENTITY.as_bytes() {
            identity = Some(entry.value);
            continue;
        }
        if let Some(full) = batch.add(entry) {
            contents.write_contents(tenant, full, revision).await?;
        }
    }
    let rest = batch.take();
    if !rest.is_empty() {
        contents.write_contents(tenant, rest, revision).await?;
    }
    let identity = identity.ok_or(ReplaceError::NoDatabase)?;
    let (found, expected) = (contents.count_contents(tenant).await?, record.objects.saturating_sub(1));
    if found == expected {
        Ok(identity)
    } else {
        Err(ReplaceError::Count { found, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: usize) -> Entry {
        Entry {
            key: b"key".to_vec(),
            value: vec![0; bytes - 3],
        }
    }

    /// Sizes of the batches in which objects of these sizes are written.
    fn batches(sizes: &[usize]) -> Vec<usize> {
        let (mut batch, mut written) = (Batch::default(), Vec::new());
        for size in sizes {
            written.extend(batch.add(entry(*size)).map(|full| full.len()));
        }
        written.push(batch.take().len());
        written
    }

    #[test]
    fn no_more_is_written_at_once_than_etcd_accepts() {
        assert_eq!(batches(&[10; 250]), [100, 100, 50]);
        assert_eq!(batches(&[MOST_BYTES / 2; 5]), [2, 2, 1]);
        // An object alone may be larger.
        assert_eq!(batches(&[10, MOST_BYTES + 1, 10]), [1, 1, 1]);
        assert_eq!(batches(&[MOST_BYTES]), [1]);
    }
}
