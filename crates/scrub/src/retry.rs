//! Attempts that are repeated: the kubelet and the container runtime need a moment.

use crate::error::Unclean;
use std::time::{Duration, Instant};

/// How long a step waits for what the kubelet or the runtime still has to do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two attempts.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

#[expect(
    clippy::disallowed_methods,
    reason = "a program of one thread, which has nothing else to do"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Repeats an attempt until it succeeds or the timeout is over.
pub(crate) fn wait<T>(mut attempt: impl FnMut() -> Result<T, Unclean>) -> Result<T, Unclean> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => pause(PAUSE),
            outcome => return outcome,
        }
    }
}
