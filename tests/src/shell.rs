//! A shell that runs commands of the documentation.

use berth_process::binaries::{Binary, find_pinned};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    env,
    ffi::{OsStr, OsString},
    path::Path,
    process::{Output, Stdio},
};
use tempfile::TempDir;
use tokio::process::Command;

/// A shell in a folder of its own, which finds the programs of etcd and Kubernetes.
pub struct Shell {
    folder: TempDir,
    variables: Vec<(String, OsString)>,
}

/// Programs that run in the background. They end with this value.
pub struct Background(Pid);

impl Drop for Background {
    fn drop(&mut self) {
        // They may have ended by themselves.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Shell {
    /// A shell whose folder is in this one.
    pub fn within(parent: &Path) -> Self {
        Self {
            folder: TempDir::with_prefix_in("shell-", parent).unwrap(),
            variables: Vec::new(),
        }
    }

    /// Sets a variable of its environment.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.variables.push((name.to_owned(), value.as_ref().to_owned()));
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs commands, up to the first one that fails.
    ///
    /// # Errors
    /// One fails: the commands and what they have printed.
    pub async fn attempt(&self, commands: &str) -> Result<String, String> {
        read(commands, &self.command(commands).output().await.unwrap())
    }

    /// Runs commands that must succeed; returns what they print.
    pub async fn run(&self, commands: &str) -> String {
        self.attempt(commands).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs commands that must succeed, of which some start programs in the background.
    pub async fn start(&self, commands: &str) -> Background {
        let child = self.command(commands).process_group(0).spawn().unwrap();
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let background = Background(group.and_then(Pid::from_raw).unwrap());
        let output = child.wait_with_output().await.unwrap();
        read(commands, &output).unwrap_or_else(|error| panic!("{error}"));
        background
    }

    fn command(&self, commands: &str) -> Command {
        let programs = [
            Binary::Etcd,
            Binary::Etcdctl,
            Binary::Etcdutl,
            Binary::Kubectl,
            Binary::KubeApiserver,
        ];
        let mut folders: Vec<_> = programs
            .map(|program| find_pinned(program).unwrap().parent().unwrap().to_owned())
            .into();
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let mut shell = Command::new("sh");
        shell
            .args(["-e", "-c", commands])
            .current_dir(self.folder())
            .env("PATH", env::join_paths(folders).unwrap())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        shell
    }
}

fn read(commands: &str, output: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!(
        "{commands}\n{}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    ))
}
