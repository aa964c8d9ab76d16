//! NVIDIA's multi-process service (MPS), by which containers share a GPU. Its daemon has a folder on the node, of which the device plugin
//! mounts parts into every container that uses a GPU, writable: a memory file system as `/dev/shm`, and the pipes of the daemon. So what a
//! container leaves there would be in those of the next tenant.
//!
//! Control takes the configuration of the device plugin away before the scrub, and NVIDIA's DaemonSet ends the daemon.
//!
//! NVIDIA's DRA driver starts a daemon for each claim that asks for it, with a folder of its own for the same purposes. The driver removes both when the kubelet
//! gives the devices back. What is left if that goes wrong is never mounted again, but it is a tenant's.

use crate::{
    Unclean,
    files::{at, device, entries, find_folder_to_empty, name, remove, text},
    node::Node,
};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The folder, if the arguments name no other.
const ROOT: &str = "/run/nvidia/mps";
/// Folder of the DRA driver: it has a folder for each claim.
const OF_CLAIMS: &str = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps";
/// The argument that names another one than [`ROOT`].
const ROOT_ARGUMENT: &str = "--mps-root=";
/// Names of processes, as the kernel shortens them: NVIDIA's daemon and its servers, and the program of the device plugin that starts it.
const PROCESSES: [&str; 2] = ["nvidia-cuda-mps", "mps-control-dae"];

/// Removes everything in the folders of daemons that have ended.
pub(crate) fn empty(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    none_runs(node)?;
    let folders = folders(node, arguments)?;
    if folders.is_empty() {
        return Ok("no folder of MPS on this node".into());
    }
    let mut removed = 0;
    for folder in &folders {
        for path in left(folder, device(folder)?)? {
            remove(&path)?;
            removed += 1;
        }
    }
    Ok(format!("removed {removed} entries of the folders of MPS"))
}

/// Whether all daemons have ended and nothing is in their folders.
pub(crate) fn none_left(node: &Node, arguments: &[String]) -> Result<(), Unclean> {
    none_runs(node)?;
    for folder in folders(node, arguments)? {
        if let Some(path) = left(&folder, device(&folder)?)?.first() {
            return Err(Unclean::Left(format!(
                "{} of MPS is left, which a container of a tenant may have written",
                path.display()
            )));
        }
    }
    Ok(())
}

/// The folders of daemons on the node. That of a claim stays: the driver looks at it to find out whether the daemon of the claim may exist.
fn folders(node: &Node, arguments: &[String]) -> Result<Vec<PathBuf>, Unclean> {
    let named = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix(ROOT_ARGUMENT));
    let mut folders: Vec<PathBuf> = find_folder_to_empty(node, named.unwrap_or(ROOT))?.into_iter().collect();
    if let Some(of_claims) = find_folder_to_empty(node, OF_CLAIMS)? {
        for of_claim in entries(&of_claims)? {
            let metadata = fs::symlink_metadata(&of_claim).map_err(at(&of_claim))?;
            if metadata.is_dir() {
                folders.push(of_claim);
            }
        }
    }
    Ok(folders)
}

/// Whether no process of MPS runs.
fn none_runs(node: &Node) -> Result<(), Unclean> {
    for process in entries(&node.path("/proc"))? {
        if name(&process).parse::<u32>().is_err() {
            continue;
        }
        // The process may have ended meanwhile.
        let Ok(Some(command)) = text(&process.join("comm")) else {
            continue;
        };
        if PROCESSES.iter().any(|begin| command.starts_with(begin)) {
            return Err(Unclean::Left(format!(
                "MPS still runs (process {}, {}): the node's configuration of the device plugin must not share GPUs by MPS while the \
                 node has no tenant",
                name(&process),
                command.trim()
            )));
        }
    }
    Ok(())
}

