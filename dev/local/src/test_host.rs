//! A host cluster for tests.

use std::fs;
use std::ops::Deref;
use std::time::Duration;

use berth_process::reap_marked;
use tempfile::TempDir;

use crate::real;
use crate::{Error, Home, HostCluster, HostClusterConfig, NodePlan};

/// A host cluster in a temporary directory that ends with the value, with the program, and with a panic.
///
/// After a panic the last lines of every log go to stderr, since the logs themselves are gone.
#[derive(Debug)]
pub struct TestHost {
    cluster: HostCluster,
    dir: TempDir,
}

impl TestHost {
    /// Starts a host cluster with these nodes.
    ///
    /// # Errors
    /// As [`HostCluster::start`].
    pub async fn start(nodes: NodePlan) -> Result<Self, Error> {
        Self::start_with(|config| config.nodes = nodes).await
    }

    /// Starts a host cluster after `change` has edited the configuration (home, `die_with_parent` and `fsync`
    /// are set for tests before).
    ///
    /// # Errors
    /// As [`HostCluster::start`].
    pub async fn start_with(change: impl FnOnce(&mut HostClusterConfig)) -> Result<Self, Error> {
        let dir = TempDir::with_prefix("berth-test-").map_err(|source| Error::File {
            action: "create",
            path: std::env::temp_dir(),
            source,
        })?;
        let mut config = HostClusterConfig::new(dir.path());
        config.die_with_parent = true;
        config.fsync = false;
        change(&mut config);
        let started = HostCluster::start(config, |step| tracing::debug!(step, "test host")).await;
        match started {
            Ok(cluster) => Ok(Self { cluster, dir }),
            Err(error) => {
                print_logs(&dir);
                end_processes(&dir);
                Err(error)
            }
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> &HostCluster {
        &self.cluster
    }
}

impl Deref for TestHost {
    type Target = HostCluster;

    fn deref(&self) -> &HostCluster {
        &self.cluster
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.cluster.supervisor().release();
        if std::thread::panicking() {
            print_logs(&self.dir);
        }
        end_processes(&self.dir);
    }
}

fn end_processes(dir: &TempDir) {
    if let Err(error) = reap_marked(dir.path(), Duration::ZERO) {
        tracing::warn!(%error, "a test host leaves processes behind");
    }
    if let Err(error) = real::remove(&Home::new(dir.path())) {
        eprintln!("a test host leaves namespaces behind: {error}");
    }
}

fn print_logs(dir: &TempDir) {
    let Ok(logs) = fs::read_dir(dir.path().join("logs")) else {
        return;
    };
    for path in logs.filter_map(|entry| Some(entry.ok()?.path())) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        eprintln!("==> end of {} <==\n{last}", path.display());
    }
}
