//! Bounds the memory that requests for admission take: the tenant can make as many of them as it likes, each of some megabytes, and the
//! syncer's memory is limited.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header::CONTENT_LENGTH},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory in KiB for the requests that are held at a time: an eighth of what a syncer has by default.
const TOTAL: u32 = 64 << 10;
/// Longest time that a request waits for room. The API server gives up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// What a path accepts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Largest request in bytes.
    pub(super) largest: u64,
    /// Memory that a request takes at most while it is read, as a multiple of its bytes.
    pub(super) times: u64,
}

impl Size {
    /// KiB for a request of so many bytes. One that takes more than there is waits until it is alone.
    fn memory(self, bytes: u64) -> u32 {
        let kibibytes = bytes.saturating_mul(self.times).div_ceil(1024);
        u32::try_from(kibibytes).map_or(TOTAL, |kibibytes| kibibytes.min(TOTAL))
    }
}

/// A request as text, and its part of the memory until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) review: Bytes,
    _memory: OwnedSemaphorePermit,
}

/// The memory for requests.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL as usize)))
    }

    /// Reads a request once there is room for it.
    ///
    /// # Errors
    /// It does not say its length, is too large, or there is no room in time.
    pub(super) async fn read(
        &self,
        size: Size,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Held, (StatusCode, &'static str)> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let Some(bytes) = length.and_then(|length| length.parse::<u64>().ok()) else {
            return Err((StatusCode::LENGTH_REQUIRED, "the request does not say its length"));
        };
        if bytes > size.largest {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the object is too large"));
        }
        let room = Arc::clone(&self.0).acquire_many_owned(size.memory(bytes));
        let busy = (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many large objects are written at once; try again",
        );
        let memory = tokio::time::timeout(PATIENCE, room).await.ok().and_then(Result::ok);
        let memory = memory.ok_or(busy)?;
        let read = axum::body::to_bytes(body, usize::try_from(bytes).unwrap_or(usize::MAX));
        match tokio::time::timeout(PATIENCE, read).await {
            Ok(Ok(review)) => Ok(Held {
                review,
                _memory: memory,
            }),
            _ => Err((StatusCode::BAD_REQUEST, "the request ended early")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;
    const SIZE: Size = Size {
        largest: 4 * MEBIBYTE,
        times: 16,
    };

    async fn read(room: &Room, bytes: u64) -> Result<Held, StatusCode> {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, bytes.into())]);
        let body = Body::from(vec![b'x'; usize::try_from(bytes).unwrap()]);
        room.read(SIZE, &headers, body).await.map_err(|(code, _)| code)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_memory_and_are_refused_when_there_is_none() {
        let room = Room::new();
        let held = [
            read(&room, 2 * MEBIBYTE).await.unwrap(),
            read(&room, MEBIBYTE).await.unwrap(),
        ];
        assert_eq!(held[0].review.len() as u64, 2 * MEBIBYTE);
        let small = read(&room, 8 << 10).await.unwrap();
        assert_eq!(
            read(&room, 2 * MEBIBYTE).await.unwrap_err(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { read(&room, SIZE.largest).await.map(|held| held.review.len()) }
        });
        tokio::task::yield_now().await;
        drop((held, small));
        assert_eq!(waiting.await.unwrap(), Ok(4 << 20), "it takes all there is");
    }

    #[tokio::test]
    async fn requests_that_are_too_large_or_do_not_say_it_are_refused() {
        let room = Room::new();
        assert_eq!(
            read(&room, SIZE.largest + 1).await.unwrap_err(),
            StatusCode::PAYLOAD_TOO_LARGE
        );
        for lengths in [
            HeaderMap::new(),
            HeaderMap::from_iter([(CONTENT_LENGTH, "-1".parse().unwrap())]),
        ] {
            let refused = room.read(SIZE, &lengths, Body::from("{}")).await.unwrap_err();
            assert_eq!(refused.0, StatusCode::LENGTH_REQUIRED);
        }
        let short = HeaderMap::from_iter([(CONTENT_LENGTH, 1_u64.into())]);
        let refused = room
            .read(SIZE, &short, Body::from("more than it says"))
            .await
            .unwrap_err();
        assert_eq!(refused.0, StatusCode::BAD_REQUEST);
        assert_eq!(SIZE.memory(u64::MAX), TOTAL);
    }
}
