//! Starting, using and removing a host cluster.

mod bring_up;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_process::{Supervisor, SupervisorConfig, reap_marked};
use kube::Client;
use kube::config::KubeConfigOptions;

use crate::components::process;
use crate::config::{HostClusterConfig, SERVICE_ADDRESS};
use crate::images::Image;
use crate::kubeconfigs::read_kubeconfig;
use crate::pki::{HostPki, file};
use crate::real::{self, RealNodes};
use crate::{Error, Home, Ports};

/// The tenants' shared etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datastore {
    /// `https://127.0.0.1:<port>`.
    pub endpoint: String,
    /// The authority that signs its server certificate and its clients' certificates.
    pub ca_cert: PathBuf,
    /// The key of that authority, which signs client certificates.
    pub ca_key: PathBuf,
    /// `127.0.0.1:<port>`, for its peers.
    pub peer_address: String,
    /// The authority that signs the certificates of its peers, and nothing else.
    pub peer_ca_cert: PathBuf,
    /// The certificate of its peers.
    pub peer_cert: PathBuf,
    /// The key of that certificate.
    pub peer_key: PathBuf,
}

/// A running host cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostCluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    home: Home,
    ports: Ports,
    /// Where the API server listens.
    address: IpAddr,
    real: Option<RealNodes>,
    pki: HostPki,
    supervisor: Supervisor,
}

impl HostCluster {
    /// Starts a host cluster, or adopts and completes one whose processes run already. Returns when it accepts pods and
    /// its nodes are ready. `progress` is called with each step.
    ///
    /// # Errors
    /// See [`Error`]. What was started goes on running: start again, or remove it with [`destroy`].
    pub async fn start(mut config: HostClusterConfig, progress: impl Fn(&str)) -> Result<Self, Error> {
        let home = Home::new(&config.home);
        home.create()?;
        // Created now, so that links in its path can be followed.
        let home = Home::new(home.root());
        let supervisor = Supervisor::open(SupervisorConfig {
            dir: home.run(),
            die_with_parent: config.die_with_parent,
        })
        .await?;
        let ports = Ports::load_or_choose(&home)?;
        let real = if config.real_nodes {
            progress("making namespaces and links for the nodes");
            let real = RealNodes::create(&home, &config)?;
            if let Err(why) = real::raise_limits() {
                progress(&format!("going on, but nodes may fail: {why}"));
            }
            // A range of its own, so that several clusters can be reached from this machine.
            config.service_ranges = real.services();
            Some(real)
        } else {
            None
        };
        let (address, pki) = address_and_certificates(&home, real.as_ref())?;
        let cluster = Self {
            inner: Arc::new(Inner {
                home,
                ports,
                address,
                real,
                pki,
                supervisor,
            }),
        };
        cluster.bring_up(&config, progress).await?;
        Ok(cluster)
    }

    /// A cluster that another process runs: it can be used, but not started or stopped. `config` is what it was
    /// started with.
    ///
    /// # Errors
    /// [`Error::File`] when it was never started or its files cannot be read, those of [`Home::check_private`].
    pub fn attach(config: &HostClusterConfig) -> Result<Self, Error> {
        let home = Home::new(&config.home);
        home.check_private()?;
        let ports = Ports::load_or_choose(&home)?;
        let real = if config.real_nodes {
            Some(RealNodes::load(&home, config)?)
        } else {
            None
        };
        let (address, pki) = address_and_certificates(&home, real.as_ref())?;
        let supervisor = Supervisor::closed(home.run());
        Ok(Self {
            inner: Arc::new(Inner {
                home,
                ports,
                address,
                real,
                pki,
                supervisor,
            }),
        })
    }

    /// The state directory.
    pub fn home(&self) -> &Home {
        &self.inner.home
    }

    /// The ports the components listen on.
    pub fn ports(&self) -> Ports {
        self.inner.ports
    }

