//! Images that tenants have pulled: their names, their records by ID, and their content.

mod containerd;
mod cri_o;
mod names;

use crate::{error::Unclean, node::Node, retry::wait};

/// CRI-O's socket. A node without it has containerd.
const CRI_O: &str = "/run/crio/crio.sock";

/// Removes images that no container of the platform uses, that are not pinned, and whose names have none of the prefixes to
/// keep. Fails if any of them is left.
pub(crate) fn remove(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    let keep: Vec<&str> = arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix("--keep="))
        .collect();
    if node.path(CRI_O).exists() {
        return wait(|| cri_o::remove(node, &keep));
    }
    // Content that must be gone, also if it is an earlier attempt that has removed its image.
    let mut content = None;
    wait(|| containerd::remove(node, node, &keep, &mut content))
}
