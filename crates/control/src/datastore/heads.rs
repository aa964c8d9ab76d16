//! How a tenant's keys are stored: the beginnings of their values.

use super::{Datastore, DatastoreError, failed, key_prefix};
use berth_api::names::TenantId;
use berth_etcd::{
    api::{RangeRequest, RangeResponse},
    prefix_end,
};

/// Keys that are read at once. etcd accepts no request above 1.5 MiB, so these have at most 12 MiB.
const PAGE: i64 = 8;
/// Bytes of an answer that are accepted.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Bytes of a value that are kept. What API servers write before an encrypted object has less.
const HEAD: usize = 128;

/// The beginnings of the values of some keys of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadPage {
    /// What follows the folder in a key, and the beginning of its value.
    pub heads: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there are more keys.
    pub has_more: bool,
}

impl Datastore {
    /// The beginnings of the values of a tenant's keys in a folder that come after the key `after`, or the first ones. `folder` is what follows the
    /// tenant's prefix, up to a slash, and `after` what follows the folder.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_heads(
        &self,
        tenant: &TenantId,
        folder: &str,
        after: Option<&[u8]>,
    ) -> Result<HeadPage, DatastoreError> {
        let client = self.connected_client().await?;
        let folder = format!("{}{folder}", key_prefix(tenant));
        let mut start = folder.clone().into_bytes();
        if let Some(after) = after {
            start.extend(after);
            // The smallest key after it.
            start.push(0);
        }
        // Not `serializable`: a member that is behind would not show what an API server has written just now.
        let request = RangeRequest {
            key: start,
            range_end: prefix_end(&folder),
            limit: PAGE,
            ..RangeRequest::default()
        };
        let mut client = client.keys().max_decoding_message_size(MAX_PAGE_BYTES);
        let answer = client.range(request).await.map_err(failed("read keys"))?.into_inner();
        Ok(HeadPage::read(answer, &folder))
    }
}

impl HeadPage {
    /// What etcd has answered of the keys in a folder. Names stay bytes: a page that begins after a name as a text would begin elsewhere if the name is
    /// none.
    fn read(answer: RangeResponse, folder: &str) -> Self {
        let heads = answer.kvs.into_iter().filter_map(|mut pair| {
            let name = pair.key.strip_prefix(folder.as_bytes())?.to_vec();
            pair.value.truncate(HEAD);
            Some((name, pair.value))
        });
        Self {
            heads: heads.collect(),
            has_more: answer.more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_etcd::api::KeyValue;

    #[test]
    fn names_stay_bytes_and_of_values_the_beginnings_are_kept() {
        let pair = |key: &[u8]| KeyValue {
            key: key.to_vec(),
            value: vec![b'v'; HEAD + 1],
            ..KeyValue::default()
        };
        let answer = RangeResponse {
            kvs: vec![pair(b"/berth/a/secrets/team/\xff"), pair(b"/berth/b/secrets/team/a")],
            more: true,
            ..RangeResponse::default()
        };
        let page = HeadPage::read(answer, "/berth/a/secrets/");
        assert_eq!(page.heads, [(b"team/\xff".to_vec(), vec![b'v'; HEAD])]);
        assert!(page.has_more);
    }
}
