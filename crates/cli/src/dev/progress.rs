//! How the supervisor in the background reports its progress to `up` in the foreground.

use std::fs::{self, File, TryLockError};
use std::time::Duration;

use berth_local::Home;
use berth_process::write_atomic;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The progress of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase", content = "message")]
pub(crate) enum Progress {
    /// It does this now.
    Starting(String),
    /// Everything runs.
    Ready,
    /// It has given up, for this reason.
    Failed(String),
}

#[derive(Serialize, Deserialize)]
struct Report {
    pid: u32,
    progress: Progress,
}

impl Progress {
    /// Writes a report for `up` and `status`. If that fails, it is only logged.
    pub(crate) fn write(&self, home: &Home) {
        let report = Report {
            pid: std::process::id(),
            progress: self.clone(),
        };
        if let Ok(text) = serde_json::to_vec(&report)
            && let Err(error) = write_atomic(&home.root().join("progress.json"), &text, 0o600)
        {
            tracing::warn!(%error, "cannot report progress");
        }
    }

    /// The last report of the supervisor with this process id.
    pub(crate) fn read(home: &Home, supervisor: u32) -> Option<Self> {
        let report: Report = serde_json::from_slice(&fs::read(home.root().join("progress.json")).ok()?).ok()?;
        (report.pid == supervisor).then_some(report.progress)
    }
}

/// Makes the calling process the only supervisor of a home. The kernel releases the lock however the process ends.
#[derive(Debug)]
pub(crate) struct SupervisorLock {
    _lock: File,
}

impl SupervisorLock {
    /// Waits a moment for processes that only check whether the lock is held.
    ///
    /// # Errors
    /// Another supervisor holds it.
    pub(crate) async fn acquire(home: &Home) -> Result<Self, Error> {
        let path = home.root().join("supervisor.pid");
        let lock = open(home)?;
        let mut attempts = 0;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                // A process that only checks holds the lock, too, for a moment.
                Err(TryLockError::WouldBlock) if attempts < 10 => {
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(TryLockError::WouldBlock) => return Err(Error::AlreadySupervised(home.root().to_owned())),
                Err(TryLockError::Error(source)) => {
                    return Err(Error::File {
                        action: "lock",
                        path,
                        source,
                    });
                }
            }
        }
        // Written in place: the lock is on this file, not on its name.
        fs::write(&path, std::process::id().to_string()).map_err(|source| Error::File {
            action: "write",
            path,
            source,
        })?;
        Ok(Self { _lock: lock })
    }

    /// The process id of the supervisor; none when there is no supervisor.
    pub(crate) fn holder(home: &Home) -> Option<u32> {
        if !home.exists() {
            return None;
        }
        match open(home).ok()?.try_lock() {
            Err(TryLockError::WouldBlock) => fs::read_to_string(home.root().join("supervisor.pid"))
                .ok()?
                .trim()
                .parse()
                .ok(),
            _ => None,
        }
    }
}

fn open(home: &Home) -> Result<File, Error> {
    let path = home.root().join("supervisor.pid");
    let open = File::options().create(true).append(true).open(&path);
    open.map_err(|source| Error::File {
        action: "open",
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_one_supervisor_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        assert_eq!(SupervisorLock::holder(&home), None);
        let lock = SupervisorLock::acquire(&home).await.unwrap();
        assert_eq!(SupervisorLock::holder(&home), Some(std::process::id()));
        assert!(matches!(
            SupervisorLock::acquire(&home).await,
            Err(Error::AlreadySupervised(_))
        ));
        drop(lock);
        assert_eq!(SupervisorLock::holder(&home), None);
    }

    #[test]
    fn reports_of_an_earlier_supervisor_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        Progress::Ready.write(&home);
        assert_eq!(Progress::read(&home, std::process::id()), Some(Progress::Ready));
        assert_eq!(Progress::read(&home, 0), None);
    }
}
