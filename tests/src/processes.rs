//! Finding and killing processes of a test by what they are, as a fault would hit them.

use berth_process::{ProcessState, ProcessStatus};
use rustix::process::{Pid, Signal, kill_process};
use std::{path::Path, time::Duration};

/// The supervised process whose name ends with `suffix`, from the records in `dir`.
pub fn find(dir: &Path, suffix: &str) -> Option<ProcessStatus> {
    berth_process::statuses(dir)
        .into_iter()
        .find(|status| status.name.ends_with(suffix))
}

/// Kills a process with SIGKILL; its id must be known.
pub fn kill(status: &ProcessStatus) {
    signal(status, Signal::KILL);
}

/// Sends a signal to a process; its id must be known.
pub fn signal(status: &ProcessStatus, signal: Signal) {
    let pid = status
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
        .expect("a process id");
    kill_process(pid, signal).expect("a signal");
}

/// Waits until the process of that name runs again under another id than `before`.
pub async fn until_replaced(dir: &Path, before: &ProcessStatus) {
    crate::wait::until_true(
        &format!("{} runs again", before.name),
        Duration::from_secs(60),
        async || find(dir, &before.name).is_some_and(|now| now.state == ProcessState::Running && now.pid != before.pid),
    )
    .await;
}