    /// Address of the API server.
    pub fn server(&self) -> String {
        format!(
            "https://{}",
            SocketAddr::new(self.inner.address, self.inner.ports.apiserver)
        )
    }

    /// The supervisor of the host's processes, which can supervise others too (control).
    pub fn supervisor(&self) -> &Supervisor {
        &self.inner.supervisor
    }

    /// The tenants' shared etcd.
    pub fn datastore(&self) -> Datastore {
        let Inner { ports, pki, .. } = &*self.inner;
        Datastore {
            endpoint: format!("https://127.0.0.1:{}", ports.datastore),
            ca_cert: pki.cert(file::DATASTORE_CA),
            ca_key: pki.key(file::DATASTORE_CA),
            peer_address: format!("127.0.0.1:{}", ports.datastore_peer),
            peer_ca_cert: pki.cert(file::DATASTORE_PEER_CA),
            peer_cert: pki.cert(file::DATASTORE_PEER),
            peer_key: pki.key(file::DATASTORE_PEER),
        }
    }

    /// A client with cluster-admin rights.
    ///
    /// # Errors
    /// [`Error::Kubeconfig`] when the kubeconfig has been damaged.
    pub async fn client(&self) -> Result<Client, Error> {
        client_from(&self.inner.home.admin_kubeconfig()).await
    }

    /// Makes archives of images and imports them on real nodes: on those named, or on all. There is no registry.
    ///
    /// # Errors
    /// [`Error::NoRealNodes`] when a node is not a real node of this cluster, [`Error::Image`] when an image cannot be made,
    /// [`Error::Node`] when a node refuses it.
    pub async fn import_images(&self, images: &[Image], nodes: Option<&[String]>) -> Result<(), Error> {
        let Some(real) = &self.inner.real else {
            return Err(Error::NoRealNodes("simulated nodes have no images".into()));
        };
        let all: Vec<String> = real.names().map(str::to_owned).collect();
        real.import(images, nodes.unwrap_or(&all)).await
    }

    /// Imports the images of archives on all real nodes. An archive is what `docker save` writes, or an OCI image layout.
    ///
    /// # Errors
    /// [`Error::NoRealNodes`] when nodes are simulated, [`Error::Node`] when a node rejects an archive.
    pub async fn load_archives(&self, archives: &[PathBuf]) -> Result<(), Error> {
        match &self.inner.real {
            Some(real) => real.load_archives(archives).await,
            None => Err(Error::NoRealNodes("simulated nodes have no images".into())),
        }
    }

    /// Runs containerd's client on a real node, for the kubelet's images and containers, and returns its output. Blocks until it
    /// ends.
    ///
    /// # Errors
    /// [`Error::NoRealNodes`] when there is no such node, [`Error::Node`] when the client fails.
    pub fn ctr(&self, node: &str, arguments: &[&str]) -> Result<String, Error> {
        match &self.inner.real {
            Some(real) => real.ctr(node, arguments),
            None => Err(Error::NoRealNodes("simulated nodes have no container runtime".into())),
        }
    }

    /// A command that runs a program as on a real node: with the node's directories and its network. Its arguments follow. The
    /// working directory is `/`.
    ///
    /// # Errors
    /// [`Error::NoRealNodes`] when there is no such node.
    pub fn command_on_node(&self, node: &str, program: &str) -> Result<std::process::Command, Error> {
        let Some(real) = &self.inner.real else {
            return Err(Error::NoRealNodes("simulated nodes run no programs".into()));
        };
        let mut command = std::process::Command::new("nsenter");
        command.args(real.enter(node)?).arg(program);
        Ok(command)
    }

    /// Names of the real nodes that run the cluster's own pods; none if nodes are simulated.
    pub fn system_nodes(&self) -> Vec<String> {
        self.inner
            .real
            .as_ref()
            .map(RealNodes::system_nodes)
            .unwrap_or_default()
    }

