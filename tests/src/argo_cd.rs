//! Argo CD, as `make test-argo-cd` builds it: the controllers that apply Applications and ApplicationSets, what reads repositories for
//! them, and their cache. All run as processes on this machine. Argo CD's own API server and user interface do not run.

use crate::{
    files::documents,
    helm::cache,
    objects::{apply, dynamic},
    processes::{ending_with_parent, spawn_logged},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use berth_process::free_port;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use tokio::{net::TcpStream, process::Child};

/// Argo CD in `hack/kubernetes/versions`.
const COMPONENT: &str = "argo-cd";
const VERSION: &str = "v3.5.7";
const GROUP: &str = "argoproj.io";
/// Part of its image, which looks for signatures of commits.
const SCRIPT: &str = "git-verify-wrapper.sh";
const KINDS: [&str; 3] = ["Application", "ApplicationSet", "AppProject"];
/// Host of all addresses.
const HOST: &str = "127.0.0.1";
/// Lines of each log that a failure shows.
const LAST_LINES: usize = 12;

/// A running Argo CD. It ends with this value, and with the process that started it.
pub struct ArgoCd {
    /// Its namespace on the host.
    namespace: String,
    host: kube::Client,
    folder: TempDir,
    processes: Vec<Child>,
}

impl ArgoCd {
    /// Defines the kinds of Argo CD on the host, and starts it with a namespace that exists.
    pub async fn start(host: &TestCluster, namespace: &str) -> Self {
        define_kinds(host, namespace).await;
        // Argo CD does not start without them. Of the keys, it needs none here.
        for (kind, name) in [("ConfigMap", "argocd-cm"), ("Secret", "argocd-secret")] {
            let labels = json!({"app.kubernetes.io/part-of": "argocd"});
            let settings = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels}});
            apply(&host.client, namespace, &settings).await.unwrap();
        }
        let folder = TempDir::with_prefix("berth-argo-cd-").unwrap();
        let script = folder.path().join(SCRIPT);
        fs::copy(manifests().join(SCRIPT), &script).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let (redis, repositories) = (free_port().unwrap(), free_port().unwrap());
        let mut cache = ending_with_parent(Path::new("redis-server"));
        cache.args(["--bind", HOST, "--port", &redis.to_string(), "--save", "", "--dir"]);
        cache.arg(folder.path());
        let mut processes = vec![spawn(cache, folder.path(), "redis")];
        for (name, flags) in parts(namespace, redis, repositories) {
            let mut command = ending_with_parent(&program());
            command.env("ARGOCD_BINARY_NAME", name).args(flags);
            command.env("KUBECONFIG", host.home().admin_kubeconfig());
            processes.push(spawn(command, folder.path(), name));
        }
        let mut argo_cd = Self {
            namespace: namespace.into(),
            host: host.client.clone(),
            folder,
            processes,
        };
        for port in [redis, repositories] {
            until_true("Argo CD listens", SOON, async || {
                for process in &mut argo_cd.processes {
                    assert_eq!(process.try_wait().unwrap(), None, "a part of Argo CD has ended");
                }
                TcpStream::connect((HOST, port)).await.is_ok()
            })
            .await;
        }
        argo_cd
    }

    /// Objects of one of its kinds in its namespace.
    pub fn objects(&self, kind: &str) -> Api<DynamicObject> {
        dynamic(&self.host, GROUP, "v1alpha1", kind, &self.namespace)
    }
}

/// What Argo CD prints about the health of an object, with the settings in a file (its ConfigMap `argocd-cm`).
pub async fn judge_health(settings: &Path, object: &Value) -> String {
    let home = TempDir::with_prefix("berth-argo-cd-health-").unwrap();
    let file = home.path().join("object.yaml");
    fs::write(&file, object.to_string()).unwrap();
    let mut command = ending_with_parent(&program());
    command
        .env("ARGOCD_BINARY_NAME", "argocd")
        .env("HOME", home.path())
        .current_dir(home.path())
        .args(["admin", "settings", "resource-overrides", "health"])
        .arg(&file)
        .arg("--argocd-cm-path")
        .arg(settings);
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

impl Drop for ArgoCd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
                eprintln!("==> end of {} <==\n{last}", path.display());
            }
        }
    }
}

