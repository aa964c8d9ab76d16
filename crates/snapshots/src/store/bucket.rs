//! Snapshots in a bucket of S3, or of what has the same API.

use super::{
    address::Options,
    bounded::BoundedConnector,
    limits::Limits,
    location::Location,
    message::{Secrets, is_empty_object, is_missing_object},
};
use crate::error::{InvalidStore, StoreError};
use bytes::{Bytes, BytesMut};
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, RetryConfig,
    aws::AmazonS3Builder, path::Path,
};
use std::{ops::Range, sync::Arc};
use tokio::{runtime::Handle, task::JoinHandle};

/// Bytes of a part of an upload, and of what is read with one request. S3 takes at least 5 MiB, and 10,000 parts, so a snapshot can have
/// about 80 GiB.
pub(super) const PART_BYTES: usize = 8 << 20;

/// A bucket with a prefix.
#[derive(Clone)]
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// Ends in a `/`, or is empty.
    prefix: Arc<str>,
    secrets: Arc<Secrets>,
    limits: Limits,
}

impl Bucket {
    pub(super) fn new(name: &str, prefix: &str, options: Options, limits: Limits) -> Result<Self, InvalidStore> {
        let secrets = options.secrets;
        let client = ClientOptions::new()
            .with_timeout(limits.request)
            .with_connect_timeout(limits.connect);
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: limits.max_repeats,
            retry_timeout: limits.repeat,
        };
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_http_connector(BoundedConnector::default())
            .with_retry(retry);
        for (key, value) in options.of_client {
            builder = builder.with_config(key, value);
        }
        // Not all servers can delete several objects with one request, which is never needed here.
        let builder = builder.with_bucket_name(name).with_disable_bulk_delete(true);
        let store = builder
            .build()
            .map_err(|error| InvalidStore(secrets.hide(&error.to_string())))?;
        Ok(Self {
            store: Arc::new(store),
            prefix: if prefix.is_empty() {
                "".into()
            } else {
                format!("{prefix}/").into()
            },
            secrets: Arc::new(secrets),
            limits,
        })
    }

    pub(super) fn upload(&self, location: &Location) -> BucketUpload {
        BucketUpload {
            bucket: self.clone(),
            path: self.path(location),
            buffer: BytesMut::new(),
            multipart: None,
        }
    }

    /// The size of an object; none if there is none.
    pub(super) async fn size(&self, location: &Location) -> Result<Option<u64>, StoreError> {
        let path = self.path(location);
        // An answer to HEAD would have no text, which says what is wrong, and whether it is the object or the bucket that does not exist.
        let found = async {
            let range = GetOptions::new().with_range(Some(0..1));
            match self.store.get_opts(&path, range).await {
                Ok(found) => Ok(Some(found.meta.size)),
                Err(error) if is_missing_object(&error) => Ok(None),
                Err(error) if is_empty_object(&error) => Ok(Some(0)),
                Err(error) => Err(error),
            }
        };
        self.request(found).await
    }

    pub(super) async fn read(&self, location: &Location, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.request(self.store.get_range(&self.path(location), range)).await
    }

    /// No error if there is no such object.
    pub(super) async fn delete(&self, location: &Location) -> Result<(), StoreError> {
        let path = self.path(location);
        let deleted = async {
            match self.store.delete(&path).await {
                Err(error) if is_missing_object(&error) => Ok(()),
                deleted => deleted,
            }
        };
        self.request(deleted).await
    }

    async fn request<T>(&self, request: impl Future<Output = object_store::Result<T>>) -> Result<T, StoreError> {
        let request = async { request.await.map_err(|error| self.secrets.classify(&error)) };
        self.limits.wait(request).await
    }

    /// Uploads that are given up cost money until they are deleted. A rule of the bucket deletes what this leaves.
    async fn abort(&self, mut multipart: Box<dyn MultipartUpload>) {
        if let Err(error) = self.request(multipart.abort()).await {
            tracing::warn!(%error, "The parts of an upload that was given up are left in the bucket of snapshots");
        }
    }

    fn path(&self, location: &Location) -> Path {
        Path::from(format!("{}{location}", self.prefix))
    }
}

/// Something that is written to a bucket. If it is small, with one request. Nothing can be read at its location before it is finished.
pub(super) struct BucketUpload {
    bucket: Bucket,
    path: Path,
    /// Less than a part.
    buffer: BytesMut,
    multipart: Option<Box<dyn MultipartUpload>>,
}

impl BucketUpload {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.buffer.extend_from_slice(bytes);
        while self.buffer.len() >= PART_BYTES {
            let part = self.buffer.split_to(PART_BYTES).freeze();
            self.put_part(part).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&mut self) -> Result<(), StoreError> {
        let rest = self.buffer.split().freeze();
        if self.multipart.is_none() {
            let put = self.bucket.store.put(&self.path, rest.into());
            return self.bucket.request(put).await.map(drop);
        }
        if !rest.is_empty() {
            self.put_part(rest).await?;
        }
        if let Some(multipart) = &mut self.multipart {
            self.bucket.request(multipart.complete()).await?;
        }
        self.multipart = None;
        Ok(())
    }

    /// Deletes the parts that it has, unless it is finished.
    pub(super) fn give_up(&mut self, runtime: &Handle) -> Option<JoinHandle<()>> {
        let multipart = self.multipart.take()?;
        let bucket = self.bucket.clone();
        Some(runtime.spawn(async move { bucket.abort(multipart).await }))
    }

    async fn put_part(&mut self, part: Bytes) -> Result<(), StoreError> {
        let bucket = &self.bucket;
        let multipart = match &mut self.multipart {
            Some(multipart) => multipart,
            none => {
                let begun = bucket.request(bucket.store.put_multipart(&self.path)).await?;
                none.insert(begun)
            }
        };
        bucket.request(multipart.put_part(part.into())).await
    }
}
