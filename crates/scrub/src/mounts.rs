//! What container runtimes and the kubelet have mounted for pods outside of the pods' folders: memory that the containers of a pod share (`/dev/shm`), root
//! file systems, and volumes that CSI drivers have on the node for all pods that use them. It goes with the pods, unless a runtime or a kubelet that was
//! killed has forgotten it.

use crate::{
    Unclean, containers,
    files::{entries, name, text},
    node::Node,
    pods,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// What is mounted where this program runs, which follows what is mounted on the node.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Folder of containerd with one folder for each sandbox, in which is what its containers share.
const SANDBOXES: &str = "/run/containerd/io.containerd.grpc.v1.cri/sandboxes";
/// Folder of containerd with one folder for each container and sandbox, by ID.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// The same of CRI-O, with what the containers of a sandbox share.
const OVERLAYS: &str = "/run/containers/storage/overlay-containers";
/// Folder of the volumes of CSI drivers.
const VOLUMES: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi";
/// Volumes of CSI drivers in the folder of a pod.
const OF_POD: &str = "volumes/kubernetes.io~csi";
/// The file in which the kubelet has the driver of a volume, and the volume's name at the driver.
const DATA: &str = "vol_data.json";
/// How many mounts a message names.
const NAMED: usize = 3;

/// What mounts can belong to.
struct Owners {
    /// IDs of containers and sandboxes.
    containers: BTreeSet<String>,
    /// The same with those of which containerd has a folder and no configuration: sandboxes that a shim has without a container.
    tasks: BTreeSet<String>,
    /// UIDs of pods.
    pods: BTreeSet<String>,
    /// Driver and name of the volumes of these pods.
    volumes: BTreeSet<(String, String)>,
}

/// Whether everything that is mounted belongs to a container or to a pod.
pub(crate) fn none_left(node: &Node) -> Result<(), Unclean> {
    // Before what it belongs to: the runtime and the kubelet mount first, so that one that starts is known at the next attempt.
    let mounts = text(Path::new(MOUNTS))?.unwrap_or_default();
    let left = left(node, &points(&mounts, node.root()))?;
    if left.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = left.iter().take(NAMED).map(|path| path.display().to_string()).collect();
    let more = left.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Err(Unclean::Left(format!(
        "still mounted, but of no container and no pod any more: {}{more}; unmount it, or reboot the node",
        named.join(", ")
    )))
}

/// Where something is mounted, as paths of the node.
fn points(mounts: &str, root: &Path) -> Vec<PathBuf> {
    let point = |line: &str| {
        let path = Path::new(line.split(' ').nth(4)?);
        Some(Path::new("/").join(path.strip_prefix(root).ok()?))
    };
    mounts.lines().filter_map(point).collect()
}

/// The mounts that belong to nothing.
fn left(node: &Node, points: &[PathBuf]) -> Result<Vec<PathBuf>, Unclean> {
    let owners = owners(node)?;
    let mut left = Vec::new();
    for point in points {
        if is_orphan(node, point, &owners)? {
            left.push(point.clone());
        }
    }
    Ok(left)
}

fn owners(node: &Node) -> Result<Owners, Unclean> {
    let containers = containers::all(node)?;
    let folders = pods::folders(node)?;
    let mut volumes = BTreeSet::new();
    for pod in &folders {
        for volume in entries(&pod.join(OF_POD))? {
            volumes.extend(volume_of(&volume)?);
        }
    }
    let tasks = entries(&node.path(TASKS))?;
    Ok(Owners {
        tasks: tasks.iter().map(|task| name(task)).collect(),
        containers: containers.into_iter().map(|container| container.id).collect(),
        pods: folders.iter().map(|folder| name(folder)).collect(),
        volumes,
    })
}

/// Driver and name of the volume to which a folder belongs; nothing if the kubelet does not say it there.
fn volume_of(folder: &Path) -> Result<Option<(String, String)>, Unclean> {
    let data = text(&folder.join(DATA))?.unwrap_or_default();
    let data: Value = serde_json::from_str(&data).unwrap_or_default();
    let field = |name: &str| data[name].as_str().map(str::to_owned);
    Ok(field("driverName").zip(field("volumeHandle")))
}

/// Whether a path of the node is one of those where runtimes and the kubelet mount, and belongs to nothing.
fn is_orphan(node: &Node, point: &Path, owners: &Owners) -> Result<bool, Unclean> {
    for (folder, known) in [
        (SANDBOXES, &owners.tasks),
        (TASKS, &owners.containers),
        (OVERLAYS, &owners.containers),
    ] {
        if let Ok(inside) = point.strip_prefix(folder) {
            let id = inside.iter().next().map(|id| id.to_string_lossy());
            return Ok(id.is_some_and(|id| !known.contains(&*id)));
        }
    }
    let Ok(inside) = point.strip_prefix(VOLUMES) else {
        return Ok(false);
    };
    let parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        // Those that are devices, for one pod.
        ["volumeDevices", "publish", _, pod, ..] | ["volumeDevices", _, "dev", pod, ..] => {
            Ok(!owners.pods.contains(*pod))
        }
        // `<driver>/<hash>/globalmount`, for all pods.
        [driver, hash, "globalmount", ..] => {
            let volume = volume_of(&node.path(VOLUMES).join(driver).join(hash))?;
            Ok(volume.is_none_or(|volume| !owners.volumes.contains(&volume)))
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::{fs, process::Command};
    use tempfile::TempDir;

    /// A node on which a pod of the platform, with the UID `agent`, has the sandbox `known` and the volume `vol-1` of a driver.
    fn machine() -> (TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let write = |path: &str, content: &Value| {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content.to_string()).unwrap();
        };
        let of_pod = json!({"annotations": {"io.kubernetes.cri.sandbox-namespace": "kube-system",
            "io.kubernetes.cri.sandbox-name": "agent", "io.kubernetes.cri.sandbox-uid": "agent"}});
        write(
            "/run/containerd/io.containerd.runtime.v2.task/k8s.io/known/config.json",
            &of_pod,
        );
        let volume = |handle: &str| json!({"driverName": "disks.example.com", "volumeHandle": handle});
        let of_pod = "/var/lib/kubelet/pods/agent/volumes/kubernetes.io~csi/pvc-1/vol_data.json";
        write(of_pod, &volume("vol-1"));
        for (hash, handle) in [("aa", "vol-1"), ("bb", "vol-2")] {
            write(
                &format!("{VOLUMES}/disks.example.com/{hash}/vol_data.json"),
                &volume(handle),
            );
        }
        let node = Node::new(&root, ["agent".to_owned()]);
        (folder, node)
    }

    fn is_left(node: &Node, point: &str) -> bool {
        !left(node, &[PathBuf::from(point)]).unwrap().is_empty()
    }

    #[test]
    fn mounts_of_containers_that_the_runtime_has_lost_are_left() {
        let (_folder, node) = machine();
        for folder in [SANDBOXES, TASKS, OVERLAYS] {
            for (id, rest, expected) in [
                ("known", "shm", false),
                ("lost", "shm", true),
                ("lost", "userdata/shm", true),
                ("lost", "rootfs", true),
            ] {
                assert_eq!(
                    is_left(&node, &format!("{folder}/{id}/{rest}")),
                    expected,
                    "{folder}/{id}"
                );
            }
            assert!(!is_left(&node, folder), "the folder itself");
        }
        // One of a virtual machine, for example, of which there is no container.
        fs::create_dir_all(node.path(&format!("{TASKS}/shim"))).unwrap();
        assert!(!is_left(&node, &format!("{SANDBOXES}/shim/shm")));
        assert!(is_left(&node, &format!("{TASKS}/shim/rootfs")));
        // Content of images, other namespaces of containerd, and folders of pods, which are looked at elsewhere.
        for other in [
            "/run/containerd/io.containerd.runtime.v2.task/moby/lost/rootfs",
            "/var/lib/kubelet/pods/gone/volumes/kubernetes.io~empty-dir/scratch",
            "/run/netns/cni-1",
            "/",
        ] {
            assert!(!is_left(&node, other), "{other}");
        }
    }

    #[test]
    fn volumes_that_no_pod_uses_are_left() {
        let (_folder, node) = machine();
        for (path, expected) in [
            ("disks.example.com/aa/globalmount", false),
            ("disks.example.com/bb/globalmount", true),
            ("disks.example.com/bb/globalmount/nested", true),
            // Another driver has a volume of the same name, and one of which nothing is known.
            ("others.example.com/aa/globalmount", true),
            ("volumeDevices/publish/pvc-2/agent", false),
            ("volumeDevices/publish/pvc-2/gone", true),
            ("volumeDevices/pvc-2/dev/agent", false),
            ("volumeDevices/pvc-2/dev/gone", true),
            ("volumeDevices/staging/pvc-2", false),
        ] {
            assert_eq!(is_left(&node, &format!("{VOLUMES}/{path}")), expected, "{path}");
        }
    }

    #[test]
    fn mounts_are_read_as_paths_of_the_node() {
        let mounts = "36 35 98:0 / /host rw - ext4 /dev/root rw\n\
                      37 36 0:40 / /host/run/x rw shared:1 - tmpfs tmpfs rw\n\
                      38 35 0:41 / /hosts/run/y rw - tmpfs tmpfs rw\nbroken\n";
        let points = points(mounts, Path::new("/host"));
        assert_eq!(points, [PathBuf::from("/"), PathBuf::from("/run/x")]);
    }

    #[test]
    fn a_kubelet_with_another_folder_is_not_clean() {
        let (folder, node) = machine();
        fs::remove_dir_all(folder.path().join("var/lib/kubelet/pods")).unwrap();
        assert!(none_left(&node).is_err());
    }

    /// Only where the step itself could run: as root.
    #[test]
    fn shared_memory_is_found_until_it_is_unmounted() {
        let (_folder, node) = machine();
        none_left(&node).unwrap();
        let point = node.path(&format!("{SANDBOXES}/lost/shm"));
        fs::create_dir_all(&point).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "shm"]).arg(&point).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            return;
        }
        fs::write(point.join("weights"), "secret").unwrap();
        let found = none_left(&node);
        assert!(Command::new("umount").arg(&point).status().unwrap().success());
        let message = found.unwrap_err().to_string();
        assert!(
            message.contains("of no container and no pod any more") && message.contains("sandboxes/lost/shm;"),
            "{message}"
        );
        none_left(&node).unwrap();
    }
}
