//! How long a plan takes, by the number of nodes, with 500 tenants:
//! `cargo run --release -p berth-planner --example scale`. Fails if 10,000 nodes take more than 50 ms. With an argument, as in `-- FIFO`, only the cases whose
//! names contain it.

mod cases;

use berth_planner::plan;
use cases::{CASES, fleet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LIMIT_MS: f64 = 50.0;

fn main() -> ExitCode {
    let mut fits = true;
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (case, name) in CASES.into_iter().filter(|(_, name)| name.contains(&wanted)) {
        print_line(name);
        let mut before: Option<(usize, f64)> = None;
        for nodes in [1_000, 2_000, 5_000, 10_000, 20_000] {
            let fleet = fleet(case, nodes);
            let mut times: Vec<f64> = Vec::new();
            let mut actions = 0;
            for _ in 0..7 {
                let start = Watch::start();
                actions = plan(&fleet).actions.len();
                times.push(start.elapsed().as_secs_f64() * 1000.0);
            }
            times.sort_by(f64::total_cmp);
            let time = times[times.len() / 2];
            let ratio = before.map_or(String::new(), |(nodes_before, time_before)| {
                #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
                let more = nodes as f64 / nodes_before as f64;
                format!("  x{more:.1} nodes, x{:.2} time", time / time_before)
            });
            print_line(&format!(
                "  {nodes:>6} nodes  {time:>7.2} ms  {actions:>6} actions{ratio}"
            ));
            fits &= nodes != 10_000 || time <= LIMIT_MS;
            before = Some((nodes, time));
        }
    }
    if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// CPU time where the kernel reports it, so that other processes on the machine do not count.
struct Watch(Result<u64, Instant>);

impl Watch {
    fn start() -> Self {
        Self(cpu_time().ok_or_else(Instant::now))
    }

    fn elapsed(&self) -> Duration {
        match &self.0 {
            Ok(start) => Duration::from_nanos(cpu_time().unwrap_or(*start).saturating_sub(*start)),
            Err(start) => start.elapsed(),
        }
    }
}

fn cpu_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

#[expect(clippy::print_stdout, reason = "the output is the purpose of this program")]
fn print_line(line: &str) {
    println!("{line}");
}
