//! Supervision of real processes: crashes, changes, and supervisors that come and go.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use berth_process::{
    Ensured, Error, MARKER, ProcessSpec, ProcessState, Supervisor, SupervisorConfig, reap_marked, statuses,
};
use tempfile::TempDir;

/// Only ends tests that hang.
const LONG: Duration = Duration::from_secs(120);

/// A directory whose processes end with the test, however it ends.
struct Scene {
    dir: TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = reap_marked(self.dir.path(), Duration::ZERO);
    }
}

impl Scene {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Retries while the lock is held: a process that another test starts has a copy of every open file until `exec`.
    async fn supervisor(&self) -> Supervisor {
        let deadline = Instant::now() + LONG;
        loop {
            match self.open(false).await {
                Err(Error::Locked(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => return opened.unwrap(),
            }
        }
    }

    async fn open(&self, die_with_parent: bool) -> Result<Supervisor, Error> {
        Supervisor::open(SupervisorConfig {
            dir: self.run_dir(),
            die_with_parent,
        })
        .await
    }

    /// A process that runs `script` in a shell.
    fn shell(&self, name: &str, script: &str) -> ProcessSpec {
        let mut spec = ProcessSpec::new(name, "/bin/sh", self.dir.path().join(format!("{name}.log")));
        spec.args = vec!["-c".into(), script.into()];
        spec
    }

    /// A process that does nothing.
    fn sleeper(&self, name: &str) -> ProcessSpec {
        let mut spec = ProcessSpec::new(name, "/bin/sleep", self.dir.path().join(format!("{name}.log")));
        spec.args = vec!["1000".into()];
        spec
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default()
    }
}

async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out after {LONG:?} waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn pid(supervisor: &Supervisor, name: &str) -> u32 {
    supervisor.status(name).unwrap().pid.unwrap()
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(pid: u32) {
    let pid = rustix_pid(pid);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn rustix_pid(pid: u32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[tokio::test]
async fn ensure_is_idempotent_and_replaces_what_changed() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    let spec = scene.sleeper("a");
    assert_eq!(supervisor.ensure(spec.clone()).await.unwrap(), Ensured::Started);
    let first = pid(&supervisor, "a");
    assert_eq!(supervisor.ensure(spec.clone()).await.unwrap(), Ensured::Unchanged);
    assert_eq!(pid(&supervisor, "a"), first);
    let changed = ProcessSpec {
        revision: "2".into(),
        ..spec
    };
    assert_eq!(supervisor.ensure(changed).await.unwrap(), Ensured::Replaced);
    assert_ne!(pid(&supervisor, "a"), first);
    assert!(!alive(first));
}

#[tokio::test]
async fn a_crashed_process_is_started_again() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    supervisor.ensure(scene.sleeper("a")).await.unwrap();
    let first = pid(&supervisor, "a");
    kill(first);
    let status = eventually("a second start", || {
        supervisor.status("a").filter(|status| status.restarts == 1)
    })
    .await;
    assert_eq!(status.state, ProcessState::Running);
    assert_eq!(status.last_exit.as_deref(), Some("signal 9"));
    assert_ne!(status.pid, Some(first));
}

#[tokio::test]
async fn a_process_that_cannot_stay_up_is_started_with_pauses() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    let begin = Instant::now();
    supervisor.ensure(scene.shell("a", "echo once; exit 3")).await.unwrap();
    let status = eventually("an exit", || {
        supervisor.status("a").filter(|status| status.restarts >= 1)
    })
    .await;
    assert_eq!(status.last_exit.as_deref(), Some("exit code 3"));
    eventually("a second start", || (scene.log("a").lines().count() >= 2).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let starts = scene.log("a").lines().count();
    // The sums of the pauses before each further start.
    let due = [200, 600, 1400, 3000, 6200, 12_600].map(Duration::from_millis);
    let most = 1 + due.iter().filter(|due| **due <= begin.elapsed()).count();
    assert!(starts <= most, "{starts} starts within {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_at_once() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    let spec = ProcessSpec::new("a", "/no/such/program", scene.dir.path().join("a.log"));
    let error = supervisor.ensure(spec).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    assert_eq!(supervisor.list(), []);
    assert_eq!(statuses(&scene.run_dir()), []);
}

#[tokio::test]
async fn the_next_supervisor_adopts_what_runs() {
    let scene = Scene::new();
    let spec = scene.sleeper("a");
    let first = scene.supervisor().await;
    first.ensure(spec.clone()).await.unwrap();
    let running = pid(&first, "a");
    drop(first);
    let second = scene.supervisor().await;
    assert_eq!(pid(&second, "a"), running);
    assert_eq!(second.ensure(spec).await.unwrap(), Ensured::Unchanged);
    assert_eq!(pid(&second, "a"), running);
    // An adopted process is watched like any other.
    kill(running);
    eventually("a new start", || {
        second.status("a").filter(|status| status.restarts == 1)
    })
    .await;
    second.stop("a", None).await.unwrap();
    assert_eq!(second.list(), []);
}

#[tokio::test]
async fn process_that_died_without_a_supervisor_is_started_on_request() {
    let scene = Scene::new();
    let spec = scene.sleeper("a");
    let first = scene.supervisor().await;
    first.ensure(spec.clone()).await.unwrap();
    let running = pid(&first, "a");
    first.shutdown(false).await.unwrap();
    drop(first);
    kill(running);
    eventually("its end", || (!alive(running)).then_some(())).await;
    let second = scene.supervisor().await;
    assert_eq!(second.list(), []);
    assert_eq!(second.ensure(spec).await.unwrap(), Ensured::Started);
}

/// A process as left by a supervisor that is killed right after starting it.
fn unrecorded(record: &Path) -> u32 {
    let mut command = Command::new("/bin/sleep");
    command
        .arg("1000")
        .env(MARKER, record)
        .process_group(0)
        .stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pid = child.id();
    // Collects the child when it ends, as init does with orphans.
    std::thread::spawn(move || child.wait());
    pid
}

#[tokio::test]
async fn a_process_without_a_record_is_ended() {
    let scene = Scene::new();
    let dir = scene.supervisor().await.dir().to_owned();
    let stray = unrecorded(&dir.join("a.json"));
    eventually("the marker", || {
        std::fs::read(format!("/proc/{stray}/environ"))
            .ok()
            .filter(|text| !text.is_empty())
    })
    .await;
    let supervisor = scene.supervisor().await;
    assert!(!alive(stray));
    assert_eq!(supervisor.list(), []);
}

#[tokio::test]
async fn a_process_whose_identity_was_not_recorded_is_adopted() {
    let scene = Scene::new();
    let first = scene.supervisor().await;
    let spec = scene.sleeper("a");
    first.ensure(spec.clone()).await.unwrap();
    let running = pid(&first, "a");
    let path = first.dir().join("a.json");
    drop(first);
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["identity"] = serde_json::Value::Null;
    std::fs::write(&path, record.to_string()).unwrap();
    let second = scene.supervisor().await;
    assert_eq!(pid(&second, "a"), running);
    assert_eq!(second.ensure(spec).await.unwrap(), Ensured::Unchanged);
}

#[tokio::test]
async fn a_second_supervisor_is_refused() {
    let scene = Scene::new();
    let _first = scene.supervisor().await;
    let refused = scene.open(false).await.unwrap_err();
    assert!(matches!(refused, Error::Locked(_)), "{refused}");
}

#[tokio::test]
async fn a_process_that_ignores_its_stop_signal_is_killed() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    supervisor
        .ensure(scene.shell("a", "trap '' TERM; echo ready; while :; do sleep 1; done"))
        .await
        .unwrap();
    eventually("the trap", || scene.log("a").contains("ready").then_some(())).await;
    let stubborn = pid(&supervisor, "a");
    let start = Instant::now();
    supervisor.stop("a", Some(Duration::from_millis(300))).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(!alive(stubborn));
    assert_eq!(supervisor.status("a"), None);
    assert_eq!(statuses(&scene.run_dir()), []);
}

#[tokio::test]
async fn children_end_with_their_process() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    supervisor
        .ensure(scene.shell("a", "sleep 1000 & echo $!; wait"))
        .await
        .unwrap();
    let grandchild: u32 = eventually("its id", || scene.log("a").trim().parse().ok()).await;
    supervisor.stop("a", None).await.unwrap();
    assert!(!alive(grandchild));
}

#[tokio::test]
async fn spared_children_outlive_a_crash_and_a_supervisor_but_not_a_stop() {
    let scene = Scene::new();
    let script = "[ -e child ] || { setsid sleep 1000 & echo $!; : >child; }; wait; sleep 1000";
    let mut spec = scene.shell("a", &format!("cd {}; {script}", scene.dir.path().display()));
    spec.spares_children = true;
    let first = scene.supervisor().await;
    first.ensure(spec).await.unwrap();
    let child: u32 = eventually("its id", || scene.log("a").trim().parse().ok()).await;
    kill(pid(&first, "a"));
    eventually("a new start", || {
        first.status("a").filter(|status| status.restarts == 1)
    })
    .await;
    assert!(alive(child));
    drop(first);
    let second = scene.supervisor().await;
    assert!(alive(child));
    second.stop("a", None).await.unwrap();
    assert!(!alive(child));
}

#[tokio::test]
async fn shutdown_stops_all_processes_on_request() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    for name in ["a", "b"] {
        supervisor.ensure(scene.sleeper(name)).await.unwrap();
    }
    let pids: Vec<u32> = supervisor.list().into_iter().filter_map(|status| status.pid).collect();
    assert_eq!(pids.len(), 2);
    supervisor.shutdown(true).await.unwrap();
    assert!(pids.into_iter().all(|pid| !alive(pid)));
    assert!(matches!(
        supervisor.ensure(scene.sleeper("a")).await,
        Err(Error::Closed)
    ));
}

#[tokio::test]
async fn statuses_are_those_of_the_supervisor() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    supervisor.ensure(scene.sleeper("a")).await.unwrap();
    assert_eq!(statuses(&scene.run_dir()), supervisor.list());
}

