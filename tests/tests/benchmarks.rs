//! A benchmark that is ended leaves nothing: neither the host cluster, nor tenants' processes, which outlive control.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use berth_control::control_plane::API_SERVER;
use berth_local::Home;
use berth_process::{ProcessState, reap_marked, statuses};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::time::sleep;

/// For a cluster and a tenant to start, or to end, on a busy machine.
const LIMIT: Duration = Duration::from_mins(5);
/// The exit code of a program that SIGTERM ended.
const ENDED_BY_SIGNAL: i32 = 143;

/// A benchmark and the folder that it works in.
struct Benchmark {
    process: Child,
    folder: TempDir,
}

impl Benchmark {
    fn start(name: &str) -> Self {
        let folder = TempDir::with_prefix("b-").unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_bench"))
            .arg(name)
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    /// Waits until the benchmark ends.
    async fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "the benchmark does not end");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Benchmark {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = reap_marked(self.folder.path(), Duration::ZERO);
    }
}

/// Whether an API server of a tenant runs in one of the clusters below a folder.
fn has_tenant(folder: &Path) -> bool {
    let homes = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let mut processes = homes.flat_map(|home| statuses(&Home::new(&home).tenants().join("run")));
    processes.any(|status| status.name.ends_with(API_SERVER) && status.state == ProcessState::Running)
}

#[tokio::test]
async fn a_benchmark_that_is_ended_leaves_nothing() {
    let mut benchmark = Benchmark::start("tenant-ready");
    let begun = Instant::now();
    while !has_tenant(benchmark.folder.path()) {
        assert!(begun.elapsed() < LIMIT, "no tenant runs");
        assert_eq!(benchmark.process.try_wait().unwrap(), None, "it ended by itself");
        sleep(Duration::from_millis(100)).await;
    }
    let pid = Pid::from_raw(i32::try_from(benchmark.process.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(benchmark.wait().await.code(), Some(ENDED_BY_SIGNAL));
    assert_eq!(
        reap_marked(benchmark.folder.path(), Duration::ZERO).unwrap(),
        0,
        "processes are left"
    );
    assert_eq!(
        fs::read_dir(benchmark.folder.path()).unwrap().count(),
        0,
        "files are left"
    );
}
