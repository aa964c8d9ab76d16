//! Events of a replay, and its counters.

use berth_planner::Seconds;
use std::{cmp::Reverse, collections::BinaryHeap};

/// An event. Events at the same time are processed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A job ends, if its start number `run` is still the current one.
    End { job: usize, run: u32 },
    /// The scrub of a node is finished.
    Clean { node: usize },
    /// Pods can start on a node.
    Ready { node: usize },
    /// The grace period of a node is over.
    Drain { node: usize },
}

/// Future events, the next one first.
pub(super) type Events = BinaryHeap<Reverse<(Seconds, Event)>>;

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Nodes that were taken from a tenant and scrubbed.
    pub(crate) recyclings: u64,
    /// Jobs that were evicted from reclaimed nodes.
    pub(crate) evictions: u64,
    /// GPU-seconds of work that had to be done again.
    pub(crate) repeated: u64,
    /// Plans that were made.
    pub(crate) plans: u64,
}
