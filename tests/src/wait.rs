//! Waits for conditions, with a time limit and a message that names the condition.

use std::{fmt::Debug, time::Duration};
use tokio::time::{Instant, sleep};

/// Time for what should take seconds. It only ends what hangs: any process may stand still for a while on a busy machine.
pub const SOON: Duration = Duration::from_secs(180);

/// Calls `probe` again and again until it returns a value; panics after `limit` with its last error.
///
/// `what` completes the sentence "timed out waiting until …".
pub async fn until<T, E: Debug, F>(what: &str, limit: Duration, mut probe: F) -> T
where
    F: AsyncFnMut() -> Result<T, E>,
{
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(20);
    loop {
        let last = match probe().await {
            Ok(value) => return value,
            Err(error) => format!("{error:?}"),
        };
        assert!(
            Instant::now() < deadline,
            "timed out after {limit:?} waiting until {what}; last: {last}"
        );
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// [`until`] for a plain yes or no.
pub async fn until_true<F>(what: &str, limit: Duration, mut probe: F)
where
    F: AsyncFnMut() -> bool,
{
    until(what, limit, async || if probe().await { Ok(()) } else { Err("no") }).await;
}
