//! The error type of supervision and files.

use std::io;
use std::path::{Path, PathBuf};

/// Why a process could not be supervised, or a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process name cannot be a file name.
    #[error(
        "process name {0:?} must be 1 to 200 characters out of a-z, 0-9, '-', '_' and '.', and begin with a letter or digit"
    )]
    Name(String),
    /// Another supervisor owns the directory.
    #[error("{} is in use by another supervisor", .0.display())]
    Locked(PathBuf),
    /// An operation on a file failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as an infinitive ("write").
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A running process could not be observed or signalled.
    #[error("cannot {action} process {pid}: {source}")]
    Process {
        /// What was tried, as an infinitive ("watch").
        action: &'static str,
        /// The process.
        pid: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// Processes did not end although they were killed.
    #[error("processes {0:?} are still there after SIGKILL")]
    Unkillable(Vec<u32>),
    /// No free TCP port was found.
    #[error("no free TCP port on 127.0.0.1 between {0} and {1}")]
    NoPort(u16, u16),
    /// The supervisor has been shut down.
    #[error("the supervisor has been shut down")]
    Closed,
}

impl Error {
    /// For `map_err`: names the file and what was tried with it.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }
}
