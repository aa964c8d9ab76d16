//! The command lines of the host's components. Pure: makes process specifications from paths, ports and settings.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use berth_kubernetes_versions::features::{GroupScheduling, group_scheduling};
use berth_process::ProcessSpec;
use berth_process::binaries::{self, Binary};

use crate::admission;
use crate::config::{HostClusterConfig, POD_RANGE, Purpose};
use crate::nodes::SIMULATED;
use crate::pki::{HostPki, file};
use crate::revision::revision_of_files;
use crate::scheduler;
use crate::{Error, Home, Ports};

/// Names of the host's processes; also of their logs.
pub mod process {
    /// etcd of the host.
    pub const ETCD: &str = "etcd";
    /// The tenants' shared etcd.
    pub const DATASTORE: &str = "datastore";
    /// kube-apiserver.
    pub const APISERVER: &str = "kube-apiserver";
    /// kube-controller-manager.
    pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
    /// kube-scheduler.
    pub const SCHEDULER: &str = "kube-scheduler";
    /// kwok, which acts as the kubelets.
    pub const KWOK: &str = "kwok";
}

/// Requests of controller manager and scheduler in a second, and at once.
const REQUESTS: (u32, u32) = (500, 1000);

/// Everything the command lines are made of.
pub(crate) struct Components<'a> {
    pub(crate) home: &'a Home,
    /// Where the API server listens.
    pub(crate) address: IpAddr,
    pub(crate) config: &'a HostClusterConfig,
    pub(crate) ports: Ports,
    pub(crate) pki: &'a HostPki,
}

/// Arguments of the form `--flag=value`.
struct Arguments(Vec<String>);

impl Arguments {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, flag: &str, value: impl std::fmt::Display) -> Self {
        self.0.push(format!("--{flag}={value}"));
        self
    }

    fn with_path(self, flag: &str, path: &Path) -> Self {
        self.with(flag, path.display())
    }
}

