//! What is cleaned and checked on a GPU node between two tenants. Each step is one run of the program `berth-scrub` on the
//! node, as root, with the node's processes, and its files below a folder.
//!
//! A step succeeds only if it knows that its work is done. What it cannot do or find out is an error, which keeps the node
//! from the next tenant.

mod cgroups;
mod claims;
mod connections;
mod containers;
mod daemons;
mod disks;
mod dumps;
mod ephemeral;
mod error;
mod files;
mod gpus;
mod images;
mod kata;
mod keyrings;
mod kubelet;
mod mounts;
mod node;
mod pods;
mod processes;
pub mod program;
mod removal;
mod retry;
mod risks;
mod version;

pub use error::Unclean;
pub use node::Node;

use gpus::mps;
use retry::wait;

/// Runs one step and returns a message about what was done.
///
/// # Errors
/// The step could not be done, or something is left.
pub fn run(node: &Node, step: &str, arguments: &[String]) -> Result<String, Unclean> {
    match step {
        "processes" => {
            let ended = processes::end(node)?;
            // The kernel gives back a user's quota of keys a little later.
            let cleared = wait(|| keyrings::clear(node))?;
            // No pod of a tenant answers any more, so that no connection to it is established again.
            let connections = wait(|| connections::clear(node))?;
            Ok(format!("{ended}; {cleared}; {connections}"))
        }
        "claims" => wait(|| claims::none_prepared(node)),
        "ephemeral" => {
            let removed = wait(|| ephemeral::remove(node))?;
            let dumps = wait(|| dumps::remove(node))?;
            Ok(format!("{removed}; {dumps}"))
        }
        "mps" => wait(|| mps::empty(node, arguments)),
        "mig" => gpus::destroy_instances(node, arguments),
        "gpu-reset" => gpus::reset(node, arguments),
        "images" => images::remove(node, arguments),
        "disks" => disks::empty(node, arguments),
        "check" => check(node, arguments),
        "done" => Ok("all steps are done".into()),
        other => Err(Unclean::UnknownStep(other.into())),
    }
}

/// Whether nothing of a tenant is left, without removing anything, whether the kubelet guards images and NVIDIA's container toolkit is a safe
/// one, and whether all GPUs answer. Core dumps can be of programs of the platform by now: the message says if they go where none are removed. Risks in the
/// set-up of the node are reported to control as well.
fn check(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    wait(|| {
        processes::none_left(node)?;
        claims::none_prepared(node)?;
        mps::none_left(node, arguments)?;
        mounts::none_left(node)?;
        ephemeral::none_left(node)
    })?;
    kubelet::checks_image_credentials(node)?;
    let answered = gpus::answer(node, arguments)?;
    let place = dumps::find_other_place(node)?;
    let risks = risks::report(node, arguments)?;
    Ok([Some(answered), place, risks]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; "))
}
