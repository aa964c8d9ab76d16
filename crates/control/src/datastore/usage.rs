//! What etcd holds: keys of one tenant and their sizes, and the database as a whole.

use super::{Datastore, DatastoreError, failed, key_prefix};
use berth_api::names::TenantId;
use berth_etcd::{
    Client,
    api::{CompactionRequest, RangeRequest, StatusRequest},
    prefix_end,
};

/// Keys that are read at once. etcd accepts no request above 1.5 MiB, so these have at most 12 MiB.
pub(super) const PAGE: i64 = 8;
/// Bytes of an answer that are accepted.
pub(super) const MAX_PAGE_BYTES: usize = 16 << 20;
/// Folder of the Events below the prefix of a tenant.
const EVENTS: &str = "events/";

/// Which of a tenant's keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// Events.
    Events,
    /// All but Events.
    Others,
}

impl KeyRange {
    /// Whether a key, without the prefix of its tenant, is that of an Event.
    pub fn is_of_event(key: &[u8]) -> bool {
        key.starts_with(EVENTS.as_bytes())
    }
}

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

/// What is read at once. etcd counts all keys up to the end of a range, whatever the limit is, and lets nobody write meanwhile. So a range
/// ends with its folder: the keys of one resource, or of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRequest {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
    /// Whether the range is a folder. Otherwise only the next key is read, to find its folder.
    pub(super) is_folder: bool,
}

impl PageRequest {
    /// The request for the keys from `start`, or from the first of the range.
    pub(super) fn new(prefix: &str, range: KeyRange, start: Option<&[u8]>) -> Self {
        let first = match range {
            KeyRange::Events => format!("{prefix}{EVENTS}"),
            KeyRange::Others => prefix.to_owned(),
        };
        let start = start.map_or_else(|| first.into_bytes(), <[u8]>::to_vec);
        let folder = folder_end(prefix, &start);
        Self {
            is_folder: folder.is_some(),
            end: folder.unwrap_or_else(|| prefix_end(prefix)),
            start,
        }
    }

    /// How many keys are read, if a page has `page` keys.
    pub(super) const fn limit(&self, page: i64) -> i64 {
        if self.is_folder { page } else { 1 }
    }

    /// Where to go on after the last key that was read; `more` are in the range.
    pub(super) fn next(self, prefix: &str, range: KeyRange, last: Option<Vec<u8>>, more: bool) -> Option<Vec<u8>> {
        let next = match (range, self.is_folder) {
            (_, true) if more => last.map(next_key),
            (KeyRange::Events, _) => None,
            (KeyRange::Others, true) => Some(self.end),
            (KeyRange::Others, false) => last.map(next_key),
        };
        next.map(|key| skip_events(prefix, range, key))
    }
}

/// The key itself, or the first after the Events if these are not read.
fn skip_events(prefix: &str, range: KeyRange, key: Vec<u8>) -> Vec<u8> {
    let events = format!("{prefix}{EVENTS}");
    if range == KeyRange::Others && key.starts_with(events.as_bytes()) {
        return prefix_end(&events);
    }
    key
}

/// The end of the folder that a key is in; none if it is directly below the prefix.
fn folder_end(prefix: &str, key: &[u8]) -> Option<Vec<u8>> {
    let below = key.strip_prefix(prefix.as_bytes())?;
    let length = below.iter().position(|byte| *byte == b'/')?;
    let mut end = key.get(..prefix.len() + length)?.to_vec();
    end.push(b'/' + 1);
    Some(end)
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
        let request = RangeRequest {
            range_end: page.end.clone(),
            key: page.start.clone(),
            limit: page.limit(PAGE),
            serializable: true,
            ..RangeRequest::default()
        };
        let mut client = client.keys().max_decoding_message_size(MAX_PAGE_BYTES);
        let answer = client.range(request).await.map_err(failed("read keys"))?.into_inner();
        let mut pairs = answer.kvs;
        let events = format!("{prefix}{EVENTS}");
        let last = pairs.last().map(|pair| pair.key.clone());
        pairs.retain(|pair| range == KeyRange::Events || !pair.key.starts_with(events.as_bytes()));
        let bytes: usize = pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Ok(SizePage {
            keys: count(pairs.len()),
            bytes: count(bytes),
            next: page.next(&prefix, range, last, answer.more),
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

/// The smallest key after another.
pub(super) fn next_key(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PREFIX: &str = "/berth/a/";

    #[test]
    fn no_key_is_between_a_key_and_the_next() {
        assert_eq!(next_key(b"a".to_vec()), b"a\0");
        assert!(next_key(b"a".to_vec()).as_slice() < b"a0".as_slice());
    }

    /// Reads all keys of a range page by page, as etcd would answer. Returns those that were read, and the largest number of keys that etcd
    /// counted in a range with several keys of a page.
    fn read_all(keys: &BTreeSet<Vec<u8>>, range: KeyRange) -> (Vec<String>, usize) {
        let (mut next, mut read, mut counted) = (None, Vec::new(), 0);
        loop {
            let page = PageRequest::new(PREFIX, range, next.as_deref());
            let inside: Vec<&Vec<u8>> = keys.range(page.start.clone()..page.end.clone()).collect();
            if page.is_folder {
                counted = counted.max(inside.len());
            }
            let limit = usize::try_from(page.limit(PAGE)).unwrap();
            let answer: Vec<Vec<u8>> = inside.iter().take(limit).map(|key| (*key).clone()).collect();
            let last = answer.last().cloned();
            let events = format!("{PREFIX}{EVENTS}");
            let texts = answer.into_iter().map(|key| String::from_utf8(key).unwrap());
            read.extend(texts.filter(|key| range == KeyRange::Events || !key.starts_with(&events)));
            let more = inside.len() > limit;
            next = page.next(PREFIX, range, last, more);
            if next.is_none() {
                return (read, counted);
            }
        }
    }

    #[test]
    fn every_key_is_read_once_and_no_range_is_larger_than_a_folder() {
        let folders = ["configmaps", "events", "example.com/widgets", "secrets"];
        let mut keys = BTreeSet::new();
        for folder in folders {
            keys.extend((0..20).map(|number| format!("{PREFIX}{folder}/team/n{number}").into_bytes()));
        }
        keys.extend(["alone", "zz"].map(|name| format!("{PREFIX}{name}").into_bytes()));
        keys.insert(b"/berth/b/secrets/other/tenant".to_vec());
        let (events, counted) = read_all(&keys, KeyRange::Events);
        assert_eq!((events.len(), counted), (20, 20));
        assert!(events.iter().all(|key| key.contains("/events/")));
        let (others, counted) = read_all(&keys, KeyRange::Others);
        // The first key of a folder is read alone.
        assert_eq!((others.len(), counted), (62, 19), "{others:?}");
        assert_eq!(others.iter().collect::<BTreeSet<_>>().len(), 62);
        assert!(!others.iter().any(|key| key.contains("/events/") || key.contains("/b/")));
    }

    #[test]
    fn without_keys_nothing_is_read() {
        for range in [KeyRange::Events, KeyRange::Others] {
            assert_eq!(read_all(&BTreeSet::new(), range), (Vec::new(), 0));
        }
    }
}