    /// This machine's address as real nodes and their pods reach it; loopback if nodes are simulated.
    pub fn machine(&self) -> IpAddr {
        self.inner.address
    }

    /// Kubeconfig text for a user with up to two groups, with a client certificate of the host's authority. Secret.
    ///
    /// # Errors
    /// [`Error::Pki`] for an impossible user name or too many groups.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<String, Error> {
        self.inner.pki.kubeconfig(&self.server(), user, groups)
    }

    /// Keeps a kubeconfig for a user in a file (mode 0600). A recent one is left as it is.
    ///
    /// # Errors
    /// As [`HostCluster::kubeconfig_for`], and when the file cannot be written.
    pub fn ensure_kubeconfig(&self, path: &Path, user: &str, groups: &[&str]) -> Result<(), Error> {
        self.inner.pki.ensure_kubeconfig(path, &self.server(), user, groups)
    }

    /// Stops all processes, dependents first. The state stays: [`HostCluster::start`] continues from it.
    ///
    /// # Errors
    /// [`Error::Process`] when one cannot be ended.
    pub async fn stop(&self) -> Result<(), Error> {
        let supervisor = &self.inner.supervisor;
        let stop = |name| supervisor.stop(name, None);
        let host = [
            process::KWOK,
            process::SCHEDULER,
            process::CONTROLLER_MANAGER,
            process::APISERVER,
            process::ETCD,
            process::DATASTORE,
        ];
        let others = supervisor
            .list()
            .into_iter()
            .map(|status| status.name)
            .filter(|name| !host.contains(&name.as_str()));
        for name in others {
            supervisor.stop(&name, None).await?;
        }
        tokio::try_join!(
            stop(process::KWOK),
            stop(process::SCHEDULER),
            stop(process::CONTROLLER_MANAGER)
        )?;
        stop(process::APISERVER).await?;
        tokio::try_join!(stop(process::ETCD), stop(process::DATASTORE))?;
        Ok(())
    }

    /// Ends all processes at once and removes the home with everything in it.
    ///
    /// # Errors
    /// As [`destroy`].
    pub async fn destroy(self) -> Result<(), Error> {
        self.inner.supervisor.release();
        let root = self.inner.home.root().to_owned();
        tokio::task::spawn_blocking(move || destroy(&root)).await?
    }
}

/// Removes a host cluster: ends every process that belongs to `home`, in any state and whichever program started it, and
/// removes the directory. A missing home counts as removed. Blocks.
///
/// # Errors
/// [`Error::Process`] when a process cannot be ended, [`Error::File`] when a file cannot be removed: call it again then.
/// [`Error::NotAHome`] when the directory is something else, [`Error::NotPrivate`] and, with real nodes, [`Error::CopiedHome`] when somebody else
/// may have written what is to be removed.
pub fn destroy(home: &Path) -> Result<(), Error> {
    let home = Home::new(home);
    home.check_removable()?;
    reap_marked(home.root(), Duration::ZERO)?;
    real::remove(&home)?;
    home.remove()
}

/// A client from a kubeconfig that this crate has written.
///
/// # Errors
/// Those of [`read_kubeconfig`].
pub async fn client_from(path: &Path) -> Result<Client, Error> {
    let kubeconfig = read_kubeconfig(path)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| Error::Kubeconfig(error.to_string()))?;
    // Callers that wait for an API server try again soon themselves; the pauses of the built-in retry grow.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| Error::Kubeconfig(error.to_string()))
}

/// Where the API server listens, and the certificates for it.
fn address_and_certificates(home: &Home, real: Option<&RealNodes>) -> Result<(IpAddr, HostPki), Error> {
    let address = real.map_or(Ipv4Addr::LOCALHOST, RealNodes::machine).into();
    let service_address = real.map_or(SERVICE_ADDRESS, RealNodes::service_address).into();
    let pki = HostPki::load_or_create(home, &[service_address, address])?;
    Ok((address, pki))
}
