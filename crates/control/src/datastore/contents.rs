//! Everything that a tenant stores, for snapshots and for restores.
//!
//! A restore under way has a record in etcd, outside of the tenant's prefix: what it has replaced and the record are always of the same moment, also in a
//! backup of etcd. Each write of a restore is a transaction that compares the revision of the record. So only the process that has written the record last
//! writes, and nobody does once the tenant is deleted. docs/adr/0066 says why.

use super::{
    DatabaseState, Datastore, DatastoreError, KeyRange, RestoreEnd, failed, key_prefix,
    range::{PageRequest, end_after, start_of},
    reading::{ReadAt, read_page},
};
use async_trait::async_trait;
use berth_api::names::TenantId;
use berth_etcd::{
    Client,
    api::{
        Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
};
use berth_snapshots::Entry;

/// Where the records of restores are. No tenant's prefix begins so.
const RECORDS: &str = "/berth-restores/";
/// Where it is how the last restore of each tenant ended. No tenant's prefix begins so.
const ENDS: &str = "/berth-restore-ends/";
/// Keys that are deleted at once, or a few more: nobody else writes meanwhile.
const DELETED_AT_ONCE: usize = 1024;

/// An object of a tenant, as etcd has it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// The key without the tenant's prefix.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Whether etcd deletes it by itself after a while.
    pub is_transient: bool,
}

/// Some of the objects of a tenant that are no Events.
#[derive(Clone, Default)]
pub struct ContentPage {
    /// In the order of their keys.
    pub entries: Vec<StoredEntry>,
    /// The revision of the database when they were read: all of them are as they were then, unless another revision was asked for.
    pub revision: i64,
    /// The key to go on from; none after the last one.
    pub next: Option<Vec<u8>>,
}

/// The record of a restore under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRestore {
    /// What it says.
    pub text: Vec<u8>,
    /// Revision of its last change.
    pub revision: i64,
}

/// What snapshots and restores need of the tenants' datastore.
#[async_trait]
pub trait TenantContents: Send + Sync {
    /// Some of the tenant's objects that are no Events, from `start` or from the first one, as they were at the revision `at` or as they are.
    ///
    /// # Errors
    /// The datastore refuses or does not answer, or the revision is gone: [`DatastoreError::is_compacted`].
    async fn read_contents(
        &self,
        tenant: &TenantId,
        start: Option<&[u8]>,
        at: Option<i64>,
    ) -> Result<ContentPage, DatastoreError>;

    /// Number of the tenant's keys, Events included.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn count_contents(&self, tenant: &TenantId) -> Result<u64, DatastoreError>;

    /// The record of the tenant's restore, as it was at the revision `at` or as it is; none if no restore is under way.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_restore(&self, tenant: &TenantId, at: Option<i64>) -> Result<Option<StoredRestore>, DatastoreError>;

    /// Writes the record of the tenant's restore, if that is of the revision `expected`, or does not exist if that is none. Returns its new revision.
    ///
    /// # Errors
    /// The datastore refuses or does not answer; [`DatastoreError::Superseded`] if the record is of another revision.
    async fn write_restore(
        &self,
        tenant: &TenantId,
        text: Vec<u8>,
        expected: Option<i64>,
    ) -> Result<i64, DatastoreError>;

    /// Deletes the record of the tenant's restore of the revision `record`, and keeps the `end`: both or neither. Nothing else changes.
    ///
    /// # Errors
    /// As [`TenantContents::write_restore`].
    async fn delete_restore(&self, tenant: &TenantId, record: i64, end: &RestoreEnd) -> Result<(), DatastoreError>;

    /// How the tenant's last restore ended, as [`RestoreEnd::parse`] reads it; none if there was none.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_restore_end(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>, DatastoreError>;

    /// Deletes one of the tenant's keys, by what follows the prefix, for the restore with the `record` of this revision.
    ///
    /// # Errors
    /// As [`TenantContents::write_restore`].
    async fn delete_content(&self, tenant: &TenantId, key: &[u8], record: i64) -> Result<(), DatastoreError>;

    /// Deletes some of the tenant's keys, from `start` or from the first of the range, for the restore with the `record` of this revision. Returns where to go
    /// on; none after the last one.
    ///
    /// # Errors
    /// As [`TenantContents::write_restore`].
    async fn clear_contents(
        &self,
        tenant: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
        record: i64,
    ) -> Result<Option<Vec<u8>>, DatastoreError>;

    /// Writes objects of the tenant, for the restore with the `record` of this revision. At most as many as etcd accepts at once.
    ///
    /// # Errors
    /// As [`TenantContents::write_restore`].
    async fn write_contents(&self, tenant: &TenantId, entries: Vec<Entry>, record: i64) -> Result<(), DatastoreError>;

