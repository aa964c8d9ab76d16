//! A Prometheus server of the test's own: Debian's program, with its own directory and a free port.

use berth_process::free_port;
use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Prometheus. It ends with this value, and with the process that started it.
pub struct Server {
    process: Child,
    dir: TempDir,
    port: u16,
}

impl Server {
    /// Starts it. It scrapes exporters of so many nodes at one address, with so many seconds between two scrapes.
    pub fn start(exporters: SocketAddr, nodes: usize, scrape_interval: i64) -> Self {
        Self::with_configuration(&configuration(exporters, nodes, scrape_interval))
    }

    /// Starts it with this configuration, as YAML or JSON.
    pub fn with_configuration(text: &str) -> Self {
        let dir = TempDir::with_prefix("berth-prometheus-").unwrap();
        fs::write(dir.path().join("prometheus.yml"), text).unwrap();
        let port = free_port().unwrap();
        Self {
            process: spawn(dir.path(), port),
            dir,
            port,
        }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it logged, for messages of failed tests.
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        format!("prometheus (Debian package prometheus, see hack/prerequisites) logged: {log}")
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again with what it stored, at the same address.
    pub fn start_again(&mut self) {
        self.kill();
        self.process = spawn(self.dir.path(), self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(dir: &Path, port: u16) -> Child {
    let log = dir.join("log");
    let log = fs::File::options().create(true).append(true).open(log).unwrap();
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "prometheus"])
        .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--log.level=warn")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// One target for each node, with the labels that Kubernetes' service discovery sets: those of the exporter's own pod.
fn configuration(exporters: SocketAddr, nodes: usize, scrape_interval: i64) -> String {
    let mut text = format!(
        "global: {{scrape_interval: {scrape_interval}s, scrape_timeout: {scrape_interval}s}}\nscrape_configs:\n\
         - job_name: dcgm-exporter\n  static_configs:\n"
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
