//! `berth simulate`.

use std::fs;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use berth_simulate::{
    Checkpoint, Options, Outcome, Progress, Reading, Reclaim, Report, Scene, Trace, Waiting, chart, simulate,
};
use clap::{Args, ValueEnum};
use jiff::SignedDuration;

use crate::args::OutputFormat;
use crate::error::Error;
use crate::output::{format_table, print_line};

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
    /// How long it takes a free node to take its new tenant's pods.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    join: i64,
    /// How long a node must have been idle before it goes back to the pool.
    #[arg(long, default_value = "1m", value_parser = parse_duration, value_name = "TIME")]
    idle_timeout: i64,
    /// How long a node stays with a tenant at least.
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    min_hold_duration: i64,
    /// Warning time before a borrowed node is taken back.
    #[arg(long, default_value = "5m", value_parser = parse_duration, value_name = "TIME")]
    reclaim_grace_period: i64,
    /// For whom borrowed nodes are taken back.
    #[arg(long, value_enum, default_value_t = ReclaimArgument::NominalQuota)]
    reclaim: ReclaimArgument,
    /// How often jobs save their work, which is where they go on after an eviction; 0s: always, never: they begin again.
    #[arg(long, default_value = "30m", value_parser = checkpoint, value_name = "TIME|never")]
    checkpoint: Checkpoint,
    /// The planner is asked this often at most, in simulated time.
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
    /// For nobody: a node stays until its tenant no longer uses it.
    Never,
    /// For demand within its tenant's guarantee.
    NominalQuota,
    /// Also for whoever has less than its fair share.
    FairShare,
}

/// `90s`, `5m`, `1h30m`, in whole seconds.
fn parse_duration(text: &str) -> Result<i64, String> {
    let parse_duration: SignedDuration = text
        .parse()
        .map_err(|_| "expected a parse_duration of time such as 90s, 5m or 1h30m".to_owned())?;
    if parse_duration.is_negative() || parse_duration.subsec_nanos() != 0 {
        return Err("expected whole seconds, not less than none".into());
    }
    Ok(parse_duration.as_secs())
}