    /// Writes the last object of the tenant, deletes the `record` of the restore of this revision and keeps the `end`: all or nothing.
    ///
    /// # Errors
    /// As [`TenantContents::write_restore`].
    async fn end_restore(
        &self,
        tenant: &TenantId,
        last: Entry,
        record: i64,
        end: &RestoreEnd,
    ) -> Result<(), DatastoreError>;

    /// The state of the database of all tenants.
    ///
    /// # Errors
    /// The datastore refuses or does not answer.
    async fn read_database(&self) -> Result<DatabaseState, DatastoreError>;
}

#[async_trait]
impl TenantContents for Datastore {
    async fn read_contents(
        &self,
        tenant: &TenantId,
        start: Option<&[u8]>,
        at: Option<i64>,
    ) -> Result<ContentPage, DatastoreError> {
        let client = self.connected_client().await?;
        let prefix = key_prefix(tenant);
        let page = PageRequest::new(&prefix, KeyRange::Others, start);
        let mut entries = Vec::new();
        let mut keep = |pair: KeyValue| {
            // The key that shows where the next folder is may be of an Event.
            let key = pair.key.strip_prefix(prefix.as_bytes());
            if let Some(key) = key.filter(|key| !KeyRange::is_of_event(key)) {
                entries.push(StoredEntry {
                    key: key.to_vec(),
                    value: pair.value,
                    is_transient: pair.lease != 0,
                });
            }
            false
        };
        let end = read_page(&client, &page, ReadAt::Revision(at), &mut keep).await?;
        Ok(ContentPage {
            entries,
            revision: end.revision,
            next: page.next(&prefix, KeyRange::Others, end.last, end.has_more),
        })
    }

    async fn count_contents(&self, tenant: &TenantId) -> Result<u64, DatastoreError> {
        self.count_keys(tenant).await
    }

    async fn read_restore(&self, tenant: &TenantId, at: Option<i64>) -> Result<Option<StoredRestore>, DatastoreError> {
        let found = self.read_single(record_key(tenant), at).await?;
        Ok(found.map(|pair| StoredRestore {
            text: pair.value,
            revision: pair.mod_revision,
        }))
    }

    async fn write_restore(
        &self,
        tenant: &TenantId,
        text: Vec<u8>,
        expected: Option<i64>,
    ) -> Result<i64, DatastoreError> {
        let put = PutRequest {
            key: record_key(tenant),
            value: text,
            ..PutRequest::default()
        };
        let operations = vec![Request::RequestPut(put)];
        // The revision of a key that does not exist is 0.
        let answer = self.commit(tenant, expected.unwrap_or_default(), operations).await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    async fn delete_restore(&self, tenant: &TenantId, record: i64, end: &RestoreEnd) -> Result<(), DatastoreError> {
        let operations = Vec::from(end_record(tenant, end));
        self.commit(tenant, record, operations).await.map(drop)
    }

    async fn read_restore_end(&self, tenant: &TenantId) -> Result<Option<Vec<u8>>, DatastoreError> {
        let found = self.read_single(end_key(tenant), None).await?;
        Ok(found.map(|pair| pair.value))
    }

    async fn delete_content(&self, tenant: &TenantId, key: &[u8], record: i64) -> Result<(), DatastoreError> {
        let operations = vec![delete(full_key(tenant, key), Vec::new())];
        self.commit(tenant, record, operations).await.map(drop)
    }

    async fn clear_contents(
        &self,
        tenant: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
        record: i64,
    ) -> Result<Option<Vec<u8>>, DatastoreError> {
        let client = self.connected_client().await?;
        let prefix = key_prefix(tenant);
        let page = PageRequest::new(&prefix, range, start);
        // With their values: without them, as many keys would be listed whatever their size, and etcd 3.6 loads the values of listed keys as well.
        let mut found = 0;
        let mut is_enough = |_: KeyValue| {
            found += 1;
            found >= DELETED_AT_ONCE
        };
        let end = read_page(&client, &page, ReadAt::Newest, &mut is_enough).await?;
        if let Some(last) = &end.last {
            // No API server of the tenant runs, so nothing else is between the two. All before is deleted, and all behind is to be.
            let bounds = (start_of(page.start.clone()), end_after(last.clone()));
            let operations = vec![delete(bounds.0, bounds.1)];
            self.commit(tenant, record, operations).await?;
        }
        Ok(page.next(&prefix, range, end.last, end.has_more))
    }

    async fn write_contents(&self, tenant: &TenantId, entries: Vec<Entry>, record: i64) -> Result<(), DatastoreError> {
        let operations = entries.into_iter().map(|entry| put(tenant, entry)).collect();
        self.commit(tenant, record, operations).await.map(drop)
    }

    async fn end_restore(
        &self,
        tenant: &TenantId,
        last: Entry,
        record: i64,
        end: &RestoreEnd,
    ) -> Result<(), DatastoreError> {
        let mut operations = vec![put(tenant, last)];
        operations.extend(end_record(tenant, end));
        self.commit(tenant, record, operations).await.map(drop)
    }

    async fn read_database(&self) -> Result<DatabaseState, DatastoreError> {
        self.read_state().await
    }
}

impl Datastore {
    /// A key that belongs to a restore, as it was at the revision `at` or as it is; none if there is none.
    async fn read_single(&self, key: Vec<u8>, at: Option<i64>) -> Result<Option<KeyValue>, DatastoreError> {
        let client = self.connected_client().await?;
        let request = RangeRequest {
            key,
            revision: at.unwrap_or_default(),
            ..RangeRequest::default()
        };
        let answer = client.keys().range(request).await;
        let mut answer = answer.map_err(failed("read the record of a restore"))?.into_inner();
        Ok(answer.kvs.pop())
    }