#[tokio::test]
async fn environment_is_only_what_was_given() {
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    let mut spec = scene.shell("a", "env; exec sleep 1000");
    spec.env.insert("GOGC".into(), "50".into());
    supervisor.ensure(spec).await.unwrap();
    eventually("the environment", || scene.log("a").contains("GOGC=50").then_some(())).await;
    assert!(!scene.log("a").contains("CARGO"), "{}", scene.log("a"));
}

#[tokio::test]
async fn everything_under_a_directory_can_be_ended() {
    let scene = Scene::new();
    let supervisor = scene.open(true).await.unwrap();
    supervisor.ensure(scene.sleeper("a")).await.unwrap();
    let running = pid(&supervisor, "a");
    supervisor.shutdown(false).await.unwrap();
    let dir = scene.dir.path().to_owned();
    let ended = tokio::task::spawn_blocking(move || reap_marked(&dir, Duration::from_secs(2)))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended, 1);
    assert!(!alive(running));
}

#[tokio::test]
async fn processes_of_other_users_are_neither_ended_nor_adopted() {
    // Only root reads the environment of others, can end them, and can start a process of another user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let supervisor = scene.supervisor().await;
    supervisor.ensure(scene.sleeper("a")).await.unwrap();
    let own = pid(&supervisor, "a");
    supervisor.release();
    drop(supervisor);
    // Everybody can name the record in the environment of a process of their own.
    let record = scene.run_dir().canonicalize().unwrap().join("a.json");
    let mut foreign = Command::new("/bin/sleep")
        .arg("1000")
        .env(MARKER, &record)
        .uid(12_345)
        .process_group(0)
        .spawn()
        .unwrap();
    let supervisor = scene.supervisor().await;
    let adopted = pid(&supervisor, "a");
    supervisor.shutdown(false).await.unwrap();
    let dir = scene.dir.path().to_owned();
    let ended = tokio::task::spawn_blocking(move || reap_marked(&dir, Duration::ZERO))
        .await
        .unwrap();
    let is_running = foreign.try_wait().unwrap().is_none();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    assert!(is_running);
    assert_eq!((ended.unwrap(), adopted), (1, own));
    assert!(!alive(own));
}
