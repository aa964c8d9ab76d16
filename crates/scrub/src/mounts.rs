//! What container runtimes and the kubelet have mounted for pods outside of the pods' folders: memory that the containers of a pod share (`/dev/shm`), root
//! file systems, and volumes that CSI drivers have on the node for all pods that use them. It goes with the pods, unless a runtime or a kubelet that was
//! killed has forgotten it.

use crate::{
    Unclean,
    containers::{self, POD_NAMESPACE, POD_UID},
    files::{entries, name, text},
    node::Node,
    pods, program,
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
/// The same for sandboxes that a shim makes by itself, as containerd can be configured to let it.
const SHIM_SANDBOXES: &str = "/run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io";
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
    /// IDs of sandboxes of which containerd has a folder, also without a configuration: a shim can have one without a container.
    sandboxes: BTreeSet<String>,
    /// UIDs of pods.
    pods: BTreeSet<String>,
    /// Driver and name of the volumes of these pods.
    volumes: BTreeSet<(String, String)>,
}

/// Gives containerd's record of the container or sandbox with an ID; nothing if containerd has none, or cannot be asked.
type Records<'a> = dyn Fn(&str) -> Option<Value> + 'a;

/// Whether everything that is mounted belongs to a container or to a pod.
pub(crate) fn none_left(node: &Node) -> Result<(), Unclean> {
    none_left_in(node, Path::new(MOUNTS), &|id| record(node, id))
}

/// The same for what is mounted according to a file.
fn none_left_in(node: &Node, mounts: &Path, records: &Records<'_>) -> Result<(), Unclean> {
    // Before what it belongs to: the runtime and the kubelet mount first, so that one that starts is known at the next attempt.
    let mounts = text(mounts)?.unwrap_or_default();
    let left = left(node, &points(&mounts, node.root()), records)?;
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

/// As [`Records`] says, by containerd's tool. A node need not have it.
fn record(node: &Node, id: &str) -> Option<Value> {
    let info = program::ctr(node, &["containers", "info", id]).ok()?;
    serde_json::from_str(&info).ok()
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
fn left(node: &Node, points: &[PathBuf], records: &Records<'_>) -> Result<Vec<PathBuf>, Unclean> {
    let owners = owners(node)?;
    let mut left = Vec::new();
    for point in points {
        if is_orphan(node, point, &owners, records)? {
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
    let sandboxes = [entries(&node.path(TASKS))?, entries(&node.path(SHIM_SANDBOXES))?].concat();
    Ok(Owners {
        sandboxes: sandboxes.iter().map(|sandbox| name(sandbox)).collect(),
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
fn is_orphan(node: &Node, point: &Path, owners: &Owners, records: &Records<'_>) -> Result<bool, Unclean> {
    let id_in = |folder: &str| {
        let inside = point.strip_prefix(folder).ok()?;
        Some(inside.iter().next()?.to_string_lossy().into_owned())
    };
    if let Some(id) = id_in(SANDBOXES) {
        return Ok(!owners.sandboxes.contains(&id) && !records(&id).is_some_and(|record| is_platforms(node, &record)));
    }
    if let Some(id) = id_in(TASKS).or_else(|| id_in(OVERLAYS)) {
        return Ok(!owners.containers.contains(&id));
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

/// Whether containerd has a sandbox of a pod of the platform. Of one that has ended by itself it has no folder any more. What its containers shared stays
/// mounted until the kubelet removes the sandbox, which can be at the end of the pod (containerd 2.0 and later).
fn is_platforms(node: &Node, record: &Value) -> bool {
    let label = |key: &str| record["Labels"][key].as_str().unwrap_or_default();
    let uid = label(POD_UID);
    !uid.is_empty() && !node.is_tenants_pod(label(POD_NAMESPACE), uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::{
        fs,
        io::{BufRead, BufReader, Write},
        process::{Command, Stdio},
    };
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
        !left(node, &[PathBuf::from(point)], &|_| None).unwrap().is_empty()
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
        for (folder, id) in [(TASKS, "shim"), (SHIM_SANDBOXES, "shims-own")] {
            assert!(is_left(&node, &format!("{SANDBOXES}/{id}/shm")), "{folder}");
            fs::create_dir_all(node.path(&format!("{folder}/{id}"))).unwrap();
            assert!(!is_left(&node, &format!("{SANDBOXES}/{id}/shm")), "{folder}");
            assert!(is_left(&node, &format!("{TASKS}/{id}/rootfs")), "{folder}");
        }
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
    fn memory_of_a_sandbox_of_the_platform_that_has_ended_by_itself_stays() {
        let (_folder, node) = machine();
        let record = |namespace: &str, uid: &str| json!({"Labels": {POD_NAMESPACE: namespace, POD_UID: uid}});
        let memory = [PathBuf::from(format!("{SANDBOXES}/ended/shm"))];
        for (record, expected) in [
            (Some(record("kube-system", "other")), false),
            (Some(record("berth-vision-x", "agent")), false),
            (Some(record("berth-vision-x", "job")), true),
            (Some(record("kube-system", "")), true),
            (Some(json!({})), true),
            (None, true),
        ] {
            let records = |id: &str| {
                assert_eq!(id, "ended");
                record.clone()
            };
            let left = left(&node, &memory, &records).unwrap();
            assert_eq!(!left.is_empty(), expected, "{record:?}");
        }
        // Only containerd has such sandboxes, and only their memory stays.
        let rootfs = [PathBuf::from(format!("{TASKS}/ended/rootfs"))];
        let records = |_: &str| Some(record("kube-system", "other"));
        assert!(!left(&node, &rootfs, &records).unwrap().is_empty());
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

    /// Only where the step itself could run: as root. It is mounted for another process alone, which ends with its input, also if this one is killed.
    #[test]
    fn shared_memory_is_found_until_it_is_unmounted() {
        const SCRIPT: &str =
            r#"mount -t tmpfs shm "$1" && echo mounted && read next && umount "$1" && echo unmounted && read next"#;
        let (_folder, node) = machine();
        none_left(&node).unwrap();
        let point = node.path(&format!("{SANDBOXES}/lost/shm"));
        fs::create_dir_all(&point).unwrap();
        let mut mounting = Command::new("unshare");
        mounting
            .args(["--mount", "--propagation=private", "sh", "-c", SCRIPT, "sh"])
            .arg(&point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let Ok(mut mounting) = mounting.spawn() else { return };
        let mut input = mounting.stdin.take().unwrap();
        let mut lines = BufReader::new(mounting.stdout.take().unwrap()).lines();
        let Some(line) = lines.next() else {
            mounting.wait().unwrap();
            return;
        };
        assert_eq!(line.unwrap(), "mounted");
        let mounts = PathBuf::from(format!("/proc/{}/mountinfo", mounting.id()));
        let check = || none_left_in(&node, &mounts, &|_| None);
        let message = check().unwrap_err().to_string();
        assert!(
            message.contains("of no container and no pod any more") && message.contains("sandboxes/lost/shm;"),
            "{message}"
        );
        writeln!(input).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "unmounted");
        check().unwrap();
        drop(input);
        mounting.wait().unwrap();
    }
}