fn checkpoint(text: &str) -> Result<Checkpoint, String> {
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
        fs::write(path, chart(&outcome)?).map_err(|source| Error::File {
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
        OutputFormat::Table => describe(&outcome.report),
        OutputFormat::Json => serde_json::to_string_pretty(&outcome.report).map_err(|error| failed(&error))?,
        OutputFormat::Yaml => serde_saphyr::to_string(&outcome.report)
            .map_err(|error| failed(&error))?
            .trim_end()
            .to_owned(),
    };
    print_line(format_args!("{text}"))
}

/// Says on stderr how far a long simulation is.
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
        // On a terminal one line that changes; into a log seldom a new one.
        let every = Duration::from_secs(if self.terminal { 1 } else { 15 });
        if self.shown.unwrap_or(self.started).elapsed() < every {
            return;
        }
        self.shown = Some(Instant::now());
        let Progress { scene, done, of } = progress;
        let line = format!("· {scene}: {done} of {of} jobs");
        // Progress that nobody can read is no reason to stop.
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

fn describe(report: &Report) -> String {
    let Report {
        trace,
        fleet,
        stranded_demand_served,
        stranded_nodes_served,
        fixed,
        dynamic,
        tenants,
    } = report;
    let mut lines = vec![format!(
        "{} jobs of {} tenants on {} nodes with {} GPUs each; load {} over {} days, arrivals × {}",
        trace.jobs,
        tenants.len(),
        fleet.nodes,
        fleet.gpus_per_node,
        percent(fleet.offered_load),
        rounded(trace.window_hours / 24.0, 1),
        trace.time_scale,
    )];
    let left_out = [
        (trace.left_out.without_gpus, "ask for no GPU"),
        (trace.left_out.never_ran, "never ran"),
    ];
    for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        lines.push(format!("{count} rows are left out because they {why}"));
    }
    let scene = |name: &str, of: fn(&Scene) -> String| [name.to_owned(), of(fixed), of(dynamic)];
    let rows = [
        scene("GPU use", |s| percent(s.gpu_use)),
        scene("idle: beside jobs (fragmentation)", |s| percent(s.idle.beside_jobs)),
        scene("idle: a tenant's empty nodes", |s| percent(s.idle.idle_nodes)),
        scene("idle: free nodes", |s| percent(s.idle.free)),
        scene("idle: being handed over", |s| percent(s.idle.handover)),
        scene("waiting demand, GPU-hours", |s| rounded(s.waiting_gpu_hours, 0)),
        scene("stranded demand, GPU-hours", |s| rounded(s.stranded_gpu_hours, 0)),
        scene("  beside whole idle nodes", |s| rounded(s.stranded_node_gpu_hours, 0)),
        scene("wait: mean", |s| mean(&s.wait)),
        scene("wait: p50", |s| time(s.wait.p50)),
        scene("wait: p95", |s| time(s.wait.p95)),
        scene("fairness (Jain)", |s| rounded(s.fairness, 3)),
        scene("hand-overs", |s| s.handovers.to_string()),
        scene("scrubbing, node-hours", |s| rounded(s.scrub_node_hours, 0)),
        scene("evictions", |s| s.evictions.to_string()),
        scene("work done again, GPU-hours", |s| rounded(s.repeated_gpu_hours, 0)),
    ];
    lines.extend([String::new(), aligned(["", "STATIC", "DYNAMIC"], &rows), String::new()]);
    let rows: Vec<[String; 10]> = tenants
        .iter()
        .map(|tenant| {
            [
                tenant.name.clone(),
                tenant.jobs.to_string(),
                rounded(tenant.gpu_hours, 0),
                tenant.partition_nodes.to_string(),
                mean(&tenant.fixed.wait),
                time(tenant.fixed.wait.p50),
                time(tenant.fixed.wait.p95),
                mean(&tenant.dynamic.wait),
                time(tenant.dynamic.wait.p50),
                time(tenant.dynamic.wait.p95),
            ]
        })
        .collect();
    let heading = [
        "TENANT",
        "JOBS",
        "GPU-HOURS",
        "NODES",
        "STATIC: MEAN",
        "P50",
        "P95",
        "DYNAMIC: MEAN",
        "P50",
        "P95",
    ];
    lines.extend([aligned(heading, &rows), String::new()]);
    let served = [
        ("stranded demand served", stranded_demand_served),
        (
            "stranded demand served, of what whole nodes could serve",
            stranded_nodes_served,
        ),
    ];
    for (what, share) in served {
        lines.push(match share {
            Some(share) => format!("{what}: {}", percent(*share)),
            None => format!("{what}: nothing was stranded"),
        });
    }
    lines.join("\n")
}

/// A table whose columns but the first are numbers: aligned at the right.
fn aligned<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let pad = |at: usize, cell: &str| match at {
        0 => cell.to_owned(),
        _ => format!("{cell:>width$}", width = widths[at]),
    };
    let padded = |row: &[String; N]| std::array::from_fn(|at| pad(at, &row[at]));
    let heading = std::array::from_fn::<String, N, _>(|at| pad(at, heading[at]));
    let rows: Vec<[String; N]> = rows.iter().map(padded).collect();
    format_table(heading.each_ref().map(String::as_str), &rows)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rounded(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

fn mean(wait: &Waiting) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "waits are far below 2^52 seconds")]
    time(wait.mean.round() as i64)
}

/// The two largest units: `3d4h`, `5m10s`.
fn time(seconds: i64) -> String {
    let parts = [
        (seconds / 86400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = parts.iter().skip(first).take(2).filter(|(count, _)| *count > 0);
    let shown: Vec<String> = shown.map(|(count, unit)| format!("{count}{unit}")).collect();
    if shown.is_empty() { "0s".into() } else { shown.concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_are_read_and_shown() {
        assert_eq!(parse_duration("1h30m"), Ok(5400));
        assert_eq!(parse_duration("90s"), Ok(90));
        assert_eq!(parse_duration("0s"), Ok(0));
        for wrong in ["5", "-5m", "soon", "1500ms", ""] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(checkpoint("never"), Ok(Checkpoint::Never));
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (3600, "1h"),
            (3661, "1h1m"),
            (90061, "1d1h"),
            (310, "5m10s"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn numbers_are_aligned_at_the_right() {
        let rows = [["a".into(), "1".into()], ["bc".into(), "100".into()]];
        assert_eq!(aligned(["X", "N"], &rows), "X     N\na     1\nbc  100");
    }
}
