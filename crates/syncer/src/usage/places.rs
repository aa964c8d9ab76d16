//! How many long answers are made and sent at a time.
//!
//! To make one, each of its pods is unpacked, and the whole is in memory as a tree. That does not wait for any client, so those who ask for more than [`FEW`]
//! objects take turns. The text is in memory until the client has read it. A client decides how fast that is, and the tenant's API server passes that on, so
//! long texts have a limited room and a time to be read. Autoscalers, which ask for the pods of one workload, get short ones and need no room.

use super::Failure;
use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use berth_runtime::locks::lock;
use berth_sync_rules::model::json;
use futures::stream;
use serde_json::Value;
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// Of more objects than this, one answer is made at a time, and others have their turn in between.
pub(super) const FEW: usize = 100;
/// Longest time that one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// A text of more bytes is long. A hundred pods with a dozen labels have fewer.
const LONG: usize = 256 << 10;
/// Bytes that one permit stands for.
const UNIT: usize = 1 << 10;
/// Permits for all long texts that are in memory, 64 MiB. Metrics of 15,000 pods have some megabytes.
const ROOM: u32 = 64 << 10;
/// Time in which a client has to read a long text. API servers give up after the same time.
pub(super) const TIME_TO_READ: Duration = Duration::from_mins(1);
/// Bytes that are handed over at a time. What a client has not read is at most a few of these more than what has room.
const PART: usize = 64 << 10;

/// Turns and room for long answers.
#[derive(Debug)]
pub(super) struct Places {
    turns: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// The turn of one who makes a long answer. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _one: OwnedSemaphorePermit,
}

impl Default for Places {
    fn default() -> Self {
        let permits = usize::try_from(ROOM).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            turns: Arc::new(Semaphore::new(1)),
            room: Arc::new(Semaphore::new(permits)),
        }
    }
}

impl Places {
    /// The turn to make an answer for which so many objects are looked at; few need none.
    ///
    /// # Errors
    /// It does not come in time.
    pub(super) async fn turn_for(&self, objects: usize) -> Result<Option<Turn>, Failure> {
        if objects <= FEW {
            return Ok(None);
        }
        match timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(Some(Turn { _one: turn })),
            // Nobody closes the semaphore.
            Ok(Err(_)) | Err(_) => Err(Failure::Busy),
        }
    }

    /// The response with an answer. If its text is long, it has room until the last part is handed over or the time to read it is over.
    ///
    /// # Errors
    /// There is no room for the text, now or ever. It does not wait for room, because it would be in memory meanwhile.
    pub(super) fn send(&self, whole: Value, turn: Option<Turn>) -> Result<Response, Failure> {
        let text = json::to_text(&whole);
        drop((whole, turn));
        let body = if text.len() <= LONG {
            Body::from(text)
        } else {
            self.long_body(text)?
        };
        Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
    }

    fn long_body(&self, text: String) -> Result<Body, Failure> {
        let permits = u32::try_from(text.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        if permits > ROOM {
            return Err(Failure::TooLong);
        }
        let room = Arc::clone(&self.room).try_acquire_many_owned(permits);
        let unsent = Arc::new(Mutex::new(Some(Unsent {
            text,
            from: 0,
            _room: room.map_err(|_| Failure::Busy)?,
        })));
        let late = Arc::downgrade(&unsent);
        // Nobody asks for the next part while a client does not read.
        let timer = tokio::spawn(async move {
            sleep(TIME_TO_READ).await;
            if let Some(unsent) = late.upgrade() {
                *lock(&unsent) = None;
            }
        });
        let parts = stream::unfold((unsent, AbortOnDropHandle::new(timer)), |state| async move {
            let part = match &mut *lock(&state.0) {
                Some(unsent) => unsent.next_part().map(Ok),
                None => Some(Err(io::Error::other("the client has not read the metrics in time"))),
            };
            part.map(|part| (part, state))
        });
        Ok(Body::from_stream(parts))
    }
}

/// A text that is not handed over yet, and its room.
struct Unsent {
    text: String,
    /// Bytes that are handed over.
    from: usize,
    _room: OwnedSemaphorePermit,
}

impl Unsent {
    /// The next part; `None` at the end. It is a copy: a client that does not read the last part keeps no more than that in memory.
    fn next_part(&mut self) -> Option<Bytes> {
        let rest = self.text.as_bytes().get(self.from..)?;
        let part = Bytes::copy_from_slice(rest.get(..PART).unwrap_or(rest));
        self.from += part.len();
        (!part.is_empty()).then_some(part)
    }
}
