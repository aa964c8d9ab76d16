//! A host cluster with simulated GPU nodes, and control as a process of its own, as `berth up` runs it.

use berth_api::{HostNodePool, TenantClass, TenantCluster};
use berth_control::install::install;
use berth_local::{ChartInstall, NodePlan, TestHost};
use berth_process::{ProcessSpec, Supervisor, SupervisorConfig, free_port, reap_marked, write_atomic};
use kube::{Api, Client, api::PostParams};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The user that control authenticates as on the host.
pub const CONTROL_USER: &str = "berth-control";

/// A host cluster with control on it. Everything ends with the value.
pub struct World {
    /// The host cluster.
    pub host: TestHost,
    /// cluster-admin of the host.
    pub client: Client,
    supervisor: Supervisor,
    admin_port: u16,
}

/// A binary of this workspace, built in the same profile as this test.
///
/// # Panics
/// It was not built: `make test` builds it, `cargo test` alone does not.
pub fn binary(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing; run `make build` first, or `make test`",
        path.display()
    );
    path
}

impl World {
    /// Starts a host cluster with these nodes, the pools `h100` and `l40s`, and control.
    pub async fn start(nodes: &str) -> Self {
        let world = Self::without_control(nodes).await;
        world.start_control("first").await;
        world
    }

    /// Starts a host cluster with these nodes and the pools; Berth is installed and control does not run.
    pub async fn without_control(nodes: &str) -> Self {
        let plan: NodePlan = nodes.parse().unwrap();
        let host = TestHost::start(plan).await.unwrap();
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
        let mut chart = ChartInstall::new(binary("berth-control").parent().unwrap());
        chart.versions = vec![
            berth_kubernetes_versions::KUBERNETES_DEFAULT.into(),
            berth_kubernetes_versions::KUBERNETES_PREVIOUS.into(),
        ];
        host.install_chart(&chart).await.unwrap();
        let world = Self::with_pools(host).await;
        let classes: Api<TenantClass> = Api::all(world.client.clone());
        for class in example::<TenantClass>("classes/default.yaml") {
            classes.create(&PostParams::default(), &class).await.unwrap();
        }
        world
    }

    /// A host cluster on which Berth is installed, with the pools of the examples.
    async fn with_pools(host: TestHost) -> Self {
        let client = host.client().await.unwrap();
        let supervisor = Supervisor::open(SupervisorConfig {
            dir: host.home().root().join("control"),
            die_with_parent: true,
        });
        let world = Self {
            supervisor: supervisor.await.unwrap(),
            admin_port: free_port().unwrap(),
            client,
            host,
        };
        let pools: Api<HostNodePool> = Api::all(world.client.clone());
        for pool in example::<HostNodePool>("pools/gpu.yaml") {
            pools.create(&PostParams::default(), &pool).await.unwrap();
        }
        world
    }

    /// Starts control under a name for leader election, or leaves it running.
    pub async fn start_control(&self, identity: &str) {
        let home = self.host.home();
        let datastore = self.host.datastore();
        let name = format!("berth-control-{identity}");
        let mut spec = ProcessSpec::new(&name, binary("berth-control"), home.log(&name));
        let path = |path: &Path| path.display().to_string();
        let port = if identity == "first" {
            self.admin_port
        } else {
            free_port().unwrap()
        };
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
            ("admin-address", format!("127.0.0.1:{port}")),
            ("identity", identity.into()),
        ];
        spec.args = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        for name in ["BERTH_KUBE_BIN_DIR", "KUBEBUILDER_ASSETS", "BERTH_CACHE", "RUST_LOG"] {
            if let Ok(value) = std::env::var(name) {
                spec.env.insert(name.into(), value);
            }
        }
        self.supervisor.ensure(spec).await.unwrap();
    }

    /// Stops control; what it started goes on.
    pub async fn stop_control(&self, identity: &str) {
        self.supervisor
            .stop(&format!("berth-control-{identity}"), Some(Duration::ZERO))
            .await
            .unwrap();
    }

    /// Folder with the records of control's own process.
    pub fn control_records(&self) -> &Path {
        self.supervisor.dir()
    }

    /// Folder with the records of all tenants' processes.
    pub fn tenant_records(&self) -> PathBuf {
        self.host.home().tenants().join("run")
    }

    /// Prints the end of control's and the tenants' logs, for whoever looks into a failure.
    pub fn print_logs(&self) {
        let Ok(logs) = std::fs::read_dir(self.host.home().logs()) else {
            return;
        };
        for path in logs.filter_map(|entry| Some(entry.ok()?.path())) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // KWOK tells of every Lease; what else it says would be lost among that.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("Syncing lease")).collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("==> end of {} <==\n{last}", path.display());
        }
    }

    /// `TenantClusters` of a namespace.
    pub fn tenants(&self, namespace: &str) -> Api<TenantCluster> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Control first, or it would start its tenants' processes again.
        for dir in [self.control_records().to_path_buf(), self.host.home().tenants()] {
            if let Err(error) = reap_marked(&dir, Duration::ZERO) {
                eprintln!("processes of {} may be left: {error}", dir.display());
            }
        }
    }
}

/// Objects of one kind in a file of `examples/`.
pub fn example<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(path: &str) -> Vec<K> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    documents(&text)
        .into_iter()
        .filter(|document| document["kind"] == K::kind(&()).as_ref())
        .map(|document| serde_json::from_value(document).unwrap())
        .collect()
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> Vec<serde_json::Value> {
    serde_saphyr::from_multiple(text).unwrap()
}
