//! Sandboxes of Kata Containers: virtual machines that a shim keeps running for a pod.
//!
//! By default, Kata moves the shim, virtiofsd and on cgroup v1 the virtual machine itself out of the cgroup of the pod, so that only the ID of the
//! sandbox says which pod they belong to. Once the container runtime has lost the sandbox, nothing else names it.

use crate::{
    Unclean,
    containers::Container,
    files::{at, entries, name},
    node::Node,
};
use std::{collections::BTreeSet, fs, path::Path};

/// Cgroups that Kata has besides those of pods, each with one cgroup for each sandbox: both runtimes with the driver `cgroupfs`, that in Rust with
/// systemd, and that in Rust for a sandbox that the container runtime gave no cgroup.
const GROUPS: [&str; 3] = ["kata_overhead", "kata-overhead.slice", "kata_sandboxed_pod"];
/// Folders that Kata has of sandboxes, by ID: their state, and what they share with the virtual machine, which has the root file systems of containers.
const FOLDERS: [&str; 2] = ["/run/vc/sbs", "/run/kata-containers/shared/sandboxes"];
/// How many folders are looked through for a file. What a sandbox shares has the files of a tenant.
const FOLDERS_READ: usize = 1000;

/// The ID of the sandbox whose cgroup beside those of pods a process is in: empty if the cgroup is of no single sandbox, as that to which Kata moves
/// processes when it deletes a sandbox.
pub(crate) fn sandbox_of(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').nth(2)?.split('/');
        parts.find(|part| GROUPS.contains(part))?;
        let group = parts.next().unwrap_or_default();
        Some(match group.strip_suffix(".scope") {
            // `runtime-rs-<ID>.scope`
            Some(scope) => scope.rsplit('-').next().unwrap_or_default(),
            None => group,
        })
    })
}

/// The IDs of sandboxes of which Kata has folders. Read before the containers, so that a sandbox that starts has its container by then.
pub(crate) fn sandboxes(node: &Node) -> Result<BTreeSet<String>, Unclean> {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        found.extend(entries(&node.path(folder))?.iter().map(|sandbox| name(sandbox)));
    }
    Ok(found)
}

/// Those of these sandboxes that the container runtime does not know any more, and of which Kata still has files: it can leave empty folders. What
/// the others share is not looked at. It has volumes of running pods, which may be those of a server that does not answer.
pub(crate) fn lost(node: &Node, sandboxes: BTreeSet<String>, containers: &[Container]) -> Result<Vec<String>, Unclean> {
    let mut lost = Vec::new();
    for sandbox in sandboxes {
        if containers.iter().any(|container| container.id == sandbox) {
            continue;
        }
        for folder in FOLDERS {
            if has_files(&node.path(folder).join(&sandbox))? {
                lost.push(sandbox);
                break;
            }
        }
    }
    Ok(lost)
}

/// Whether there is anything but folders, or more folders than are read.
fn has_files(folder: &Path) -> Result<bool, Unclean> {
    let mut folders = vec![folder.to_owned()];
    let mut known = 1;
    while let Some(folder) = folders.pop() {
        let listed = match fs::read_dir(&folder) {
            Ok(listed) => listed,
            // Kata may remove it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return Ok(true),
            Err(error) => return Err(at(&folder)(error)),
        };
        for entry in listed {
            let entry = entry.map_err(at(&folder))?;
            known += 1;
            if known > FOLDERS_READ || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return Ok(true);
            }
            folders.push(entry.path());
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_are_read_from_cgroups_of_either_runtime() {
        for (groups, sandbox) in [
            ("0::/kata_overhead/0a1b\n", Some("0a1b")),
            (
                "0::/kata.slice/kata-overhead.slice/runtime-rs-0a1b.scope\n",
                Some("0a1b"),
            ),
            ("0::/kata_sandboxed_pod/0a1b\n", Some("0a1b")),
            // cgroup v1: systemd's own hierarchy still has the service that started the shim.
            (
                "12:memory:/kata_overhead/0a1b\n1:name=systemd:/system.slice/containerd.service\n",
                Some("0a1b"),
            ),
            ("0::/kata_overhead\n", Some("")),
            ("0::/kubepods/burstable/pod3-4/kata_0a1b\n", None),
            ("0::/system.slice/kata_overheads.service\n", None),
        ] {
            assert_eq!(sandbox_of(groups), sandbox, "{groups}");
        }
    }

    /// The sandboxes of a node that are lost, if the runtime has the container of this one.
    fn found(node: &Node, known: &str) -> Vec<String> {
        let container = Container {
            id: known.into(),
            pod: "agent".into(),
            pod_name: "kube-system/agent".into(),
            is_tenants: false,
        };
        lost(node, sandboxes(node).unwrap(), &[container]).unwrap()
    }

    #[test]
    fn folders_without_a_file_are_of_no_sandbox() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        assert_eq!(found(&node, ""), Vec::<String>::new());
        let [state, shared] = FOLDERS.map(|path| node.path(path));
        fs::create_dir_all(state.join("1")).unwrap();
        fs::write(state.join("1/persist.json"), "{}").unwrap();
        fs::create_dir_all(shared.join("1/shared/c/rootfs")).unwrap();
        fs::create_dir_all(shared.join("2/mounts")).unwrap();
        fs::create_dir_all(shared.join("3/shared/c/rootfs/etc")).unwrap();
        fs::write(shared.join("3/shared/c/rootfs/etc/passwd"), "").unwrap();
        assert_eq!(found(&node, ""), ["1", "3"]);
        assert_eq!(found(&node, "3"), ["1"]);
        // More than would be read counts as content.
        for number in 0..FOLDERS_READ {
            fs::create_dir_all(shared.join("2/mounts").join(number.to_string())).unwrap();
        }
        assert_eq!(found(&node, ""), ["1", "2", "3"]);
    }

    #[test]
    fn a_sandbox_that_ends_meanwhile_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        let state = node.path(FOLDERS[0]).join("1");
        fs::create_dir_all(&state).unwrap();
        fs::write(state.join("persist.json"), "{}").unwrap();
        let listed = sandboxes(&node).unwrap();
        // Kata removes its files before the runtime forgets the container.
        fs::remove_dir_all(&state).unwrap();
        assert_eq!(lost(&node, listed, &[]).unwrap(), Vec::<String>::new());
    }
}
