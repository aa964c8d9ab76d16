use super::{
    bucket::{Bucket, BucketUpload},
    directory::{FileUpload, StoredFile},
    location::Location,
};
use crate::error::StoreError;
use bytes::Bytes;
use std::ops::Range;

/// Something that is in a store.
pub(super) enum Stored {
    Object {
        bucket: Bucket,
        location: Location,
        size: u64,
    },
    File(StoredFile),
}

impl Stored {
    /// In bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Object { size, .. } => *size,
            Self::File(file) => file.size,
        }
    }

    /// Fewer bytes if there are not so many.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        match self {
            Self::Object { bucket, location, .. } => bucket.read(location, range).await,
            Self::File(file) => file.read(range).await,
        }
    }
}

/// Something that is written to a store. It is given up when it is dropped before it is finished.
pub(super) enum Upload {
    Object(BucketUpload),
    File(FileUpload),
}

impl Upload {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Object(upload) => upload.write(bytes).await,
            Self::File(upload) => upload.write(bytes).await,
        }
    }

    pub(super) async fn finish(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Object(upload) => upload.finish().await,
            Self::File(upload) => upload.finish().await,
        }
    }

    /// Gives it up, and waits until that is done.
    pub(super) async fn abort(&mut self) {
        match self {
            Self::Object(upload) => upload.abort().await,
            Self::File(upload) => upload.abort().await,
        }
    }
}
