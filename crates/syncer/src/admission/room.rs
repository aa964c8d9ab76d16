//! Bounds the memory that requests for admission take: the tenant can make as many of them as it likes, each of some megabytes, and the
//! syncer's memory is limited.
//!
//! Texts and trees have memory of their own. A request that holds its text and waits for a tree never keeps another from getting that far,
//! and what holds a tree waits for nothing here.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header::CONTENT_LENGTH},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Memory in KiB for the texts of requests, and for what becomes of them: each a sixteenth of what a syncer has by default.
const TEXTS: usize = 32 << 10;
const TREES: usize = 32 << 10;
/// A text is copied once, when all of it has arrived.
const COPIES: u64 = 2;
/// Largest tree in bytes. Larger ones are refused: they would have to wait until nobody else has any.
const LARGEST_TREE: u64 = 16 << 20;
/// Longest time that a request waits, for each of both. The API server gives up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);

const TOO_LARGE: Refusal = (StatusCode::PAYLOAD_TOO_LARGE, "the object is too large");
const BUSY: Refusal = (
    StatusCode::SERVICE_UNAVAILABLE,
    "too many large objects are written at once; try again",
);

/// Why a request gets no answer.
pub(super) type Refusal = (StatusCode, &'static str);

/// A request as text, and its part of the memory until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) review: Bytes,
    _memory: OwnedSemaphorePermit,
}

/// The memory for requests.
#[derive(Clone, Debug)]
pub(super) struct Room {
    texts: Arc<Semaphore>,
    trees: Arc<Semaphore>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            texts: Arc::new(Semaphore::new(TEXTS)),
            trees: Arc::new(Semaphore::new(TREES)),
        }
    }

    /// Reads a request of at most `largest` bytes once there is room for it.
    ///
    /// # Errors
    /// It does not say its length, is too large, or there is no room in time.
    pub(super) async fn read(&self, largest: u64, headers: &HeaderMap, body: Body) -> Result<Held, Refusal> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let Some(bytes) = length.and_then(|length| length.parse::<u64>().ok()) else {
            return Err((StatusCode::LENGTH_REQUIRED, "the request does not say its length"));
        };
        if bytes > largest {
            return Err(TOO_LARGE);
        }
        let until = Instant::now() + PATIENCE;
        let memory = take(&self.texts, bytes.saturating_mul(COPIES), until).await?;
        let read = axum::body::to_bytes(body, usize::try_from(bytes).unwrap_or(usize::MAX));
        match timeout_at(until, read).await {
            Ok(Ok(review)) => Ok(Held {
                review,
                _memory: memory,
            }),
            _ => Err((StatusCode::BAD_REQUEST, "the request ended early")),
        }
    }

    /// Waits for the memory of a tree of so many bytes.
    ///
    /// # Errors
    /// It is too large, or there is no room in time.
    pub(super) async fn for_tree(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Refusal> {
        if bytes > LARGEST_TREE {
            return Err(TOO_LARGE);
        }
        take(&self.trees, bytes, Instant::now() + PATIENCE).await
    }
}

async fn take(memory: &Arc<Semaphore>, bytes: u64, until: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
    let kibibytes = u32::try_from(bytes.div_ceil(1024)).map_err(|_| TOO_LARGE)?;
    let taken = timeout_at(until, Arc::clone(memory).acquire_many_owned(kibibytes)).await;
    taken.ok().and_then(Result::ok).ok_or(BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;
    const LARGEST: u64 = 8 * MEBIBYTE;

    async fn read(room: &Room, bytes: u64) -> Result<Held, StatusCode> {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, bytes.into())]);
        let body = Body::from(vec![b'x'; usize::try_from(bytes).unwrap()]);
        room.read(LARGEST, &headers, body).await.map_err(|(code, _)| code)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_memory_and_are_refused_when_there_is_none() {
        let room = Room::new();
        let held = [
            read(&room, LARGEST).await.unwrap(),
            read(&room, 4 * MEBIBYTE).await.unwrap(),
        ];
        assert_eq!(held[0].review.len() as u64, LARGEST);
        let small = read(&room, 8 << 10).await.unwrap();
        assert_eq!(read(&room, LARGEST).await.unwrap_err(), StatusCode::SERVICE_UNAVAILABLE);
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { read(&room, LARGEST).await.map(|held| held.review.len()) }
        });
        tokio::task::yield_now().await;
        drop((held, small));
        assert_eq!(waiting.await.unwrap(), Ok(8 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn trees_wait_for_each_other_and_never_for_texts() {
        let room = Room::new();
        let _texts = [read(&room, LARGEST).await.unwrap(), read(&room, LARGEST).await.unwrap()];
        assert!(read(&room, 1).await.is_err(), "no text has room");
        let code = async |bytes| room.for_tree(bytes).await.map_err(|(code, _)| code);
        let trees = [code(LARGEST_TREE).await.unwrap(), code(LARGEST_TREE).await.unwrap()];
        assert_eq!(code(1).await.unwrap_err(), StatusCode::SERVICE_UNAVAILABLE);
        drop(trees);
        assert!(code(1).await.is_ok());
        for too_large in [LARGEST_TREE + 1, u64::MAX] {
            assert_eq!(code(too_large).await.unwrap_err(), StatusCode::PAYLOAD_TOO_LARGE);
        }
    }

    #[tokio::test]
    async fn requests_that_are_too_large_or_do_not_say_it_are_refused() {
        let room = Room::new();
        assert_eq!(
            read(&room, LARGEST + 1).await.unwrap_err(),
            StatusCode::PAYLOAD_TOO_LARGE
        );
        for lengths in [
            HeaderMap::new(),
            HeaderMap::from_iter([(CONTENT_LENGTH, "-1".parse().unwrap())]),
        ] {
            let refused = room.read(LARGEST, &lengths, Body::from("{}")).await.unwrap_err();
            assert_eq!(refused.0, StatusCode::LENGTH_REQUIRED);
        }
        let short = HeaderMap::from_iter([(CONTENT_LENGTH, 1_u64.into())]);
        let refused = room
            .read(LARGEST, &short, Body::from("more than it says"))
            .await
            .unwrap_err();
        assert_eq!(refused.0, StatusCode::BAD_REQUEST);
    }
}
