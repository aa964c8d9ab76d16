//! An etcd in memory, which counts what it has to do.

use super::{super::range::KeyRange, *};
use berth_etcd::api::ResponseHeader;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

const FOLDER: &str = "/berth/a/secrets/";
const REVISION: i64 = 7;
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

/// What etcd has done.
#[derive(Default)]
struct Work {
    requests: Vec<RangeRequest>,
    /// Keys that were counted.
    counted: usize,
    /// Bytes of the values that were loaded.
    loaded: usize,
}

#[derive(Default)]
struct Etcd {
    pairs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    work: Mutex<Work>,
    /// Keys that somebody writes, and whether all others are deleted, once keys were listed.
    written_after_list: Mutex<Option<(Vec<Vec<u8>>, bool)>>,
    /// How long an answer takes.
    delay: Duration,
    /// Why lists are refused.
    refuses_lists: Option<&'static str>,
}

fn key(name: &str) -> Vec<u8> {
    format!("{FOLDER}{name}").into_bytes()
}

impl Etcd {
    fn with(pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        Self {
            pairs: Mutex::new(pairs.into_iter().collect()),
            ..Self::default()
        }
    }

    /// With so many keys with short values.
    fn with_small(keys: usize) -> Self {
        Self::with((0..keys).map(|number| (key(&format!("team/{number:06}")), b"v".to_vec())))
    }

    fn answer(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        if let Some(why) = self.refuses_lists.filter(|_| request.keys_only) {
            return Err(Status::out_of_range(why));
        }
        let pairs = self.pairs.lock().unwrap();
        let inside = || pairs.range(request.key.clone()..request.range_end.clone());
        let limit = usize::try_from(request.limit).unwrap();
        let count = inside().count();
        let mut work = self.work.lock().unwrap();
        work.counted += count;
        work.loaded += inside().take(limit).map(|(_, value)| value.len()).sum::<usize>();
        let kvs: Vec<KeyValue> = inside()
            .take(limit)
            .map(|(key, value)| KeyValue {
                key: key.clone(),
                value: if request.keys_only { Vec::new() } else { value.clone() },
                ..KeyValue::default()
            })
            .collect();
        let length: usize = kvs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        if length > MAX_ANSWER {
            // As tonic says it.
            return Err(Status::out_of_range(format!(
                "Error, decoded message length too large: found {length} bytes, the limit is: {MAX_ANSWER} bytes"
            )));
        }
        Ok(RangeResponse {
            header: Some(ResponseHeader { revision: REVISION }),
            more: count > kvs.len(),
            kvs,
            count: 0,
        })
    }
}

#[async_trait]
impl Ranges for Etcd {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let answer = self.answer(&request);
        if request.keys_only
            && let Some((written, are_others_deleted)) = self.written_after_list.lock().unwrap().take()
        {
            let mut pairs = self.pairs.lock().unwrap();
            if are_others_deleted {
                pairs.clear();
            }
            pairs.extend(written.into_iter().map(|key| (key, b"new".to_vec())));
        }
        self.work.lock().unwrap().requests.push(request);
        answer
    }
}

/// Reads a page after a key, and returns what was read as well.
async fn read(etcd: &Etcd, after: Option<&[u8]>, at: ReadAt) -> (Vec<KeyValue>, PageEnd) {
    let range = PageRequest::of_folder(FOLDER, after);
    let mut pairs = Vec::new();
    let mut keep = |pair: KeyValue| {
        pairs.push(pair);
        false
    };
    let end = read_page(etcd, &range, at, &mut keep).await.unwrap();
    (pairs, end)
}

/// Reads all pages, and returns the keys.
async fn read_all(etcd: &Etcd) -> Vec<Vec<u8>> {
    let (mut after, mut keys) = (None::<Vec<u8>>, Vec::new());
    loop {
        let (pairs, end) = read(etcd, after.as_deref(), ReadAt::Newest).await;
        assert_eq!(pairs.last().map(|pair| &pair.key), end.last.as_ref());
        keys.extend(pairs.into_iter().map(|pair| pair.key));
        if !end.has_more {
            return keys;
        }
        let last = end.last.expect("at least one was read");
        after = Some(last.strip_prefix(FOLDER.as_bytes()).unwrap().to_vec());
    }
}

