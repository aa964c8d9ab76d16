//! Snapshots of the objects of tenants: their format, and the store in which they are kept.

#![warn(missing_docs)]

mod error;
mod store;

pub use error::{InvalidStore, ReadError, StoreError, WriteError};
pub use store::Store;

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
