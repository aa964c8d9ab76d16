//! What etcd holds: keys of one tenant and their sizes, and the database as a whole.

use super::{Datastore, DatastoreError, failed, key_prefix};
use berth_api::names::TenantId;
use berth_etcd::{
    Client,
    api::{CompactionRequest, RangeRequest, StatusRequest},
    prefix_end,
};

/// Keys that are read at once. etcd accepts no request above 1.5 MiB, so these have at most 48 MiB.
const PAGE: i64 = 32;
/// Bytes of an answer that are accepted.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// Sizes of some keys of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizePage {
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
        let prefix = key_prefix(tenant);
        let request = RangeRequest {
            range_end: prefix_end(&prefix),
            key: prefix.into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let keys = client.keys().range(request).await.map_err(failed("count keys"))?;
        Ok(not_negative(keys.get_ref().count))
    }

    /// Sizes of a tenant's keys, from `start` or from the first.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_sizes(&self, tenant: &TenantId, start: Option<&[u8]>) -> Result<SizePage, DatastoreError> {
        let client = self.connected_client().await?;
        let prefix = key_prefix(tenant);
        let request = RangeRequest {
            range_end: prefix_end(&prefix),
            key: start.map_or_else(|| prefix.into(), <[u8]>::to_vec),
            limit: PAGE,
            serializable: true,
            ..RangeRequest::default()
        };
        let mut keys = client.keys().max_decoding_message_size(MAX_PAGE_BYTES);
        let answer = keys.range(request).await.map_err(failed("read keys"))?.into_inner();
        let bytes: usize = answer.kvs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        let last = answer.kvs.into_iter().next_back().filter(|_| answer.more);
        Ok(SizePage {
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            next: last.map(|pair| next_key(pair.key)),
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

    async fn connected_client(&self) -> Result<Client, DatastoreError> {
        let mut state = self.state.lock().await;
        self.client(&mut state).await
    }
}

fn not_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// The smallest key after another.
fn next_key(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_between_a_key_and_the_next() {
        assert_eq!(next_key(b"a".to_vec()), b"a\0");
        assert!(next_key(b"a".to_vec()).as_slice() < b"a0".as_slice());
    }
}
