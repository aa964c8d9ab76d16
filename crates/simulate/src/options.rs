//! Options of a simulation.

use crate::error::Error;
use berth_planner::{Reclaim, Seconds};

/// The fleet, and how its nodes are recycled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Nodes.
    pub nodes: u32,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// The share of the fleet that the trace keeps busy: arrivals are moved to reach it.
    pub load: f64,
    /// Time from the end of the last pod to a clean, validated node.
    pub scrub: Seconds,
    /// Time from the decision to assign a free node until pods can start on it.
    pub join: Seconds,
    /// How long a node must have been idle before it is released.
    pub idle_timeout: Seconds,
    /// The minimum time that a node stays with a tenant.
    pub min_hold_duration: Seconds,
    /// Warning time before a borrowed node is drained.
    pub reclaim_grace_period: Seconds,
    /// When borrowed nodes are reclaimed.
    pub reclaim: Reclaim,
    /// How long smaller jobs may use free nodes while a gang waits.
    pub starvation_limit: Seconds,
    /// How much of its work an evicted job keeps.
    pub checkpoint: Checkpoint,
    /// The minimum time between two plans.
    pub plan_every: Seconds,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 64,
            gpus_per_node: 8,
            load: 0.9,
            scrub: 300,
            join: 5,
            idle_timeout: 60,
            min_hold_duration: 600,
            reclaim_grace_period: 300,
            reclaim: Reclaim::default(),
            starvation_limit: 600,
            checkpoint: Checkpoint::Every(1800),
            plan_every: 5,
        }
    }
}

impl Options {
    /// # Errors
    /// An option is out of its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self {
            nodes,
            gpus_per_node,
            load,
            scrub,
            join,
            idle_timeout,
            min_hold_duration,
            reclaim_grace_period,
            reclaim: _,
            starvation_limit,
            checkpoint,
            plan_every,
        } = *self;
        if nodes == 0 || gpus_per_node == 0 {
            return Err(Error::Option("a fleet needs nodes, and nodes need GPUs"));
        }
        if !(0.01..=10.0).contains(&load) {
            return Err(Error::Option("the load must be between 0.01 and 10"));
        }
        let durations = [
            scrub,
            join,
            idle_timeout,
            min_hold_duration,
            reclaim_grace_period,
            starvation_limit,
            plan_every,
        ];
        let year = 365 * 24 * 3600;
        let fits = |duration: &Seconds| (0..=year).contains(duration);
        if !durations.iter().all(fits) || matches!(checkpoint, Checkpoint::Every(interval) if !fits(&interval)) {
            return Err(Error::Option("durations must not be negative or longer than a year"));
        }
        Ok(())
    }
}

/// How much of its work an evicted job keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Nothing: it starts again.
    Never,
    /// All work up to the last multiple of this number of seconds; 0: everything.
    Every(Seconds),
}

impl Checkpoint {
    /// How many of `done` seconds of work are kept after an eviction.
    pub(crate) fn kept(self, done: Seconds) -> Seconds {
        match self {
            Self::Never => 0,
            Self::Every(interval) => done - done % interval.max(1),
        }
    }
}
