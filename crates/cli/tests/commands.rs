//! The commands as a user runs them, on a real host cluster without control.
//!
//! Needs the binaries that `make kubernetes` builds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A home whose cluster is removed when the test ends.
struct Fixture {
    dir: TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.berth("dev down").output();
    }
}

impl Fixture {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn berth(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(arguments.split(' ')).env("BERTH_HOME", self.home());
        command
    }

    fn run(&self, arguments: &str) -> String {
        let Output { status, stdout, stderr } = self.berth(arguments).output().unwrap();
        let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert!(status.success(), "berth {arguments}: {status}\n{stdout}\n{stderr}");
        stdout
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.run("dev status -o json")).unwrap()
    }
}

fn kill(pid: &Value) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

fn pid_of(status: &Value, process: &str) -> Value {
    let processes = status["processes"].as_array().unwrap();
    processes.iter().find(|found| found["name"] == process).unwrap()["pid"].clone()
}

#[test]
fn a_cluster_that_is_not_up_is_reported() {
    let fixture = Fixture::new();
    let output = fixture.berth("dev status").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not up"));
    assert!(fixture.run("dev down").contains("was not up"));
    assert!(!fixture.home().exists());
}

#[test]
fn readers_that_have_gone_change_no_exit_status() {
    let fixture = Fixture::new();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let mut list = fixture.berth("snapshot list --kubeconfig /nothing/kubeconfig");
    let status = list.stderr(closed()).stdout(closed()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    for line in ["completion bash", "version"] {
        let status = fixture.berth(line).stdout(closed()).status().unwrap();
        assert!(status.success(), "berth {line}: {status}");
    }
}

#[test]
fn shells_and_kubectl_complete_commands() {
    let fixture = Fixture::new();
    let script = fixture.run("completion bash");
    assert!(
        script.contains("BERTH_COMPLETE") && script.contains("complete "),
        "{script}"
    );
    let mut asked = fixture.berth("-- berth dev st");
    asked.env("BERTH_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    let output = asked.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "status", "{output:?}");

    let link = fixture.dir.path().join("kubectl_complete-berth");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), &link).unwrap();
    let output = Command::new(&link).args(["dev", "sta"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("status\t") && text.ends_with("\n:4\n"), "{text}");
    // Without a host cluster there are no names, and no error.
    let mut asked = Command::new(&link);
    asked
        .args(["get", "x"])
        .env("KUBECONFIG", fixture.dir.path().join("none"));
    let output = asked.env("BERTH_HOME", fixture.home()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ":4\n");
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn a_directory_with_other_files_is_left_alone() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.home()).unwrap();
    std::fs::write(fixture.home().join("thesis.txt"), "text").unwrap();
    for command in ["dev up --without-control", "dev down"] {
        let output = fixture.berth(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("is not empty"),
            "{output:?}"
        );
    }
    std::fs::remove_file(fixture.home().join("thesis.txt")).unwrap();
}

#[test]
fn a_home_of_others_is_not_used() {
    let fixture = Fixture::new();
    let home = fixture.home();
    // As an archive brings it, and, with other permissions, a repository.
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join(".berth-home"), "Directory: 1\n").unwrap();
    let canary = fixture.dir.path().join("canary");
    std::os::unix::fs::symlink(&canary, home.join("supervisor.pid")).unwrap();
    std::fs::write(home.join("host.kubeconfig"), "clusters: []\n").unwrap();
    let refuse = |commands: &[&str], mode: u32, words: &str| {
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(mode)).unwrap();
        for command in commands {
            let mut command = fixture.berth(command);
            let output = command.env_remove("KUBECONFIG").output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{output:?}");
        }
    };
    let using = ["dev up --without-control", "dev status", "list"];
    refuse(&using, 0o755, "chmod 700");
    refuse(&["dev down"], 0o755, "chmod 700");
    refuse(&using, 0o700, "is a copy of the home");
    // No file was opened behind the link.
    assert!(!canary.exists());
    assert!(fixture.run("dev down").contains("has been removed"));
    assert!(!home.exists());
}

#[test]
fn a_cluster_comes_up_recovers_and_is_removed_completely() {
    let fixture = Fixture::new();
    let up = "dev up --without-control --nodes l40s=1";
    assert!(fixture.run(up).contains("export KUBECONFIG="));
    let status = fixture.status();
    assert_eq!(status["up"], true);
    assert_eq!(status["nodes"][0]["name"], "gpu-l40s-01");
    assert_eq!(status["nodes"][0]["gpus"], "4");
    let apiserver = pid_of(&status, "kube-apiserver");

    // Again: nothing changes.
    assert!(fixture.run(up).contains("already up"));
    assert_eq!(pid_of(&fixture.status(), "kube-apiserver"), apiserver);

    // With a field that Berth does not write, nothing asks the API server: `up` says so at once.
    let kubeconfig = fixture.home().join("host.kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, format!("{text}extensions: []\n")).unwrap();
    let output = fixture.berth(up).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("has the field extensions"),
        "{output:?}"
    );
    std::fs::write(&kubeconfig, text).unwrap();

    // The supervisor is killed: the processes go on, and the next `up` takes them over.
    kill(&status["supervisor"]);
    assert_eq!(fixture.berth("dev status").output().unwrap().status.code(), Some(3));
    fixture.run(up);
    assert_eq!(pid_of(&fixture.status(), "kube-apiserver"), apiserver);

    // A component is killed: `up` returns when it works again.
    kill(&apiserver);
    fixture.run(up);
    let status = fixture.status();
    assert_ne!(pid_of(&status, "kube-apiserver"), apiserver);

    // More nodes.
    fixture.run("dev up --without-control --nodes l40s=2");
    assert_eq!(fixture.status()["nodes"].as_array().unwrap().len(), 2);

    kill(&fixture.status()["supervisor"]);
    assert!(fixture.run("dev down").contains("has been removed"));
    assert!(!fixture.home().exists());
    assert!(fixture.run("dev down").contains("was not up"));
}
