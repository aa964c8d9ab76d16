//! The programs of a node, each started in the node's namespaces.

use std::path::{Path, PathBuf};

use berth_process::{
    ProcessSpec, StopSignal,
    binaries::{self, Binary},
    create_private_dir,
};

use super::config_files;
use super::network::{Place, namespace_file};
use super::place::NodePlace;
use crate::dra_driver::DraDriver;
use crate::revision::revision_of_files;
use crate::{Error, Home};

/// The program of util-linux that enters namespaces.
const NSENTER: &str = "/usr/bin/nsenter";

/// Where the system's own programs are.
const SYSTEM_PATH: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Name of a node's program in the supervisor.
pub(super) fn process_name(node: &str, program: &str) -> String {
    format!("{node}.{program}")
}

/// A node as its programs see it.
pub(super) struct Node<'a> {
    pub(super) home: &'a Home,
    pub(super) place: &'a Place,
    pub(super) files: &'a NodePlace,
    pub(super) kubernetes_version: &'a str,
}

impl Node<'_> {
    /// A program in the node's namespaces.
    fn spec(&self, name: &str, program: &Path, args: Vec<String>, read_once: &[PathBuf]) -> Result<ProcessSpec, Error> {
        let process = process_name(self.files.name(), name);
        let mut spec = ProcessSpec::new(&process, NSENTER, self.home.log(&process));
        spec.args = enter(self.place, self.files);
        spec.args.push(program.display().to_string());
        spec.args.extend(args);
        spec.revision = revision_of_files(read_once)?;
        Ok(spec)
    }

    /// A kubeconfig of one of the node's programs.
    pub(super) fn kubeconfig(&self, program: &str) -> PathBuf {
        self.files.config(&format!("{program}.kubeconfig"))
    }

    /// The container runtime.
    pub(super) fn containerd(&self) -> Result<ProcessSpec, Error> {
        let config = self.files.config("containerd.toml");
        let program = binaries::find(Binary::Containerd, berth_kubernetes_versions::CONTAINERD)?;
        let args = vec!["--config".into(), path(&config), "--log-level".into(), "warn".into()];
        let mut spec = self.spec("containerd", &program, args, &[config])?;
        // Where each pod's shim looks for runc when containerd asks for its features.
        let runc = binaries::find(Binary::Runc, berth_kubernetes_versions::RUNC)?;
        let dirs = runc
            .parent()
            .into_iter()
            .map(Path::to_owned)
            .chain(SYSTEM_PATH.map(PathBuf::from));
        let joined = std::env::join_paths(dirs).unwrap_or_default();
        spec.env.insert("PATH".into(), joined.to_string_lossy().into_owned());
        spec.spares_children = true;
        Ok(spec)
    }

    /// The kubelet.
    pub(super) fn kubelet(&self) -> Result<ProcessSpec, Error> {
        let config = self.files.config("kubelet.json");
        let kubeconfig = self.kubeconfig("kubelet");
        let program = binaries::find(Binary::Kubelet, self.kubernetes_version)?;
        let args = vec![
            flag("config", path(&config)),
            flag("kubeconfig", path(&kubeconfig)),
            flag("hostname-override", self.files.name()),
            flag("node-ip", self.place.address),
        ];
        self.spec("kubelet", &program, args, &[config, kubeconfig])
    }

    /// kube-proxy, which makes Services reachable.
    pub(super) fn kube_proxy(&self) -> Result<ProcessSpec, Error> {
        let config = self.files.config("kube-proxy.json");
        let kubeconfig = self.kubeconfig("kube-proxy");
        let program = binaries::find(Binary::KubeProxy, self.kubernetes_version)?;
        self.spec(
            "kube-proxy",
            &program,
            vec![flag("config", path(&config))],
            &[config, kubeconfig],
        )
    }

    /// Felix, which enforces network policies.
    pub(super) fn felix(&self) -> Result<ProcessSpec, Error> {
        let kubeconfig = self.kubeconfig("felix");
        let program = binaries::find(Binary::CalicoFelix, berth_kubernetes_versions::CALICO)?;
        let mut spec = self.spec("felix", &program, Vec::new(), std::slice::from_ref(&kubeconfig))?;
        spec.env.extend(config_files::felix(self.files.name(), &kubeconfig));
        spec.stop_signal = StopSignal::Terminate;
        Ok(spec)
    }

    /// The device plugin, which advertises GPUs that do not exist.
    pub(super) fn device_plugin(&self, gpus: u32) -> Result<ProcessSpec, Error> {
        let program = own_program("berth-device-plugin")?;
        let args = vec![
            flag("count", gpus),
            flag("node", self.files.name()),
            flag("unhealthy", path(&self.files.config("unhealthy-gpus"))),
        ];
        self.spec("device-plugin", &program, args, &[])
    }

    /// The driver that advertises them to dynamic resource allocation.
    pub(super) fn dra_driver(&self, gpus: u32) -> Result<ProcessSpec, Error> {
        let program = binaries::find_pinned(Binary::DraTestDriver)?;
        let kubeconfig = self.kubeconfig("dra-driver");
        let driver = DraDriver {
            node: self.files.name(),
            devices: gpus,
            kubeconfig: &kubeconfig,
            kubelet: Path::new("/var/lib/kubelet"),
            cdi: Path::new("/var/run/cdi"),
        };
        // At these paths they are the node's own only in its mount namespace, where no program makes them in time.
        for dir in driver.directories() {
            if let Ok(below) = dir.strip_prefix(driver.kubelet) {
                create_private_dir(&self.files.own("kubelet").join(below))?;
            }
        }
        self.spec(
            "dra-driver",
            &program,
            driver.arguments(),
            std::slice::from_ref(&kubeconfig),
        )
    }

    /// Arguments of `nsenter` that run containerd's client on the node.
    pub(super) fn ctr(&self, args: &[&str]) -> Result<Vec<String>, Error> {
        let ctr = binaries::find(Binary::Ctr, berth_kubernetes_versions::CONTAINERD)?;
        let mut all = vec![
            format!("--mount={}", self.files.mounts().display()),
            "--".into(),
            path(&ctr),
            "--address".into(),
            config_files::CONTAINERD_SOCKET.into(),
            "--namespace".into(),
            "k8s.io".into(),
        ];
        all.extend(args.iter().map(ToString::to_string));
        Ok(all)
    }
}

/// Arguments of `nsenter` with which a program runs in a node's namespaces: the program's own follow.
pub(super) fn enter(place: &Place, files: &NodePlace) -> Vec<String> {
    vec![
        format!("--net={}", namespace_file(&place.namespace).display()),
        format!("--mount={}", files.mounts().display()),
        "--".into(),
    ]
}

/// A program of Berth's own, which lies beside this one.
fn own_program(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().unwrap_or_default();
    // Tests lie in a folder below.
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| Error::NoRealNodes(format!("{name} is not built (`make build` builds it)")))
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
