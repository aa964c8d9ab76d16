//! How many long answers are made and sent at a time.
//!
//! To make one, each of its pods is unpacked, and the whole is in memory as a tree and as text. A client decides how fast it reads the text, and the tenant's
//! API server passes that on: until it has read all, the text stays in memory. Short answers are made and sent without a place, so autoscalers, which ask for
//! the pods of one workload, wait for nobody.

use super::Failure;
use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use berth_sync_rules::model::json;
use futures::stream;
use serde_json::Value;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// An answer of more objects than this is long.
pub(super) const LONG: usize = 100;
/// Long answers that are in memory at the same time. One of 15,000 pods has some megabytes.
pub(super) const SENT_AT_A_TIME: usize = 4;
/// Longest time that one waits for a place.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are handed over at a time. What the client has not read is at most this much more than what has a place.
const PART: usize = 64 << 10;

/// The places that are free.
#[derive(Debug)]
pub(super) struct Places {
    sent: Arc<Semaphore>,
    /// Of those that have a place, one is made at a time.
    made: Arc<Semaphore>,
}

/// The place of one long answer. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    sent: OwnedSemaphorePermit,
    made: OwnedSemaphorePermit,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            sent: Arc::new(Semaphore::new(SENT_AT_A_TIME)),
            made: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Places {
    /// A place for an answer of so many objects, if it is long.
    ///
    /// # Errors
    /// None is left in time.
    pub(super) async fn take_for(&self, objects: usize) -> Result<Option<Place>, Failure> {
        if objects <= LONG {
            return Ok(None);
        }
        let taking = async {
            let sent = Arc::clone(&self.sent).acquire_owned().await;
            let made = Arc::clone(&self.made).acquire_owned().await;
            // Nobody closes the semaphores.
            sent.ok().zip(made.ok())
        };
        let taken = timeout(PATIENCE, taking).await.ok().flatten();
        let (sent, made) = taken.ok_or(Failure::Busy)?;
        Ok(Some(Place { sent, made }))
    }
}

impl Place {
    /// The response with a long answer. It keeps its place until the last part of the text is sent.
    pub(super) fn send(self, whole: Value) -> Response {
        let Self { sent, made } = self;
        let text = Bytes::from(json::to_text(&whole));
        drop((whole, made));
        let parts = stream::unfold((text, sent), |(mut rest, sent)| async move {
            let part = rest.split_to(rest.len().min(PART));
            (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, sent)))
        });
        ([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response()
    }
}
