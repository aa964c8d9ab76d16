//! Why a step fails.

use std::path::PathBuf;

/// Why a node is not clean, or could not be cleaned.
#[derive(Debug, thiserror::Error)]
pub enum Unclean {
    /// Something of a tenant is left.
    #[error("{0}")]
    Left(String),
    /// GPUs are in use, by these processes.
    #[error("{0}")]
    InUse(String),
    /// A file could not be read, written or removed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A program of the node failed, or is not there.
    #[error("{0}")]
    Program(String),
    /// There is no such step.
    #[error("there is no step {0:?}")]
    UnknownStep(String),
}