impl Components<'_> {
    /// The kubeconfig that a component authenticates with.
    pub(crate) fn kubeconfig(&self, component: &str) -> std::path::PathBuf {
        self.home.pki().join(format!("{component}.kubeconfig"))
    }

    /// The file with the admission configuration of the API server.
    pub(crate) fn admission_configuration(&self) -> std::path::PathBuf {
        self.home.config(admission::FILE)
    }

    /// The file with the configuration of the scheduler, and its content.
    pub(crate) fn scheduler_configuration(&self) -> (std::path::PathBuf, String) {
        let content = scheduler::configuration(&self.kubeconfig(process::SCHEDULER), REQUESTS);
        (self.home.config(scheduler::FILE), content)
    }

    /// Address of the API server.
    pub(crate) fn server(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.ports.apiserver))
    }

    /// etcd of the host.
    pub(crate) fn etcd(&self) -> Result<ProcessSpec, Error> {
        let Ports { etcd, etcd_peer, .. } = self.ports;
        self.etcd_process(
            process::ETCD,
            [file::ETCD, file::ETCD_CA],
            [file::ETCD_PEER, file::ETCD_PEER_CA],
            (etcd, etcd_peer),
            Arguments::new(),
        )
    }

    /// The tenants' etcd. Control turns authentication on; tenants' API servers may not compact it, so it compacts itself.
    pub(crate) fn datastore(&self) -> Result<ProcessSpec, Error> {
        let Ports {
            datastore,
            datastore_peer,
            ..
        } = self.ports;
        let arguments = Arguments::new()
            .with("auto-compaction-mode", "periodic")
            .with("auto-compaction-retention", "5m")
            .with("quota-backend-bytes", 2_u64 << 30)
            // Writes that are kept in memory for members that are behind: this etcd has none.
            .with("snapshot-catchup-entries", 100);
        let ports = (datastore, datastore_peer);
        let mut spec = self.etcd_process(
            process::DATASTORE,
            [file::DATASTORE, file::DATASTORE_CA],
            [file::DATASTORE_PEER, file::DATASTORE_PEER_CA],
            ports,
            arguments,
        )?;
        spec.args.extend(self.config.datastore_flags.iter().cloned());
        Ok(spec)
    }

    /// An etcd with a certificate and an authority for its clients, and others for its peers: whom the first authority
    /// signs is no peer.
    fn etcd_process(
        &self,
        name: &str,
        [certificate, authority]: [&str; 2],
        [peer_certificate, peer_authority]: [&str; 2],
        (client_port, peer_port): (u16, u16),
        further: Arguments,
    ) -> Result<ProcessSpec, Error> {
        let client_url = format!("https://127.0.0.1:{client_port}");
        let peer_url = format!("https://127.0.0.1:{peer_port}");
        let (cert, key, ca) = (
            self.pki.cert(certificate),
            self.pki.key(certificate),
            self.pki.cert(authority),
        );
        let (peer_cert, peer_key, peer_ca) = (
            self.pki.cert(peer_certificate),
            self.pki.key(peer_certificate),
            self.pki.cert(peer_authority),
        );
        let mut arguments = further
            .with("name", name)
            .with_path("data-dir", &self.home.data(name))
            .with("listen-client-urls", &client_url)
            .with("advertise-client-urls", &client_url)
            .with("listen-peer-urls", &peer_url)
            .with("initial-advertise-peer-urls", &peer_url)
            .with("initial-cluster", format!("{name}={peer_url}"))
            .with_path("cert-file", &cert)
            .with_path("key-file", &key)
            .with_path("trusted-ca-file", &ca)
            .with("client-cert-auth", true)
            .with_path("peer-cert-file", &peer_cert)
            .with_path("peer-key-file", &peer_key)
            .with_path("peer-trusted-ca-file", &peer_ca)
            .with("peer-client-cert-auth", true)
            .with("log-level", "warn");
        if !self.config.fsync {
            arguments = arguments.with("unsafe-no-fsync", true);
        }
        self.spec(
            name,
            Binary::Etcd,
            berth_kubernetes_versions::ETCD,
            arguments,
            &[cert, key, ca, peer_cert, peer_key, peer_ca],
        )
    }

    /// kube-apiserver.
    pub(crate) fn apiserver(&self) -> Result<ProcessSpec, Error> {
        let pki = self.pki;
        let arguments = Arguments::new()
            .with("bind-address", self.address)
            .with("advertise-address", self.address)
            .with("secure-port", self.ports.apiserver)
            .with_path("tls-cert-file", &pki.cert(file::APISERVER))
            .with_path("tls-private-key-file", &pki.key(file::APISERVER))
            .with_path("client-ca-file", &pki.cert(file::CA))
            .with("authorization-mode", "Node,RBAC")
            .with("enable-admission-plugins", admission::plugins(self.config))
            .with_path("kubelet-certificate-authority", &pki.cert(file::CA))
            .with_path("kubelet-client-certificate", &pki.cert(file::KUBELET_CLIENT))
            .with_path("kubelet-client-key", &pki.key(file::KUBELET_CLIENT))
            .with("kubelet-preferred-address-types", "InternalIP")
            // There is no kube-proxy beside the API server.
            .with("enable-aggregator-routing", true)
            .with("allow-privileged", true)
            .with("profiling", false)
            .with("service-cluster-ip-range", &self.config.service_ranges)
            .with("etcd-servers", format!("https://127.0.0.1:{}", self.ports.etcd))
            .with_path("etcd-cafile", &pki.cert(file::ETCD_CA))
            .with_path("etcd-certfile", &pki.cert(file::APISERVER_ETCD_CLIENT))
            .with_path("etcd-keyfile", &pki.key(file::APISERVER_ETCD_CLIENT))
            .with("service-account-issuer", "https://kubernetes.default.svc.cluster.local")
            .with_path("service-account-key-file", &pki.cert(file::SERVICE_ACCOUNTS))
            .with_path("service-account-signing-key-file", &pki.key(file::SERVICE_ACCOUNTS))
            .with_path("requestheader-client-ca-file", &pki.cert(file::FRONT_PROXY_CA))
            .with("requestheader-allowed-names", "front-proxy-client")
            .with("requestheader-extra-headers-prefix", "X-Remote-Extra-")
            .with("requestheader-group-headers", "X-Remote-Group")
            .with("requestheader-username-headers", "X-Remote-User")
            .with_path("proxy-client-cert-file", &pki.cert(file::FRONT_PROXY_CLIENT))
            .with_path("proxy-client-key-file", &pki.key(file::FRONT_PROXY_CLIENT));
        let arguments = if self.address.is_loopback() {
            // A loopback address cannot be an endpoint of the Service `kubernetes`.
            arguments.with("endpoint-reconciler-type", "none")
        } else {
            arguments
        };
        let admission_file = self.admission_configuration();
        let arguments = if admission::limits_events(self.config) {
            arguments.with_path(admission::FLAG, &admission_file)
        } else {
            arguments
        };
        let arguments = self.with_emulated_version(arguments);
        let arguments = match self.group_scheduling() {
            Some(on) => arguments
                .with("feature-gates", on.feature_gates)
                .with("runtime-config", on.runtime_config),
            None => arguments,
        };
        // kube-apiserver itself reads certificates and authorities again when they change.
        let read_once = [pki.key(file::SERVICE_ACCOUNTS), admission_file];
        let mut spec = self.spec(
            process::APISERVER,
            Binary::KubeApiserver,
            &self.config.kubernetes_version,
            arguments,
            &read_once,
        )?;
        spec.args.extend(self.config.apiserver_flags.iter().cloned());
        Ok(spec)
    }

    /// kube-controller-manager.
    pub(crate) fn controller_manager(&self) -> Result<ProcessSpec, Error> {
        let pki = self.pki;
        let arguments = self
            .kubernetes_component(process::CONTROLLER_MANAGER, self.ports.controller_manager)
            .with("use-service-account-credentials", true)
            // A quota of a kind whose definition has just been created refuses all objects until it is counted: by default for 5 minutes.
            .with("resource-quota-sync-period", "20s")
            .with_path("service-account-private-key-file", &pki.key(file::SERVICE_ACCOUNTS))
            .with_path("root-ca-file", &pki.cert(file::CA))
            .with_path("cluster-signing-cert-file", &pki.cert(file::CA))
            .with_path("cluster-signing-key-file", &pki.key(file::CA));
        let off = &self.config.disabled_controllers;
        let arguments = off.iter().fold(arguments.with("controllers", "*"), |arguments, name| {
            arguments.with("controllers", format!("-{name}"))
        });
        let name = process::CONTROLLER_MANAGER;
        let read_once = [
            self.kubeconfig(name),
            pki.key(file::SERVICE_ACCOUNTS),
            pki.key(file::CA),
        ];
        self.spec(
            name,
            Binary::KubeControllerManager,
            &self.config.kubernetes_version,
            arguments,
            &read_once,
        )
    }

    /// kube-scheduler.
    pub(crate) fn scheduler(&self) -> Result<ProcessSpec, Error> {
        let name = process::SCHEDULER;
        let (configuration, _) = self.scheduler_configuration();
        let arguments = self
            .kubernetes_component(name, self.ports.scheduler)
            .with_path("config", &configuration);
        let read_once = [self.kubeconfig(name), configuration];
        self.spec(
            name,
            Binary::KubeScheduler,
            &self.config.kubernetes_version,
            arguments,
            &read_once,
        )
    }

    /// kwok.
    pub(crate) fn kwok(&self) -> Result<ProcessSpec, Error> {
        let name = process::KWOK;
        let (kubeconfig, stages) = (self.kubeconfig(name), self.home.config("kwok.yaml"));
        let arguments = Arguments::new()
            .with_path("kubeconfig", &kubeconfig)
            .with_path("config", &stages)
            .with("manage-all-nodes", false)
            .with(
                "manage-nodes-with-annotation-selector",
                format!("{}={}", SIMULATED.0, SIMULATED.1),
            )
            .with("node-lease-duration-seconds", 40)
            .with("cidr", POD_RANGE);
        let mut spec = self.spec(
            name,
            Binary::Kwok,
            berth_kubernetes_versions::KWOK,
            arguments,
            &[kubeconfig, stages],
        )?;
        // Otherwise kwok would merge the user's own configuration into this one.
        spec.env.insert("HOME".into(), self.home.run().display().to_string());
        Ok(spec)
    }

    /// Adds the version to emulate, if it is not the program's own.
    fn with_emulated_version(&self, arguments: Arguments) -> Arguments {
        match &self.config.emulated_version {
            Some(version) => arguments.with("emulated-version", version),
            None => arguments,
        }
    }

    /// Settings for scheduling groups of pods; none in a cluster that is not prepared for Berth, and for a program that emulates another
    /// version, which may lack the feature.
    fn group_scheduling(&self) -> Option<GroupScheduling> {
        let is_wanted = self.config.purpose == Purpose::Berth && self.config.emulated_version.is_none();
        group_scheduling(&self.config.kubernetes_version).filter(|_| is_wanted)
    }

    /// What controller manager and scheduler have in common.
    fn kubernetes_component(&self, name: &str, port: u16) -> Arguments {
        let kubeconfig = self.kubeconfig(name);
        let arguments = self.with_emulated_version(Arguments::new());
        let arguments = match self.group_scheduling() {
            Some(on) => arguments.with("feature-gates", on.feature_gates),
            None => arguments,
        };
        arguments
            .with_path("kubeconfig", &kubeconfig)
            .with_path("authentication-kubeconfig", &kubeconfig)
            .with_path("authorization-kubeconfig", &kubeconfig)
            .with("bind-address", "127.0.0.1")
            .with("secure-port", port)
            .with_path("tls-cert-file", &self.pki.cert(file::LOCALHOST))
            .with_path("tls-private-key-file", &self.pki.key(file::LOCALHOST))
            // There is one of each: waiting for a predecessor's lease would only make a restart slow.
            .with("leader-elect", false)
            .with("kube-api-qps", REQUESTS.0)
            .with("kube-api-burst", REQUESTS.1)
            .with("profiling", false)
    }

    fn spec(
        &self,
        name: &str,
        binary: Binary,
        version: &str,
        Arguments(args): Arguments,
        read_once: &[std::path::PathBuf],
    ) -> Result<ProcessSpec, Error> {
        let mut spec = ProcessSpec::new(name, binaries::find(binary, version)?, self.home.log(name));
        spec.args = args;
        spec.revision = revision_of_files(read_once)?;
        Ok(spec)
    }
}
