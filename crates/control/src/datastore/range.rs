//! Which keys of a tenant are read, and in which ranges: pure.

use berth_etcd::prefix_end;

/// Folder of the Events below the prefix of a tenant.
pub(super) const EVENTS: &str = "events/";

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

    /// The request for the keys of a folder, which ends with a slash, that come after the key `after`, or for the first ones. `after` is what follows
    /// the folder.
    pub(super) fn of_folder(folder: &str, after: Option<&[u8]>) -> Self {
        let mut start = folder.as_bytes().to_vec();
        if let Some(after) = after {
            start.extend(after);
            start = next_key(start);
        }
        Self {
            start,
            end: prefix_end(folder),
            is_folder: true,
        }
    }

    /// How many keys are read, as etcd takes it, if `keys` of a folder are.
    pub(super) fn limit(&self, keys: usize) -> i64 {
        limit_of(if self.is_folder { keys } else { 1 })
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

/// A number of keys, as etcd takes it.
pub(super) fn limit_of(keys: usize) -> i64 {
    i64::try_from(keys).unwrap_or(i64::MAX)
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
    /// Keys of a folder that are read at once.
    const PAGE: usize = 8;

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
    fn a_folder_is_read_from_the_first_key_or_after_one_and_to_its_end() {
        let first = PageRequest::of_folder("/berth/a/secrets/", None);
        assert_eq!(
            (first.start.as_slice(), first.end.as_slice()),
            (b"/berth/a/secrets/".as_slice(), b"/berth/a/secrets0".as_slice())
        );
        let later = PageRequest::of_folder("/berth/a/secrets/", Some(b"team/\xff"));
        assert_eq!(later.start, b"/berth/a/secrets/team/\xff\0");
        assert_eq!((later.end, later.is_folder), (first.end, true));
    }

    #[test]
    fn without_keys_nothing_is_read() {
        for range in [KeyRange::Events, KeyRange::Others] {
            assert_eq!(read_all(&BTreeSet::new(), range), (Vec::new(), 0));
        }
    }
}