/// What is in the folder. A mount in it stays and what is in the mount counts: the daemon's next start replaces it by a new one.
/// `device_of_root` is the device that the folder is on.
fn left(root: &Path, device_of_root: u64) -> Result<Vec<PathBuf>, Unclean> {
    let mut left = Vec::new();
    for entry in entries(root)? {
        let metadata = fs::symlink_metadata(&entry).map_err(at(&entry))?;
        if metadata.is_dir() && metadata.dev() != device_of_root {
            left.extend(entries(&entry)?);
        } else {
            left.push(entry);
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let node = Node::new(root, []);
        (folder, node)
    }

    const LEFT: [(&str, &str); 3] = [
        ("run/nvidia/mps/shm/of-a-tenant", "secret"),
        ("run/nvidia/mps/nvidia.com/gpu/pipe/control", ""),
        ("run/nvidia/driver/stays", ""),
    ];

    #[test]
    fn what_containers_shared_is_removed() {
        let (folder, node) = machine(&LEFT);
        let error = none_left(&node, &[]).unwrap_err().to_string();
        assert!(error.contains("run/nvidia/mps/"), "{error}");
        empty(&node, &[]).unwrap();
        none_left(&node, &[]).unwrap();
        assert_eq!(fs::read_dir(folder.path().join("run/nvidia/mps")).unwrap().count(), 0);
        assert!(folder.path().join("run/nvidia/driver/stays").exists());
    }

    #[test]
    fn what_the_dra_driver_left_of_claims_is_removed() {
        let of_claim = |id: &str| format!("var/lib/kubelet/plugins/gpu.nvidia.com/mps/{id}");
        let shm = format!("{}/shm/of-a-tenant", of_claim("1f-ab3de"));
        let pipe = format!("{}/pipe/control", of_claim("2e-cd4fa"));
        let checkpoint = "var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json";
        let (folder, node) = machine(&[(shm.as_str(), "secret"), (pipe.as_str(), ""), (checkpoint, "{}")]);
        let error = none_left(&node, &[]).unwrap_err().to_string();
        assert!(error.contains("gpu.nvidia.com/mps/1f-ab3de/shm"), "{error}");
        empty(&node, &[]).unwrap();
        none_left(&node, &[]).unwrap();
        for id in ["1f-ab3de", "2e-cd4fa"] {
            assert_eq!(
                fs::read_dir(folder.path().join(of_claim(id))).unwrap().count(),
                0,
                "{id}"
            );
        }
        assert!(folder.path().join(checkpoint).exists());
        // Elsewhere than the folder of the device plugin.
        let (_folder, node) = machine(&[(shm.as_str(), "secret")]);
        assert!(none_left(&node, &["--mps-root=/mnt/mps".to_owned()]).is_err());
    }

    #[test]
    fn a_node_without_mps_is_clean() {
        let (_folder, node) = machine(&[
            ("proc/7/comm", "nvidia-persiste\n"),
            ("proc/self/comm", "mps-control-dae\n"),
        ]);
        empty(&node, &[]).unwrap();
        none_left(&node, &[]).unwrap();
    }

    #[test]
    fn nothing_is_removed_while_the_daemon_runs() {
        for command in ["nvidia-cuda-mps\n", "mps-control-dae\n"] {
            let (folder, node) = machine(&[&LEFT[..], &[("proc/7/comm", command)]].concat());
            for result in [empty(&node, &[]).map(drop), none_left(&node, &[])] {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("MPS still runs (process 7"), "{error}");
            }
            assert!(folder.path().join(LEFT[0].0).exists());
        }
    }

    #[test]
    fn the_folder_can_be_another_one() {
        let (folder, node) = machine(&[LEFT[0], ("mnt/mps/shm/of-a-tenant", "secret")]);
        let arguments = ["--mps-root=/mnt/mps".to_owned()];
        assert!(none_left(&node, &arguments).is_err());
        empty(&node, &arguments).unwrap();
        none_left(&node, &arguments).unwrap();
        assert!(folder.path().join(LEFT[0].0).exists());
        for refused in ["/mnt", "/mnt/../run"] {
            assert!(empty(&node, &[format!("--mps-root={refused}")]).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_mount_stays_and_what_is_in_it_counts() {
        let (_folder, node) = machine(&LEFT[..1]);
        let root = node.path(ROOT);
        let device = device(&root).unwrap();
        assert_eq!(left(&root, device).unwrap(), [root.join("shm")]);
        // As if each folder in it were on another device.
        assert_eq!(left(&root, device + 1).unwrap(), [root.join("shm/of-a-tenant")]);
        fs::remove_file(root.join("shm/of-a-tenant")).unwrap();
        assert!(left(&root, device + 1).unwrap().is_empty(), "an empty mount is clean");
    }
}
