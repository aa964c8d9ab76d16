//! The syncer's own servers, by target.

use super::target::Target;
use std::collections::BTreeMap;

/// The syncer's own servers, by the target that stands for them.
#[derive(Clone, Debug)]
pub struct Locals<L>(BTreeMap<Target, L>);

impl<L> Default for Locals<L> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<L: Clone> Locals<L> {
    /// Adds a server.
    pub fn add(&mut self, target: Target, local: L) {
        self.0.insert(target, local);
    }

    /// The server for a target.
    pub fn get(&self, target: &Target) -> Option<L> {
        self.0.get(target).cloned()
    }
}
