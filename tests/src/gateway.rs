//! The gateway as a process of its own, with the rights that the chart gives it.

use crate::{files::binary, processes::spawn_logged, tenant::Tenant, test_cluster::TestCluster, wait::until_true};
use berth_api::system;
use berth_control::install::install_gateway;
use berth_process::{free_port, write_atomic};
use berth_runtime::http::{self, StatusCode};
use kube::config::Kubeconfig;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    process::ExitStatus,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// Domain of the gateway in tests. Nothing resolves it.
pub const DOMAIN: &str = "gateway.test";
/// User of the host as which the gateway authenticates: its ServiceAccount, which the admission policy `berth-gateway` confines.
pub const USER: &str = system::GATEWAY_USER;
/// Host of all addresses.
const HOST: &str = "127.0.0.1";
/// File of its folder with its output.
const LOG: &str = "log";
/// Time for what takes a second.
const LIMIT: Duration = Duration::from_secs(60);

/// A gateway, and how to start it again at the same address.
pub struct Gateway {
    process: Child,
    port: u16,
    admin: u16,
    flags: Vec<String>,
    folder: TempDir,
}

/// Flags with which control makes tenants valid for a gateway at this port.
pub fn control_flags(port: u16) -> [String; 2] {
    [format!("--gateway-domain={DOMAIN}"), format!("--gateway-port={port}")]
}

impl Gateway {
    /// Starts a gateway at a port, with flags besides those that it needs, and waits until it is ready.
    pub async fn start(host: &TestCluster, port: u16, further: &[&str]) -> Self {
        install_gateway(&host.client).await.unwrap();
        let folder = TempDir::with_prefix("berth-gateway-").unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = host.kubeconfig_for(USER, &[]).unwrap();
        write_atomic(&kubeconfig, text.as_bytes(), 0o600).unwrap();
        let admin = free_port().unwrap();
        let own = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--runtime=process".into(),
            format!("--domain={DOMAIN}"),
            format!("--listen-address={HOST}:{port}"),
            format!("--admin-address={HOST}:{admin}"),
        ];
        let flags: Vec<String> = own.into_iter().chain(further.iter().map(ToString::to_string)).collect();
        let gateway = Self {
            process: spawn(&flags, &folder),
            port,
            admin,
            flags,
            folder,
        };
        gateway.until_ready().await;
        gateway
    }

    async fn until_ready(&self) {
        until_true("the gateway is ready", LIMIT, async || {
            let answer = http::get(HOST, self.admin, "/readyz", LIMIT).await;
            answer.is_ok_and(|(status, _)| status == StatusCode::OK)
        })
        .await;
    }

    /// Where clients connect to it.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// Its metrics.
    pub async fn metrics(&self) -> String {
        http::get(HOST, self.admin, "/metrics", LIMIT).await.unwrap().1
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }

    /// Kills it, and starts it again.
    pub async fn kill_and_restart(&mut self) {
        self.process.kill().await.unwrap();
        self.process = spawn(&self.flags, &self.folder);
        self.until_ready().await;
    }

    /// Asks it to end, and waits for that.
    pub async fn stop(mut self) -> ExitStatus {
        let id = i32::try_from(self.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
        timeout(LIMIT, self.process.wait()).await.unwrap().unwrap()
    }

    /// The kubeconfig of a tenant, whose host name nothing resolves, with the address of this gateway.
    pub fn kubeconfig(&self, tenant: &Tenant) -> Kubeconfig {
        let mut kubeconfig = Kubeconfig::from_yaml(&tenant.kubeconfig).unwrap();
        for named in &mut kubeconfig.clusters {
            let cluster = named.cluster.as_mut().unwrap();
            cluster.server = Some(format!("https://{}", self.address()));
            cluster.tls_server_name = Some(host_name(tenant));
        }
        kubeconfig
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("==> log of the gateway <==\n{}", self.log());
        }
    }
}

/// Host name of a tenant at the gateway.
pub fn host_name(tenant: &Tenant) -> String {
    format!("{}.{}.{DOMAIN}", tenant.name, tenant.namespace)
}

fn spawn(flags: &[String], folder: &TempDir) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.path().join(LOG))
        .unwrap();
    spawn_logged(Command::new(binary("berth-gateway")).args(flags), log)
}
