//! The commands as a user runs them, on a real host cluster without control.
//!
//! Needs the binaries that `make kubernetes` builds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A home that is taken down with the test, however it ends.
struct Scene {
    dir: TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.berth("down").output();
    }
}

impl Scene {
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
        serde_json::from_str(&self.run("status -o json")).unwrap()
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
    let scene = Scene::new();
    let output = scene.berth("status").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("not up"));
    assert!(scene.run("down").contains("was not up"));
    assert!(!scene.home().exists());
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    let scene = Scene::new();
    std::fs::create_dir(scene.home()).unwrap();
    std::fs::write(scene.home().join("thesis.txt"), "text").unwrap();
    for command in ["up --without-control", "down"] {
        let output = scene.berth(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("is not empty"),
            "{output:?}"
        );
    }
    std::fs::remove_file(scene.home().join("thesis.txt")).unwrap();
}

#[test]
fn a_cluster_comes_up_heals_and_goes_without_trace() {
    let scene = Scene::new();
    let up = "up --without-control --nodes l40s=1";
    assert!(scene.run(up).contains("export KUBECONFIG="));
    let status = scene.status();
    assert_eq!(status["up"], true);
    assert_eq!(status["nodes"][0]["name"], "gpu-l40s-01");
    assert_eq!(status["nodes"][0]["gpus"], "4");
    let apiserver = pid_of(&status, "kube-apiserver");

    // Again: nothing changes.
    assert!(scene.run(up).contains("already up"));
    assert_eq!(pid_of(&scene.status(), "kube-apiserver"), apiserver);

    // The supervisor is killed: the processes go on, and the next `up` takes them over.
    kill(&status["supervisor"]);
    assert_eq!(scene.berth("status").output().unwrap().status.code(), Some(3));
    scene.run(up);
    assert_eq!(pid_of(&scene.status(), "kube-apiserver"), apiserver);

    // A component is killed: `up` returns when it works again.
    kill(&apiserver);
    scene.run(up);
    let status = scene.status();
    assert_ne!(pid_of(&status, "kube-apiserver"), apiserver);

    // More nodes.
    scene.run("up --without-control --nodes l40s=2");
    assert_eq!(scene.status()["nodes"].as_array().unwrap().len(), 2);

    kill(&scene.status()["supervisor"]);
    assert!(scene.run("down").contains("has been removed"));
    assert!(!scene.home().exists());
    assert!(scene.run("down").contains("was not up"));
}
