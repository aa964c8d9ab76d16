//! A running process, whether started or adopted.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::record::Identity;
use crate::spec::StopSignal;
use crate::{Error, procfs};

/// A process file descriptor: it stays with its process even when the id is given to another.
#[derive(Debug)]
pub(crate) struct Handle {
    pid: u32,
    /// None when the process had ended before it could be opened.
    pidfd: Option<AsyncFd<OwnedFd>>,
}

impl Handle {
    /// Opens the process; one that has ended in the meantime gives a handle whose end is known already.
    pub(crate) fn open(identity: Identity) -> Result<Self, Error> {
        let Identity { pid, start_ticks } = identity;
        let failed = |source| Error::Process {
            action: "watch",
            pid,
            source,
        };
        let ended = Self { pid, pidfd: None };
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(ended);
        };
        let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(ended),
            Err(error) => return Err(failed(error.into())),
        };
        // Only now it is certain which process the descriptor is of.
        if procfs::read_stat(pid).is_none_or(|stat| stat.start_ticks != start_ticks) {
            return Ok(ended);
        }
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for types that change their descriptor; OwnedFd keeps its own until it is dropped"
        )]
        let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE).map_err(failed)?;
        Ok(Self {
            pid,
            pidfd: Some(pidfd),
        })
    }

    /// Waits for the end of the process and returns its cause.
    ///
    /// May be dropped and called again; the answer is lost with a call that was dropped after it had returned.
    pub(crate) async fn wait_for_end(&self) -> String {
        let Some(pidfd) = &self.pidfd else {
            return "ended before it was watched".to_owned();
        };
        // The descriptor becomes readable when the process has ended, and for no other reason.
        if let Err(error) = pidfd.readable().await {
            tracing::warn!(pid = self.pid, %error, "cannot wait for a process");
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(pidfd.get_ref().as_fd()), options) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
            // Only the parent learns the exit code, and an adopted process is the child of another.
            _ => "ended".to_owned(),
        }
    }

    /// Asks the process to end.
    pub(crate) fn request_end(&self, signal: StopSignal) -> Result<(), Error> {
        self.send_signal(match signal {
            StopSignal::Terminate => Signal::TERM,
            StopSignal::Interrupt => Signal::INT,
        })
    }

    /// Kills the process.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        self.send_signal(Signal::KILL)
    }

    fn send_signal(&self, signal: Signal) -> Result<(), Error> {
        let Some(pidfd) = &self.pidfd else { return Ok(()) };
        match pidfd_send_signal(pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::Process {
                action: "signal",
                pid: self.pid,
                source: io::Error::from(error),
            }),
        }
    }
}
