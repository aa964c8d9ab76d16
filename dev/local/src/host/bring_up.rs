//! Starting the processes of a host cluster, in their order.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_process::binaries::{self, Binary};
use berth_process::{ProcessSpec, write_atomic};
use kube::Client;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{HostCluster, Inner};
use crate::Error;
use crate::admission;
use crate::bootstrap::{self, KWOK_USER};
use crate::components::{Components, process};
use crate::config::{HostClusterConfig, Purpose};
use crate::images::{Image, catalog};
use crate::real::RealNodes;
use crate::stages::kwok_configuration;

/// How long a part of the cluster may take to get ready. Generous: machines are shared, binaries come from cold disks.
const READY_TIMEOUT: Duration = Duration::from_mins(5);
/// How often readiness is checked.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

impl HostCluster {
    /// Starts what does not run, and returns when the cluster accepts pods and its nodes are ready.
    pub(super) async fn bring_up(&self, config: &HostClusterConfig, progress: impl Fn(&str)) -> Result<(), Error> {
        let Inner {
            home,
            ports,
            address,
            real,
            pki,
            supervisor: _,
        } = self.inner.as_ref();
        let components = Components {
            home,
            address: *address,
            config,
            ports: *ports,
            pki,
        };
        let server = components.server();
        pki.ensure_kubeconfig(&home.admin_kubeconfig(), &server, "berth-admin", &["system:masters"])?;
        for (component, user) in [
            (process::CONTROLLER_MANAGER, "system:kube-controller-manager"),
            (process::SCHEDULER, "system:kube-scheduler"),
        ] {
            pki.ensure_kubeconfig(&components.kubeconfig(component), &server, user, &[])?;
        }
        let admission_file = components.admission_configuration();
        write_atomic(&admission_file, admission::configuration().as_bytes(), 0o600)?;
        let (scheduler_file, scheduler_configuration) = components.scheduler_configuration();
        write_atomic(&scheduler_file, scheduler_configuration.as_bytes(), 0o600)?;
        // Found before anything is started: a missing binary must not leave half a cluster.
        let mut first = vec![components.etcd()?, components.apiserver()?];
        if config.purpose == Purpose::Berth {
            first.push(components.datastore()?);
        }
        let then = [components.controller_manager()?, components.scheduler()?];
        let nodes = if let Some(real) = real {
            real.write_files(pki, &server)?;
            real.programs()?
        } else {
            write_atomic(&home.config("kwok.yaml"), kwok_configuration().as_bytes(), 0o600)?;
            pki.ensure_kubeconfig(&components.kubeconfig(process::KWOK), &server, KWOK_USER, &[])?;
            vec![components.kwok()?]
        };

        progress("starting etcd and kube-apiserver");
        self.ensure_all(first).await?;
        let client = self.client().await?;
        wait_until("kube-apiserver", home.log(process::APISERVER), async || {
            Ok(is_ready(&client).await)
        })
        .await?;

        progress("starting kube-controller-manager, kube-scheduler and the nodes");
        let begin = async {
            if let Some(real) = real {
                real.apply_objects(&client).await?;
                let system = if config.purpose == Purpose::Berth {
                    real.system_nodes()
                } else {
                    Vec::new()
                };
                let nodes = config.nodes.build_real_nodes(real.pod_ranges(), &system);
                bootstrap::create_nodes(&client, nodes).await?;
            } else {
                bootstrap::apply_kwok_role(&client).await?;
                bootstrap::create_nodes(&client, config.nodes.build_nodes(&config.kubernetes_version)).await?;
            }
            self.ensure_all(nodes).await?;
            match real {
                Some(real) => import_images(real).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(self.ensure_all(then), begin)?;
        let log = if config.real_nodes {
            home.logs()
        } else {
            home.log(process::KWOK)
        };
        let nodes = wait_until("the nodes", log, async || {
            Ok(bootstrap::nodes_not_ready(&client, &config.nodes).await?.is_empty())
        });
        let accounts = wait_until(
            "kube-controller-manager",
            home.log(process::CONTROLLER_MANAGER),
            async || bootstrap::default_service_account_exists(&client).await,
        );
        let datastore = wait_until("the tenants' etcd", home.log(process::DATASTORE), async || {
            Ok(config.purpose == Purpose::Anybody || TcpStream::connect(("127.0.0.1", ports.datastore)).await.is_ok())
        });
        let scheduler = wait_until("kube-scheduler", home.log(process::SCHEDULER), async || {
            Ok(TcpStream::connect(("127.0.0.1", ports.scheduler)).await.is_ok())
        });
        tokio::try_join!(nodes, accounts, datastore, scheduler)?;
        Ok(())
    }

    async fn ensure_all(&self, specs: impl IntoIterator<Item = ProcessSpec>) -> Result<(), Error> {
        let ensure = |spec| self.inner.supervisor.ensure(spec);
        futures::future::try_join_all(specs.into_iter().map(ensure)).await?;
        Ok(())
    }
}

/// Imports the images that every node needs, and those of the cluster's own pods.
async fn import_images(real: &RealNodes) -> Result<(), Error> {
    let system = [
        Image::new(catalog::COREDNS, &binaries::find_pinned(Binary::Coredns)?, "/coredns"),
        catalog::metrics_server()?,
    ];
    let all: Vec<String> = real.names().map(str::to_owned).collect();
    // First those that other pods wait for.
    real.import(&catalog::for_workloads()?, &all).await?;
    real.import(&system, &real.addon_nodes()).await
}

/// Whether the API server says that it is ready.
async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    matches!(
        tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await,
        Ok(Ok(_))
    )
}

async fn wait_until(
    what: &'static str,
    log: PathBuf,
    probe: impl AsyncFn() -> Result<bool, Error>,
) -> Result<(), Error> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let error = match probe().await {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            // The API server may be restarting.
            Err(error) => Some(error),
        };
        if Instant::now() > deadline {
            return Err(error.unwrap_or(Error::NotReady {
                what,
                after: READY_TIMEOUT,
                log,
            }));
        }
        sleep(PROBE_INTERVAL).await;
    }
}
