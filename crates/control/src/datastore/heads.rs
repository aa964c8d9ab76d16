//! How a tenant's keys are stored: the beginnings of their values.

use super::{Datastore, DatastoreError, failed, key_prefix};
use berth_api::names::TenantId;
use berth_etcd::{api::RangeRequest, prefix_end};

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
    pub heads: Vec<(String, Vec<u8>)>,
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
        after: Option<&str>,
    ) -> Result<HeadPage, DatastoreError> {
        let client = self.connected_client().await?;
        let folder = format!("{}{folder}", key_prefix(tenant));
        let mut start = folder.clone().into_bytes();
        if let Some(after) = after {
            start.extend(after.as_bytes());
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
        let heads = answer.kvs.into_iter().filter_map(|mut pair| {
            let name = pair.key.strip_prefix(folder.as_bytes())?;
            let name = String::from_utf8_lossy(name).into_owned();
            pair.value.truncate(HEAD);
            Some((name, pair.value))
        });
        Ok(HeadPage {
            heads: heads.collect(),
            has_more: answer.more,
        })
    }
}
