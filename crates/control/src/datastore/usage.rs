//! What etcd holds: keys of one tenant and their sizes, and the database as a whole.

use super::{
    Datastore, DatastoreError, failed, key_prefix,
    range::{EVENTS, KeyRange, PageRequest},
    reading::{ReadAt, read_page},
};
use berth_api::names::TenantId;
use berth_etcd::{
    Client,
    api::{CompactionRequest, KeyValue, RangeRequest, StatusRequest},
    prefix_end,
};

/// Sizes of some keys of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizePage {
    /// Number of these keys.
    pub keys: u64,
    /// Bytes of these keys and their values.
    pub bytes: u64,
    /// The key to go on from; none after the last one.
    pub next: Option<Vec<u8>>,
}

/// The state of etcd's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseState {
    /// Bytes above which etcd rejects writes; none if etcd does not say.
    pub quota: Option<u64>,
    /// Bytes that keys and their history use.
    pub bytes_in_use: u64,
    /// The newest revision.
    pub revision: i64,
}

impl Datastore {
    /// Number of a tenant's keys.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn count_keys(&self, tenant: &TenantId) -> Result<u64, DatastoreError> {
        let client = self.connected_client().await?;
        count_keys(&client, key_prefix(tenant)).await
    }

    /// Sizes of some of a tenant's keys, from `start` or from the first of the range.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_sizes(
        &self,
        tenant: &TenantId,
        range: KeyRange,
        start: Option<&[u8]>,
    ) -> Result<SizePage, DatastoreError> {
        let client = self.connected_client().await?;
        let prefix = key_prefix(tenant);
        let page = PageRequest::new(&prefix, range, start);
        let events = format!("{prefix}{EVENTS}");
        let (mut keys, mut bytes) = (0, 0);
        let mut count = |pair: KeyValue| {
            // The key that shows where the next folder is may be of an Event.
            if range == KeyRange::Events || !pair.key.starts_with(events.as_bytes()) {
                keys += 1;
                bytes += pair.key.len() + pair.value.len();
            }
            false
        };
        let end = read_page(&client, &page, ReadAt::AnyMember, &mut count).await?;
        Ok(SizePage {
            keys,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            next: page.next(&prefix, range, end.last, end.has_more),
        })
    }

    /// The state of the database of one member.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_state(&self) -> Result<DatabaseState, DatastoreError> {
        let client = self.connected_client().await?;
        let status = client.maintenance().status(StatusRequest {}).await;
        let status = status.map_err(failed("read its status"))?.into_inner();
        Ok(DatabaseState {
            quota: Some(not_negative(status.db_size_quota)).filter(|quota| *quota > 0),
            bytes_in_use: not_negative(status.db_size_in_use),
            revision: status.header.map_or(0, |header| header.revision),
        })
    }

    /// Drops the history before a revision. That it is gone already is no error.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn compact(&self, revision: i64) -> Result<(), DatastoreError> {
        let client = self.connected_client().await?;
        let answer = client.keys().compact(CompactionRequest { revision }).await;
        super::ignore_message(answer, "has been compacted").map_err(failed("compact its history"))
    }

    pub(super) async fn connected_client(&self) -> Result<Client, DatastoreError> {
        let mut state = self.state.lock().await;
        self.client(&mut state).await
    }
}

/// Number of keys with a prefix.
pub(super) async fn count_keys(client: &Client, prefix: String) -> Result<u64, DatastoreError> {
    let request = RangeRequest {
        range_end: prefix_end(&prefix),
        key: prefix.into(),
        count_only: true,
        ..RangeRequest::default()
    };
    let keys = client.keys().range(request).await.map_err(failed("count keys"))?;
    Ok(not_negative(keys.get_ref().count))
}

fn not_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
