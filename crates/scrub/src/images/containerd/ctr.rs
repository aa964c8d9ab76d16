//! containerd's tool `ctr`.

use crate::{error::Unclean, node::Node, program};
use std::collections::BTreeSet;

/// Bytes of a manifest. An index can name anything as a manifest, such as a layer with a whole model: a longer blob is none, and is not read into
/// memory.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;

/// Runs the tool. Each call costs the start of a program.
pub(in crate::images) trait Ctr {
    /// Runs it and gives its output.
    fn run(&self, arguments: &[&str]) -> Result<String, Unclean>;

    /// The text of a blob; nothing if it is too long for a manifest.
    fn read_manifest(&self, digest: &str) -> Result<String, Unclean>;

    /// Runs it and gives the lines of its output.
    fn list(&self, arguments: &[&str]) -> Result<BTreeSet<String>, Unclean> {
        self.run(arguments).map(|text| lines(&text))
    }
}

impl Ctr for Node {
    fn run(&self, arguments: &[&str]) -> Result<String, Unclean> {
        program::ctr(self, arguments)
    }

    fn read_manifest(&self, digest: &str) -> Result<String, Unclean> {
        program::ctr_at_most(self, MAX_MANIFEST, &["content", "get", digest])
    }
}

/// The lines of a text that are not empty.
pub(super) fn lines(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}
