//! Errors of stores and of snapshots.

use std::error::Error;

/// The URL or the options of a store cannot be used. The text contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidStore(pub(crate) String);

/// What a store answered, or that it did not. Texts are one line, and contain no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The bucket or the directory does not exist. Trying again does not help before it is created.
    #[error("the store does not exist: {0}")]
    NotFound(String),
    /// The store refuses the credentials, or what they may do. Trying again does not help before that is changed.
    #[error("the store denies access: {0}")]
    Denied(String),
    /// The store does not answer, not in time, or with an error of its own. Trying again later may help.
    #[error("the store cannot be used: {0}")]
    Unreachable(String),
}

/// Why a snapshot cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no snapshot at the location.
    #[error("there is no snapshot at this location of the store")]
    NotFound,
    /// What is stored is not what was written. The text says what differs; it contains no key and no value.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    /// A newer version of Berth wrote it. The number is the version of its format.
    #[error("the snapshot has format {0}, which this version of Berth cannot read")]
    NewerFormat(u32),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a snapshot was not written. No part of it is at its location then.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E: Error + 'static> {
    /// The source of the entries failed.
    #[error(transparent)]
    Source(E),
    /// An entry of the source cannot be in a snapshot: its key is empty, not above the one before, or it is too large. The text contains
    /// no key and no value.
    #[error("the entries cannot be stored: {0}")]
    Damaged(String),
    /// The store could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
