//! Reading the keys of a folder with their values, which a tenant chooses both.
//!
//! etcd counts all keys up to the end of a range for each answer, whatever the limit is: read a few at a time, a folder would take time by the square of its
//! keys. So keys are listed, many at a time, and values are read in ranges that end with the last of a few of them. etcd 3.6 loads the values of
//! keys that it lists into its memory as well, although it sends none. So as many keys are listed as those before let expect to be small, and each page
//! begins with few.

use super::{
    DatastoreError, failed,
    range::{PageRequest, end_after, limit_of, next_key},
};
use async_trait::async_trait;
use berth_etcd::{
    Client, Status,
    api::{KeyValue, RangeRequest, RangeResponse},
};
use std::time::Duration;
use tokio::time::Instant;

/// Keys whose values are read at once. etcd accepts no request above 1.5 MiB, so these have at most 12 MiB.
const READ_AT_ONCE: usize = 8;
/// Keys that are listed at once at most.
const LISTED_AT_ONCE: usize = 512;
/// By how much a list may be longer than the one before.
const GROWTH: usize = 4;
/// Keys of a folder that are so many that counting them takes longer than reading many values. Lists are as long as they may be at once then.
const MANY_KEYS: i64 = 100_000;
/// Bytes that etcd should load for a list.
const LOADED_AT_ONCE: usize = 16 << 20;
/// Bytes of an answer that are accepted.
const MAX_ANSWER: usize = 16 << 20;
/// Bytes of keys and values after which a page ends.
const MOST_BYTES: usize = 4 << 20;
/// Keys after which a page ends.
const MOST_KEYS: usize = 4096;
/// Time after which a page ends: others wait for their turn, and who gives up loses no more than that. The values of a list may take as long as the list has.
const MOST_TIME: Duration = Duration::from_millis(500);

/// As of when keys are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadAt {
    /// As they were at this revision, or at the newest one if that is none: all of a page at the same.
    Revision(Option<i64>),
    /// Each as it is when it is read.
    Newest,
    /// As a member has them, which may be behind the others.
    AnyMember,
}

/// How far a page was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageEnd {
    /// The last key that was read.
    pub(super) last: Option<Vec<u8>>,
    /// Whether there are more keys in the range.
    pub(super) has_more: bool,
    /// The revision of the database when the page was begun.
    pub(super) revision: i64,
}

/// What answers requests for ranges of keys.
#[async_trait]
pub(super) trait Ranges: Send + Sync {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status>;
}

#[async_trait]
impl Ranges for Client {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let mut keys = self.keys().max_decoding_message_size(MAX_ANSWER);
        Ok(keys.range(request).await?.into_inner())
    }
}

/// What was read in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    keys: usize,
    /// Bytes of the keys and their values.
    bytes: usize,
}

/// What a page has so far.
struct Page<'a> {
    /// When it ends, unless it was full before.
    until: Instant,
    keys: usize,
    bytes: usize,
    last: Option<Vec<u8>>,
    is_enough: bool,
    keep: &'a mut (dyn FnMut(KeyValue) -> bool + Send),
}

impl Page<'_> {
    /// Adds what was read. Returns how much that is.
    fn add(&mut self, pairs: Vec<KeyValue>) -> Amount {
        self.last = pairs.last().map(|pair| pair.key.clone()).or(self.last.take());
        let mut added = Amount::default();
        for pair in pairs {
            added.bytes += pair.key.len() + pair.value.len();
            added.keys += 1;
            self.is_enough |= (self.keep)(pair);
        }
        self.keys += added.keys;
        self.bytes += added.bytes;
        added
    }

    fn is_full(&self) -> bool {
        self.is_enough || self.keys >= MOST_KEYS || self.bytes >= MOST_BYTES
    }
}

