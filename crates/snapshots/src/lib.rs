//! Snapshots of the objects that etcd has of one tenant: their form, and the store in which they are kept.
//!
//! | module | contents |
//! |---|---|
//! | `format` | encodes and decodes the form of a snapshot. Pure |
//! | `store` | [`Store`]: an S3 bucket or a directory |
//!
//! # Damage
//! A snapshot that is truncated, extended, reordered or changed in any byte is noticed, because it is compared with what [`Store::write`]
//! returned. That has to be kept elsewhere: who can write the store can replace a snapshot by another one that is valid.
//!
//! # Keys
//! Keys are relative to the prefix of the tenant, and are only ever appended to one: whatever a snapshot contains, no key of it is outside
//! the prefix that it is restored to. Keys are not empty, so none is the prefix itself.
//!
//! # Memory and time
//! Entries are written and read as streams. [`Store`] has at most a few parts of 8 MiB and an entry, of 10 MiB at most, in memory for each
//! call. Entries are compressed in steps of about a MiB on threads for blocking work, so that the async runtime goes on. Each request to the
//! store has a time limit and is repeated a few times: no call waits longer than 150 seconds for one request.
//!
//! # Who can read snapshots
//! Snapshots contain Secrets, which are plaintext unless the tenant's API server encrypts them. Files in a directory can be read only by
//! their owner. In a bucket, that is a matter of the bucket's permissions and encryption.

#![warn(missing_docs)]

mod entry;
mod error;
mod format;
mod store;

pub use entry::{Entry, Written};
pub use error::{InvalidStore, ReadError, StoreError, WriteError};
pub use store::Store;
