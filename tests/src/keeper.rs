//! A host cluster that outlives the processes which use it. Every test is a process of its own, so that it can be ended and
//! repeated alone; starting a cluster for each would take too long. The first test of a suite starts a *keeper*: the same
//! program in the background, which starts the cluster and ends it once no test has used it for a while, once a test
//! that breaks parts of it has failed, or once the test runner is gone, however that ended.
//!
//! Benchmarks start their clusters themselves. Their keeper has none, and removes theirs: see [`guard_clusters`].
//!
//! Everything of a keeper lies in one folder of the runner and the suite:
//!
//! | file | meaning |
//! |---|---|
//! | `keeper.lock` | locked as long as the keeper runs |
//! | `users.lock` | locked by all who use the cluster (shared), and by a keeper that ends it |
//! | `start.lock` | locked by the one test that starts the keeper |
//! | `access.json` | what a test must know to use the cluster; there as long as it can be used |
//! | `tainted` | a failed test may have left it broken: no test begins to use the cluster any more |
//! | `keeper.pid`, `keeper.log`, `keeper.sock` | its process id, its output, and its socket for requests |
//! | `gate.lock`, `group-*.lock` | which tests run now, see [`Turn`] |
//! | `berth-test-*` | the home of the cluster |

use crate::test_cluster::{Access, TestCluster};
use berth_process::{create_private_dir, write_atomic};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, signal::unix::SignalKind};

/// Set for the keeper: its folder.
const FOLDER: &str = "BERTH_TEST_KEEPER_FOLDER";
/// Set for a program that [`guard_clusters`] guards, and for those that it starts.
const GUARDED: &str = "BERTH_TEST_GUARDED";
/// How long an unused cluster is kept. Long enough for a runner that is busy with other suites: another cluster costs more than this
/// one does meanwhile.
const IDLE: Duration = Duration::from_secs(60);
/// How long a cluster may take until it can be used.
const START: Duration = Duration::from_mins(10);
/// How often locks, files and processes are checked.
const INTERVAL: Duration = Duration::from_millis(200);
/// After so many failed starts of a cluster, the tests of a suite fail at once.
const START_ATTEMPTS: usize = 2;

/// The process that started the tests: nextest, cargo or a shell. A benchmark is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Runner {
    pid: u32,
    /// Distinguishes it from a later process with the same id.
    started: String,
}

impl Runner {
    fn new(pid: u32) -> Self {
        let started = start_time(pid).unwrap_or_default();
        Self { pid, started }
    }

    fn parse(name: &str) -> Option<Self> {
        let (pid, started) = name.split_once('-')?;
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.into(),
        })
    }

    fn name(&self) -> String {
        format!("{}-{}", self.pid, self.started)
    }

    fn is_gone(&self) -> bool {
        start_time(self.pid).as_ref() != Some(&self.started)
    }
}

/// When a process was started, in clock ticks since the boot; none if there is no such process.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    // A zombie does nothing any more.
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18).map(Into::into)
}

/// The folder of all runners' keepers.
fn all_folders() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("berth-tests-{user}"))
}

/// The folder of this program's keeper.
pub fn folder() -> PathBuf {
    folder_of(std::os::unix::process::parent_id(), &std::env::current_exe().unwrap())
}

/// The folder of a program's keeper, for the process that is its runner.
pub fn folder_of(runner: u32, program: &Path) -> PathBuf {
    all_folders()
        .join(Runner::new(runner).name())
        .join(program.file_name().unwrap())
}

/// The keeper's folder, if this process is to be a keeper.
pub fn folder_to_keep() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(Into::into)
}

/// Guards the clusters that this program starts itself: a keeper removes what is left of them once the program has ended, also by a panic
/// that aborts it, or by `kill -9`. The program starts once more in the same process, with the keeper's folder for its temporary files.
/// Call it first in `main`. In the keeper it returns the exit code.
#[expect(clippy::zombie_processes, reason = "the keeper outlives this process")]
pub fn guard_clusters() -> Option<ExitCode> {
    if let Some(folder) = folder_to_keep() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return Some(runtime.block_on(keep(&folder, "", std::future::pending())));
    }
    if std::env::var_os(GUARDED).is_some() {
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let folder = folder_of(std::process::id(), &program);
    create_private_dir(&folder).unwrap();
    start_keeper(&folder);
    let error = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(GUARDED, "true")
        .env("TMPDIR", folder)
        .exec();
    panic!("the program does not start once more: {error}");
}

fn open(folder: &Path, name: &str) -> File {
    try_open(folder, name).unwrap_or_else(|error| panic!("{}/{name}: {error}", folder.display()))
}

