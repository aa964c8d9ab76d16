//! Errors of a simulation.

use crate::trace::TraceError;
use berth_planner::{Seconds, Violation};

/// Why a simulation gives no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An option is out of its range.
    #[error("{0}")]
    Option(&'static str),
    /// The fleet is too small for partitions that hold the largest job of each tenant.
    #[error(
        "{nodes} nodes are too few: partitions that hold the largest job of each of {tenants} tenants need {needed}"
    )]
    TooSmall {
        /// Nodes of the fleet.
        nodes: u32,
        /// Nodes that the partitions need.
        needed: u32,
        /// Number of tenants.
        tenants: usize,
    },
    /// The planner made a plan that breaks one of its rules.
    #[error("a plan breaks a rule after {after} simulated seconds, please report this: {violation}")]
    BadPlan {
        /// Simulated time.
        after: Seconds,
        /// The rule.
        violation: Violation,
    },
    /// Jobs wait, and none has started for a long time.
    #[error(
        "{scene}: {waiting} jobs wait and none started for {days} simulated days; the first is a job of {tenant} with {gpus} GPUs: {why}"
    )]
    Stuck {
        /// Which of the two replays.
        scene: &'static str,
        /// How many jobs wait.
        waiting: usize,
        /// How long no job started.
        days: Seconds,
        /// The tenant of the first job.
        tenant: String,
        /// The GPUs that the first job requests.
        gpus: u32,
        /// Why the tenant waits, as the planner reports it.
        why: String,
    },
}
