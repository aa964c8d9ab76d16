//! Why the artifacts of a release could not be written.

use std::path::PathBuf;

/// What can go wrong. Messages say what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as an infinitive ("read").
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// An image could not be made.
    #[error(transparent)]
    Image(#[from] berth_local::Error),
    /// helm is missing.
    #[error(transparent)]
    Binary(#[from] berth_process::binaries::NotFound),
    /// A program does not fit.
    #[error("{}: {reason}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The chart cannot be packaged.
    #[error("chart: {0}")]
    Chart(String),
    /// A command failed.
    #[error("`{command}` failed: {reason}")]
    Command {
        /// Its name and first arguments.
        command: String,
        /// What it printed.
        reason: String,
    },
    /// The bill of materials cannot be made of what cargo says.
    #[error("bill of materials: {0}")]
    BillOfMaterials(String),
    /// The key cannot sign.
    #[error(
        "{}: {reason}; make a key with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE`",
        path.display()
    )]
    Key {
        /// The file with the key.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// An error about a file, for `map_err`.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl Fn(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path: path.clone(),
            source,
        }
    }
}
