//! A host cluster for tests with Berth on it. With simulated nodes control is a process of its own, as `berth dev up` runs it; on real
//! nodes Berth is installed by its chart.

use crate::files::{binary, example};
use crate::helm;
use berth_api::{HostNodePool, TenantClass, TenantCluster};
use berth_control::install::install;
use berth_local::{ChartInstall, HostCluster, HostClusterConfig, NodePlan, TestHost};
use berth_process::{ProcessSpec, Supervisor, SupervisorConfig, free_port, reap_marked, write_atomic};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    ops::Deref,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
};

/// The user that control authenticates as on the host.
pub const CONTROL_USER: &str = "berth-control";

/// Folder of the records of control's own process, in the cluster's home.
const CONTROL_RECORDS: &str = "control";

/// A host cluster with Berth on it. It ends with the value, unless another process keeps it.
pub struct TestCluster {
    /// cluster-admin of the host.
    pub client: Client,
    cluster: HostCluster,
    control: Control,
}

/// The process that starts and stops control.
enum Control {
    /// This process, which also ends the cluster.
    Here {
        supervisor: Supervisor,
        admin_port: u16,
        _host: TestHost,
    },
    /// The process that keeps the cluster; it listens on this socket.
    Keeper(PathBuf),
}

/// What another process must know to use a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Access {
    home: PathBuf,
    nodes: String,
    has_real_nodes: bool,
    socket: PathBuf,
}

/// A request of a process that uses a cluster to the one that keeps it.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    StartControl(String, Vec<String>),
    StopControl(String),
}

impl TestCluster {
    /// Starts a host cluster with these nodes, the pools `h100` and `l40s`, and control.
    pub async fn start(nodes: &str) -> Self {
        let cluster = Self::without_control(nodes).await;
        cluster.start_control("first").await;
        cluster
    }

    /// The same after `change` has edited the configuration of the host, which is that of a test.
    pub async fn start_with(nodes: &str, change: impl FnOnce(&mut HostClusterConfig)) -> Self {
        let plan: NodePlan = nodes.parse().unwrap();
        let host = TestHost::start_with(|config| {
            config.nodes = plan;
            change(config);
        });
        let cluster = Self::prepared(host.await.unwrap()).await;
        cluster.start_control("first").await;
        cluster
    }

    /// Starts a host cluster with these nodes and the pools; Berth is installed and control does not run.
    pub async fn without_control(nodes: &str) -> Self {
        let plan: NodePlan = nodes.parse().unwrap();
        Self::prepared(TestHost::start(plan).await.unwrap()).await
    }

    /// The same with real nodes.
    pub async fn without_control_on_real_nodes(nodes: &str) -> Self {
        let plan: NodePlan = nodes.parse().unwrap();
        let host = TestHost::start_with(|config| {
            config.nodes = plan;
            config.real_nodes = true;
        });
        Self::prepared(host.await.unwrap()).await
    }

    /// A host cluster on which what control needs is installed, with the pools.
    async fn prepared(host: TestHost) -> Self {
        install(&host.client().await.unwrap(), CONTROL_USER).await.unwrap();
        let kubeconfig = host.kubeconfig_for(CONTROL_USER, &[]).unwrap();
        write_atomic(&host.home().control_kubeconfig(), kubeconfig.as_bytes(), 0o600).unwrap();
        Self::with_pools(host).await
    }

    /// Starts a host cluster with real nodes, installs Berth by its chart as users do, and makes the pools `h100` and `l40s` and the
    /// class `default` of the examples.
    pub async fn on_real_nodes(nodes: &str) -> Self {
        let plan: NodePlan = nodes.parse().unwrap();
        let host = TestHost::start_with(|config| {
            config.nodes = plan;
            config.real_nodes = true;
        });
        let host = host.await.unwrap();
        let mut chart = ChartInstall::new(helm::chart(), binary("berth-control").parent().unwrap());
        chart.versions = vec![
            berth_kubernetes_versions::KUBERNETES_DEFAULT.into(),
            berth_kubernetes_versions::KUBERNETES_PREVIOUS.into(),
        ];
        host.install_chart(&chart).await.unwrap();
        let cluster = Self::with_pools(host).await;
        let classes: Api<TenantClass> = Api::all(cluster.client.clone());
        for class in example::<TenantClass>("classes/default.yaml") {
            classes.create(&PostParams::default(), &class).await.unwrap();
        }
        cluster
    }

    /// A host cluster on which Berth is installed, with the pools of the examples.
    async fn with_pools(host: TestHost) -> Self {
        let client = host.client().await.unwrap();
        let supervisor = Supervisor::open(SupervisorConfig {
            dir: host.home().root().join(CONTROL_RECORDS),
            die_with_parent: true,
        });
        let cluster = Self {
            client,
            cluster: host.cluster().clone(),
            control: Control::Here {
                supervisor: supervisor.await.unwrap(),
                admin_port: free_port().unwrap(),
                _host: host,
            },
        };
        let pools: Api<HostNodePool> = Api::all(cluster.client.clone());
        for pool in example::<HostNodePool>("pools/gpu.yaml") {
            pools.create(&PostParams::default(), &pool).await.unwrap();
        }
        cluster
    }

    /// Uses a cluster that another process keeps.
    pub async fn attach(access: &Access) -> Self {
        let mut config = HostClusterConfig::new(&access.home);
        config.nodes = access.nodes.parse().unwrap();
        config.real_nodes = access.has_real_nodes;
        let cluster = HostCluster::attach(&config).unwrap();
        Self {
            client: cluster.client().await.unwrap(),
            cluster,
            control: Control::Keeper(access.socket.clone()),
        }
    }

