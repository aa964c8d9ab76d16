//! The record of a process on disk.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::{ProcessSpec, ProcessState, ProcessStatus};
use crate::{Error, procfs, write_atomic};

/// Identifies a process: ids are reused, ids with start times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
}

impl Identity {
    /// Whether that very process is alive and carries the marker of `record`.
    pub(crate) fn is_alive(&self, record: &Path) -> bool {
        procfs::read_stat(self.pid).is_some_and(|stat| !stat.zombie && stat.start_ticks == self.start_ticks)
            && procfs::read_marker(self.pid).is_some_and(|marker| marker == record)
    }
}

/// What is written to `<dir>/<name>.json`.
///
/// It is written without an identity before the process is started, so that a supervisor killed in between leaves a
/// record of the intended start, and again with the identity afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) spec: ProcessSpec,
    pub(crate) identity: Option<Identity>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) restarts: u32,
    pub(crate) last_exit: Option<String>,
}

impl Record {
    /// Where the record of a process lies.
    pub(crate) fn path(dir: &Path, name: &str) -> PathBuf {
        dir.join(format!("{name}.json"))
    }

    /// Stores the record. The specification may hold secrets (environment), so only the owner can read it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::File {
            action: "encode",
            path: path.to_owned(),
            source: error.into(),
        })?;
        write_atomic(path, &text, 0o600)
    }

    /// All readable records of a directory. Other files are skipped.
    pub(crate) fn read_all(dir: &Path) -> Vec<(PathBuf, Self)> {
        let Ok(entries) = fs::read_dir(dir) else {
            return Vec::new();
        };
        let mut records: Vec<(PathBuf, Self)> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .filter_map(|path| {
                let record: Self = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
                (Self::path(dir, &record.spec.name) == path).then_some((path, record))
            })
            .collect();
        records.sort_by(|(left, _), (right, _)| left.cmp(right));
        records
    }

    /// The public view of a record whose process is in `state`.
    pub(crate) fn status(&self, state: ProcessState) -> ProcessStatus {
        ProcessStatus {
            name: self.spec.name.clone(),
            state,
            pid: self
                .identity
                .filter(|_| state == ProcessState::Running)
                .map(|identity| identity.pid),
            restarts: self.restarts,
            started_at: self.started_at,
            last_exit: self.last_exit.clone(),
            log_file: self.spec.log_file.clone(),
            revision: self.spec.revision.clone(),
        }
    }
}

/// The processes of a supervisor's directory as its records and `/proc` show them.
///
/// Sorted by name. Works while a supervisor runs and after one has died; a directory that is not there has no processes.
pub fn statuses(dir: &Path) -> Vec<ProcessStatus> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    Record::read_all(&dir)
        .into_iter()
        .map(|(path, record)| {
            let alive = record.identity.is_some_and(|identity| identity.is_alive(&path));
            record.status(if alive {
                ProcessState::Running
            } else {
                ProcessState::Restarting
            })
        })
        .collect()
}
