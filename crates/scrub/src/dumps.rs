//! Memory of processes on the node's disk: core dumps, which the kernel's setting `core_pattern` sends to one place for all containers, and checkpoints of
//! containers that the kubelet has made. What is a tenant's cannot be told from what is the platform's, so all of it is removed.

use crate::{
    Unclean,
    files::{at, device, entries, find_folder_to_empty, name, remove as remove_file, text},
    node::Node,
};
use rustix::fs::statfs;
use std::path::Path;

/// Folders of systemd-coredump, of apport, which kdump uses as well, and of the kubelet.
const FOLDERS: [&str; 3] = [
    "/var/lib/systemd/coredump",
    "/var/crash",
    "/var/lib/kubelet/checkpoints",
];
/// What the kernel does with core dumps.
const PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Programs that the kernel gives core dumps to and that have them in [`FOLDERS`], or nowhere.
const KNOWN: [&str; 4] = ["systemd-coredump", "apport", "true", "false"];
/// The first two of them as names of processes, which the kernel shortens.
const WRITERS: [&str; 2] = ["systemd-coredum", "apport"];
/// File systems of a disk or of the memory of the machine: ext2 to ext4, XFS, Btrfs, F2FS, ZFS, overlays, tmpfs and ramfs.
const OF_THE_MACHINE: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0x794c_7630,
    0x0102_1994,
    0x8584_58f6,
];

/// Empties the folders; the folders themselves stay. What is on another machine stays as well: it is of other nodes, too.
pub(crate) fn remove(node: &Node) -> Result<String, Unclean> {
    none_is_written(node)?;
    let (mut removed, mut stay) = (0, Vec::new());
    for folder in FOLDERS {
        let Some(path) = find_folder_to_empty(node, folder)? else {
            continue;
        };
        if is_elsewhere(&path)? {
            stay.push(folder);
            continue;
        }
        for entry in entries(&path)? {
            remove_file(&entry)?;
            removed += 1;
        }
    }
    let mut done = format!("removed {removed} core dumps and checkpoints");
    if !stay.is_empty() {
        done = format!("{done}; not on this machine, and left as it is: {}", stay.join(", "));
    }
    Ok(done)
}

/// Where core dumps go, if that is no folder that is emptied; none if it is.
pub(crate) fn find_other_place(node: &Node) -> Result<Option<String>, Unclean> {
    let pattern = text(&node.path(PATTERN))?.unwrap_or_default();
    let place = other_place(pattern.trim());
    Ok(place.map(|place| format!("core dumps are not removed, because they go to {place} (kernel.core_pattern)")))
}

/// The program or the file that a pattern names, if it is no known one. A relative file is in the file system of its container.
fn other_place(pattern: &str) -> Option<&str> {
    if let Some(command) = pattern.strip_prefix('|') {
        let program = command.split_whitespace().next()?;
        return (!KNOWN.contains(&name(Path::new(program)).as_str())).then_some(program);
    }
    let is_known = FOLDERS.iter().any(|folder| Path::new(pattern).starts_with(folder));
    (pattern.starts_with('/') && !is_known).then_some(pattern)
}

/// Whether no core dump is being written: its file would be there later.
fn none_is_written(node: &Node) -> Result<(), Unclean> {
    for process in entries(&node.path("/proc"))? {
        // What is no process has no name, and a process may have ended meanwhile.
        let Ok(Some(command)) = text(&process.join("comm")) else {
            continue;
        };
        if WRITERS.contains(&command.trim()) {
            return Err(Unclean::Left(format!(
                "a core dump is being written (process {}, {})",
                name(&process),
                command.trim()
            )));
        }
    }
    Ok(())
}

/// Whether another file system is mounted on a folder, and not one of this machine.
fn is_elsewhere(folder: &Path) -> Result<bool, Unclean> {
    let Some(parent) = folder.parent() else {
        return Ok(false);
    };
    if device(folder)? == device(parent)? {
        return Ok(false);
    }
    let found = statfs(folder).map_err(|error| at(folder)(error.into()))?;
    Ok(!u64::try_from(found.f_type).is_ok_and(|kind| OF_THE_MACHINE.contains(&kind)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn core_dumps_and_checkpoints_are_removed_and_nothing_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let node = Node::new(&root, []);
        assert_eq!(
            remove(&node).unwrap(),
            "removed 0 core dumps and checkpoints",
            "no folder is there"
        );
        let file = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "secret").unwrap();
            path
        };
        let gone = [
            file("var/lib/systemd/coredump/core.train.1000.zst"),
            file("var/crash/_usr_bin_train.1000.crash"),
            file("var/crash/202611290900/vmcore"),
            file("var/lib/kubelet/checkpoints/checkpoint-job_berth-vision-x-main-2026-11-29T09:00:00Z.tar"),
        ];
        let stays = file("var/lib/systemd/random-seed");
        assert_eq!(remove(&node).unwrap(), "removed 4 core dumps and checkpoints");
        assert!(gone.iter().all(|path| !path.exists()) && stays.exists());
        assert!(root.join("var/crash").exists(), "the folder stays");

        fs::remove_dir(root.join("var/crash")).unwrap();
        std::os::unix::fs::symlink(root.join("var/lib/systemd"), root.join("var/crash")).unwrap();
        let error = remove(&node).unwrap_err().to_string();
        assert!(error.contains("/var/crash contains a symbolic link"), "{error}");
        assert!(stays.exists());
    }

    #[test]
    fn a_core_dump_that_is_being_written_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path().canonicalize().unwrap(), []);
        let process = node.path("/proc/812");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("comm"), "systemd-coredum\n").unwrap();
        let error = remove(&node).unwrap_err().to_string();
        assert_eq!(error, "a core dump is being written (process 812, systemd-coredum)");
        fs::write(process.join("comm"), "systemd\n").unwrap();
        assert!(remove(&node).is_ok());
    }

    #[test]
    fn a_place_that_is_not_emptied_is_named() {
        for (pattern, place) in [
            ("core", None),
            ("", None),
            ("|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h", None),
            ("|/usr/share/apport/apport -p%p -s%s", None),
            ("|/bin/false", None),
            ("/var/crash/core.%e.%p", None),
            ("/var/crashes/core.%p", Some("/var/crashes/core.%p")),
            (
                "|/usr/libexec/abrt-hook-ccpp %s %c",
                Some("/usr/libexec/abrt-hook-ccpp"),
            ),
        ] {
            assert_eq!(other_place(pattern), place, "{pattern}");
        }
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        assert_eq!(find_other_place(&node).unwrap(), None);
        let file = node.path(PATTERN);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "/cores/core.%p\n").unwrap();
        let message = find_other_place(&node).unwrap().unwrap();
        assert!(message.contains("/cores/core.%p"), "{message}");
    }

    #[test]
    fn what_is_mounted_from_elsewhere_is_noticed() {
        // Every machine and every container has this mount, and it is of no disk.
        assert!(is_elsewhere(Path::new("/proc")).unwrap());
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("crash")).unwrap();
        assert!(!is_elsewhere(&folder.path().join("crash")).unwrap());
    }
}
