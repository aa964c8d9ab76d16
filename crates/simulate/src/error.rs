//! Why a simulation gives no report.

use crate::trace::TraceError;
use berth_planner::{Seconds, Violation};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An option is out of its range.
    #[error("{0}")]
    Option(&'static str),
    /// Not every tenant's largest job has room in a partition.
    #[error(
        "{nodes} nodes are too few: {tenants} tenants with a partition each that holds their largest job need {needed}"
    )]
    TooSmall {
        /// Nodes there are.
        nodes: u32,
        /// Nodes it takes.
        needed: u32,
        /// Tenants.
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
    /// Jobs wait, and nothing happens any more.
    #[error(
        "{scene}: {waiting} jobs wait and none started for {days} simulated days; the first is of {tenant}, for {gpus} GPUs: {why}"
    )]
    Stuck {
        /// Which of the two.
        scene: &'static str,
        /// How many wait.
        waiting: usize,
        /// How long nothing happened.
        days: Seconds,
        /// The first one's tenant.
        tenant: String,
        /// What the first one asks for.
        gpus: u32,
        /// What the planner says about the tenant.
        why: String,
    },
}