fn stored_keys(etcd: &Etcd) -> Vec<Vec<u8>> {
    etcd.pairs.lock().unwrap().keys().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn every_key_is_read_once_and_in_order() {
    for keys in [0, 1, 7, 8, 9, 16, 17, 40, 41, 552, 4264, 4265, 9000] {
        let etcd = Etcd::with_small(keys);
        assert_eq!(read_all(&etcd).await, stored_keys(&etcd), "{keys}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_counted_does_not_grow_with_the_square_of_the_keys() {
    const KEYS: usize = 20_000;
    let etcd = Etcd::with_small(KEYS);
    read_all(&etcd).await;
    let work = etcd.work.lock().unwrap();
    // Eight at a time, without lists, each was counted 1,250 times on average.
    assert!(work.counted < 50 * KEYS, "{}", work.counted);
}

#[tokio::test(start_paused = true)]
async fn of_large_values_few_are_listed() {
    const VALUE: usize = 300 << 10;
    // Runs of small values let expect others after them.
    let size = |number: usize| if number / 40 % 2 == 1 { VALUE } else { 1 };
    let pairs = (0..400).map(|number| (key(&format!("team/{number:06}")), vec![b'v'; size(number)]));
    let etcd = Etcd::with(pairs);
    assert_eq!(read_all(&etcd).await.len(), 400);
    let loaded = etcd.work.lock().unwrap().loaded;
    // Each is loaded to be read. With 512 keys in each list, each would be loaded seven times.
    assert!(loaded < 5 * 200 * VALUE, "{loaded}");
}

#[tokio::test(start_paused = true)]
async fn no_page_has_more_than_a_few_bytes() {
    let pairs = (0..100).map(|number| (key(&format!("team/{number:06}")), vec![b'v'; 1 << 20]));
    let etcd = Etcd::with(pairs);
    let (pairs, end) = read(&etcd, None, ReadAt::Newest).await;
    assert_eq!((pairs.len(), end.has_more), (READ_AT_ONCE, true));
    let work = etcd.work.lock().unwrap();
    assert!(work.requests.iter().all(|request| !request.keys_only));
}

/// A tenant that writes into etcd itself may have keys that are as long as a request.
#[tokio::test(start_paused = true)]
async fn long_keys_are_read_although_a_list_of_them_is_too_long() {
    let small = (0..168).map(|number| (key(&format!("a/{number:06}")), b"v".to_vec()));
    let long = (0..400).map(|number| (key(&format!("b/{number:06}{}", "n".repeat(64 << 10))), Vec::new()));
    let etcd = Etcd::with(small.chain(long));
    assert_eq!(read_all(&etcd).await, stored_keys(&etcd));
    let work = etcd.work.lock().unwrap();
    let is_long_list = |request: &RangeRequest| request.keys_only && request.limit == limit_of(LISTED_AT_ONCE);
    assert!(work.requests.iter().any(is_long_list), "no list was too long");
}

#[tokio::test]
async fn a_list_that_fails_is_an_error_and_not_tried_for_ever() {
    for why in [COMPACTED, "Error, decoded message length too large: found 9 bytes"] {
        let etcd = Etcd {
            refuses_lists: Some(why),
            ..Etcd::with_small(9)
        };
        let range = PageRequest::of_folder(FOLDER, None);
        let error = read_page(&etcd, &range, ReadAt::Revision(None), &mut |_| false).await;
        assert_eq!(error.unwrap_err().is_compacted(), why == COMPACTED);
        // 32 are asked for, then 8.
        let lists = if why == COMPACTED { 1 } else { 2 };
        assert_eq!(etcd.work.lock().unwrap().requests.len(), 1 + lists, "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_written_between_and_after_listed_keys_is_read_as_well() {
    let etcd = Etcd::with_small(30);
    // The first eight are read before the list. These are between others, between two ranges and at the end.
    let names = [
        "team/000009a",
        "team/000009b",
        "team/000010a",
        "team/000010b",
        "team/000010c",
        "team/000010d",
        "team/000010e",
        "team/000010f",
        "team/000015a",
        "team/9",
    ];
    *etcd.written_after_list.lock().unwrap() = Some((names.map(key).to_vec(), false));
    assert_eq!(read_all(&etcd).await, stored_keys(&etcd));
    assert_eq!(stored_keys(&etcd).len(), 40);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_once_it_was_listed_ends_nothing_too_early() {
    for keys in [20, 100] {
        let etcd = Etcd::with_small(keys);
        // All that was listed is gone, and there is another one behind it.
        *etcd.written_after_list.lock().unwrap() = Some((vec![key("team/9")], true));
        let read = read_all(&etcd).await;
        assert_eq!(
            (read.len(), read.last()),
            (READ_AT_ONCE + 1, Some(&key("team/9"))),
            "{keys}"
        );
        let unique: BTreeSet<_> = read.iter().collect();
        assert_eq!(unique.len(), read.len());
    }
}

#[tokio::test]
async fn a_page_ends_with_the_range_in_which_there_is_enough() {
    let etcd = Etcd::with_small(100);
    let range = PageRequest::of_folder(FOLDER, None);
    for (wanted, read) in [(1, 8), (8, 8), (9, 16)] {
        let mut count = 0;
        let mut keep = |_: KeyValue| {
            count += 1;
            count == wanted
        };
        let end = read_page(&etcd, &range, ReadAt::Newest, &mut keep).await.unwrap();
        assert_eq!((count, end.has_more), (read, true), "{wanted}");
    }
}

/// Others wait for their turn.
#[tokio::test(start_paused = true)]
async fn a_slow_etcd_ends_a_page_early() {
    let etcd = Etcd {
        delay: Duration::from_millis(300),
        ..Etcd::with_small(1000)
    };
    let begun = Instant::now();
    let (pairs, end) = read(&etcd, None, ReadAt::Newest).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!((pairs.len(), end.has_more), (READ_AT_ONCE, true));
    assert_eq!(read_all(&etcd).await.len(), 1000);
}

#[tokio::test]
async fn a_page_is_of_the_revision_that_was_asked_for_or_of_the_newest() {
    for (at, revisions, serializable) in [
        (ReadAt::Revision(None), (0, REVISION), false),
        (ReadAt::Revision(Some(3)), (3, 3), false),
        (ReadAt::Newest, (0, 0), false),
        (ReadAt::AnyMember, (0, 0), true),
    ] {
        let etcd = Etcd::with_small(20);
        let (pairs, end) = read(&etcd, None, at).await;
        assert_eq!((pairs.len(), end.revision), (20, REVISION));
        let work = etcd.work.lock().unwrap();
        let (first, others) = work.requests.split_first().unwrap();
        assert_eq!((first.revision, others.len()), (revisions.0, 3), "{at:?}");
        assert!(others.iter().all(|request| request.revision == revisions.1), "{at:?}");
        assert!(work.requests.iter().all(|request| request.serializable == serializable));
    }
}

#[tokio::test]
async fn outside_of_folders_one_key_is_read() {
    let etcd = Etcd::with(["alone", "other"].map(|name| (format!("/berth/a/{name}").into_bytes(), Vec::new())));
    let range = PageRequest::new("/berth/a/", KeyRange::Others, None);
    let mut read = Vec::new();
    let mut keep = |pair: KeyValue| {
        read.push(pair.key);
        false
    };
    let end = read_page(&etcd, &range, ReadAt::Newest, &mut keep).await.unwrap();
    assert_eq!((read.len(), end.has_more), (1, true));
    assert_eq!(end.last.as_deref(), Some(b"/berth/a/alone".as_slice()));
}

#[test]
fn lists_grow_while_what_was_read_is_small() {
    let small: Vec<usize> = std::iter::successors(Some(READ_AT_ONCE), |before| Some(next_amount(*before, 0)))
        .take(6)
        .collect();
    assert_eq!(small, [8, 32, 128, 512, 512, 512]);
    assert_eq!(next_amount(8, 8 << 20), 16);
    assert_eq!(next_amount(512, 512 << 20), 16);
    assert_eq!(next_amount(8, usize::MAX), READ_AT_ONCE);
}
