//! The README's first command, as a newcomer runs it, but with the binaries of this build and a state folder of its own. And a local
//! cluster with a gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_process::binaries::{self, Binary};
use berth_tests::{files::binary, wait::SOON};
use kube::config::Kubeconfig;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread::sleep,
    time::{Duration, Instant},
};

/// A state folder that is taken down with the test, also when it fails.
struct Home(tempfile::TempDir);

impl Home {
    fn path(&self) -> PathBuf {
        self.0.path().join("home")
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let binaries = binary("berth").parent().unwrap().display().to_string();
        let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
        Command::new(program)
            .args(arguments)
            .env("PATH", path)
            .env("BERTH_HOME", self.path())
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed, and returns what it printed.
    fn succeed(&self, program: &Path, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(program, arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{arguments:?}: {status}\n{stdout}\n{stderr}");
        stdout.into_owned()
    }

    fn berth(&self, arguments: &str) -> String {
        self.succeed(&binary("berth"), &arguments.split(' ').collect::<Vec<_>>())
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.berth("dev status --output json")).unwrap()
    }

    /// The id of a process that is supervised, if it is there.
    fn pid_of(&self, process: &str) -> Option<u64> {
        let status = self.status();
        let mut processes = status["processes"].as_array().unwrap().iter();
        processes.find(|found| found["name"] == process)?["pid"].as_u64()
    }

    fn kubectl(&self, kubeconfig: &Path, arguments: &str) -> String {
        let kubectl = binaries::find_pinned(Binary::Kubectl).unwrap();
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let arguments: Vec<&str> = [kubeconfig.as_str()].into_iter().chain(arguments.split(' ')).collect();
        self.succeed(&kubectl, &arguments)
    }

    /// What the API server at `url` says of its readiness to a client that trusts the authority of a kubeconfig.
    fn ask_by_name(&self, kubeconfig: &str, url: &str) -> String {
        let authority = kubeconfig
            .lines()
            .find_map(|line| line.trim().strip_prefix("certificate-authority-data: "));
        let file = self.0.path().join("authority.pem");
        fs::write(&file, STANDARD.decode(authority.unwrap()).unwrap()).unwrap();
        let (file, url) = (file.display().to_string(), format!("{url}/readyz"));
        self.succeed(
            Path::new("curl"),
            &["--silent", "--show-error", "--fail", "--cacert", &file, &url],
        )
    }

    /// The number of processes of the cluster.
    fn count_processes(&self) -> usize {
        let processes = fs::read_dir("/proc").unwrap();
        let environments = processes.filter_map(|entry| fs::read(entry.ok()?.path().join("environ")).ok());
        let marker = self.path().display().to_string();
        environments
            .filter(|environment| String::from_utf8_lossy(environment).contains(&marker))
            .count()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.run(&binary("berth"), &["dev", "down"]);
    }
}

#[test]
fn the_demo_runs_and_leaves_no_trace() {
    let home = Home(tempfile::tempdir().unwrap());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/demo");
    let Output { status, stdout, stderr } = home.run(&demo, &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    for expected in [
        "v1.36.4",
        "Complete",
        "2/2",
        "Assigned",
        "not reached, as expected",
        "What to try next",
    ] {
        assert!(stdout.contains(expected), "{expected:?} is not in:\n{stdout}");
    }

    // What scripts rely on.
    for file in [
        "host.kubeconfig",
        "kubeconfigs/team-vision.vision.yaml",
        "kubeconfigs/team-speech.speech.yaml",
    ] {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(home.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert!(home.path().join("logs").is_dir());
    let status = home.run(&binary("berth"), &["dev", "status", "--output", "json"]);
    assert!(status.status.success());
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let tenants = status["tenants"].as_array().unwrap();
    assert_eq!(tenants.len(), 2, "{status}");
    assert!(tenants.iter().all(|tenant| tenant["phase"] == "Ready"), "{status}");

    // A second run finds everything there and passes as well.
    let again = home.run(&demo, &[]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));

    assert!(home.run(&binary("berth"), &["dev", "down"]).status.success());
    assert!(!home.path().exists());
    assert_eq!(home.count_processes(), 0);
}

/// Clients that know that `localhost` is this machine use the names, and kubectl, which asks DNS, does not need to.
#[test]
#[expect(clippy::disallowed_methods, reason = "nothing else runs on this thread")]
fn a_laptop_reaches_tenants_at_a_gateway_of_its_own() {
    let home = Home(tempfile::tempdir().unwrap());
    let up = home.berth("dev up --nodes cpu=1 --gateway");
    home.kubectl(&home.path().join("host.kubeconfig"), "create namespace team");
    home.berth("create vision --namespace team --wait");

    let status = home.status();
    assert_eq!(status["gatewayReady"], true, "{status}");
    let endpoint = status["tenants"][0]["endpoint"].as_str().unwrap().to_owned();
    let port = endpoint.strip_prefix("https://vision.team.localhost:").unwrap();
    let shown = format!("https://<tenant>.<namespace>.localhost:{port}");
    assert!(up.contains(&shown) && status["gateway"] == shown, "{up}\n{status}");

    let kubeconfig = home.path().join("kubeconfigs/team.vision.yaml");
    let text = fs::read_to_string(&kubeconfig).unwrap();
    assert!(text.contains(&format!("server: https://127.0.0.1:{port}\n")), "{port}");
    assert!(text.contains("tls-server-name: vision.team.localhost\n"));
    let parse = |text: &str| serde_json::to_value(Kubeconfig::from_yaml(text).unwrap()).unwrap();
    assert_eq!(parse(&home.berth("kubeconfig vision --namespace team")), parse(&text));
    let get = "get namespaces --output=name";
    assert!(home.kubectl(&kubeconfig, get).contains("namespace/kube-system"));
    assert_eq!(home.ask_by_name(&text, &endpoint), "ok");

    // Killed: it is started again, and `up` returns when it works.
    let pid = home.pid_of("berth-gateway").unwrap();
    assert!(home.run(Path::new("kill"), &["-9", &pid.to_string()]).status.success());
    home.berth("dev up");
    assert_ne!(home.pid_of("berth-gateway"), Some(pid));
    assert!(home.kubectl(&kubeconfig, get).contains("namespace/kube-system"));

    // Without it the tenant is where it was before.
    home.berth("dev up --gateway=false");
    assert_eq!(home.pid_of("berth-gateway"), None);
    assert_eq!(home.status()["gateway"], Value::Null);
    let deadline = Instant::now() + SOON;
    while fs::read_to_string(&kubeconfig).unwrap().contains("tls-server-name") {
        assert!(Instant::now() < deadline, "the kubeconfig still leads to the gateway");
        sleep(Duration::from_millis(100));
    }
    home.berth("dev up --gateway");
    home.berth("dev down");
    assert!(!home.path().exists());
    assert_eq!(home.count_processes(), 0);
}

#[test]
fn every_example_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut seen = 0;
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    // Beside the folders is their index.
    for folder in entries.filter(|path| path.is_dir()) {
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            for document in berth_tests::files::documents(&fs::read_to_string(&path).unwrap()) {
                let kind = document["kind"].as_str().unwrap_or_default().to_owned();
                let parsed = match kind.as_str() {
                    "TenantCluster" => serde_json::from_value::<berth_api::TenantCluster>(document).map(drop),
                    "HostNodePool" => serde_json::from_value::<berth_api::HostNodePool>(document).map(drop),
                    "" => panic!("{}: a document without a kind", path.display()),
                    _ => Ok(()),
                };
                parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "only {seen} documents were found");
}
