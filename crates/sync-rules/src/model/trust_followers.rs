//! The pods that follow trust bundles: those with projections of any, so that none has to be read to know them.

use super::resource::Name;
use std::collections::HashSet;

/// The pods, and whether they have something to follow.
#[derive(Debug, Default)]
pub struct TrustFollowers {
    pods: HashSet<Name>,
    /// Whether some trust bundle has changed since the pods were taken.
    pub has_changed: bool,
}

impl TrustFollowers {
    /// Sets whether a pod has projections of trust bundles.
    pub fn set(&mut self, pod: &Name, follows: bool) {
        if follows {
            self.pods.insert(pod.clone());
        } else {
            self.pods.remove(pod);
        }
    }

    /// Number of pods.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pods.
    pub fn pods(&self) -> impl Iterator<Item = &Name> {
        self.pods.iter()
    }
}
