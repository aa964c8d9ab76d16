//! The signals that end `berth connect`, so that it removes what it made before it ends.

use std::io::{self, IsTerminal as _};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::error::Error;

/// Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP. From its creation on none of them ends this process by itself.
pub(super) struct Signals {
    interrupt: Stream,
    quit: Stream,
    terminate: Stream,
    hangup: Stream,
}

impl Signals {
    /// # Errors
    /// The operating system does not allow it.
    pub(super) fn listen() -> Result<Self, Error> {
        let listen = |kind: SignalKind| {
            signal(kind).map_err(|error| Error::Failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

/// Passes a signal on to a command that runs, unless it has it already: a terminal sends Ctrl-C and Ctrl-\\ to all processes in the
/// foreground.
pub(super) fn pass_on(signal: Signal, child: &Child) {
    let is_of_keyboard = signal == Signal::INT || signal == Signal::QUIT;
    let has_terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    if is_of_keyboard && has_terminal {
        return;
    }
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    if let Some(pid) = pid {
        // It may have ended at this moment.
        let _ = kill_process(pid, signal);
    }
}
