//! How a tenant's keys are stored: the beginnings of their values.

use super::{
    Datastore, DatastoreError, key_prefix,
    range::PageRequest,
    reading::{ReadAt, read_page},
};
use berth_api::names::TenantId;
use berth_etcd::api::KeyValue;

/// Bytes of a value that are kept. What API servers write before an encrypted object has less.
const HEAD: usize = 128;

/// Whether the beginnings that were read are enough, of which this is the last one.
pub type IsEnough<'a> = dyn FnMut(&[u8]) -> bool + Send + 'a;

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
    /// tenant's prefix, up to a slash, and `after` what follows the folder. `is_enough` is asked of each beginning: the page ends soon after
    /// one for which it holds.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn read_heads(
        &self,
        tenant: &TenantId,
        folder: &str,
        after: Option<&[u8]>,
        is_enough: &mut IsEnough<'_>,
    ) -> Result<HeadPage, DatastoreError> {
        let client = self.connected_client().await?;
        let folder = format!("{}{folder}", key_prefix(tenant));
        let mut heads = Vec::new();
        let mut keep = |pair: KeyValue| {
            let Some((name, head)) = head_of(pair, &folder) else {
                return false;
            };
            let is_last = is_enough(&head);
            heads.push((name, head));
            is_last
        };
        let range = PageRequest::of_folder(&folder, after);
        // What API servers have written just now counts, so a member that is behind is not asked, and neither is an earlier revision. They write what is new as
        // it is to be stored, also behind the key that is read.
        let end = read_page(&client, &range, ReadAt::Newest, &mut keep).await?;
        Ok(HeadPage {
            heads,
            has_more: end.has_more,
        })
    }
}

/// What follows the folder in a key, and the beginning of its value. Names stay bytes: a page that begins after a name as a text would begin elsewhere if the
/// name is none.
fn head_of(pair: KeyValue, folder: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let name = pair.key.strip_prefix(folder.as_bytes())?.to_vec();
    // No longer than that: what is cut off would stay in memory.
    let head = pair.value.get(..HEAD).map(<[u8]>::to_vec);
    Some((name, head.unwrap_or(pair.value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_bytes_and_of_values_the_beginnings_are_kept() {
        let pair = |key: &[u8], length: usize| KeyValue {
            key: key.to_vec(),
            value: vec![b'v'; length],
            ..KeyValue::default()
        };
        let head = |key: &[u8], length: usize| head_of(pair(key, length), "/berth/a/secrets/");
        let (name, long) = head(b"/berth/a/secrets/team/\xff", 1 << 20).unwrap();
        assert_eq!((name.as_slice(), long.len()), (b"team/\xff".as_slice(), HEAD));
        assert!(
            long.capacity() < 2 * HEAD,
            "the rest of the value is not kept in memory"
        );
        let (_, short) = head(b"/berth/a/secrets/team/a", 3).unwrap();
        assert_eq!(short, b"vvv");
        assert_eq!(head(b"/berth/b/secrets/team/a", 3), None);
    }
}
