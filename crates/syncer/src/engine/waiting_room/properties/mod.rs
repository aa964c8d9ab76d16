//! Random histories of a waiting room.

mod bound;
mod gangs;
mod kept;
mod turns;

use super::{tests::is_clean, *};
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

/// Places of the room.
const MOST: usize = 4;

/// A request of a namespace that has a name of its own.
fn request_of(namespace: usize, number: usize) -> Request {
    Request {
        name: Name::new(&format!("n{namespace}"), &format!("p{number}")),
        priority: 0,
        gang: None,
        user: None,
    }
}

impl WaitingRoom {
    /// The pods that are in a state.
    fn names_in(&self, state: State) -> Vec<Name> {
        let pods = self.pods.iter().filter(|(_, pod)| pod.state == state);
        let mut names: Vec<_> = pods.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}
