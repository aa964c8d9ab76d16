//! What a snapshot consists of, and what is known of one that was written.

use std::fmt::{Debug, Formatter, Result as FormatResult, Write as _};

/// One object of a tenant, as etcd has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key without the prefix of the tenant. Not empty.
    pub key: Vec<u8>,
    /// The value, which is ciphertext if the tenant's API server encrypts objects of this resource.
    pub value: Vec<u8>,
}

/// What was written, with which it is compared when it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Number of entries.
    pub objects: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// Bytes of what is stored, which is compressed.
    pub stored_bytes: u64,
    /// SHA-256 of what is stored, 64 hexadecimal digits in lower case.
    pub checksum: String,
}

/// Without key and value: these may be secrets.
impl Debug for Entry {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        let Self { key, value } = self;
        write!(formatter, "Entry({} + {} bytes)", key.len(), value.len())
    }
}

/// Hexadecimal digits in lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
