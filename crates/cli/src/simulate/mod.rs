//! `berth simulate`.

mod text;

use std::fs;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use berth_simulate::{Checkpoint, Options, Outcome, Progress, Reading, Reclaim, Trace, draw_chart, simulate};
use clap::{Args, ValueEnum};
use jiff::SignedDuration;

use crate::error::Error;
use crate::output::OutputFormat;
use crate::output::print_line;

#[derive(Clone, Debug, Args)]
pub(crate) struct SimulateArguments {
    /// The trace: CSV, packed by gzip or not, with the columns timestamp, duration, num_gpus and tenant (or cluster), or
    /// Alibaba's openb_pod_list.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Nodes of the fleet.
    #[arg(long, default_value_t = 64)]
    nodes: u32,
    /// GPUs of each node.
    #[arg(long, default_value_t = 8)]
    gpus_per_node: u32,
    /// The share of the fleet that the trace keeps busy: the times between arrivals are stretched or squeezed for it.
    #[arg(long, default_value_t = 0.9)]
    load: f64,
    /// Replay only so many jobs, the first to arrive.
    #[arg(long)]
    jobs: Option<usize>,
    /// How many tenants to make of a trace that names none.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    tenants: u32,
    /// Another seed divides such a trace in another way.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How long it takes to scrub and validate a node between two tenants.
    #[arg(long, default_value = "5m", value_parser = parse_duration, value_name = "TIME")]
    scrub: i64,
    /// How long it takes until a free node can run pods of its new tenant.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    join: i64,
    /// How long a node must be idle before it is released.
    #[arg(long, default_value = "1m", value_parser = parse_duration, value_name = "TIME")]
    idle_timeout: i64,
    /// How long a node stays with a tenant at least.
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    min_hold_duration: i64,
    /// Time between the decision to reclaim a borrowed node and its drain.
    #[arg(long, default_value = "5m", value_parser = parse_duration, value_name = "TIME")]
    reclaim_grace_period: i64,
    /// When borrowed nodes are reclaimed.
    #[arg(long, value_enum, default_value_t = ReclaimArgument::NominalQuota)]
    reclaim: ReclaimArgument,
    /// How long smaller jobs may use free nodes while a gang waits.
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    starvation_limit: i64,
    /// How often jobs save their work, which is where they go on after an eviction; 0s: always, never: they begin again.
    #[arg(long, default_value = "30m", value_parser = parse_checkpoint, value_name = "TIME|never")]
    checkpoint: Checkpoint,
    /// The shortest time between two plans, in simulated time.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    plan_every: i64,
    /// Also draw a chart, as SVG.
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReclaimArgument {
    /// Never: a node stays until its tenant no longer uses it.
    Never,
    /// For requests within the nominal quota of their tenant.
    NominalQuota,
    /// Also for tenants below their fair share.
    FairShare,
}

/// `90s`, `5m`, `1h30m`, in whole seconds.
fn parse_duration(text: &str) -> Result<i64, String> {
    let duration: SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration such as 90s, 5m or 1h30m".to_owned())?;
    if duration.is_negative() || duration.subsec_nanos() != 0 {
        return Err("expected whole seconds, 0 or more".into());
    }
    Ok(duration.as_secs())
}

fn parse_checkpoint(text: &str) -> Result<Checkpoint, String> {
    match text {
        "never" => Ok(Checkpoint::Never),
        text => parse_duration(text).map(Checkpoint::Every),
    }
}

impl SimulateArguments {
    fn options(&self) -> Options {
        Options {
            nodes: self.nodes,
            gpus_per_node: self.gpus_per_node,
            load: self.load,
            scrub: self.scrub,
            join: self.join,
            idle_timeout: self.idle_timeout,
            min_hold_duration: self.min_hold_duration,
            reclaim_grace_period: self.reclaim_grace_period,
            reclaim: match self.reclaim {
                ReclaimArgument::Never => Reclaim::Never,
                ReclaimArgument::NominalQuota => Reclaim::NominalQuota,
                ReclaimArgument::FairShare => Reclaim::FairShare,
            },
            starvation_limit: self.starvation_limit,
            checkpoint: self.checkpoint,
            plan_every: self.plan_every,
        }
    }
}

pub(crate) fn run(arguments: &SimulateArguments) -> Result<ExitCode, Error> {
    let failed = |source| Error::Simulation {
        path: arguments.trace.clone(),
        source,
    };
    let reading = Reading {
        jobs: arguments.jobs,
        tenants: arguments.tenants,
        seed: arguments.seed,
    };
    let trace = Trace::open(&arguments.trace, reading).map_err(|error| failed(error.into()))?;
    let mut reporter = Reporter::new();
    let outcome = simulate(&trace, &arguments.options(), &mut |progress| reporter.show(progress)).map_err(failed)?;
    reporter.end();
    if let Some(path) = &arguments.chart {
        fs::write(path, draw_chart(&outcome)?).map_err(|source| Error::File {
            action: "write",
            path: path.clone(),
            source,
        })?;
    }
    print(&outcome, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

fn print(outcome: &Outcome, format: OutputFormat) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Output(error.to_string());
    let text = match format {
        OutputFormat::Table => text::describe(&outcome.report),
        OutputFormat::Json => serde_json::to_string_pretty(&outcome.report).map_err(|error| failed(&error))?,
        OutputFormat::Yaml => serde_saphyr::to_string(&outcome.report)
            .map_err(|error| failed(&error))?
            .trim_end()
            .to_owned(),
    };
    print_line(format_args!("{text}"))
}

/// Prints the progress of a long simulation to stderr.
struct Reporter {
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Reporter {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            shown: None,
            terminal: stderr().is_terminal(),
        }
    }

    fn show(&mut self, progress: Progress) {
        // On a terminal one line that changes; in a log a new line, but seldom.
        let every = Duration::from_secs(if self.terminal { 1 } else { 15 });
        if self.shown.unwrap_or(self.started).elapsed() < every {
            return;
        }
        self.shown = Some(Instant::now());
        let Progress { scene, done, of } = progress;
        let line = format!("· {scene}: {done} of {of} jobs");
        // Progress that cannot be written is no reason to stop.
        let _ = if self.terminal {
            write!(stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(stderr(), "{line}")
        };
    }

    fn end(&self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_whole_seconds() {
        assert_eq!(parse_duration("1h30m"), Ok(5400));
        assert_eq!(parse_duration("90s"), Ok(90));
        assert_eq!(parse_duration("0s"), Ok(0));
        for wrong in ["5", "-5m", "soon", "1500ms", ""] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_checkpoint("never"), Ok(Checkpoint::Never));
    }
}