    /// What another process needs to use this cluster, which has these nodes and whose keeper listens on the socket.
    pub fn access(&self, nodes: &str, socket: &Path) -> Access {
        Access {
            home: self.home().root().to_owned(),
            nodes: nodes.to_owned(),
            has_real_nodes: !self.system_nodes().is_empty(),
            socket: socket.to_owned(),
        }
    }

    /// Serves the requests of processes that use this cluster, one after the other, until it is dropped.
    pub async fn serve_requests(&self, listener: UnixListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            if stream.read_line(&mut line).await.is_err() {
                continue;
            }
            match serde_json::from_str(&line) {
                Ok(Request::StartControl(identity, flags)) => self.start_control_with(&identity, &flags).await,
                Ok(Request::StopControl(identity)) => self.stop_control(&identity).await,
                // The client may be killed in the middle of a line.
                Err(_) => continue,
            }
            let _ = stream.write_all(b"done\n").await;
        }
    }

    /// Starts control under a name for leader election, or leaves it running.
    pub async fn start_control(&self, identity: &str) {
        self.start_control_with(identity, &[]).await;
    }

    /// Starts control with further flags; otherwise as [`Self::start_control`].
    pub async fn start_control_with(&self, identity: &str, further: &[String]) {
        let (supervisor, admin_port) = match &self.control {
            Control::Here {
                supervisor, admin_port, ..
            } => (supervisor, *admin_port),
            Control::Keeper(socket) => {
                return request(socket, &Request::StartControl(identity.into(), further.to_vec())).await;
            }
        };
        let home = self.home();
        let datastore = self.datastore();
        let name = format!("berth-control-{identity}");
        let mut spec = ProcessSpec::new(&name, binary("berth-control"), home.log(&name));
        let path = |path: &Path| path.display().to_string();
        let port = if identity == "first" {
            admin_port
        } else {
            free_port().unwrap()
        };
        let snapshots = home.snapshots();
        std::fs::create_dir_all(&snapshots).unwrap();
        let flags = [
            ("kubeconfig", path(&home.control_kubeconfig())),
            ("runtime", "process".into()),
            ("runtime-dir", path(&home.tenants())),
            ("log-dir", path(&home.logs())),
            ("kubeconfig-dir", path(&home.kubeconfigs())),
            ("datastore-endpoint", datastore.endpoint),
            ("datastore-ca", path(&datastore.ca_cert)),
            ("datastore-ca-key", path(&datastore.ca_key)),
            ("syncer-binary", path(&binary("berth-syncer"))),
            ("snapshot-store", format!("file://{}", path(&snapshots))),
            ("admin-address", format!("127.0.0.1:{port}")),
            ("identity", identity.into()),
            ("without-class", "BuiltInDefaults".into()),
        ];
        let flags = flags.iter().map(|(name, value)| format!("--{name}={value}"));
        spec.args = flags.chain(further.iter().cloned()).collect();
        for name in ["BERTH_KUBE_BIN_DIR", "KUBEBUILDER_ASSETS", "BERTH_CACHE", "RUST_LOG"] {
            if let Ok(value) = std::env::var(name) {
                spec.env.insert(name.into(), value);
            }
        }
        supervisor.ensure(spec).await.unwrap();
    }

    /// Stops control; the processes that it started go on.
    pub async fn stop_control(&self, identity: &str) {
        let supervisor = match &self.control {
            Control::Here { supervisor, .. } => supervisor,
            Control::Keeper(socket) => return request(socket, &Request::StopControl(identity.into())).await,
        };
        supervisor
            .stop(&format!("berth-control-{identity}"), Some(Duration::ZERO))
            .await
            .unwrap();
    }

    /// Folder with the records of control's own process.
    pub fn control_records(&self) -> PathBuf {
        self.home().root().join(CONTROL_RECORDS)
    }

    /// Folder with the records of all tenants' processes.
    pub fn tenant_records(&self) -> PathBuf {
        self.home().tenants().join("run")
    }

    /// Prints the end of control's and the tenants' logs.
    pub fn print_logs(&self) {
        let Ok(logs) = std::fs::read_dir(self.home().logs()) else {
            return;
        };
        for path in logs.filter_map(|entry| Some(entry.ok()?.path())) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // kwok logs every Lease: its other messages would be lost among them.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("Syncing lease")).collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("==> end of {} <==\n{last}", path.display());
        }
    }

    /// `TenantClusters` of a namespace.
    pub fn tenants(&self, namespace: &str) -> Api<TenantCluster> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Changes these fields of the spec of a `TenantCluster`. Those that are null are removed.
    pub async fn patch_tenant(&self, namespace: &str, name: &str, spec: &Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self
            .tenants(namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap();
    }

    /// Changes these fields of the spec of a `HostNodePool`. Those that are null are removed.
    pub async fn patch_pool(&self, name: &str, spec: &Value) {
        let pools: Api<HostNodePool> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": spec }));
        pools.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

impl Deref for TestCluster {
    type Target = HostCluster;

    fn deref(&self) -> &HostCluster {
        &self.cluster
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if !matches!(self.control, Control::Here { .. }) {
            return;
        }
        // Control first, or it would start its tenants' processes again.
        for dir in [self.control_records(), self.home().tenants()] {
            if let Err(error) = reap_marked(&dir, Duration::ZERO) {
                eprintln!("processes of {} may be left: {error}", dir.display());
            }
        }
    }
}

/// Sends a request to the process that keeps a cluster, and waits until it is done.
async fn request(socket: &Path, request: &Request) {
    let mut stream = BufReader::new(UnixStream::connect(socket).await.unwrap());
    let line = format!("{}\n", serde_json::to_string(request).unwrap());
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).await.unwrap();
    assert_eq!(answer, "done\n", "{request:?} is not done");
}
