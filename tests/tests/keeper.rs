//! The keeper of a suite's host cluster (`berth_tests::keeper`): tests that run one after the other share a cluster, a failed
//! one gets the next a new cluster, and nothing is left however runner and keeper end.
//!
//! The program is its own example: started with [`ROLE`] it is a suite whose tests record which cluster they have.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_tests::{
    keeper,
    suite::{Group, Suite, lacks_real_nodes},
    test_cluster::TestCluster,
    tests, wait,
};
use futures::FutureExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

/// Set for the suite under test: `simulated` or `real`, the kind of its nodes.
const ROLE: &str = "BERTH_KEEPER_TEST_NODES";
/// Where its tests write the home of their cluster.
const HOMES: &str = "BERTH_KEEPER_TEST_HOMES";
/// For a cluster to start, or to end, on a busy machine.
const LIMIT: Duration = Duration::from_mins(8);

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("real") => return suite(|nodes| with_a_container(nodes).boxed_local()).run(),
        Ok(_) => return suite(|nodes| TestCluster::without_control(nodes).boxed_local()).run(),
        Err(_) => {}
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial(
            "tests_share_a_cluster_until_one_fails",
            tests_share_a_cluster_until_one_fails,
        ),
        trial("a_killed_runner_leaves_nothing", || {
            a_killed_runner_leaves_nothing("simulated");
        }),
        trial("a_killed_runner_leaves_no_real_nodes", || {
            if !lacks_real_nodes() {
                a_killed_runner_leaves_nothing("real");
            }
        }),
        trial(
            "the_next_keeper_removes_what_a_killed_one_left",
            the_next_keeper_removes_what_a_killed_one_left,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn suite(start: fn(&'static str) -> futures::future::LocalBoxFuture<'static, TestCluster>) -> Suite {
    Suite::new("cpu=1", start, vec![Group::alone(tests![succeeds, fails, hangs])])
}

/// A cluster with real nodes, on which a pod runs: kube-dns, without anything of Berth that would take a minute to install.
async fn with_a_container(nodes: &str) -> TestCluster {
    let host = TestCluster::without_control_on_real_nodes(nodes).await;
    let deployments: Api<Deployment> = Api::namespaced(host.client.clone(), "kube-system");
    wait::until("kube-dns runs", wait::SOON, async || {
        let dns = deployments.get("kube-dns").await.map_err(|error| error.to_string())?;
        let status = dns.status.unwrap_or_default();
        if status.ready_replicas == Some(1) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    host
}

/// Appends a line, so that a reader never sees half of one.
fn write_home(host: &TestCluster) {
    use std::io::Write as _;
    let file = fs::File::options()
        .create(true)
        .append(true)
        .open(std::env::var_os(HOMES).unwrap());
    file.unwrap()
        .write_all(format!("{}\n", host.home().root().display()).as_bytes())
        .unwrap();
}

async fn succeeds(host: Arc<TestCluster>) {
    write_home(&host);
    host.client.apiserver_version().await.unwrap();
}

async fn fails(host: Arc<TestCluster>) {
    write_home(&host);
    panic!("this is what the test is for");
}

async fn hangs(host: Arc<TestCluster>) {
    write_home(&host);
    std::future::pending::<()>().await;
}

/// A shell that runs tests of the suite, as a test runner does, one after the other.
struct Runner {
    shell: Child,
    folder: tempfile::TempDir,
}

impl Runner {
    fn start(nodes: &str, tests: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let commands = tests.iter().map(|test| format!("\"$PROGRAM\" --exact {test};"));
        // The last command keeps the shell from becoming the test itself.
        let script = format!("{} true", commands.collect::<String>());
        let shell = Command::new("sh")
            .args(["-c", &script])
            .env("PROGRAM", std::env::current_exe().unwrap())
            .env(ROLE, nodes)
            .env(HOMES, folder.path().join("homes"))
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { shell, folder }
    }

    /// The homes of the clusters of the tests up to now.
    fn homes(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.folder.path().join("homes")).unwrap_or_default();
        text.lines().map(PathBuf::from).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.shell)
    }

    fn kill(&mut self) {
        self.shell.kill().unwrap();
        self.shell.wait().unwrap();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // The tests that it started, which outlive it.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.shell.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing else runs on this thread")]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < LIMIT,
            "timed out after {LIMIT:?} waiting until {what}"
        );
        sleep(Duration::from_millis(100));
    }
}

/// Processes whose environment names a path.
fn processes_of(path: &Path) -> Vec<u32> {
    let path = path.display().to_string();
    let names = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse().ok());
    pids.filter(|pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&path)
    })
    .collect()
}

/// Network namespaces and mounts of a cluster with real nodes, and mounts in its home.
fn namespaces_and_mounts_of(home: &Path, id: Option<&str>) -> Vec<String> {
    let netns = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let netns = String::from_utf8_lossy(&netns.stdout).into_owned();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let home = home.display().to_string();
    let is_of = |line: &&str| {
        line.contains(&home)
            || id.is_some_and(|id| line.contains(&format!("berth-{id}")) || line.contains(&format!("/run/berth/{id}")))
    };
    netns
        .lines()
        .chain(mounts.lines())
        .filter(is_of)
        .map(Into::into)
        .collect()
}

fn tests_share_a_cluster_until_one_fails() {
    let mut runner = Runner::start("simulated", &["succeeds", "succeeds", "fails", "succeeds"]);
    assert!(runner.shell.wait().unwrap().success());
    let homes = runner.homes();
    assert_eq!(homes.len(), 4, "{homes:?}");
    assert!(
        homes[0] == homes[1] && homes[1] == homes[2] && homes[2] != homes[3],
        "{homes:?}"
    );
    assert!(!homes[0].exists(), "the cluster in which a test failed is still there");
    until("the last cluster is gone, since its runner is", || !homes[3].exists());
}

fn a_killed_runner_leaves_nothing(nodes: &str) {
    let mut runner = Runner::start(nodes, &["hangs"]);
    until("the test has a cluster", || !runner.homes().is_empty());
    let home = runner.homes().remove(0);
    let folder = home.parent().unwrap().to_owned();
    let network = fs::read_to_string(home.join("run/network.config")).ok();
    let network: Option<serde_json::Value> = network.map(|text| serde_json::from_str(&text).unwrap());
    let id = network.as_ref().and_then(|network| network["id"].as_str());
    assert_eq!(id.is_some(), nodes == "real");
    assert!(!processes_of(&home).is_empty());
    assert_eq!(namespaces_and_mounts_of(&home, id).is_empty(), nodes != "real");
    runner.kill();
    until("the folder of the keeper is gone", || !folder.exists());
    assert_eq!(processes_of(&home), [0_u32; 0]);
    assert_eq!(namespaces_and_mounts_of(&home, id), [""; 0]);
}

fn the_next_keeper_removes_what_a_killed_one_left() {
    let mut runner = Runner::start("simulated", &["hangs"]);
    until("the test has a cluster", || !runner.homes().is_empty());
    let home = runner.homes().remove(0);
    let folder = home.parent().unwrap().to_owned();
    let all_folders = folder.ancestors().nth(2).unwrap();
    let keeper = keeper::keeper_of(&folder).unwrap();
    kill_process(Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap(), Signal::KILL).unwrap();
    until("no process of the cluster is left", || processes_of(&home).is_empty());
    assert!(home.exists());
    keeper::remove_leftovers(all_folders);
    assert!(home.exists(), "its runner may start the cluster again");
    runner.kill();
    let mut next = Runner::start("simulated", &["succeeds"]);
    assert!(next.shell.wait().unwrap().success());
    assert!(!folder.exists());
}
