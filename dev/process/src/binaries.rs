//! Where the programs are that Berth starts but does not contain: Kubernetes, etcd, kwok, containerd and others.
//!
//! Looked for in this order:
//! 1. `$BERTH_KUBE_BIN_DIR/<version>/<binary>`
//! 2. `$BERTH_KUBE_BIN_DIR/<binary>`
//! 3. `$KUBEBUILDER_ASSETS/<binary>`
//! 4. `${BERTH_CACHE:-$HOME/.cache/berth}/bin/<component>/<version>/<binary>`, which `make kubernetes` fills
//!
//! In a folder that does not name a version (2, 3), a program whose version must match (kube-apiserver, kubelet, …; not
//! kubectl) counts only when its own `--version` is the one wanted.

use berth_kubernetes_versions::{
    CALICO, CNI_PLUGINS, CONTAINERD, COREDNS, ETCD, HELM, KUBERNETES_DEFAULT, KWOK, METRICS_SERVER, RUNC,
};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A program that Berth starts but does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binary {
    /// kube-apiserver.
    KubeApiserver,
    /// kube-controller-manager.
    KubeControllerManager,
    /// kube-scheduler.
    KubeScheduler,
    /// kubectl.
    Kubectl,
    /// The etcd server.
    Etcd,
    /// The etcd client.
    Etcdctl,
    /// The etcd maintenance tool.
    Etcdutl,
    /// kwok, which acts as the kubelets of simulated nodes.
    Kwok,
    /// kubelet.
    Kubelet,
    /// kube-proxy.
    KubeProxy,
    /// agnhost: the program that Kubernetes' own network tests run in pods (`netexec`, `connect`, `pause` and more).
    Agnhost,
    /// The program of every pod's sandbox: it waits to be ended.
    Pause,
    /// The test driver for Dynamic Resource Allocation.
    DraTestDriver,
    /// containerd.
    Containerd,
    /// containerd's process beside each pod.
    ContainerdShim,
    /// containerd's client.
    Ctr,
    /// runc.
    Runc,
    /// The CNI plugin that hands out a node's pod addresses.
    HostLocal,
    /// The CNI plugin that brings up `lo`.
    Loopback,
    /// The CNI plugin for host ports.
    Portmap,
    /// The CNI plugin that connects each pod with its node by a link and a route.
    Ptp,
    /// Calico's CNI plugin.
    CalicoCni,
    /// Calico's agent on each node.
    CalicoFelix,
    /// `CoreDNS`.
    Coredns,
    /// metrics-server.
    MetricsServer,
    /// helm.
    Helm,
}

impl Binary {
    /// The file name.
    pub fn name(self) -> &'static str {
        self.built().1
    }

    /// The version that is built, of Kubernetes the default one.
    pub fn pinned_version(self) -> &'static str {
        self.built().2
    }

    /// The folder of the cache it is built into.
    fn component(self) -> &'static str {
        self.built().0
    }

    /// Component and version of `hack/kubernetes/versions` that build it, and its name: component, name, version.
    fn built(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::KubeApiserver => ("kubernetes", "kube-apiserver", KUBERNETES_DEFAULT),
            Self::KubeControllerManager => ("kubernetes", "kube-controller-manager", KUBERNETES_DEFAULT),
            Self::KubeScheduler => ("kubernetes", "kube-scheduler", KUBERNETES_DEFAULT),
            Self::Kubectl => ("kubernetes", "kubectl", KUBERNETES_DEFAULT),
            Self::Etcd => ("etcd", "etcd", ETCD),
            Self::Etcdctl => ("etcd", "etcdctl", ETCD),
            Self::Etcdutl => ("etcd", "etcdutl", ETCD),
            Self::Kwok => ("kwok", "kwok", KWOK),
            Self::Kubelet => ("kubernetes-node", "kubelet", KUBERNETES_DEFAULT),
            Self::KubeProxy => ("kubernetes-node", "kube-proxy", KUBERNETES_DEFAULT),
            Self::Agnhost => ("kubernetes-node", "agnhost", KUBERNETES_DEFAULT),
            Self::Pause => ("kubernetes-node", "pause", KUBERNETES_DEFAULT),
            Self::DraTestDriver => ("kubernetes-node", "dra-test-driver", KUBERNETES_DEFAULT),
            Self::Containerd => ("containerd", "containerd", CONTAINERD),
            Self::ContainerdShim => ("containerd", "containerd-shim-runc-v2", CONTAINERD),
            Self::Ctr => ("containerd", "ctr", CONTAINERD),
            Self::Runc => ("runc", "runc", RUNC),
            Self::HostLocal => ("cni-plugins", "host-local", CNI_PLUGINS),
            Self::Loopback => ("cni-plugins", "loopback", CNI_PLUGINS),
            Self::Portmap => ("cni-plugins", "portmap", CNI_PLUGINS),
            Self::Ptp => ("cni-plugins", "ptp", CNI_PLUGINS),
            Self::CalicoCni => ("calico", "calico", CALICO),
            Self::CalicoFelix => ("calico", "calico-felix", CALICO),
            Self::Coredns => ("coredns", "coredns", COREDNS),
            Self::MetricsServer => ("metrics-server", "metrics-server", METRICS_SERVER),
            Self::Helm => ("helm", "helm", HELM),
        }
    }

    /// Whether another version than the one asked for would be wrong.
    fn version_matters(self) -> bool {
        matches!(
            self,
            Self::KubeApiserver | Self::KubeControllerManager | Self::KubeScheduler | Self::Kubelet | Self::KubeProxy
        )
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A binary was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{binary} {version} not found at {}; run `make kubernetes` to build it",
    list(looked_at)
)]
pub struct NotFound {
    /// The binary.
    pub binary: Binary,
    /// Its version.
    pub version: String,
    /// The paths, and why a file at one does not count.
    pub looked_at: Vec<String>,
}

