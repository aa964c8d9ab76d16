//! What is read from a store and written to it, whether that is a bucket or a directory.

use super::{
    bucket::{Bucket, BucketUpload},
    directory::{FileUpload, StoredFile},
    limits::STORE_TIMEOUT,
    location::Location,
};
use crate::error::StoreError;
use bytes::Bytes;
use std::ops::Range;
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

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
    pub(super) async fn write(&mut self, bytes: Vec<u8>) -> Result<(), StoreError> {
        match self {
            Self::Object(upload) => upload.write(&bytes).await,
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
    pub(super) async fn abort(mut self) {
        if let Some(task) = self.give_up() {
            let _ = timeout(STORE_TIMEOUT, task).await;
        }
    }

    /// Gives it up in a task of its own, which ends also if nobody waits for it.
    fn give_up(&mut self) -> Option<JoinHandle<()>> {
        let runtime = Handle::try_current().ok()?;
        match self {
            Self::Object(upload) => upload.give_up(&runtime),
            Self::File(upload) => upload.give_up(&runtime),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.give_up());
    }
}
