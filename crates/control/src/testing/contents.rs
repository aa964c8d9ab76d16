//! What one tenant stores, in memory, as etcd keeps it: with revisions, and with the record of a restore.

use crate::datastore::{
    ContentPage, DatabaseState, DatastoreError, KeyRange, RestoreEnd, StoredEntry, StoredRestore, TenantContents,
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use berth_etcd::Status;
use berth_runtime::locks::lock;
use berth_snapshots::Entry;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

/// Objects that are read at once.
const PAGE: usize = 2;

/// Values by key, and whether etcd deletes them by itself.
type Objects = BTreeMap<Vec<u8>, (Vec<u8>, bool)>;

/// What one tenant stores. Cheap to clone; all clones share it.
#[derive(Clone, Default)]
pub(crate) struct MemoryContents(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    revision: i64,
    objects: Objects,
    record: Option<StoredRestore>,
    /// How the last restore ended.
    end: Option<Vec<u8>>,
    /// As it was at each revision.
    history: BTreeMap<i64, (Objects, Option<StoredRestore>)>,
    calls: usize,
    /// The call with this number fails.
    failing: Option<usize>,
    /// The call with this number and all later ones are never answered.
    silent_from: Option<usize>,
    /// So many reads at an earlier revision find it gone.
    compacted_reads: usize,
    bytes_in_use: u64,
    quota: Option<u64>,
}

impl State {
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        self.revision += 1;
        change(self);
        let now = (self.objects.clone(), self.record.clone());
        self.history.insert(self.revision, now);
    }
}

impl MemoryContents {
    /// A tenant that stores these objects.
    pub(crate) fn with(objects: &[(&str, &str)]) -> Self {
        let contents = Self::default();
        for (key, value) in objects {
            contents.put(key, value, false);
        }
        contents
    }

    /// Stores an object.
    pub(crate) fn put(&self, key: &str, value: &str, is_transient: bool) {
        let (key, value) = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        self.state().change(|state| {
            state.objects.insert(key, (value, is_transient));
        });
    }

    /// Loses all objects, and how the last restore ended.
    pub(crate) fn clear(&self) {
        self.state().change(|state| {
            state.objects.clear();
            state.end = None;
        });
    }

