//! Long-running child processes, the way a node agent keeps containers.
//!
//! A [`Supervisor`] owns the processes of one directory. [`Supervisor::ensure`] makes a process be what its
//! [`ProcessSpec`] says: it is started, left alone, or replaced; when it crashes it is started again with growing
//! pauses. The processes do **not** die with the supervisor: it may be killed at any instruction, and the next one
//! adopts what still runs, and ends what has no record. There are never two processes of one name.
//!
//! Two things make that safe. Each process has a record (`<dir>/<name>.json`) with its process id and start time, and
//! each process carries the path of its record in its environment ([`MARKER`]), so that even one whose record was never
//! written is found in `/proc`. [`reap_marked`] uses the same marker to end everything that is left under a directory.
//!
//! Linux only: it rests on `/proc` and on process file descriptors.

mod backoff;
pub mod binaries;
mod error;
mod files;
mod ports;
mod procfs;
mod reap;
mod record;
mod spawn;
mod spec;
mod supervisor;

pub use error::Error;
pub use files::{create_private_dir, write_atomic};
pub use ports::free_port;
pub use procfs::MARKER;
pub use reap::reap_marked;
pub use record::statuses;
pub use spec::{Ensured, ProcessSpec, ProcessState, ProcessStatus, StopSignal};
pub use supervisor::{Supervisor, SupervisorConfig};
