//! A server of Git repositories on loopback.

use crate::processes::{ending_with_parent, spawn_logged};
use berth_process::free_port;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;
use tokio::process::Child;

/// Its only branch.
pub const BRANCH: &str = "main";

/// Serves one repository. It ends with this value, and with the process that started it.
pub struct GitServer {
    /// URL of the server, without the path of the repository.
    pub url: String,
    folder: TempDir,
    _process: Child,
}

impl GitServer {
    /// Serves a repository without commits at a path, such as `team/base.git`.
    pub fn start(path: &str) -> Self {
        let folder = TempDir::with_prefix("berth-git-").unwrap();
        let served = folder.path().join("served");
        let bare = served.join(path);
        fs::create_dir_all(&bare).unwrap();
        let branch = format!("--initial-branch={BRANCH}");
        git(&bare, &["init", "--quiet", "--bare", &branch]);
        let work = folder.path().join("work");
        fs::create_dir(&work).unwrap();
        git(&work, &["init", "--quiet", &branch]);
        git(&work, &["remote", "add", "origin", bare.to_str().unwrap()]);
        let port = free_port().unwrap();
        Self {
            url: format!("git://127.0.0.1:{port}"),
            _process: serve(&served, port, &folder.path().join("log")),
            folder,
        }
    }

    /// Pushes a commit with these files; without a text, a file is deleted.
    pub fn push(&self, files: &[(&str, Option<&str>)]) {
        let work = self.folder.path().join("work");
        for (path, text) in files {
            let file = work.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            match text {
                Some(text) => fs::write(file, text).unwrap(),
                None => fs::remove_file(file).unwrap(),
            }
        }
        git(&work, &["add", "--all"]);
        git(&work, &["commit", "--quiet", "--message=Change"]);
        git(&work, &["push", "--quiet", "origin", BRANCH]);
    }
}

/// `git daemon`, started without `git`, which would be a process between.
fn serve(folder: &Path, port: u16, log: &Path) -> Child {
    let programs = PathBuf::from(git(folder, &["--exec-path"]).trim());
    let log = File::create(log).unwrap();
    let mut daemon = ending_with_parent(&programs.join("git-daemon"));
    daemon
        .args(["--export-all", "--reuseaddr", "--listen=127.0.0.1"])
        .arg(format!("--port={port}"))
        .arg(format!("--base-path={}", folder.display()))
        .arg(folder);
    spawn_logged(&mut daemon, log)
}

/// Runs git in a folder, without the settings of this machine, and returns its output.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=berth", "-c", "user.email=berth@example.com"])
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "git {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}
