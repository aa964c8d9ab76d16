//! Graceful shutdown.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT. A second signal ends the process at
/// once, so that a hanging shutdown can be aborted.
///
/// # Errors
/// The operating system rejects signal handlers.
pub fn signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn({
        let token = token.clone();
        async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            tracing::info!("shutting down");
            token.cancel();
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            #[expect(clippy::disallowed_methods, reason = "a second signal requests an immediate exit")]
            std::process::exit(130);
        }
    });
    Ok(token)
}
