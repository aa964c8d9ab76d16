//! Image archives in a real containerd.
//!
//! Needs root, and the binaries that `make nodes` builds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use berth_local::images::{Archive, Image, catalog};
use berth_process::binaries::{Binary, find_pinned};
use tempfile::TempDir;

/// A containerd with folders of its own, and mounts that end with it, also when the test is killed.
struct Containerd {
    process: Child,
    dir: TempDir,
}

impl Containerd {
    async fn start() -> Self {
        // Not below a long path: sockets' names are short.
        let dir = TempDir::with_prefix("berth-images-").unwrap();
        let config = dir.path().join("config.toml");
        fs::write(
            &config,
            format!(
                "version = 3\nroot = '{0}/root'\nstate = '{0}/state'\ndisabled_plugins = ['io.containerd.cri.v1.runtime']\n\
                 [grpc]\naddress = '{0}/socket'\n[ttrpc]\naddress = '{0}/ttrpc'\n",
                dir.path().display()
            ),
        )
        .unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--propagation=private",
                "--",
            ])
            .arg(find_pinned(Binary::Containerd).unwrap())
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let started = Self { process, dir };
        let deadline = Instant::now() + Duration::from_mins(3);
        while !started.ctr(&["version"]).status.success() {
            let log = || fs::read_to_string(started.dir.path().join("log")).unwrap();
            assert!(Instant::now() < deadline, "containerd does not answer: {}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        started
    }

    /// A command that sees what containerd has mounted.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--target", &self.process.id().to_string(), "--"])
            .arg(program);
        command
    }

    fn ctr(&self, arguments: &[&str]) -> Output {
        self.command(&find_pinned(Binary::Ctr).unwrap())
            .arg("--address")
            .arg(self.dir.path().join("socket"))
            .args(["--namespace", "k8s.io"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// What `ctr` prints.
    fn ctr_output(&self, arguments: &[&str]) -> String {
        let output = self.ctr(arguments);
        assert!(
            output.status.success(),
            "ctr {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn import(&self, archive: &Archive) {
        self.ctr_output(&["images", "import", archive.path.to_str().unwrap()]);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn containerd_takes_archives_and_unpacks_programs_with_their_libraries() {
    // Without root there is no containerd.
    if let Some(why) = berth_local::obstacle_to_real_nodes() {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("not run: {why}");
        return;
    }
    let containerd = Containerd::start().await;
    let archives = containerd.dir.path().join("archives");
    // A Go program, a static C program, and one that needs the C library.
    let mut images = catalog::for_workloads().unwrap();
    images.push(Image::new(
        "example.com/id:v1",
        Path::new("/usr/bin/id"),
        "/usr/local/bin/id",
    ));
    let archives: Vec<_> = images
        .iter()
        .map(|image| image.archive_in(&archives).unwrap())
        .collect();
    for archive in &archives {
        containerd.import(archive);
    }
    let listed = containerd.ctr_output(&["images", "list"]);
    for archive in &archives {
        assert!(
            listed
                .lines()
                .any(|line| line.starts_with(&format!("{} ", archive.reference)) && line.contains(&archive.digest)),
            "{} is not in:\n{listed}",
            archive.reference
        );
    }

    // What a container of the image would see, from inside it.
    let root = containerd.dir.path().join("mounted");
    fs::create_dir(&root).unwrap();
    let root = root.to_str().unwrap();
    containerd.ctr_output(&["images", "mount", "example.com/id:v1", root]);
    let inside = containerd
        .command(Path::new("chroot"))
        .args(["--userspec=65532:65532", root, "/usr/local/bin/id"])
        .output()
        .unwrap();
    containerd.ctr_output(&["images", "unmount", root]);
    assert_eq!(
        String::from_utf8_lossy(&inside.stdout).trim(),
        "uid=65532(nonroot) gid=65532(nonroot) groups=65532(nonroot)",
        "{}",
        String::from_utf8_lossy(&inside.stderr)
    );
}
