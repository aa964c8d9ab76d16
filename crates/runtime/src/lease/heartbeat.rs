//! Whether a runtime still runs its tasks.

use crate::locks::lock;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio_util::task::AbortOnDropHandle;

/// When a runtime last ran a task. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat(Arc<Mutex<Instant>>);

impl Heartbeat {
    /// That of the runtime that calls this: a task notes the time, again after each `pause`, until the handle is dropped.
    pub(super) fn start(pause: Duration) -> (Self, AbortOnDropHandle<()>) {
        let heartbeat = Self(Arc::new(Mutex::new(Instant::now())));
        let noted = heartbeat.clone();
        let task = tokio::spawn(async move {
            loop {
                noted.note();
                tokio::time::sleep(pause).await;
            }
        });
        (heartbeat, AbortOnDropHandle::new(task))
    }

    /// Notes the time.
    pub(super) fn note(&self) {
        *lock(&self.0) = Instant::now();
    }

    /// Time since a task ran.
    pub(super) fn age(&self) -> Duration {
        lock(&self.0).elapsed()
    }
}
