//! NVIDIA's multi-process service (MPS), by which containers share a GPU. Its daemon has a folder on the node, of which the device plugin
//! mounts parts into every container that uses a GPU, writable: a memory file system as `/dev/shm`, and the pipes of the daemon. So what a
//! container leaves there would be in those of the next tenant.
//!
//! Control takes the configuration of the device plugin away before the scrub, and NVIDIA's DaemonSet ends the daemon.

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
/// The argument that names it.
const ROOT_ARGUMENT: &str = "--mps-root=";
/// Names of processes, as the kernel shortens them: NVIDIA's daemon and its servers, and the program of the device plugin that starts it.
const PROCESSES: [&str; 2] = ["nvidia-cuda-mps", "mps-control-dae"];

/// Removes everything in the folder of a daemon that has ended.
pub(crate) fn empty(node: &Node, arguments: &[String]) -> Result<String, Unclean> {
    none_runs(node)?;
    let Some(root) = root(node, arguments)? else {
        return Ok("no folder of MPS on this node".into());
    };
    let left = left(&root, device(&root)?)?;
    for path in &left {
        remove(path)?;
    }
    Ok(format!("removed {} entries of the folder of MPS", left.len()))
}

/// Whether the daemon has ended and nothing is in its folder.
pub(crate) fn none_left(node: &Node, arguments: &[String]) -> Result<(), Unclean> {
    none_runs(node)?;
    let Some(root) = root(node, arguments)? else {
        return Ok(());
    };
    match left(&root, device(&root)?)?.first() {
        None => Ok(()),
        Some(path) => Err(Unclean::Left(format!(
            "{} of MPS is left, which containers of the next tenant would have",
            path.display()
        ))),
    }
}

/// Where the folder is; nothing if the node has none.
fn root(node: &Node, arguments: &[String]) -> Result<Option<PathBuf>, Unclean> {
    let named = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix(ROOT_ARGUMENT));
    find_folder_to_empty(node, named.unwrap_or(ROOT))
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
