//! Reads a snapshot of a store, and compares it with what was written.

use super::{Store, bucket::PART_BYTES, location::Location, stored::Stored};
use crate::{
    entry::{Entry, Written, hex},
    error::{ReadError, StoreError},
    format::{Decoder, Fault},
};
use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

/// A snapshot that is read and compared with what was written.
pub(super) struct Reading {
    stored: Stored,
    expected: Written,
    decoder: Decoder,
    hash: Sha256,
    /// What was read of it, in bytes.
    position: u64,
    /// Of this, what is not decoded.
    part: Bytes,
    is_part_hashed: bool,
    /// The decoder has more, also if the part is empty.
    has_more: bool,
}

impl Reading {
    pub(super) async fn open(store: Store, location: String, expected: Written) -> Result<Self, ReadError> {
        let location = Location::parse(&location)?;
        let stored = store.open(&location).await?.ok_or(ReadError::NotFound)?;
        let (size, expected_size) = (stored.size(), expected.stored_bytes);
        if size != expected_size {
            return Err(ReadError::Damaged(format!(
                "{size} bytes are stored, not {expected_size}"
            )));
        }
        Ok(Self {
            stored,
            decoder: Decoder::new(&expected),
            expected,
            hash: Sha256::new(),
            position: 0,
            part: Bytes::new(),
            is_part_hashed: true,
            has_more: false,
        })
    }

    /// The next entries, which are not none, and what gives the ones after them. None at the end, where everything was compared.
    pub(super) async fn next(mut self) -> Result<Option<(Vec<Entry>, Self)>, ReadError> {
        loop {
            if self.has_more || !self.part.is_empty() {
                let (rest, entries) = self.decode().await?;
                self = rest;
                if !entries.is_empty() {
                    return Ok(Some((entries, self)));
                }
            } else if self.position < self.expected.stored_bytes {
                self.fetch().await?;
            } else {
                return self.finish().map(|()| None);
            }
        }
    }

    async fn fetch(&mut self) -> Result<(), ReadError> {
        let end = self.expected.stored_bytes.min(self.position + PART_BYTES as u64);
        let part = self.stored.read(self.position..end).await?;
        if part.len() as u64 != end - self.position {
            return Err(ReadError::Damaged("it became shorter while it was read".to_owned()));
        }
        self.position = end;
        self.part = part;
        self.is_part_hashed = false;
        Ok(())
    }

    /// Decompressing takes a processor for some time, which the async runtime should not wait for.
    async fn decode(mut self) -> Result<(Self, Vec<Entry>), ReadError> {
        let decoding = spawn_blocking(move || -> Result<_, ReadError> {
            if !self.is_part_hashed {
                self.hash.update(&self.part);
                self.is_part_hashed = true;
            }
            let mut entries = Vec::new();
            let mut left: &[u8] = &self.part;
            let has_more = self.decoder.decode(&mut left, &mut entries);
            let decoded = self.part.len() - left.len();
            self.part.advance(decoded);
            self.has_more = has_more?;
            Ok((self, entries))
        });
        decoding.await.unwrap_or_else(|error| Err(ended(&error).into()))
    }

    fn finish(self) -> Result<(), ReadError> {
        if hex(&self.hash.finalize()) != self.expected.checksum {
            return Err(ReadError::Damaged(
                "its checksum is not that of what was written".to_owned(),
            ));
        }
        Ok(self.decoder.finish()?)
    }
}

/// The work on a thread of its own did not end, because the runtime does.
pub(super) fn ended(error: &tokio::task::JoinError) -> StoreError {
    StoreError::Unreachable(format!("the work on it was ended: {error}"))
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(reason) => Self::Damaged(reason),
            Fault::Newer(version) => Self::NewerFormat(version),
        }
    }
}
