//! A benchmark that is ended leaves nothing: neither the host cluster, nor tenants' processes, which outlive control.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_control::control_plane::API_SERVER;
use berth_local::Home;
use berth_process::{ProcessState, reap_marked, statuses};
use berth_tests::{keeper, wait::until_true};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// For a cluster and a tenant to start, or to end, on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);
/// The exit code of a program that SIGTERM ended.
const ENDED_BY_SIGNAL: i32 = 143;

/// A benchmark and the folder of its keeper, in which it works.
struct Benchmark {
    process: Child,
    folder: PathBuf,
}

impl Benchmark {
    /// Starts one, and waits until it has a tenant.
    async fn with_tenant() -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_bench"));
        let process = Command::new(program)
            .arg("tenant-ready")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let folder = keeper::folder_of(process.id(), program);
        let mut benchmark = Self { process, folder };
        let begun = Instant::now();
        while !has_tenant(&benchmark.folder) {
            assert!(begun.elapsed() < LIMIT, "no tenant runs");
            assert_eq!(benchmark.process.try_wait().unwrap(), None, "it ended by itself");
            sleep(Duration::from_millis(100)).await;
        }
        benchmark
    }

    /// Ends it by a signal.
    async fn end_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "the benchmark does not end");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn until_its_files_are_gone(&self) {
        until_true("the keeper has removed its folder", LIMIT, async || {
            !self.folder.exists()
        })
        .await;
    }

    /// Kills what is left, and returns how many processes that were.
    fn kill_processes(&self) -> usize {
        reap_marked(&self.folder, Duration::ZERO).unwrap()
    }
}

impl Drop for Benchmark {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.kill_processes();
    }
}

/// Whether an API server of a tenant runs in one of the clusters below a folder.
fn has_tenant(folder: &Path) -> bool {
    let homes = fs::read_dir(folder).into_iter().flatten();
    let homes = homes.filter_map(|entry| Some(entry.ok()?.path()));
    let mut processes = homes.flat_map(|home| statuses(&Home::new(&home).tenants().join("run")));
    processes.any(|status| status.name.ends_with(API_SERVER) && status.state == ProcessState::Running)
}

#[tokio::test]
async fn a_benchmark_that_is_ended_leaves_nothing() {
    let mut benchmark = Benchmark::with_tenant().await;
    assert_eq!(benchmark.end_by(Signal::TERM).await.code(), Some(ENDED_BY_SIGNAL));
    assert_eq!(benchmark.kill_processes(), 0, "processes are left");
    benchmark.until_its_files_are_gone().await;
}

/// A panic ends the programs of a release in the same way: they end at once.
#[tokio::test]
async fn a_benchmark_that_is_killed_leaves_nothing() {
    let mut benchmark = Benchmark::with_tenant().await;
    let signal = Signal::KILL;
    assert_eq!(benchmark.end_by(signal).await.signal(), Some(signal.as_raw()));
    benchmark.until_its_files_are_gone().await;
    assert_eq!(benchmark.kill_processes(), 0, "processes are left");
}