fn list(places: &[String]) -> String {
    places.join(", ")
}

/// The folders that are searched.
#[derive(Clone, Debug, Default)]
struct Places {
    bin_dir: Option<PathBuf>,
    assets: Option<PathBuf>,
    cache: Option<PathBuf>,
}

impl Places {
    fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).map(PathBuf::from);
        Self {
            bin_dir: path("BERTH_KUBE_BIN_DIR"),
            assets: path("KUBEBUILDER_ASSETS"),
            cache: path("BERTH_CACHE")
                .or_else(|| Some(path("HOME")?.join(".cache/berth")))
                .map(|cache| cache.join("bin")),
        }
    }

    /// The folders whose binaries have no version in their path.
    fn flat(&self) -> impl Iterator<Item = &Path> {
        self.bin_dir.iter().chain(&self.assets).map(PathBuf::as_path)
    }

    fn find(&self, binary: Binary, version: &str) -> Result<PathBuf, NotFound> {
        let name = binary.name();
        let versioned = self.bin_dir.as_ref().map(|dir| dir.join(version).join(name));
        let flat = self.flat().map(|dir| dir.join(name));
        let cached = self
            .cache
            .as_ref()
            .map(|cache| cache.join(binary.component()).join(version).join(name));
        let candidates = versioned
            .into_iter()
            .map(|path| (path, true))
            .chain(flat.map(|path| (path, !binary.version_matters())))
            .chain(cached.map(|path| (path, true)));
        let mut looked_at = Vec::new();
        for (path, version_is_right) in candidates {
            if !path.is_file() {
                looked_at.push(path.display().to_string());
            } else if version_is_right {
                return Ok(path);
            } else {
                let own = own_version(&path);
                if own.as_deref() == Some(version) {
                    return Ok(path);
                }
                looked_at.push(format!(
                    "{} (which is {})",
                    path.display(),
                    own.as_deref().unwrap_or("unknown")
                ));
            }
        }
        Err(NotFound {
            binary,
            version: version.to_owned(),
            looked_at,
        })
    }

    fn available_versions(&self) -> Vec<String> {
        let name = Binary::KubeApiserver.name();
        let folders = self
            .bin_dir
            .iter()
            .cloned()
            .chain(self.cache.iter().map(|cache| cache.join("kubernetes")));
        let named = folders
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|version| version.join(name).is_file())
            .filter_map(|version| Some(version.file_name()?.to_str()?.to_owned()));
        let unnamed = self
            .flat()
            .map(|dir| dir.join(name))
            .filter(|path| path.is_file())
            .filter_map(|path| own_version(&path));
        let mut versions: Vec<String> = named.chain(unnamed).collect::<BTreeSet<_>>().into_iter().collect();
        versions.sort_by_key(|version| std::cmp::Reverse(sort_key(version)));
        versions
    }
}

/// `v1.37.1` as numbers, so that 1.9 comes before 1.10.
fn sort_key(version: &str) -> Vec<u64> {
    version
        .trim_start_matches('v')
        .split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}

/// The version that a Kubernetes binary prints. Cached, since each answer costs a start of the program.
fn own_version(path: &Path) -> Option<String> {
    static KNOWN: LazyLock<Mutex<HashMap<PathBuf, Option<String>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .entry(path.to_owned())
        .or_insert_with(|| {
            let output = Command::new(path).arg("--version").output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            Some(text.trim().strip_prefix("Kubernetes ")?.to_owned())
        })
        .clone()
}

/// The path of a binary in a version (`v1.37.1`).
///
/// # Errors
/// [`NotFound`], whose message says which paths were searched and how to get the binary.
pub fn find(binary: Binary, version: &str) -> Result<PathBuf, NotFound> {
    Places::from_environment().find(binary, version)
}

/// The path of a binary in the version that is built.
///
/// # Errors
/// As [`find`].
pub fn find_pinned(binary: Binary) -> Result<PathBuf, NotFound> {
    find(binary, binary.pinned_version())
}

/// Berth's cache: binaries, manifests and images that are the same for all clusters. `None` without `HOME`.
pub fn cache() -> Option<PathBuf> {
    Places::from_environment().cache?.parent().map(Path::to_owned)
}

/// The folder of the YAML files that `hack/charts` copies out of a component's Go module: for `calico`, its CRDs.
/// `None` when it does not exist; `make nodes` makes it.
pub fn manifests(component: &str, version: &str) -> Option<PathBuf> {
    let folder = cache()?.join("manifests").join(component).join(version);
    folder.is_dir().then_some(folder)
}

/// The versions of which a kube-apiserver can be found, newest first.
pub fn available_versions() -> Vec<String> {
    Places::from_environment().available_versions()
}

#[cfg(test)]
#[path = "binaries_tests.rs"]
mod tests;