    /// Carries out operations if the record of the tenant's restore is of the revision `record`.
    async fn commit(
        &self,
        tenant: &TenantId,
        record: i64,
        operations: Vec<Request>,
    ) -> Result<TxnResponse, DatastoreError> {
        let client = self.connected_client().await?;
        let same_record = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: record_key(tenant),
            target_union: Some(TargetUnion::ModRevision(record)),
        };
        let operation = |request| RequestOp { request: Some(request) };
        let transaction = TxnRequest {
            compare: vec![same_record],
            success: operations.into_iter().map(operation).collect(),
            failure: Vec::new(),
        };
        let answer = client.keys().txn(transaction).await;
        let answer = answer.map_err(failed("carry out a step of a restore"))?.into_inner();
        if answer.succeeded {
            Ok(answer)
        } else {
            Err(DatastoreError::Superseded)
        }
    }
}

/// Deletes the record of a tenant's restore, and how its last one ended. The record first: without it nobody writes how a restore ended.
pub(super) async fn forget_restores(client: &Client, tenant: &TenantId) -> Result<(), DatastoreError> {
    for key in [record_key(tenant), end_key(tenant)] {
        let request = DeleteRangeRequest {
            key,
            ..DeleteRangeRequest::default()
        };
        let deleted = client.keys().delete_range(request).await;
        deleted.map_err(failed("delete the record of a restore"))?;
    }
    Ok(())
}

/// The key of the record of a tenant's restore.
fn record_key(tenant: &TenantId) -> Vec<u8> {
    format!("{RECORDS}{}", tenant.slug()).into_bytes()
}

/// The key of how a tenant's last restore ended.
fn end_key(tenant: &TenantId) -> Vec<u8> {
    format!("{ENDS}{}", tenant.slug()).into_bytes()
}

/// What ends the record of a tenant's restore, and says when that was.
fn end_record(tenant: &TenantId, end: &RestoreEnd) -> [Request; 2] {
    let written = PutRequest {
        key: end_key(tenant),
        value: end.to_text(),
        ..PutRequest::default()
    };
    [delete(record_key(tenant), Vec::new()), Request::RequestPut(written)]
}

fn full_key(tenant: &TenantId, key: &[u8]) -> Vec<u8> {
    let mut full = key_prefix(tenant).into_bytes();
    full.extend(key);
    full
}

fn put(tenant: &TenantId, entry: Entry) -> Request {
    Request::RequestPut(PutRequest {
        key: full_key(tenant, &entry.key),
        value: entry.value,
        ..PutRequest::default()
    })
}

fn delete(key: Vec<u8>, range_end: Vec<u8>) -> Request {
    Request::RequestDeleteRange(DeleteRangeRequest {
        key,
        range_end,
        ..DeleteRangeRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_etcd::prefix_end;

    #[test]
    fn the_record_of_a_restore_and_its_end_are_outside_of_what_the_tenant_may_write() {
        let tenant = TenantId::new("vision", "6f2c");
        let prefix = key_prefix(&tenant);
        let (start, end) = (prefix.as_bytes(), prefix_end(&prefix));
        for key in [record_key(&tenant), end_key(&tenant)] {
            assert!(key.as_slice() < start || key >= end);
            assert!(!key.starts_with(b"/berth/"));
        }
        assert_ne!(record_key(&tenant), end_key(&tenant));
    }

    #[test]
    fn keys_are_below_the_prefix_of_the_tenant() {
        let tenant = TenantId::new("vision", "6f2c");
        let expected = format!("{}namespaces/kube-system", key_prefix(&tenant));
        assert_eq!(full_key(&tenant, b"namespaces/kube-system"), expected.as_bytes());
    }
}
