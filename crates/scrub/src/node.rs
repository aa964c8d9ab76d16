//! The node that is cleaned.

use crate::{Unclean, files::at};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Prefix of the names of tenants' namespaces on the host.
pub(crate) const TENANT_NAMESPACES: &str = "berth-";
/// Suffix of the names of control-plane namespaces, which are the platform's.
pub(crate) const CONTROL_PLANES: &str = "-cp";
/// The platform's own namespace, whose name has the same prefix.
pub(crate) const SYSTEM: &str = "berth-system";
/// What a container writes to this file is its termination message, which control reads.
const TERMINATION_MESSAGE: &str = "/dev/termination-log";

/// The node that is cleaned, and the platform's pods on it.
#[derive(Clone, Debug)]
pub struct Node {
    root: PathBuf,
    /// Its name; empty if it is unknown.
    name: String,
    /// UIDs of pods that are no tenant's.
    platform_pods: BTreeSet<String>,
    /// The file for reports to control; none: nobody reads them.
    reports: Option<PathBuf>,
}

impl Node {
    /// A node whose files are below `root`, with these pods of the platform.
    pub fn new(root: impl Into<PathBuf>, platform_pods: impl IntoIterator<Item = String>) -> Self {
        Self {
            root: root.into(),
            name: String::new(),
            platform_pods: platform_pods.into_iter().filter(|uid| !uid.is_empty()).collect(),
            reports: None,
        }
    }

    /// The node that the environment of a Job's container describes.
    pub fn from_environment() -> Self {
        let get = |name: &str| std::env::var(name).unwrap_or_default();
        let root = std::env::var("BERTH_HOST").unwrap_or_else(|_| "/host".into());
        let listed = get("BERTH_PLATFORM_PODS");
        let pods = listed.split(',').map(str::to_owned);
        Self::new(root, pods.chain([get("BERTH_POD")]))
            .named(get("BERTH_NODE"))
            .reporting_to(TERMINATION_MESSAGE)
    }

    /// The same node with a file for reports.
    #[must_use]
    pub(crate) fn reporting_to(self, file: impl Into<PathBuf>) -> Self {
        Self {
            reports: Some(file.into()),
            ..self
        }
    }

    /// Reports to control what a check found.
    pub(crate) fn report(&self, text: &str) -> Result<(), Unclean> {
        match &self.reports {
            Some(file) => fs::write(file, text).map_err(at(file)),
            None => Ok(()),
        }
    }

    /// The same node with a name.
    #[must_use]
    pub(crate) fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// The node's name; empty if it is unknown.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the node's files are.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A file of the node, by its path on the node.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether a pod is known to be the platform's.
    pub(crate) fn is_platform_pod(&self, uid: &str) -> bool {
        self.platform_pods.contains(uid)
    }

    /// UIDs of pods that are known to be the platform's.
    pub(crate) fn platform_pods(&self) -> impl Iterator<Item = &str> {
        self.platform_pods.iter().map(String::as_str)
    }

    /// Whether a pod of the host, by its namespace and UID, is a tenant's. The platform may have pods in a tenant's namespace as well.
    pub(crate) fn is_tenants_pod(&self, namespace: &str, uid: &str) -> bool {
        is_tenants(namespace) && !self.is_platform_pod(uid)
    }
}

/// Whether a namespace of the host holds a tenant's workloads.
pub(crate) fn is_tenants(namespace: &str) -> bool {
    namespace.starts_with(TENANT_NAMESPACES) && namespace != SYSTEM && !namespace.ends_with(CONTROL_PLANES)
}

#[cfg(test)]
impl Node {
    /// Writes a file of a node that a test has made, with the folders above it.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_namespaces_are_distinguished_from_platform_namespaces() {
        assert!(is_tenants("berth-vision-abcdefghijklm"));
        for platform in [
            "berth-system",
            "berth-vision-abcdefghijklm-cp",
            "kube-system",
            "default",
        ] {
            assert!(!is_tenants(platform), "{platform}");
        }
    }

    #[test]
    fn a_pod_of_the_platform_in_a_tenants_namespace_is_no_tenants() {
        let node = Node::new("/nowhere", ["agent".to_owned()]);
        let own = "berth-vision-abcdefghijklm";
        assert!(node.is_tenants_pod(own, "job") && node.is_tenants_pod(own, ""));
        assert!(!node.is_tenants_pod(own, "agent") && !node.is_tenants_pod("kube-system", "job"));
    }
}
