//! What is simulated.

use crate::error::Error;
use berth_planner::{Reclaim, Seconds};

/// The fleet, and how its nodes are recycled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Nodes.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus_per_node: u32,
    /// The share of the fleet that the trace is to keep busy.
    pub load: f64,
    /// From the last pod's end to a clean, validated node.
    pub scrub: Seconds,
    /// From the decision to give a free node to a tenant until pods can start on it.
    pub join: Seconds,
    /// How long a node must have been idle before it goes back.
    pub idle_timeout: Seconds,
    /// How long a node stays with a tenant at least.
    pub min_hold_duration: Seconds,
    /// Warning time before a borrowed node is drained.
    pub reclaim_grace_period: Seconds,
    /// When borrowed nodes are reclaimed.
    pub reclaim: Reclaim,
    /// What an evicted job has left of its work.
    pub checkpoint: Checkpoint,
    /// The planner is asked this often at most.
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

/// What an evicted job has left of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Nothing: it begins again.
    Never,
    /// All up to the last multiple of so many seconds of running; 0: everything.
    Every(Seconds),
}

impl Checkpoint {
    /// Of so many seconds of work, those that outlive an eviction.
    pub(crate) fn kept(self, done: Seconds) -> Seconds {
        match self {
            Self::Never => 0,
            Self::Every(interval) => done - done % interval.max(1),
        }
    }
}
