//! Where snapshots are kept: in a bucket or in a directory.

mod address;
mod bounded;
mod bucket;
mod directory;
mod limits;
mod location;
mod message;
mod reading;
mod stored;

use crate::{
    entry::{Entry, Written},
    error::{InvalidStore, ReadError, StoreError, WriteError},
    format::{BATCH_BYTES, Encoder, weight},
};
use address::{Address, Options};
use bucket::Bucket;
use directory::Directory;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use limits::Limits;
use location::Location;
use reading::{Reading, ended};
use std::{
    convert::Infallible,
    error::Error,
    fmt::{Debug, Formatter, Result as FormatResult},
    pin::{Pin, pin},
    process,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use stored::{Stored, Upload};
use tokio::task::spawn_blocking;

/// Where snapshots are kept: a bucket of S3, or of what has the same API, or a directory. Cheap to clone.
///
/// A directory has to exist, in a file system that locks files (`flock`). Snapshots in it can be read only by the user who wrote them.
///
/// In a bucket, the credentials need the permissions to get, put and delete objects with the prefix, to abort uploads (`s3:GetObject`,
/// `s3:PutObject`, `s3:DeleteObject`, `s3:AbortMultipartUpload`) and to list the bucket (`s3:ListBucket`), without which S3 does not say
/// that an object does not exist. A process that is killed leaves parts of an upload in the bucket, which are no object and cost money: let a
/// lifecycle rule of the bucket delete uploads that are not complete after a day.
#[derive(Clone)]
pub struct Store {
    place: Place,
    url: Arc<str>,
}

#[derive(Clone)]
enum Place {
    Bucket(Bucket),
    Directory(Directory),
}

/// Only the URL, which contains no credentials.
impl Debug for Store {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        write!(formatter, "Store({})", self.url)
    }
}

impl Store {
    /// A store at a URL: `s3://bucket/prefix` or `file:///directory`. The prefix may be left out. Nothing is read or written.
    ///
    /// The options are pairs as the environment variables of AWS: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL` for what is not AWS, `AWS_ALLOW_HTTP=true` for an endpoint without TLS, `AWS_WEB_IDENTITY_TOKEN_FILE` with
    /// `AWS_ROLE_ARN`, and the others that `object_store::aws::AmazonS3ConfigKey` names. Other options are ignored. A directory has none.
    ///
    /// # Errors
    /// The URL or an option cannot be used.
    pub fn from_url(url: &str, options: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidStore> {
        Self::with_limits(url, options, Limits::default())
    }

    fn with_limits(
        url: &str,
        options: impl IntoIterator<Item = (String, String)>,
        limits: Limits,
    ) -> Result<Self, InvalidStore> {
        let place = match Address::parse(url)? {
            Address::Bucket { name, prefix } => {
                Place::Bucket(Bucket::new(&name, &prefix, Options::parse(options)?, limits)?)
            }
            Address::Directory(path) => Place::Directory(Directory::new(path, limits)),
        };
        Ok(Self { place, url: url.into() })
    }

    /// Writes a snapshot at `location` (a path such as `TENANT-UID/SNAPSHOT-UID`: names of letters, digits and `-_.=`, separated by `/`). It
    /// replaces what is there, and what a killed try left. Entries come in ascending order of their keys.
    ///
    /// It is there as a whole or not at all: while it is written, when this fails, and when the future is dropped, the location has what it
    /// had before. Only if the store does not answer to the last request of all, the snapshot may be there although this fails. Of several
    /// that write at the same time, the last one to finish remains in a bucket; in a directory all but the first fail.
    ///
    /// # Errors
    /// The source fails, an entry cannot be stored, or the store fails.
    pub async fn write<E: Error + Send + 'static>(
        &self,
        location: &str,
        entries: impl Stream<Item = Result<Entry, E>> + Send,
    ) -> Result<Written, WriteError<E>> {
        let location = Location::parse(location)?;
        let mut upload = self.upload(&location).await?;
        let written = fill(&mut upload, pin!(entries)).await;
        if written.is_err() {
            upload.abort().await;
        }
        written
    }

    /// Reads all of a snapshot, and compares its form, counts and checksum with what was written, without giving anything out.
    ///
    /// # Errors
    /// It does not exist, is damaged or newer than this version of Berth, or the store fails.
    pub async fn verify(&self, location: &str, expected: &Written) -> Result<(), ReadError> {
        let mut reading = Reading::open(self.clone(), location.to_owned(), expected.clone()).await?;
        while let Some((_, rest)) = reading.next().await? {
            reading = rest;
        }
        Ok(())
    }

