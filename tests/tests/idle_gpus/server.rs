//! A Prometheus server of the test's own: Debian's program, with its own directory and a free port.

use berth_process::free_port;
use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Seconds between two scrapes.
pub(crate) const SCRAPE_INTERVAL: i64 = 2;

/// Prometheus. It ends with this value, and with the test's process.
pub(crate) struct Server {
    process: Child,
    dir: TempDir,
    port: u16,
}

impl Server {
    /// Starts it. It scrapes exporters of so many nodes at one address.
    pub(crate) fn start(exporters: SocketAddr, nodes: usize) -> Self {
        let dir = TempDir::with_prefix("berth-prometheus-").unwrap();
        let config = dir.path().join("prometheus.yml");
        fs::write(&config, configuration(exporters, nodes)).unwrap();
        let port = free_port().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "prometheus"])
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, dir, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it logged, for messages of failed tests.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        format!("prometheus (Debian package prometheus, see hack/prerequisites) logged: {log}")
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One target for each node, with the labels that Kubernetes' service discovery sets: those of the exporter's own pod.
fn configuration(exporters: SocketAddr, nodes: usize) -> String {
    let mut text = format!(
        "global: {{scrape_interval: {SCRAPE_INTERVAL}s, scrape_timeout: {SCRAPE_INTERVAL}s}}\nscrape_configs:\n- job_name: dcgm-exporter\n  \
         static_configs:\n"
    );
    for node in 0..nodes {
        writeln!(
            text,
            "  - targets: ['{exporters}']\n    labels: {{__metrics_path__: /metrics/{node}, namespace: gpu-operator, pod: dcgm-{node}}}"
        )
        .unwrap();
    }
    text
}
