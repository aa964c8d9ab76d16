//! Containers as containerd has them, running or ended.

use super::ctr::{Ctr, lines};
use crate::{
    containers::{POD_NAMESPACE, POD_UID},
    error::Unclean,
    files::{entries, name, remove},
    images::names::{in_parts, left},
    node::{CONTROL_PLANES, Node, SYSTEM, TENANT_NAMESPACES},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

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

/// How long a folder may be there without its container: containerd makes it before the container, and removes it after.
pub(super) const WITHOUT_CONTAINER: Duration = Duration::from_secs(30);

/// Folders for whose containers the step has waited since then. Those that came later are of containers of the platform.
pub(super) type Awaited = (Instant, BTreeSet<String>);

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
        let pod = text(&labels[POD_UID]);
        Self {
            id: text(&info["ID"]),
            image: text(&info["Image"]),
            asked: text(&info["Spec"]["annotations"][ASKED]),
            is_tenants: node.is_tenants_pod(&text(&labels[POD_NAMESPACE]), &pod),
            pod,
            is_sandbox: labels["io.cri-containerd.kind"] == "sandbox",
        }
    }
}

/// All containers.
pub(super) struct Containers {
    /// IDs of containers that have a folder. They are read before the containers: the folder of one that is created meanwhile is not among them.
    folders: BTreeSet<String>,
    /// IDs of all of them.
    all: BTreeSet<String>,
    /// IDs of those of tenants' pods, without sandboxes.
    tenants: Vec<String>,
    /// Those of the platform.
    pub(super) platform: Vec<Container>,
}

impl Containers {
    /// Finds tenants' containers by their labels, in a few calls for all of them: a tenant may leave any number. Each other one is read in a
    /// call of its own.
    pub(super) fn list(node: &Node, ctr: &impl Ctr) -> Result<Self, Unclean> {
        let folders = entries(&node.path(FOLDERS[0]))?.iter().map(|path| name(path)).collect();
        let tenants = ids_of_tenants(node, ctr)?;
        let sandboxes = ctr.list(&["containers", "ls", "-q", SANDBOXES])?;
        let mut platform = Vec::new();
        let all = ctr.list(&["containers", "ls", "-q"])?;
        for id in all.difference(&tenants) {
            let info = ctr.run(&["containers", "info", id])?;
            let info: Value = serde_json::from_str(&info)
                .map_err(|error| Unclean::Program(format!("ctr containers info {id}: {error}")))?;
            platform.push(Container::new(node, &info));
        }
        Ok(Self {
            folders,
            all,
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
        if !self.knows_folders() {
            return Err(left(
                "containers of tenants have ended, and the kubelet has not removed them",
                &self.tenants,
            ));
        }
        remove_folders(node, &self.tenants.iter().cloned().collect())?;
        in_parts(&["containers", "rm"], &self.tenants, |arguments| ctr.run(arguments)).map(drop)
    }

    /// Removes folders without a container. When the kubelet removes a container, containerd removes its folder last. That takes long if there are
    /// many files in its volumes. If it fails, or containerd is killed meanwhile, nothing removes the rest before containerd starts again.
    ///
    /// The first attempt sets `awaited`. A folder can be one of a container of the platform that is being created, so it stays for a while.
    ///
    /// # Errors
    /// The time is not over, or a folder cannot be removed.
    pub(super) fn remove_forgotten(&self, node: &Node, awaited: &mut Option<Awaited>) -> Result<(), Unclean> {
        let (since, folders) = awaited.get_or_insert_with(|| (Instant::now(), self.folders.clone()));
        folders.retain(|id| self.folders.contains(id) && !self.all.contains(id));
        if folders.is_empty() || !self.knows_folders() {
            return Ok(());
        }
        if since.elapsed() < WITHOUT_CONTAINER {
            let forgotten: Vec<String> = folders.iter().cloned().collect();
            return Err(left(
                "folders of containers are left that containerd does not have",
                &forgotten,
            ));
        }
        remove_folders(node, folders)
    }

    /// Whether a container of the platform has its folder where those of tenants are removed.
    fn knows_folders(&self) -> bool {
        self.platform
            .iter()
            .any(|container| self.folders.contains(&container.id))
    }
}

/// Removes the folders of these containers. An ID is compared, and never becomes a part of a path.
fn remove_folders(node: &Node, ids: &BTreeSet<String>) -> Result<(), Unclean> {
    for all in FOLDERS {
        for folder in entries(&node.path(all))? {
            if ids.contains(&name(&folder)) {
                remove(&folder)?;
            }
        }
    }
    Ok(())
}

/// As [`Node::is_tenants_pod`] decides, by filters.
fn ids_of_tenants(node: &Node, ctr: &impl Ctr) -> Result<BTreeSet<String>, Unclean> {
    let label = format!("labels.{POD_NAMESPACE:?}");
    let named = format!(r#"{label}~="^{TENANT_NAMESPACES}",{label}!={SYSTEM:?}"#);
    let control_planes = format!(r#"{label}~="{CONTROL_PLANES}$""#);
    let named = ctr.list(&["containers", "ls", "-q", &named])?;
    let control_planes = ctr.list(&["containers", "ls", "-q", &control_planes])?;
    let pods: Vec<String> = node
        .platform_pods()
        .map(|uid| format!("labels.{POD_UID:?}=={uid:?}"))
        .collect();
    let listed = in_parts(&["containers", "ls", "-q"], &pods, |arguments| ctr.run(arguments))?;
    let platform: BTreeSet<String> = listed.iter().flat_map(|part| lines(part)).collect();
    let is_tenants = |id: &&String| !control_planes.contains(*id) && !platform.contains(*id);
    Ok(named.iter().filter(is_tenants).cloned().collect())
}
