//! Ends a process that may no longer lead, whatever its runtimes do.
//!
//! The fence is a thread that makes no request, runs no task and writes no log: each of these may hang, and a process that hangs must not go on
//! writing when another one leads.

use super::{Times, heartbeat::Heartbeat, renewals::Renewals};
use std::{
    fmt, io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// Name of the thread.
const THREAD: &str = "fence";

/// Why a process may no longer lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Another process has the lease, or nobody has.
    Lost,
    /// The lease was not renewed for this time.
    Overdue(Duration),
    /// The runtime of the work has run no task for this time.
    StandsStill(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => write!(text, "another replica has the lease, or nobody has"),
            Self::Overdue(time) => write!(text, "the lease was not renewed for {} s", time.as_secs()),
            Self::StandsStill(time) => write!(text, "it has run no task for {} s", time.as_secs()),
        }
    }
}

/// What the fence looks at.
struct Watched {
    renewals: Renewals,
    heartbeat: Heartbeat,
    times: Times,
}

impl Watched {
    /// Why the process may no longer lead, if that is so.
    fn cause(&self) -> Option<Cause> {
        let Times {
            renewed_within,
            stands_still,
            ..
        } = self.times;
        if self.renewals.age() >= renewed_within {
            Some(Cause::Overdue(renewed_within))
        } else if self.heartbeat.age() >= stands_still {
            Some(Cause::StandsStill(stands_still))
        } else {
            None
        }
    }

    /// Waits until the process may no longer lead, reports that, and ends the process a little later. Does nothing more once the fence is dropped.
    #[expect(
        clippy::disallowed_methods,
        reason = "no runtime is used here, as one may hang, and nothing can stop the end of the process"
    )]
    fn guard(&self, lost: &Receiver<()>, report: oneshot::Sender<Cause>, end_process: fn()) {
        let cause = loop {
            match lost.recv_timeout(self.times.check) {
                Ok(()) => break Cause::Lost,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(cause) = self.cause() {
                        break cause;
                    }
                }
            }
        };
        // Nobody waits for it if the fence is being dropped.
        let _ = report.send(cause);
        thread::sleep(self.times.orderly_end);
        end_process();
    }
}

/// A fence around a leader. Dropped before the process may no longer lead, it is gone; after that it ends the process in any case.
#[derive(Debug)]
pub(super) struct Fence {
    lost: Sender<()>,
    report: oneshot::Receiver<Cause>,
}

impl Fence {
    /// Raises the fence of a process that has just become the leader.
    ///
    /// # Errors
    /// The operating system provides no thread.
    pub(super) fn raise(renewals: Renewals, heartbeat: Heartbeat, times: Times, end_process: fn()) -> io::Result<Self> {
        // A process that was stopped while it waited did not stand still as the leader.
        heartbeat.note();
        let (lost, is_lost) = mpsc::channel();
        let (reporter, report) = oneshot::channel();
        let watched = Watched {
            renewals,
            heartbeat,
            times,
        };
        thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || watched.guard(&is_lost, reporter, end_process))?;
        Ok(Self { lost, report })
    }

    /// Closes the fence: the lease is lost.
    pub(super) fn close(&self) {
        // Without a receiver it is closed already.
        let _ = self.lost.send(());
    }

    /// Returns once it is closed.
    pub(super) async fn closed(&mut self) -> Cause {
        (&mut self.report).await.unwrap_or(Cause::Lost)
    }
}
