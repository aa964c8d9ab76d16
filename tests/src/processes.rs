//! Processes that a test starts; finds and kills supervised ones by their names, as a fault would hit them.

use berth_process::{ProcessState, ProcessStatus};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::process::{Child, Command};
use tokio_util::task::AbortOnDropHandle;

/// The supervised process whose name ends with `suffix`, from the records in `dir`.
pub fn find(dir: &Path, suffix: &str) -> Option<ProcessStatus> {
    berth_process::statuses(dir)
        .into_iter()
        .find(|status| status.name.ends_with(suffix))
}

/// Kills a process with SIGKILL, unless it has ended by itself and waits to be started again.
pub fn kill(status: &ProcessStatus) {
    if let Some(pid) = pid(status) {
        match kill_process(pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("cannot kill {}: {error}", status.name),
        }
    }
}

/// Sends a signal to a process; its id must be known.
pub fn signal(status: &ProcessStatus, signal: Signal) {
    kill_process(pid(status).expect("a process id"), signal).expect("a signal");
}

/// A supervised process that is stopped (SIGSTOP), and so is each one that its supervisor starts in its place because its settings change.
/// If this is dropped, as by a test that fails, the process stays as it is.
pub struct Stopped {
    dir: PathBuf,
    suffix: String,
    task: AbortOnDropHandle<()>,
}

impl Stopped {
    /// Stops the process whose name ends with `suffix`, from the records in `dir`.
    pub fn new(dir: &Path, suffix: &str) -> Self {
        let (dir, suffix) = (dir.to_owned(), suffix.to_owned());
        signal(&find(&dir, &suffix).expect("a process"), Signal::STOP);
        let (records, name) = (dir.clone(), suffix.clone());
        let stop_next = async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                // One that has ended is not there.
                if let Some(pid) = find(&records, &name).as_ref().and_then(pid) {
                    let _ = kill_process(pid, Signal::STOP);
                }
            }
        };
        let task = AbortOnDropHandle::new(tokio::spawn(stop_next));
        Self { dir, suffix, task }
    }

    /// Lets it go on.
    pub async fn resume(self) {
        self.task.abort();
        drop(self.task.await);
        if let Some(pid) = find(&self.dir, &self.suffix).as_ref().and_then(pid) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

fn pid(status: &ProcessStatus) -> Option<Pid> {
    status
        .pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
}

/// A program that ends with the thread that starts it, also by SIGKILL.
pub fn ending_with_parent(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts a program that reads nothing and writes all its output into a log. It ends with the returned value.
pub fn spawn_logged(command: &mut Command, log: File) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Waits until the process of that name runs again under another id than `before`.
pub async fn until_replaced(dir: &Path, before: &ProcessStatus) {
    crate::wait::until_true(
        &format!("{} runs again", before.name),
        Duration::from_secs(180),
        async || find(dir, &before.name).is_some_and(|now| now.state == ProcessState::Running && now.pid != before.pid),
    )
    .await;
}