/// Reads keys with their values, in their order: some of a folder, or the first key if the range is none. Each is given to `keep`, which returns whether
/// that is enough: the page ends soon after. If there are more keys, at least one was read.
///
/// # Errors
/// etcd refuses or does not answer.
pub(super) async fn read_page(
    source: &dyn Ranges,
    range: &PageRequest,
    at: ReadAt,
    keep: &mut (dyn FnMut(KeyValue) -> bool + Send),
) -> Result<PageEnd, DatastoreError> {
    let mut page = Page {
        until: Instant::now() + MOST_TIME,
        keys: 0,
        bytes: 0,
        last: None,
        is_enough: false,
        keep,
    };
    let mut request = RangeRequest {
        key: range.start.clone(),
        range_end: range.end.clone(),
        limit: range.limit(READ_AT_ONCE),
        serializable: matches!(at, ReadAt::AnyMember),
        ..RangeRequest::default()
    };
    if let ReadAt::Revision(Some(revision)) = at {
        request.revision = revision;
    }
    let answer = source.range(request.clone()).await.map_err(failed("read keys"))?;
    let revision = answer.header.map_or(0, |header| header.revision);
    if let ReadAt::Revision(None) = at {
        request.revision = revision;
    }
    let mut has_more = answer.more;
    let growth = if answer.count < MANY_KEYS {
        GROWTH
    } else {
        LISTED_AT_ONCE
    };
    let mut read = page.add(answer.kvs);
    while has_more && range.is_folder && !page.is_full() && Instant::now() < page.until {
        let Some(last) = page.last.clone() else { break };
        request.key = next_key(last);
        let begun = Instant::now();
        let (listed, more) = list_ranges(source, &request, next_amount(read, growth)).await?;
        let until = page.until.max(Instant::now() + begun.elapsed());
        (has_more, read) = read_ranges(source, &request, listed, until, &mut page).await?;
        has_more |= more;
    }
    Ok(PageEnd {
        last: page.last,
        has_more,
        revision,
    })
}

/// How many keys are listed next after what was read. A list may have been made shorter, so what was asked for says nothing of how large its values are.
fn next_amount(before: Amount, growth: usize) -> usize {
    let fitting = before.keys.saturating_mul(LOADED_AT_ONCE) / before.bytes.max(1);
    let grown = before.keys.saturating_mul(growth);
    fitting.min(grown).clamp(READ_AT_ONCE, LISTED_AT_ONCE)
}

/// The beginning and the end of a range.
type Bounds = (Vec<u8>, Vec<u8>);

/// Lists the keys of a range, as many as fit in an answer. Returns the ranges in which their values are read, and whether there are more keys after these.
async fn list_ranges(
    source: &dyn Ranges,
    range: &RangeRequest,
    amount: usize,
) -> Result<(Vec<Bounds>, bool), DatastoreError> {
    let mut amount = amount;
    loop {
        let request = RangeRequest {
            limit: limit_of(amount),
            keys_only: true,
            ..range.clone()
        };
        match source.range(request).await {
            // A key may have almost 1.5 MiB as well.
            Err(status) if amount > READ_AT_ONCE && is_too_long(&status) => {
                amount = READ_AT_ONCE.max(amount / GROWTH);
            }
            answer => {
                let listed = answer.map_err(failed("list keys"))?;
                // What was written after the last key meanwhile is read as well.
                let end = (!listed.more).then_some(range.range_end.as_slice());
                return Ok((value_ranges(&range.key, &listed.kvs, end), listed.more));
            }
        }
    }
}

/// Reads the values in ranges until the page is full or until this time, but those of the first range at least: the list has cost more than they do. Returns
/// whether some of these are not read, and how much the others have.
async fn read_ranges(
    source: &dyn Ranges,
    options: &RangeRequest,
    ranges: Vec<Bounds>,
    until: Instant,
    page: &mut Page<'_>,
) -> Result<(bool, Amount), DatastoreError> {
    let mut read = Amount::default();
    for (number, (key, range_end)) in ranges.into_iter().enumerate() {
        if number > 0 && (page.is_full() || Instant::now() >= until) {
            return Ok((true, read));
        }
        let request = RangeRequest {
            key,
            range_end,
            limit: limit_of(READ_AT_ONCE),
            ..options.clone()
        };
        let answer = source.range(request).await.map_err(failed("read keys"))?;
        let added = page.add(answer.kvs);
        read.keys += added.keys;
        read.bytes += added.bytes;
        // Keys were written between those that were listed, or there are several long ones. The next list has them.
        if answer.more {
            return Ok((true, read));
        }
    }
    Ok((false, read))
}

/// The ranges in which the values of listed keys are read: a few keys in each, from `start` on and without gaps. The last one ends with the last key, or
/// with `end`. Ends of long keys are short, so others may be before them.
fn value_ranges(start: &[u8], listed: &[KeyValue], end: Option<&[u8]>) -> Vec<Bounds> {
    let mut start = start.to_vec();
    let mut ranges = Vec::new();
    for last in listed.chunks(READ_AT_ONCE).filter_map(<[KeyValue]>::last) {
        let next = end_after(last.key.clone());
        // Otherwise the range before has these as well.
        if start < next {
            ranges.push((std::mem::replace(&mut start, next.clone()), next));
        }
    }
    if let (Some(end), Some((_, last))) = (end, ranges.last_mut()) {
        *last = end.to_vec();
    }
    ranges
}

/// Whether an answer was not read because it is longer than [`MAX_ANSWER`]. The code of this status is that of revisions that are gone, too.
fn is_too_long(status: &Status) -> bool {
    status.message().contains("message length too large")
}

#[cfg(test)]
mod tests;
