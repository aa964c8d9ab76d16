//! Containers as containerd has them, running or ended.

use super::ctr::{Ctr, lines};
use crate::{
    error::Unclean,
    files::{entries, name, remove},
    images::names::{in_parts, left},
    node::{CONTROL_PLANES, Node, SYSTEM, TENANT_NAMESPACES},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The label with the namespace of a container's pod.
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The label with the UID of a container's pod.
const POD: &str = "io.kubernetes.pod.uid";
/// The annotation of a container's specification with the name of its image in its pod (containerd 2.0 and later; before, it is the name that
/// containerd has chosen).
const ASKED: &str = "io.kubernetes.cri.image-name";
/// Selects containers that hold the namespaces of a pod.
const SANDBOXES: &str = r#"labels."io.cri-containerd.kind"=="sandbox""#;

/// Where containerd has a folder for each container of the kubelet, by ID: volumes that its image declares, and pipes of its output.
pub(super) const FOLDERS: [&str; 2] = [
    "/var/lib/containerd/io.containerd.grpc.v1.cri/containers",
    "/run/containerd/io.containerd.grpc.v1.cri/containers",
];

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    id: String,
    /// Name of its image: of several names of the same image, the first in their order.
    pub(super) image: String,
    /// Name by which its pod asks for the image; empty if it is unknown.
    pub(super) asked: String,
    /// UID of its pod.
    pub(super) pod: String,
    pub(super) is_tenants: bool,
    /// Whether it holds the namespaces of a pod. The node's configuration names its image, not the pod.
    pub(super) is_sandbox: bool,
}

impl Container {
    pub(super) fn new(node: &Node, info: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let labels = &info["Labels"];
        let pod = text(&labels[POD]);
        Self {
            id: text(&info["ID"]),
            image: text(&info["Image"]),
            asked: text(&info["Spec"]["annotations"][ASKED]),
            is_tenants: node.is_tenants_pod(&text(&labels[NAMESPACE]), &pod),
            pod,
            is_sandbox: labels["io.cri-containerd.kind"] == "sandbox",
        }
    }
}

/// All containers.
pub(super) struct Containers {
    /// IDs of those of tenants' pods, without sandboxes.
    tenants: Vec<String>,
    /// Those of the platform.
    pub(super) platform: Vec<Container>,
}

impl Containers {
    /// Finds tenants' containers by their labels, in a few calls for all of them: a tenant may leave any number. Each other one is read in a
    /// call of its own.
    pub(super) fn list(node: &Node, ctr: &impl Ctr) -> Result<Self, Unclean> {
        let tenants = ids_of_tenants(node, ctr)?;
        let sandboxes = ctr.list(&["containers", "ls", "-q", SANDBOXES])?;
        let mut platform = Vec::new();
        for id in ctr.list(&["containers", "ls", "-q"])?.difference(&tenants) {
            let info = ctr.run(&["containers", "info", id])?;
            let info: Value = serde_json::from_str(&info)
                .map_err(|error| Unclean::Program(format!("ctr containers info {id}: {error}")))?;
            platform.push(Container::new(node, &info));
        }
        Ok(Self {
            tenants: tenants.difference(&sandboxes).cloned().collect(),
            platform,
        })
    }

    /// Removes containers of tenants, which have ended and keep the layers of their images, with their folders. The kubelet would do so within
    /// minutes. `ctr` removes none that runs.
    ///
    /// `ctr` does not know of the folders, and containerd leaves them if the kubelet asks for the removal of a container that is gone already. So they
    /// go first. Where they are is known by those of the platform's containers; if that is elsewhere, the kubelet is awaited.
    pub(super) fn remove_ended(&self, node: &Node, ctr: &impl Ctr) -> Result<(), Unclean> {
        if self.tenants.is_empty() {
            return Ok(());
        }
        if !self.has_folders(node)? {
            return Err(left(
                "containers of tenants have ended, and the kubelet has not removed them",
                &self.tenants,
            ));
        }
        for id in &self.tenants {
            for folder in FOLDERS {
                remove(&node.path(folder).join(id))?;
            }
        }
        in_parts(&["containers", "rm"], &self.tenants, |arguments| ctr.run(arguments)).map(drop)
    }

    /// Whether a container of the platform has its folder where those of tenants are removed.
    fn has_folders(&self, node: &Node) -> Result<bool, Unclean> {
        let ids: BTreeSet<String> = entries(&node.path(FOLDERS[0]))?.iter().map(|path| name(path)).collect();
        Ok(self.platform.iter().any(|container| ids.contains(&container.id)))
    }
}

/// As [`Node::is_tenants_pod`] decides, by filters.
fn ids_of_tenants(node: &Node, ctr: &impl Ctr) -> Result<BTreeSet<String>, Unclean> {
    let label = format!("labels.{NAMESPACE:?}");
    let named = format!(r#"{label}~="^{TENANT_NAMESPACES}",{label}!={SYSTEM:?}"#);
    let control_planes = format!(r#"{label}~="{CONTROL_PLANES}$""#);
    let named = ctr.list(&["containers", "ls", "-q", &named])?;
    let control_planes = ctr.list(&["containers", "ls", "-q", &control_planes])?;
    let pods: Vec<String> = node
        .platform_pods()
        .map(|uid| format!("labels.{POD:?}=={uid:?}"))
        .collect();
    let listed = in_parts(&["containers", "ls", "-q"], &pods, |arguments| ctr.run(arguments))?;
    let platform: BTreeSet<String> = listed.iter().flat_map(|part| lines(part)).collect();
    let is_tenants = |id: &&String| !control_planes.contains(*id) && !platform.contains(*id);
    Ok(named.iter().filter(is_tenants).cloned().collect())
}
