//! Bounds the memory that requests for admission take: the tenant can make as many of them as it likes, each of some megabytes, and the
//! syncer's memory is limited. What finds no room in time is denied so that clients of Kubernetes repeat it.
//!
//! Texts and trees have memory of their own. A request that holds its text and waits for a tree never keeps another from getting that far,
//! and what holds a tree waits for nothing here.

use axum::{
    Json,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header::CONTENT_LENGTH},
    response::{IntoResponse, Response},
};
use berth_sync_rules::admission::review::{Denial, Verdict, find_uid};
use futures::StreamExt;
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

/// Longest time that the rest of a request is read for which there is no room.
const SKIM: Duration = Duration::from_secs(2);
/// Beginning of a request in which it says which it is.
const BEGINNING: usize = 1 << 10;
/// Seconds after which a request may find room.
const RETRY_AFTER: u64 = 2;

/// Why a request is not decided.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It gets no answer.
    Http(StatusCode, &'static str),
    /// The request with this UID is denied: the tenant gets the reason.
    Denied(String, Denial),
}

impl Refusal {
    /// It is no request that can be answered.
    pub(super) fn unreadable(why: &'static str) -> Self {
        Self::Http(StatusCode::BAD_REQUEST, why)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Http(code, why) => (code, why).into_response(),
            Self::Denied(uid, denial) => Json(Verdict::Deny(denial).answer(&uid)).into_response(),
        }
    }
}

fn busy() -> Denial {
    let message = format!("too many large objects are written at once: try again in {RETRY_AFTER} s");
    Denial::too_many(message, RETRY_AFTER)
}

fn too_large() -> Denial {
    Denial::too_large("the object is too large")
}

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
            return Err(Refusal::Http(
                StatusCode::LENGTH_REQUIRED,
                "the request does not say its length",
            ));
        };
        if bytes > largest {
            return Err(Refusal::Http(StatusCode::PAYLOAD_TOO_LARGE, "the object is too large"));
        }
        let until = Instant::now() + PATIENCE;
        let memory = match take(&self.texts, bytes.saturating_mul(COPIES), until).await {
            Ok(memory) => memory,
            Err(denial) => return Err(deny_unread(body, denial).await),
        };
        let read = axum::body::to_bytes(body, usize::try_from(bytes).unwrap_or(usize::MAX));
        match timeout_at(until, read).await {
            Ok(Ok(review)) => Ok(Held {
                review,
                _memory: memory,
            }),
            _ => Err(Refusal::unreadable("the request ended early")),
        }
    }

    /// Waits for the memory of a tree of so many bytes.
    ///
    /// # Errors
    /// It is too large, or there is no room in time.
    pub(super) async fn for_tree(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Denial> {
        if bytes > LARGEST_TREE {
            return Err(too_large());
        }
        take(&self.trees, bytes, Instant::now() + PATIENCE).await
    }
}

async fn take(memory: &Arc<Semaphore>, bytes: u64, until: Instant) -> Result<OwnedSemaphorePermit, Denial> {
    let kibibytes = u32::try_from(bytes.div_ceil(1024)).map_err(|_| too_large())?;
    let taken = timeout_at(until, Arc::clone(memory).acquire_many_owned(kibibytes)).await;
    taken.ok().and_then(Result::ok).ok_or_else(busy)
}

/// Denies a request for whose text there is no room. All of it is read, because an API server that is answered before does not listen, but only its
/// beginning is kept.
async fn deny_unread(body: Body, denial: Denial) -> Refusal {
    let until = Instant::now() + SKIM;
    let mut beginning = Vec::with_capacity(BEGINNING);
    let mut pieces = body.into_data_stream();
    while let Ok(Some(Ok(piece))) = timeout_at(until, pieces.next()).await {
        let kept = piece.len().min(BEGINNING - beginning.len());
        beginning.extend_from_slice(&piece[..kept]);
    }
    match find_uid(&beginning) {
        Some(uid) => Refusal::Denied(uid.to_owned(), denial),
        None => Refusal::Http(
            StatusCode::SERVICE_UNAVAILABLE,
            "there is no room for the request; try again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;
    const LARGEST: u64 = 8 * MEBIBYTE;

    /// A review of so many bytes, as an API server writes it.
    fn review(bytes: u64) -> Vec<u8> {
        let mut text =
            br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5","#.to_vec();
        text.resize(usize::try_from(bytes).unwrap(), b'x');
        text
    }

    /// Reads a request. An error is its HTTP status, or the code of its denial and the seconds after which it is repeated.
    async fn read(room: &Room, bytes: u64) -> Result<Held, (u16, Option<u64>)> {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, bytes.into())]);
        let read = room.read(LARGEST, &headers, Body::from(review(bytes))).await;
        read.map_err(|refusal| match refusal {
            Refusal::Http(code, _) => (code.as_u16(), None),
            Refusal::Denied(uid, denial) => {
                assert_eq!(uid, "705ab4f5");
                (denial.code, denial.retry_after)
            }
        })
    }

    const LATER: (u16, Option<u64>) = (429, Some(RETRY_AFTER));

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_memory_and_are_refused_when_there_is_none() {
        let room = Room::new();
        let held = [
            read(&room, LARGEST).await.unwrap(),
            read(&room, 4 * MEBIBYTE).await.unwrap(),
        ];
        assert_eq!(held[0].review.len() as u64, LARGEST);
        let small = read(&room, 8 << 10).await.unwrap();
        assert_eq!(read(&room, LARGEST).await.unwrap_err(), LATER);
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
        assert_eq!(
            read(&room, 1).await.unwrap_err(),
            (503, None),
            "no text has room, and this one does not say which it is"
        );
        let code = async |bytes| room.for_tree(bytes).await.map_err(|denial| denial.code);
        let trees = [code(LARGEST_TREE).await.unwrap(), code(LARGEST_TREE).await.unwrap()];
        assert_eq!(code(1).await.unwrap_err(), 429);
        drop(trees);
        assert!(code(1).await.is_ok());
        for too_large in [LARGEST_TREE + 1, u64::MAX] {
            assert_eq!(code(too_large).await.unwrap_err(), 413);
        }
    }

    #[tokio::test]
    async fn requests_that_are_too_large_or_do_not_say_it_are_refused() {
        let room = Room::new();
        assert_eq!(read(&room, LARGEST + 1).await.unwrap_err(), (413, None));
        let code = async |lengths: &HeaderMap, body| match room.read(LARGEST, lengths, body).await {
            Err(Refusal::Http(code, _)) => code,
            other => panic!("{other:?}"),
        };
        for lengths in [
            HeaderMap::new(),
            HeaderMap::from_iter([(CONTENT_LENGTH, "-1".parse().unwrap())]),
        ] {
            assert_eq!(code(&lengths, Body::from("{}")).await, StatusCode::LENGTH_REQUIRED);
        }
        let short = HeaderMap::from_iter([(CONTENT_LENGTH, 1_u64.into())]);
        let more = Body::from("more than it says");
        assert_eq!(code(&short, more).await, StatusCode::BAD_REQUEST);
    }
}
