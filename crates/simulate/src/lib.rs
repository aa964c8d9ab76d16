//! Replays a trace of GPU jobs on a fleet of GPU nodes, twice: with static partitions, and with nodes that follow demand, as
//! [`berth_planner::plan`] decides. Between two tenants a node is scrubbed, which takes time. See `docs/guides/simulate.md` for the rules
//! and for what each figure means.
//!
//! Pure but for reading the trace: the same trace and options give the same report.

mod chart;
mod load;
mod measure;
mod partition;
mod replay;
mod report;
mod trace;

use berth_planner::{Seconds, Violation};

pub use berth_planner::Reclaim;
pub use chart::{ChartError, draw_chart};
pub use measure::{Bucket, Series};
pub use replay::Progress;
pub use report::{Fleet, Idle, Outcome, Report, Scene, TenantReport, TenantScene, TraceReport, Waiting};
pub use trace::{Job, LeftOut, Reading, Trace, TraceError};

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
    fn kept(self, done: Seconds) -> Seconds {
        match self {
            Self::Never => 0,
            Self::Every(interval) => done - done % interval.max(1),
        }
    }
}

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

/// Replays a trace with static partitions and with nodes that follow demand.
pub fn simulate(trace: &Trace, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Outcome, Error> {
    check(options)?;
    let mut trace = trace.clone();
    let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
    let time_scale = load::scale_arrivals(&mut trace.jobs, gpus, options.load);
    let partitions = partition::divide_nodes(&trace.jobs, &trace.tenants, options.nodes, options.gpus_per_node)?;
    let fixed = replay::replay_static(&trace, options, &partitions, progress)?;
    let dynamic = replay::replay_dynamic(&trace, options, &partitions, progress)?;
    Ok(report::outcome(
        &trace,
        options,
        time_scale,
        &partitions,
        fixed,
        dynamic,
    ))
}

fn check(options: &Options) -> Result<(), Error> {
    let Options {
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
    } = *options;
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

#[cfg(test)]
mod tests;
