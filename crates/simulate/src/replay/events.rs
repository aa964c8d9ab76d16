//! What happens in a replay, and what is counted.

use berth_planner::Seconds;
use std::{cmp::Reverse, collections::BinaryHeap};

/// What happens at a moment. At the same moment, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A job ends, if it still runs for the so-manieth time.
    End { job: usize, run: u32 },
    /// A node is clean.
    Clean { node: usize },
    /// Pods can start on a node.
    Ready { node: usize },
    /// The warning time of a node is over.
    Drain { node: usize },
}

/// What is to come, the next first.
pub(super) type Events = BinaryHeap<Reverse<(Seconds, Event)>>;

/// Things that are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Nodes that were taken from a tenant and scrubbed.
    pub(crate) recyclings: u64,
    /// Jobs that were evicted from reclaimed nodes.
    pub(crate) evictions: u64,
    /// GPU-seconds of work that had to be done again.
    pub(crate) repeated: u64,
    /// Times the planner was asked.
    pub(crate) plans: u64,
}