fn try_open(folder: &Path, name: &str) -> io::Result<File> {
    File::options().create(true).append(true).open(folder.join(name))
}

fn lock(folder: &Path, name: &str, operation: FlockOperation) -> File {
    let file = open(folder, name);
    while let Err(error) = flock(&file, operation) {
        assert_eq!(error, rustix::io::Errno::INTR, "{}/{name}", folder.display());
    }
    file
}

/// Tries to take a lock without waiting; returns whether it did.
fn try_lock(file: &File, operation: FlockOperation) -> bool {
    flock(file, operation).is_ok()
}

fn runs(folder: &Path) -> bool {
    !try_lock(&open(folder, "keeper.lock"), FlockOperation::NonBlockingLockShared)
}

fn access(folder: &Path) -> Option<Access> {
    let text = fs::read(folder.join("access.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

fn is_tainted(folder: &Path) -> bool {
    folder.join("tainted").exists()
}

/// The right to use a cluster: the cluster does not end before this is dropped.
pub struct Lease {
    folder: PathBuf,
    /// How to use the cluster.
    pub access: Access,
    _users: File,
}

impl Lease {
    /// Waits until there is a cluster, and starts a keeper if there is none. Blocks.
    ///
    /// # Panics
    /// The cluster does not start.
    pub fn take(folder: &Path) -> Self {
        loop {
            create_private_dir(folder).unwrap();
            while is_tainted(folder) && runs(folder) {
                pause();
            }
            let users = lock(folder, "users.lock", FlockOperation::LockShared);
            let start = lock(folder, "start.lock", FlockOperation::LockExclusive);
            let mut child = (!runs(folder)).then(|| start_keeper(folder));
            if is_tainted(folder) {
                continue;
            }
            // A keeper that was about to end has ended by now: then another one is started.
            let Some(access) = wait_for_access(folder, child.as_mut()) else {
                continue;
            };
            drop(start);
            return Self {
                folder: folder.into(),
                access,
                _users: users,
            };
        }
    }

    /// Ends the cluster as soon as it is unused, and keeps other tests from it: what a failed test left would fail them.
    pub fn taint(&self) {
        drop(open(&self.folder, "tainted"));
    }

    /// Whether a test failed in this cluster.
    pub fn is_tainted(&self) -> bool {
        is_tainted(&self.folder)
    }
}

#[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
fn pause() {
    sleep(INTERVAL);
}

fn start_keeper(folder: &Path) -> Child {
    let failed = fs::read_to_string(folder.join("failed-starts")).unwrap_or_default();
    assert!(
        failed.lines().count() < START_ATTEMPTS,
        "the host cluster of these tests did not start {START_ATTEMPTS} times; see what the first of them printed"
    );
    for file in ["access.json", "tainted", "keeper.sock"] {
        let _ = fs::remove_file(folder.join(file));
    }
    let log = File::create(folder.join("keeper.log")).unwrap();
    // A process group of its own: the runner ends a test's whole group.
    Command::new(std::env::current_exe().unwrap())
        .env(FOLDER, folder)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .process_group(0)
        .spawn()
        .unwrap()
}

/// Waits until the cluster can be used. `child` is the keeper if this process has started it; none is returned if another
/// process did and the keeper ends.
fn wait_for_access(folder: &Path, mut child: Option<&mut Child>) -> Option<Access> {
    let begin = Instant::now();
    loop {
        if let Some(access) = access(folder) {
            return Some(access);
        }
        let has_ended = match &mut child {
            Some(child) => child.try_wait().unwrap().is_some(),
            None if runs(folder) => false,
            None => return None,
        };
        if has_ended || begin.elapsed() > START {
            let log = fs::read_to_string(folder.join("keeper.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(400)..].join("\n");
            let _ = writeln!(open(folder, "failed-starts"), "failed");
            panic!("{end}\nthe host cluster of these tests did not start; above is the end of what its keeper printed");
        }
        pause();
    }
}

/// A test's turn in a cluster. Tests of one group run at the same time, unless it is a group of tests that run alone; tests
/// of two groups never do. A test that waits comes before those that start later.
pub struct Turn {
    _group: File,
}

impl Turn {
    /// Waits for the turn. Blocks.
    pub fn take(folder: &Path, groups: usize, own: usize, alone: bool) -> Self {
        let name = |group: usize| format!("group-{group}.lock");
        let gate = lock(folder, "gate.lock", FlockOperation::LockExclusive);
        for other in (0..groups).filter(|other| alone || *other != own) {
            // Until the running tests of the other group have ended.
            drop(lock(folder, &name(other), FlockOperation::LockExclusive));
        }
        let group = lock(folder, &name(own), FlockOperation::LockShared);
        drop(gate);
        Self { _group: group }
    }
}

/// The id of the process that keeps the cluster of a folder.
pub fn keeper_of(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join("keeper.pid")).ok()?.parse().ok()
}

/// Starts the cluster and keeps it until it is not needed any more.
pub async fn keep(folder: &Path, nodes: &str, start: impl Future<Output = TestCluster>) -> ExitCode {
    let _keeper = lock(folder, "keeper.lock", FlockOperation::LockExclusive);
    let of_runner = folder.parent().unwrap();
    let runner = of_runner.file_name().and_then(|name| Runner::parse(name.to_str()?));
    let runner = runner.expect("a folder in a runner's folder");
    let pid = std::process::id().to_string();
    write_atomic(&folder.join("keeper.pid"), pid.as_bytes(), 0o600).unwrap();
    remove_leftovers(of_runner.parent().unwrap());
    let users = open(folder, "users.lock");
    tokio::select! {
        () = serve(folder, &users, nodes, start) => {}
        () = gone(&runner) => {}
    }
    // No test may begin to use a cluster that ends.
    let _ = fs::remove_file(folder.join("access.json"));
    remove_clusters(folder);
    if runner.is_gone() {
        let _ = fs::remove_dir_all(folder);
        // Only the last keeper of the runner succeeds.
        let _ = fs::remove_dir(of_runner);
    }
    ExitCode::SUCCESS
}

async fn serve(folder: &Path, users: &File, nodes: &str, start: impl Future<Output = TestCluster>) {
    let cluster = start.await;
    let socket = folder.join("keeper.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let access = serde_json::to_vec_pretty(&cluster.access(nodes, &socket)).unwrap();
    write_atomic(&folder.join("access.json"), &access, 0o600).unwrap();
    tokio::select! {
        () = cluster.serve_requests(listener) => {}
        () = unused(folder, users) => {}
    }
    drop(cluster);
}

/// Waits until the cluster is not used any more; then the lock is held, so that no test begins to use it.
async fn unused(folder: &Path, users: &File) {
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(INTERVAL).await;
        if !try_lock(users, FlockOperation::NonBlockingLockExclusive) {
            since = Instant::now();
            continue;
        }
        if since.elapsed() > IDLE || is_tainted(folder) {
            return;
        }
        flock(users, FlockOperation::Unlock).unwrap();
    }
}

/// Waits until the runner is gone, or this process gets SIGTERM or SIGINT.
async fn gone(runner: &Runner) {
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate()).unwrap();
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt()).unwrap();
    let runner_ends = async {
        while !runner.is_gone() {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = runner_ends => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Removes every cluster whose home is in a folder, in whatever state it is.
fn remove_clusters(folder: &Path) {
    let homes = fs::read_dir(folder).into_iter().flatten().flatten();
    for home in homes.filter(|entry| entry.file_name().to_string_lossy().starts_with("berth-test-")) {
        if let Err(error) = berth_local::destroy(&home.path()) {
            eprintln!("{} is left: {error}", home.path().display());
        }
    }
}

/// Removes what killed keepers left whose runners are gone, too. `all_folders` is the folder of all runners' keepers, which a keeper cannot
/// find by itself: its temporary files are elsewhere.
pub fn remove_leftovers(all_folders: &Path) {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    for of_runner in list(all_folders) {
        let runner = of_runner.file_name().and_then(|name| Runner::parse(name.to_str()?));
        if runner.is_none_or(|runner| !runner.is_gone()) {
            continue;
        }
        for folder in list(&of_runner) {
            let keeper = match try_open(&folder, "keeper.lock") {
                Ok(keeper) => keeper,
                // Its own keeper, or another one that starts, has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => panic!("{}: {error}", folder.display()),
            };
            if try_lock(&keeper, FlockOperation::NonBlockingLockExclusive) {
                remove_clusters(&folder);
                let _ = fs::remove_dir_all(&folder);
            }
        }
        let _ = fs::remove_dir(&of_runner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_goes_meanwhile_is_no_leftover() {
        let all = tempfile::tempdir().unwrap();
        let of_runner = all.path().join(format!("{}-0", std::process::id()));
        fs::create_dir(&of_runner).unwrap();
        // Listed, and not there any more when it is opened.
        let going = of_runner.join("going");
        std::os::unix::fs::symlink(all.path().join("gone"), &going).unwrap();
        let left = of_runner.join("left");
        fs::create_dir(&left).unwrap();
        remove_leftovers(all.path());
        assert!(!left.exists());
    }
}
