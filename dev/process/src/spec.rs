//! The specification and the status of a process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The signal that asks a process to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopSignal {
    /// SIGTERM.
    #[default]
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// The specification of a supervised process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Unique in its supervisor; also the name of its record. Lower-case letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Absolute path of the executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside `PATH`, `HOME`, `TMPDIR` and the marker. Nothing else is inherited.
    pub env: BTreeMap<String, String>,
    /// Where stdout and stderr are appended to.
    pub log_file: PathBuf,
    /// Any text that changes when the files which the process reads at its start change: the process is then replaced.
    pub revision: String,
    /// The signal that asks it to end.
    pub stop_signal: StopSignal,
    /// How long it may take to end before it is killed.
    pub stop_grace: Duration,
    /// Whether its children outlive it when it crashes and is started again, as shims outlive a container runtime. When it is
    /// stopped for good they end with it in any case.
    #[serde(default)]
    pub spares_children: bool,
}

impl ProcessSpec {
    /// A process without arguments or environment that gets SIGTERM and ten seconds to end.
    ///
    /// `name` is unique in the supervisor, `program` an absolute path, `log_file` takes its output.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log_file: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            log_file: log_file.into(),
            revision: String::new(),
            stop_signal: StopSignal::default(),
            stop_grace: Duration::from_secs(10),
            spares_children: false,
        }
    }

    /// Refuses names that are not plain file names.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        let starts_well = self
            .name
            .starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if starts_well && self.name.len() <= 200 && self.name.chars().all(plain) {
            Ok(())
        } else {
            Err(Error::Name(self.name.clone()))
        }
    }

    /// Whether a process that runs as `self` satisfies `wanted` already.
    pub(crate) fn same_process(&self, wanted: &Self) -> bool {
        // How a process is stopped may change without replacing it.
        let Self {
            name,
            program,
            args,
            env,
            log_file,
            revision,
            stop_signal: _,
            stop_grace: _,
            spares_children: _,
        } = self;
        name == &wanted.name
            && program == &wanted.program
            && args == &wanted.args
            && env == &wanted.env
            && log_file == &wanted.log_file
            && revision == &wanted.revision
    }
}

/// What [`crate::Supervisor::ensure`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The process was already what it should be (or waits for its next start after a crash).
    Unchanged,
    /// It was not running and has been started.
    Started,
    /// It ran with another specification and has been replaced.
    Replaced,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It crashed, or could not be started, and is started again after a pause.
    Restarting,
    /// It does not run and will not be started.
    Stopped,
}

/// What is known about a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Name within its supervisor.
    pub name: String,
    /// Whether it runs.
    pub state: ProcessState,
    /// Process id while it runs.
    pub pid: Option<u32>,
    /// How often it was started again after a crash.
    pub restarts: u32,
    /// When it was last started.
    pub started_at: Option<Timestamp>,
    /// How it last ended, as text.
    pub last_exit: Option<String>,
    /// Where its output goes.
    pub log_file: PathBuf,
    /// The revision it was started with.
    pub revision: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ProcessSpec {
        ProcessSpec::new(name, "/bin/true", "/dev/null")
    }

    #[test]
    fn names_are_plain_file_names() {
        for name in ["etcd", "vision-4k2m.kube-apiserver", "0"] {
            spec(name).check().unwrap();
        }
        for name in ["", ".", "../etcd", "a/b", "-x", "A", &"x".repeat(201)] {
            assert!(spec(name).check().is_err(), "{name}");
        }
    }

    #[test]
    fn only_changes_that_the_process_sees_replace_it() {
        let running = spec("etcd");
        let mut wanted = running.clone();
        wanted.stop_grace = Duration::from_secs(1);
        assert!(running.same_process(&wanted));
        wanted.revision = "2".into();
        assert!(!running.same_process(&wanted));
    }
}
