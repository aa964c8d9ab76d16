//! Reads the form of a snapshot, which may be damaged in any way.

use super::{BATCH_BYTES, END, ENTRY_HEADER, HEADER, MAGIC, MAX_ENTRY_BYTES, VERSION, weight};
use crate::entry::{Entry, Written};
use flate2::{Decompress, FlushDecompress, Status};

/// Bytes that are decompressed at a time.
const STEP: usize = 64 << 10;

/// What is wrong with the form of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not what was written. The text contains no key and no value.
    Damaged(String),
    /// It has a format with this number, above [`VERSION`].
    Newer(u32),
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(reason.into()))
}

/// Reads the form of a snapshot, piece by piece. Its memory is bounded, whatever is stored: besides what it is given it keeps one entry that
/// is not complete.
pub(crate) struct Decoder {
    /// The beginning, until it is complete.
    header: Vec<u8>,
    newer: Option<u32>,
    stream: Decompress,
    step: Vec<u8>,
    /// What is decompressed: of this, `read` bytes are done with.
    records: Vec<u8>,
    read: usize,
    /// The decompressor may have more, although it has taken all that it was given.
    has_more: bool,
    is_stream_over: bool,
    is_end_read: bool,
    last_key: Vec<u8>,
    objects: u64,
    bytes: u64,
    expected_objects: u64,
    expected_bytes: u64,
    /// Bytes of all records, decompressed.
    expected_records: u64,
}

impl Decoder {
    pub(crate) fn new(expected: &Written) -> Self {
        let headers = expected.objects.saturating_mul(ENTRY_HEADER as u64);
        Self {
            header: Vec::with_capacity(HEADER),
            newer: None,
            stream: Decompress::new(true),
            step: vec![0; STEP],
            records: Vec::new(),
            read: 0,
            has_more: false,
            is_stream_over: false,
            is_end_read: false,
            last_key: Vec::new(),
            objects: 0,
            bytes: 0,
            expected_objects: expected.objects,
            expected_bytes: expected.bytes,
            expected_records: expected.bytes.saturating_add(headers).saturating_add(END as u64),
        }
    }

    /// Takes from the beginning of `stored` what it needs for about [`BATCH_BYTES`] of entries, and adds them to `entries`. Returns whether
    /// it stopped because there are so many; otherwise all of `stored` is taken.
    pub(crate) fn decode(&mut self, stored: &mut &[u8], entries: &mut Vec<Entry>) -> Result<bool, Fault> {
        self.read_header(stored)?;
        if self.header.len() < HEADER || self.newer.is_some() {
            *stored = &[];
            return Ok(false);
        }
        let mut batch = 0;
        loop {
            while let Some(entry) = self.read_entry()? {
                batch += weight(&entry.key, &entry.value);
                entries.push(entry);
                if batch >= BATCH_BYTES {
                    return Ok(true);
                }
            }
            if self.is_stream_over && !stored.is_empty() {
                return damaged("something follows its end");
            }
            if self.is_stream_over || (stored.is_empty() && !self.has_more) {
                return Ok(false);
            }
            self.decompress(stored)?;
        }
    }

    /// After everything that is stored.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        if let Some(version) = self.newer {
            return Err(Fault::Newer(version));
        }
        if !self.is_stream_over || !self.is_end_read {
            return damaged("it ends too early");
        }
        Ok(())
    }

    fn read_header(&mut self, stored: &mut &[u8]) -> Result<(), Fault> {
        let missing = HEADER.saturating_sub(self.header.len()).min(stored.len());
        if missing == 0 {
            return Ok(());
        }
        let (taken, rest) = stored.split_at(missing);
        self.header.extend_from_slice(taken);
        *stored = rest;
        let magic = &self.header[..self.header.len().min(MAGIC.len())];
        if !MAGIC.starts_with(magic) {
            return damaged("it does not begin as snapshots do");
        }
        match read_u32(&self.header, MAGIC.len()) {
            None | Some(VERSION) => Ok(()),
            Some(0) => damaged("its format has the number 0"),
            Some(version) => {
                self.newer = Some(version);
                Ok(())
            }
        }
    }

    fn decompress(&mut self, stored: &mut &[u8]) -> Result<(), Fault> {
        self.records.drain(..self.read);
        self.read = 0;
        let (taken_before, given_before) = (self.stream.total_in(), self.stream.total_out());
        let status = self.stream.decompress(stored, &mut self.step, FlushDecompress::None);
        let status = match status {
            Ok(status) => status,
            Err(error) => return damaged(format!("it cannot be decompressed: {error}")),
        };
        let taken = to_usize(self.stream.total_in() - taken_before);
        let given = to_usize(self.stream.total_out() - given_before);
        if taken == 0 && given == 0 && status != Status::StreamEnd && !stored.is_empty() {
            return damaged("it cannot be decompressed");
        }
        // A few bytes can become gigabytes.
        if self.stream.total_out() > self.expected_records {
            return damaged("it has more in it than was written");
        }
        *stored = &stored[taken..];
        self.records.extend_from_slice(&self.step[..given]);
        // Not only if the step is full: the decompressor gives out at most its window at a time, and may have taken all of its input before.
        self.has_more = given > 0;
        self.is_stream_over = status == Status::StreamEnd;
        Ok(())
    }

    /// The next entry; none if it is not complete yet, or if there is no further one.
    fn read_entry(&mut self) -> Result<Option<Entry>, Fault> {
        let records = &self.records[self.read..];
        if self.is_end_read {
            return if records.is_empty() {
                Ok(None)
            } else {
                damaged("something follows its last object")
            };
        }
        let Some(key_length) = read_u32(records, 0) else {
            return Ok(None);
        };
        if key_length == 0 {
            return self.read_end().map(|()| None);
        }
        let Some(value_length) = read_u32(records, 4) else {
            return Ok(None);
        };
        let number = self.objects + 1;
        let size = u64::from(key_length) + u64::from(value_length);
        if size > MAX_ENTRY_BYTES as u64 {
            return damaged(format!("object {number} has {size} bytes, more than {MAX_ENTRY_BYTES}"));
        }
        let (key_end, end) = (
            ENTRY_HEADER + to_usize(u64::from(key_length)),
            ENTRY_HEADER + to_usize(size),
        );
        if records.len() < end {
            return Ok(None);
        }
        let key = records[ENTRY_HEADER..key_end].to_vec();
        let value = records[key_end..end].to_vec();
        if key <= self.last_key {
            return damaged(format!("the key of object {number} is not above the one before"));
        }
        self.read += end;
        self.last_key.clone_from(&key);
        self.objects = number;
        self.bytes += size;
        Ok(Some(Entry { key, value }))
    }

    fn read_end(&mut self) -> Result<(), Fault> {
        let records = &self.records[self.read..];
        let (Some(objects), Some(bytes)) = (read_u64(records, 4), read_u64(records, 12)) else {
            return Ok(());
        };
        let found = (self.objects, self.bytes);
        if found != (objects, bytes) {
            return damaged(format!(
                "it counts {objects} objects of {bytes} bytes, and has {found:?}"
            ));
        }
        let expected = (self.expected_objects, self.expected_bytes);
        if found != expected {
            return damaged(format!("its objects and their bytes are {found:?}, not {expected:?}"));
        }
        self.read += END;
        self.is_end_read = true;
        if self.records.len() > self.read {
            return damaged("something follows its last object");
        }
        Ok(())
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let number = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(number))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let number = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_be_bytes(number))
}

/// Of what is in memory, or is to be.
fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
