//! Images that tenants have pulled: their names, their records by ID, and their content.

mod containerd;
mod cri_o;

use crate::{error::Unclean, node::Node, retry::wait};
use std::collections::BTreeSet;

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
    let mut content = BTreeSet::new();
    wait(|| containerd::remove(node, &keep, &mut content))
}

/// Whether a name has one of the prefixes.
fn has_prefix(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// An error that names the first few of what is left.
fn left(what: &str, all: &[String]) -> Unclean {
    let shown: Vec<&str> = all.iter().take(5).map(String::as_str).collect();
    Unclean::Left(format!("{} {what}: {}", all.len(), shown.join(", ")))
}