    /// All objects, as texts.
    pub(crate) fn objects(&self) -> BTreeMap<String, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let state = self.state();
        let objects = state.objects.iter();
        objects.map(|(key, (value, _))| (text(key), text(value))).collect()
    }

    /// The record of the restore.
    pub(crate) fn record(&self) -> Option<StoredRestore> {
        self.state().record.clone()
    }

    /// How the last restore ended.
    pub(crate) fn restore_end(&self) -> Option<RestoreEnd> {
        let text = self.state().end.clone()?;
        RestoreEnd::parse(&text).ok()
    }

    /// Says otherwise how the last restore ended.
    pub(crate) fn set_restore_end(&self, text: Vec<u8>) {
        self.state().end = Some(text);
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> i64 {
        self.state().revision
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.state().calls
    }

    /// The call with this number fails; none: all succeed.
    pub(crate) fn fail_call(&self, number: Option<usize>) {
        self.state().failing = number;
    }

    /// The call with this number and all later ones are never answered, as if the process had ended before. None: all are.
    pub(crate) fn end_before_call(&self, number: Option<usize>) {
        self.state().silent_from = number;
    }

    /// So many of the next reads at an earlier revision find it gone.
    pub(crate) fn compact_for(&self, reads: usize) {
        self.state().compacted_reads = reads;
    }

    /// Sets how full the database is.
    pub(crate) fn set_database(&self, bytes_in_use: u64, quota: Option<u64>) {
        let mut state = self.state();
        (state.bytes_in_use, state.quota) = (bytes_in_use, quota);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    async fn call(&self) -> Result<(), DatastoreError> {
        let (is_failing, is_silent) = {
            let mut state = self.state();
            let number = state.calls;
            state.calls += 1;
            (
                state.failing == Some(number),
                state.silent_from.is_some_and(|from| number >= from),
            )
        };
        if is_silent {
            std::future::pending::<()>().await;
        }
        if is_failing {
            return Err(DatastoreError::File {
                path: "script".into(),
                source: std::io::Error::other("the script says so"),
            });
        }
        Ok(())
    }

    async fn commit(&self, record: i64, change: impl FnOnce(&mut State) + Send) -> Result<i64, DatastoreError> {
        self.call().await?;
        let mut state = self.state();
        if state.record.as_ref().map_or(0, |record| record.revision) != record {
            return Err(DatastoreError::Superseded);
        }
        state.change(change);
        Ok(state.revision)
    }
}

#[async_trait]
impl TenantContents for MemoryContents {
    async fn read_contents(
        &self,
        _: &TenantId,
        start: Option<&[u8]>,
        at: Option<i64>,
    ) -> Result<ContentPage, DatastoreError> {
        self.call().await?;
        let mut state = self.state();
        if at.is_some() && state.compacted_reads > 0 {
            state.compacted_reads -= 1;
            return Err(DatastoreError::Etcd {
                what: "read keys",
                source: Box::new(Status::out_of_range(
                    "etcdserver: mvcc: required revision has been compacted",
                )),
            });
        }
        let objects = match at {
            Some(at) => &state.history[&at].0,
            None => &state.objects,
        };
        let start = start.unwrap_or_default();
        let mut rest = objects
            .range(start.to_vec()..)
            .filter(|(key, _)| !KeyRange::is_of_event(key));
        let page: Vec<_> = rest.by_ref().take(PAGE).collect();
        let next = rest.next().map(|(key, _)| key.clone());
        let entries = page.into_iter().map(|(key, (value, is_transient))| StoredEntry {
            key: key.clone(),
            value: value.clone(),
            is_transient: *is_transient,
        });
        Ok(ContentPage {
            entries: entries.collect(),
            revision: state.revision,
            next,
        })
    }

    async fn count_contents(&self, _: &TenantId) -> Result<u64, DatastoreError> {
        self.call().await?;
        Ok(self.state().objects.len() as u64)
    }

    async fn read_restore(&self, _: &TenantId, at: Option<i64>) -> Result<Option<StoredRestore>, DatastoreError> {
        self.call().await?;
        let state = self.state();
        Ok(match at {
            Some(at) => state.history.get(&at).and_then(|(_, record)| record.clone()),
            None => state.record.clone(),
        })
    }

    async fn write_restore(&self, _: &TenantId, text: Vec<u8>, expected: Option<i64>) -> Result<i64, DatastoreError> {
        let write = |state: &mut State| {
            let revision = state.revision;
            state.record = Some(StoredRestore { text, revision });
        };
        self.commit(expected.unwrap_or_default(), write).await
    }

    async fn delete_restore(&self, _: &TenantId, record: i64, end: &RestoreEnd) -> Result<(), DatastoreError> {
        let delete = |state: &mut State| (state.record, state.end) = (None, Some(end.to_text()));
        self.commit(record, delete).await.map(drop)
    }

    async fn read_restore_end(&self, _: &TenantId) -> Result<Option<Vec<u8>>, DatastoreError> {
        self.call().await?;
        Ok(self.state().end.clone())
    }

    async fn delete_content(&self, _: &TenantId, key: &[u8], record: i64) -> Result<(), DatastoreError> {
        let delete = |state: &mut State| drop(state.objects.remove(key));
        self.commit(record, delete).await.map(drop)
    }

    async fn clear_contents(
        &self,
        _: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
        record: i64,
    ) -> Result<Option<Vec<u8>>, DatastoreError> {
        let start = start.unwrap_or_default().to_vec();
        let mut next = None;
        let clear = |state: &mut State| {
            let of_range = |key: &&Vec<u8>| range == KeyRange::Others || KeyRange::is_of_event(key);
            let rest = state.objects.range(start..).map(|(key, _)| key).filter(of_range);
            let mut found: Vec<Vec<u8>> = rest.take(PAGE + 1).cloned().collect();
            if found.len() > PAGE {
                next = found.pop();
            }
            for key in found {
                state.objects.remove(&key);
            }
        };
        self.commit(record, clear).await?;
        Ok(next)
    }

    async fn write_contents(&self, _: &TenantId, entries: Vec<Entry>, record: i64) -> Result<(), DatastoreError> {
        let write = |state: &mut State| {
            let entries = entries.into_iter().map(|entry| (entry.key, (entry.value, false)));
            state.objects.extend(entries);
        };
        self.commit(record, write).await.map(drop)
    }

    async fn end_restore(
        &self,
        _: &TenantId,
        last: Entry,
        record: i64,
        end: &RestoreEnd,
    ) -> Result<(), DatastoreError> {
        let change = |state: &mut State| {
            state.objects.insert(last.key, (last.value, false));
            (state.record, state.end) = (None, Some(end.to_text()));
        };
        self.commit(record, change).await.map(drop)
    }

    async fn read_database(&self) -> Result<DatabaseState, DatastoreError> {
        self.call().await?;
        let state = self.state();
        Ok(DatabaseState {
            quota: state.quota,
            bytes_in_use: state.bytes_in_use,
            revision: state.revision,
        })
    }
}
