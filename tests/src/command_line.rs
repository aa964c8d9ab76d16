//! `berth`, as people use it.

use crate::{files::binary, test_cluster::TestCluster};
use berth_process::write_atomic;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};
use tempfile::TempDir;
use tokio::process::Command;

/// `berth` with a kubeconfig of its user.
pub struct CommandLine {
    folder: TempDir,
}

impl CommandLine {
    /// The user is the administrator of the host.
    pub fn of_administrator(host: &TestCluster) -> Self {
        Self::with_kubeconfig(&fs::read(host.home().admin_kubeconfig()).unwrap())
    }

    /// The user has this name on the host, and the rights that are bound to it.
    pub fn of_user(host: &TestCluster, name: &str) -> Self {
        Self::with_kubeconfig(host.kubeconfig_for(name, &[]).unwrap().as_bytes())
    }

    fn with_kubeconfig(kubeconfig: &[u8]) -> Self {
        let folder = TempDir::with_prefix("berth-cli-").unwrap();
        write_atomic(&folder.path().join("config"), kubeconfig, 0o640).unwrap();
        Self { folder }
    }

    /// A folder of its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The kubeconfig of the user.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Runs a command to its end.
    pub async fn berth(&self, arguments: &[&str]) -> Output {
        Command::new(binary("berth"))
            .args(arguments)
            .env("KUBECONFIG", self.config())
            .env("KUBECACHEDIR", self.folder.path())
            .env("BERTH_HOME", self.folder.path().join("none"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap()
    }

    /// Standard output and standard error of a command that must end with this exit status.
    pub async fn run(&self, arguments: &[&str], status: i32) -> (String, String) {
        let Output {
            status: ended,
            stdout,
            stderr,
        } = self.berth(arguments).await;
        let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert_eq!(ended.code(), Some(status), "berth {arguments:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    }

    /// The kubeconfig of the user, as a document.
    pub fn document(&self) -> Value {
        serde_saphyr::from_str(&fs::read_to_string(self.config()).unwrap()).unwrap()
    }
}
