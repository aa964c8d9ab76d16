//! What is cleaned and checked on a GPU node between two tenants. Each step is one run of the program `berth-scrub` on the
//! node, as root, with the node's processes, and its files below a folder.
//!
//! A step succeeds only if it knows that its work is done. What it cannot do or find out is an error, which keeps the node
//! from the next tenant.

mod claims;
mod containers;
mod disks;
mod ephemeral;
mod files;
mod gpus;
mod images;
mod kubelet;
mod node;
mod processes;
pub mod program;

pub use node::Node;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long a step waits for what the kubelet or the runtime still has to do.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a node is not clean, or could not be cleaned.
#[derive(Debug, thiserror::Error)]
pub enum Unclean {
    /// Something of a tenant is left.
    #[error("{0}")]
    Left(String),
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

/// Runs one step and returns a message about what was done.
///
/// # Errors
/// The step could not be done, or something is left.
pub fn run(node: &Node, step: &str, arguments: &[String]) -> Result<String, Unclean> {
    match step {
        "processes" => processes::end(node),
        "claims" => wait(|| claims::none_prepared(node)),
        "ephemeral" => wait(|| ephemeral::remove(node)),
        "mig" => gpus::destroy_instances(node),
        "gpu-reset" => gpus::reset(node),
        "images" => images::remove(node, arguments),
        "disks" => disks::empty(node, arguments),
        "check" => check(node),
        "done" => Ok("all steps are done".into()),
        other => Err(Unclean::UnknownStep(other.into())),
    }
}

/// Whether nothing of a tenant is left, without removing anything, whether the kubelet guards images, and whether all GPUs
/// answer.
fn check(node: &Node) -> Result<String, Unclean> {
    wait(|| {
        processes::none_left(node)?;
        claims::none_prepared(node)?;
        ephemeral::none_left(node)
    })?;
    kubelet::checks_image_credentials(node)?;
    gpus::answer(node)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of one thread, which has nothing else to do"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Repeats an attempt until it succeeds or the timeout is over.
fn wait(mut attempt: impl FnMut() -> Result<String, Unclean>) -> Result<String, Unclean> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => pause(PAUSE),
            outcome => return outcome,
        }
    }
}
