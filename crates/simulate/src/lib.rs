//! Replays a trace of GPU jobs on a fleet of GPU nodes, twice: with static partitions, and with nodes that follow demand by
//! decisions of [`berth_planner::plan`]. Between two tenants a node is scrubbed, which takes time. See `docs/guides/simulate.md`
//! for the rules and the meaning of each figure.
//!
//! Pure except for reading the trace: the same trace and options give the same report.

mod chart;
mod error;
mod load;
mod measure;
mod options;
mod partition;
mod replay;
mod report;
mod trace;

pub use berth_planner::Reclaim;
pub use chart::{ChartError, draw_chart};
pub use error::Error;
pub use measure::{Bucket, Series};
pub use options::{Checkpoint, Options};
pub use replay::Progress;
pub use report::{Fleet, Idle, Outcome, Report, Scene, TenantReport, TenantScene, TraceReport, Waiting};
pub use trace::{Job, LeftOut, Reading, Trace, TraceError};

/// Replays a trace with static partitions and with nodes that follow demand. `progress` is called now and then.
///
/// # Errors
/// An option is out of its range, the fleet is too small for the largest job of each tenant, a plan breaks a rule of the planner, or no job starts any
/// more.
pub fn simulate(trace: &Trace, options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Outcome, Error> {
    options.check()?;
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

#[cfg(test)]
mod tests;
