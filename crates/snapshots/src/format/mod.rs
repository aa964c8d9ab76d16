//! The form of what is stored. Pure: bytes in, bytes out.
//!
//! | part | contents |
//! |---|---|
//! | magic | the eight bytes [`MAGIC`] |
//! | version | the version of the format, [`VERSION`], 32 bits |
//! | records | a zlib stream (RFC 1950): the entries in ascending order of their keys, then the end |
//!
//! An entry is the length of its key, which is not 0, and that of its value, 32 bits each, then the key and the value. The end is 32 bits of
//! 0, then the number of entries and the bytes of all keys and values, 64 bits each. Nothing follows. All numbers are big-endian.

mod decoder;
mod encoder;

pub(crate) use decoder::{Decoder, Fault};
pub(crate) use encoder::Encoder;

/// How a snapshot begins.
const MAGIC: &[u8; 8] = b"BERTHSNP";
/// The version of the format. A change that older versions of Berth would read wrongly needs the next one.
const VERSION: u32 = 1;
/// Bytes before the compressed records.
const HEADER: usize = MAGIC.len() + 4;
/// Bytes before the key of an entry.
const ENTRY_HEADER: usize = 8;
/// Bytes of the end: a key length of 0, and two counts.
const END: usize = 4 + 8 + 8;

/// Bytes of the key and the value of an entry at most. etcd takes requests of 1.5 MiB by default, and warns if it is configured to take
/// more than this (`recommendedMaxRequestBytes` of its server), so that no object that etcd has is larger.
pub(crate) const MAX_ENTRY_BYTES: usize = 10 << 20;

/// Entries are compressed, and decompressed, in steps of this many bytes, each of which takes milliseconds of a thread for blocking work.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// What an entry takes in memory besides its bytes, about.
const ENTRY_OVERHEAD: usize = 64;

/// What an entry adds to a batch.
pub(crate) const fn weight(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests;
