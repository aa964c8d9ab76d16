//! Ends processes that carry a marker, whichever program started them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::{Error, procfs};

/// How long a killed process may take to disappear: the kernel frees its memory first.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends every process whose marker lies under `dir`, and those that such processes start meanwhile.
///
/// They get SIGTERM and up to `grace` to end (zero: they are killed at once), then SIGKILL. The calling process is
/// spared. Returns how many there were. Blocks: call it from `spawn_blocking` in asynchronous code.
///
/// # Errors
/// [`Error::Unkillable`] when a process does not even react to SIGKILL, [`Error::Process`] when one may not be signalled.
pub fn reap_marked(dir: &Path, grace: Duration) -> Result<usize, Error> {
    let dir = dir
        .canonicalize()
        .or_else(|_| std::path::absolute(dir))
        .unwrap_or_else(|_| dir.to_owned());
    let under_dir = |_: u32, record: &Path| record.starts_with(&dir);
    let mut count = 0;
    if !grace.is_zero() {
        let terminated = signal_all(&under_dir, Signal::TERM)?;
        count = terminated.len();
        wait_for_all(&terminated, grace);
    }
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        // Again and again, since a supervisor among them may have started another process before it was killed.
        let killed = signal_all(&under_dir, Signal::KILL)?;
        if killed.is_empty() {
            return Ok(count);
        }
        count = count.max(killed.len());
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Unkillable(killed.into_iter().map(|(pid, _)| pid).collect()));
        }
        wait_for_all(&killed, left);
    }
}

/// Kills every marked process that `wanted` (given its id and the path of its record) selects, and waits until all are gone.
pub(crate) fn kill_processes(wanted: impl Fn(u32, &Path) -> bool) -> Result<(), Error> {
    let killed = signal_all(&wanted, Signal::KILL)?;
    wait_for_all(&killed, KILL_TIMEOUT);
    Ok(())
}

/// Signals all matching live processes and returns handles to wait for them.
fn signal_all(wanted: &impl Fn(u32, &Path) -> bool, signal: Signal) -> Result<Vec<(u32, OwnedFd)>, Error> {
    let mut signalled = Vec::new();
    for (pid, record) in procfs::find_marked() {
        if !wanted(pid, &record) {
            continue;
        }
        let Some(pidfd) = open_process(pid)? else { continue };
        // The id may have been given to another process between the scan and the open: look again.
        if !procfs::read_marker(pid).is_some_and(|record| wanted(pid, &record)) {
            continue;
        }
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => signalled.push((pid, pidfd)),
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                return Err(Error::Process {
                    action: "signal",
                    pid,
                    source: error.into(),
                });
            }
        }
    }
    Ok(signalled)
}

/// A handle of a process; none when it has ended.
fn open_process(pid: u32) -> Result<Option<OwnedFd>, Error> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(Error::Process {
            action: "watch",
            pid,
            source: io::Error::from(error),
        }),
    }
}

/// Waits until all have ended, at most `limit`.
fn wait_for_all(processes: &[(u32, OwnedFd)], limit: Duration) {
    let deadline = Instant::now() + limit;
    for (_, pidfd) in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // A process handle becomes readable when its process ends. An interrupted wait is made up for by the caller's rescan.
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
        // Own children would stay as zombies.
        let _ = waitid(
            WaitId::PidFd(pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        );
    }
}
