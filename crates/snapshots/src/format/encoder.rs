//! Writes the form of a snapshot.

use super::{MAGIC, MAX_ENTRY_BYTES, VERSION};
use crate::entry::{Entry, Written, hex};
use flate2::{Compression, write::ZlibEncoder};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;

/// Writes the form of a snapshot, piece by piece.
pub(crate) struct Encoder {
    stream: ZlibEncoder<Vec<u8>>,
    hash: Sha256,
    last_key: Vec<u8>,
    objects: u64,
    bytes: u64,
    stored_bytes: u64,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        let mut stored = MAGIC.to_vec();
        stored.extend(VERSION.to_be_bytes());
        Self {
            // Values are often ciphertext, for which better compression would cost time and save nothing.
            stream: ZlibEncoder::new(stored, Compression::fast()),
            hash: Sha256::new(),
            last_key: Vec::new(),
            objects: 0,
            bytes: 0,
            stored_bytes: 0,
        }
    }

    /// Adds entries, and returns what is to be stored now.
    ///
    /// # Errors
    /// A key is empty or not above the one before, or an entry is too large: the text says which, and contains no key.
    pub(crate) fn push(&mut self, entries: &[Entry]) -> Result<Vec<u8>, String> {
        for entry in entries {
            self.push_entry(entry)?;
        }
        let stored = std::mem::take(self.stream.get_mut());
        self.count(&stored);
        Ok(stored)
    }

    /// Adds the end, and returns the rest of what is to be stored, and what was stored in all.
    pub(crate) fn finish(mut self) -> Result<(Vec<u8>, Written), String> {
        let (objects, bytes) = (self.objects, self.bytes);
        self.put(&0_u32.to_be_bytes())?;
        self.put(&objects.to_be_bytes())?;
        self.put(&bytes.to_be_bytes())?;
        let Self {
            stream,
            mut hash,
            stored_bytes,
            ..
        } = self;
        let stored = stream.finish().map_err(|error| error.to_string())?;
        hash.update(&stored);
        let written = Written {
            objects,
            bytes,
            stored_bytes: stored_bytes.saturating_add(stored.len() as u64),
            checksum: hex(&hash.finalize()),
        };
        Ok((stored, written))
    }

    fn push_entry(&mut self, entry: &Entry) -> Result<(), String> {
        let number = self.objects + 1;
        let Entry { key, value } = entry;
        if key.is_empty() {
            return Err(format!("the key of object {number} is empty"));
        }
        if *key <= self.last_key {
            return Err(format!("the key of object {number} is not above the one before"));
        }
        let size = key.len().saturating_add(value.len());
        if size > MAX_ENTRY_BYTES {
            return Err(format!("object {number} has {size} bytes, more than {MAX_ENTRY_BYTES}"));
        }
        for part in [key, value] {
            let length = u32::try_from(part.len()).map_err(|error| error.to_string())?;
            self.put(&length.to_be_bytes())?;
        }
        self.put(key)?;
        self.put(value)?;
        self.last_key.clone_from(key);
        self.objects = number;
        self.bytes = self.bytes.saturating_add(size as u64);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|error| error.to_string())
    }

    fn count(&mut self, stored: &[u8]) {
        self.hash.update(stored);
        self.stored_bytes = self.stored_bytes.saturating_add(stored.len() as u64);
    }
}