    /// The entries of a snapshot, in ascending order of their keys. If anything is wrong, an error is the last item.
    ///
    /// The checksum is known at the end only: [`Store::verify`] says before whether there will be an error, and until the end of this stream
    /// the entries are those of a snapshot that may have been damaged since.
    pub fn read(
        &self,
        location: &str,
        expected: &Written,
    ) -> impl Stream<Item = Result<Entry, ReadError>> + Send + Unpin + use<> {
        let opening = Reading::open(self.clone(), location.to_owned(), expected.clone());
        stream::once(opening)
            .map_ok(|reading| {
                stream::try_unfold(reading, |reading: Reading| async move {
                    let next = reading.next().await?;
                    Ok::<_, ReadError>(
                        next.map(|(entries, rest)| (stream::iter(entries.into_iter().map(Ok::<_, ReadError>)), rest)),
                    )
                })
            })
            .try_flatten()
            .try_flatten()
            .boxed()
    }

    /// Deletes a snapshot. No error if it is not there. What is being written at the location remains. In a bucket that keeps versions of
    /// objects, this one is kept until a lifecycle rule of the bucket deletes it.
    ///
    /// # Errors
    /// The store fails.
    pub async fn delete(&self, location: &str) -> Result<(), StoreError> {
        let location = Location::parse(location)?;
        match &self.place {
            Place::Bucket(bucket) => bucket.delete(&location).await,
            Place::Directory(directory) => directory.delete(&location).await,
        }
    }

    /// Writes, reads and deletes a snapshot without entries, at a location of its own.
    ///
    /// # Errors
    /// What cannot be done.
    pub async fn check(&self) -> Result<(), ReadError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let location = format!("checks/{}-{}", process::id(), now.as_nanos());
        let written = self
            .write(&location, stream::empty::<Result<Entry, Infallible>>())
            .await;
        let written = written.map_err(|error| match error {
            WriteError::Store(error) => ReadError::Store(error),
            WriteError::Damaged(reason) => ReadError::Damaged(reason),
            WriteError::Source(never) => match never {},
        })?;
        let compared = self.verify(&location, &written).await;
        self.delete(&location).await?;
        compared
    }

    async fn upload(&self, location: &Location) -> Result<Upload, StoreError> {
        match &self.place {
            Place::Bucket(bucket) => Ok(Upload::Object(bucket.upload(location))),
            Place::Directory(directory) => directory.upload(location).await.map(Upload::File),
        }
    }

    /// None if there is nothing at the location.
    async fn open(&self, location: &Location) -> Result<Option<Stored>, StoreError> {
        match &self.place {
            Place::Bucket(bucket) => {
                let size = bucket.size(location).await?;
                Ok(size.map(|size| Stored::Object {
                    bucket: bucket.clone(),
                    location: location.clone(),
                    size,
                }))
            }
            Place::Directory(directory) => Ok(directory.open(location).await?.map(Stored::File)),
        }
    }
}

async fn fill<E: Error + 'static>(
    upload: &mut Upload,
    mut entries: Pin<&mut (impl Stream<Item = Result<Entry, E>> + Send)>,
) -> Result<Written, WriteError<E>> {
    let mut encoder = Encoder::new();
    loop {
        let (batch, is_last) = next_batch(entries.as_mut()).await.map_err(WriteError::Source)?;
        // Compressing takes a processor for some time, which the async runtime should not wait for.
        let encoding = spawn_blocking(move || encoder.push(&batch).map(|stored| (encoder, stored)));
        let encoded = encoding.await.map_err(|error| ended(&error))?;
        let (rest, stored) = encoded.map_err(WriteError::<E>::Damaged)?;
        encoder = rest;
        upload.write(stored).await?;
        if is_last {
            break;
        }
    }
    let (stored, written) = encoder.finish().map_err(WriteError::<E>::Damaged)?;
    upload.write(stored).await?;
    upload.finish().await?;
    Ok(written)
}

/// The next entries, and whether they are the last ones.
async fn next_batch<E>(
    mut entries: Pin<&mut (impl Stream<Item = Result<Entry, E>> + Send)>,
) -> Result<(Vec<Entry>, bool), E> {
    let (mut batch, mut size) = (Vec::new(), 0);
    while size < BATCH_BYTES {
        let Some(entry) = entries.try_next().await? else {
            return Ok((batch, true));
        };
        size += weight(&entry.key, &entry.value);
        batch.push(entry);
    }
    Ok((batch, false))
}

#[cfg(test)]
mod tests;