/// The parts of Argo CD, which are one program, and their flags, with the ports of the cache and of the repo server.
fn parts(namespace: &str, redis: u16, repositories: u16) -> [(&'static str, Vec<String>); 3] {
    let namespace = format!("--namespace={namespace}");
    let redis = format!("--redis={HOST}:{redis}");
    let text = "--logformat=text".to_owned();
    let plain = "--repo-server-plaintext".to_owned();
    let repo_server = vec![
        format!("--address={HOST}"),
        format!("--port={repositories}"),
        format!("--metrics-address={HOST}"),
        "--metrics-port=0".into(),
        "--disable-tls".into(),
        // The default is a file, which is refused without TLS.
        "--client-ca-path=".into(),
        // Every look for a new commit asks the repository.
        "--revision-cache-expiration=1s".into(),
        redis.clone(),
        text.clone(),
    ];
    let applications = vec![
        namespace.clone(),
        format!("--repo-server={HOST}:{repositories}"),
        // How often it looks for a new commit.
        "--app-resync=5".into(),
        "--app-resync-jitter=0".into(),
        // Any port. It is the only one here whose address is not loopback, for which there is no flag; it has metrics only.
        "--metrics-port=0".into(),
        redis,
        plain.clone(),
        text.clone(),
    ];
    let application_sets = vec![
        namespace,
        format!("--argocd-repo-server={HOST}:{repositories}"),
        "--metrics-addr=0".into(),
        "--probe-addr=0".into(),
        format!("--webhook-addr={HOST}:0"),
        plain,
        text,
    ];
    [
        ("argocd-repo-server", repo_server),
        ("argocd-application-controller", applications),
        ("argocd-applicationset-controller", application_sets),
    ]
}

/// The kinds as the module of Argo CD defines them.
async fn define_kinds(host: &TestCluster, namespace: &str) {
    for kind in KINDS {
        let file = manifests().join(format!("{}-crd.yaml", kind.to_lowercase()));
        for definition in documents(&fs::read_to_string(file).unwrap()) {
            apply(&host.client, "", &definition).await.unwrap();
        }
    }
    for kind in KINDS {
        let objects = dynamic(&host.client, GROUP, "v1alpha1", kind, namespace);
        until_true("the kinds of Argo CD are served", SOON, async || {
            objects.list(&ListParams::default()).await.is_ok()
        })
        .await;
    }
}

fn manifests() -> PathBuf {
    built(cache().join("manifests").join(COMPONENT).join(VERSION))
}

fn program() -> PathBuf {
    built(cache().join("bin").join(COMPONENT).join(VERSION).join("argocd"))
}

/// What the make target puts there.
fn built(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing; run `make test-argo-cd`", path.display());
    path
}

/// Starts a part of Argo CD with a folder for everything that it writes.
fn spawn(mut command: tokio::process::Command, folder: &Path, name: &str) -> Child {
    let log = File::create(folder.join(format!("{name}.log"))).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", folder.display()))
        .current_dir(folder)
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .env("ARGOCD_ASK_PASS_SOCK", folder.join("ask-pass.sock"))
        .env("ARGOCD_PLUGINSOCKFILEPATH", folder.join("plugins"))
        .env("ARGOCD_APP_CONF_PATH", folder.join("config"))
        .env("ARGOCD_GPG_ENABLED", "false")
        // How often it lists everything in a cluster again. By default it does that every ten minutes.
        .env("ARGOCD_CLUSTER_CACHE_WATCH_RESYNC_DURATION", "15s");
    spawn_logged(&mut command, log)
}
