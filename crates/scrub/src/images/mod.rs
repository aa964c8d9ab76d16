//! Images that tenants have pulled: their names, their records by ID, and their content.

mod containerd;
mod cri_o;
mod keep;
mod names;

use crate::{error::Unclean, node::Node, retry::wait};
use keep::Keep;

/// CRI-O's socket. A node without it has containerd.
const CRI_O: &str = "/run/crio/crio.sock";

/// Whether CRI-O is the container runtime of the node.
pub(crate) fn is_of_cri_o(node: &Node) -> bool {
    node.path(CRI_O).exists()
}

/// Removes images that no container of the platform uses, that are not pinned, and that the arguments do not name. Fails if any of them is left.
pub(crate) fn remove(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    let keep = Keep::from_arguments(arguments);
    if is_of_cri_o(node) {
        return wait(|| cri_o::remove(node, &keep));
    }
    // What must be gone, also if it is an earlier attempt that has removed its image or its container.
    let mut before = containerd::Before::default();
    wait(|| containerd::remove(node, node, &keep, &mut before))
}
