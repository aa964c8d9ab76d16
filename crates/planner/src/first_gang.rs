//! The gang that waits first when nodes that are due go to others. What would be kept for it is found in [`crate::unused`].

use crate::view::View;
use std::collections::{BTreeMap, HashMap};

/// A gang for which nodes are kept as they become free, and that waits on.
pub(crate) struct FirstGang {
    pub gang: usize,
    /// All nodes that are due, by domain.
    pub due: HashMap<usize, Vec<usize>>,
    /// Whether a node would be kept, by its domain, its kind, and whether its name comes before those that are kept already.
    pub known: HashMap<usize, BTreeMap<(usize, bool), bool>>,
}

impl FirstGang {
    /// A gang, by the number of its request, and the nodes that are `due` to go to others.
    pub fn new(gang: usize, due: &[usize], view: &View<'_>) -> Self {
        let mut by_domain: HashMap<usize, Vec<usize>> = HashMap::new();
        for at in due {
            by_domain.entry(view.nodes[*at].domain).or_default().push(*at);
        }
        Self {
            gang,
            due: by_domain,
            known: HashMap::new(),
        }
    }
}
