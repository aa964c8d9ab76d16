//! kubectl, as a team uses it.

use crate::tenant::Tenant;
use berth_process::{
    binaries::{self, Binary},
    write_atomic,
};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

/// Time within which a command must end.
const LIMIT: Duration = Duration::from_secs(60);

/// kubectl with one kubeconfig.
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub struct Said {
    /// Whether it ended within its time.
    pub ended: bool,
    /// Whether it ended with 0.
    pub success: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Kubectl {
    /// For the team of a tenant.
    pub fn of(tenant: &Tenant) -> Self {
        Self::with(&tenant.kubeconfig)
    }

    /// With the text of a kubeconfig.
    pub fn with(kubeconfig: &str) -> Self {
        let folder = TempDir::with_prefix("berth-kubectl-").unwrap();
        let file = folder.path().join("kubeconfig");
        write_atomic(&file, kubeconfig.as_bytes(), 0o600).unwrap();
        Self {
            program: binaries::find_pinned(Binary::Kubectl).unwrap(),
            kubeconfig: file,
            folder,
        }
    }

    /// A folder that is its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command that has not started; it ends when it is dropped.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            // Otherwise it would share the discovery cache of the user who runs the tests.
            .env("KUBECACHEDIR", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        let mut command = self.command(arguments);
        let Ok(output) = timeout(LIMIT, command.output()).await else {
            // A caller that waits for something tries again.
            let err = format!("kubectl {arguments:?} does not end within {LIMIT:?}");
            return Said {
                ended: false,
                success: false,
                out: String::new(),
                err,
            };
        };
        let output = output.unwrap();
        Said {
            ended: true,
            success: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output of a command that must succeed.
    pub async fn output(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments).await;
        assert!(said.success, "kubectl {arguments:?}: {}", said.err);
        said.out
    }
}
