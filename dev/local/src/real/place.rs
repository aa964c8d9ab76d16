//! What a node has besides its network: a mount namespace, in which the directories that node programs require are its
//! own, and a cgroup, under which everything runs that its kubelet starts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_process::create_private_dir;

use super::command::run;
use super::network::Network;
use crate::{Error, Home};

/// Directories of a node's own, where kubelet, containerd and Calico expect them; the last element of a path is not
/// unique, so each has a name in the node's folder.
const OWN: [(&str, &str); 12] = [
    ("kubelet", "/var/lib/kubelet"),
    ("containerd", "/var/lib/containerd"),
    ("containerd-run", "/run/containerd"),
    ("containerd-bin", "/opt/containerd/bin"),
    ("cni-state", "/var/lib/cni"),
    ("cni-config", "/etc/cni/net.d"),
    ("cni-bin", "/opt/cni/bin"),
    ("calico-run", "/var/run/calico"),
    ("calico", "/var/lib/calico"),
    ("cdi", "/var/run/cdi"),
    ("pods-log", "/var/log/pods"),
    // No program makes it where there are no GPUs: tests of the scrub do.
    ("mps", "/run/nvidia/mps"),
];
/// The same for folders that are not of node programs: the scrub empties them, and must not empty those of this machine. A machine can have them anyway, so
/// they stay on it.
const OF_SYSTEM: [(&str, &str); 2] = [("coredump", "/var/lib/systemd/coredump"), ("crash", "/var/crash")];
/// Where cgroup hierarchies are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Processor time of all containers of a cluster beside that of other processes of this machine, in processes. Without it the
/// kernel gives their common cgroup as much as one process: on a busy machine whole control planes got a tenth of a core, and
/// failed their probes.
const CONTAINERS_WEIGHT: u32 = 8;
/// The files that set it, in version 1 and 2 of cgroups, and what they say by default.
const WEIGHT_FILES: [(&str, u32); 2] = [("cpu.shares", 1024), ("cpu.weight", 100)];
/// How long killed containers may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// A node's folder and namespaces.
#[derive(Clone, Debug)]
pub(super) struct NodePlace {
    name: String,
    dir: PathBuf,
    mounts: PathBuf,
    cgroup: String,
}

impl NodePlace {
    pub(super) fn new(home: &Home, network: &Network, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            dir: home.root().join("nodes").join(name),
            mounts: network.folder().join(format!("{name}.mnt")),
            cgroup: format!("/{}/{name}", cgroup_root(network)),
        }
    }

    /// The node's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The file by which the node's mount namespace is entered.
    pub(super) fn mounts(&self) -> &Path {
        &self.mounts
    }

    /// The node's cgroup, as its kubelet's configuration names it.
    pub(super) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// A directory of the node by its name in [`OWN`] or [`OF_SYSTEM`], as it is seen from outside.
    pub(super) fn own(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A configuration file of the node, which its programs read at the same path.
    pub(super) fn config(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Makes folder, mount namespace and cgroup. Existing ones stay.
    pub(super) fn create(&self) -> Result<(), Error> {
        for (name, path) in directories() {
            create_private_dir(&self.own(name))?;
            // A mount point: on this machine itself it stays empty.
            fs::create_dir_all(path).map_err(failed("create", path))?;
        }
        create_cgroup(&self.cgroup)?;
        if is_namespace(&self.mounts) {
            return Ok(());
        }
        fs::write(&self.mounts, "").map_err(failed("create", &self.mounts))?;
        let binds: Vec<String> = directories()
            .map(|(name, path)| format!("mount --bind '{}' '{path}'", self.own(name).display()))
            .collect();
        // What a kubelet mounts must reach the containers of its own node, and nothing else.
        let script = format!("{} && mount --make-rshared /", binds.join(" && "));
        let kept = format!("--mount={}", self.mounts.display());
        run(
            "unshare",
            [kept.as_str(), "--propagation=private", "--", "sh", "-c", &script],
        )
        .map(drop)
    }
}

/// Names and paths of all directories that a node has for itself.
fn directories() -> impl Iterator<Item = (&'static str, &'static str)> {
    OWN.into_iter().chain(OF_SYSTEM)
}

fn cgroup_root(network: &Network) -> String {
    format!("berth-{}", network.id)
}

/// Ends every container of a cluster and removes its mounts and cgroups. Supervised processes must have ended.
pub(super) fn remove_all(network: &Network) -> Result<(), Error> {
    let root = cgroup_root(network);
    kill_cgroup(&root)?;
    let dir = network.folder();
    if let Ok(entries) = fs::read_dir(&dir) {
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            // All mounts in the namespace go with it.
            if is_namespace(&path) {
                run("umount", [&path])?;
            }
        }
        fs::remove_dir_all(&dir).map_err(failed("remove", &dir))?;
    }
    // runc makes cgroups there, too, where version 2 is mounted beside version 1.
    for hierarchy in hierarchies().into_iter().chain([Path::new(CGROUPS).join("unified")]) {
        remove_cgroups(&hierarchy.join(&root))?;
    }
    Ok(())
}

/// Removes the empty directories that nodes' own ones were mounted on. Only when there is no cluster: the kernel takes away
/// what is mounted on a directory, in whatever namespace, when the directory is removed.
pub(super) fn remove_mount_points() {
    for path in OWN.map(|(_, path)| Path::new(path)) {
        let _ = fs::remove_dir(path).and_then(|()| fs::remove_dir(path.parent().unwrap_or(path)));
    }
}

/// Whether a namespace is kept at a path: something is mounted there.
fn is_namespace(path: &Path) -> bool {
    run("mountpoint", [Path::new("-q"), path]).is_ok()
}

/// The cgroup hierarchies: one for each controller (v1), or one in all (v2).
fn hierarchies() -> Vec<PathBuf> {
    let unified = PathBuf::from(CGROUPS);
    if unified.join("cgroup.controllers").exists() {
        return vec![unified];
    }
    let entries = fs::read_dir(CGROUPS).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        // Version 2 beside version 1: containers are not put there.
        .filter(|path| path.join("cgroup.procs").exists() && !path.ends_with("unified"))
        .collect()
}

/// Makes a cgroup in every hierarchy; the first part of its path is that of the whole cluster. In version 1, a cgroup does not
/// inherit CPUs and memory nodes; in version 2, its parent must enable its controllers.
fn create_cgroup(path: &str) -> Result<(), Error> {
    for hierarchy in hierarchies() {
        let mut current = hierarchy.clone();
        for part in path.trim_start_matches('/').split('/') {
            let parent = current.clone();
            current.push(part);
            if parent.join("cgroup.controllers").exists() {
                let control = parent.join("cgroup.subtree_control");
                fs::write(&control, "+cpuset +cpu +io +memory +pids").map_err(failed("write", &control))?;
            }
            fs::create_dir_all(&current).map_err(failed("create", &current))?;
            if parent == hierarchy {
                weigh(&current)?;
            }
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (parent.join(file), current.join(file));
                if hierarchy.ends_with("cpuset") && fs::read_to_string(&to).is_ok_and(|text| text.trim().is_empty()) {
                    let value = fs::read_to_string(&from).map_err(failed("read", &from))?;
                    fs::write(&to, value).map_err(failed("write", &to))?;
                }
            }
        }
    }
    Ok(())
}

/// Gives the cgroup of a cluster its weight, in the hierarchy that has weights.
fn weigh(dir: &Path) -> Result<(), Error> {
    for (file, default) in WEIGHT_FILES {
        let path = dir.join(file);
        if path.exists() {
            fs::write(&path, (CONTAINERS_WEIGHT * default).to_string()).map_err(failed("write", &path))?;
        }
    }
    Ok(())
}

/// Kills every process below a cgroup and waits until they are gone.
fn kill_cgroup(root: &str) -> Result<(), Error> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let mut alive = Vec::new();
        for hierarchy in hierarchies() {
            processes(&hierarchy.join(root), &mut alive);
        }
        if alive.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::Node {
                line: "end containers".into(),
                why: format!("processes {alive:?} do not end"),
            });
        }
        for pid in alive {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        #[expect(clippy::disallowed_methods, reason = "removing a cluster blocks")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes(dir: &Path, found: &mut Vec<i32>) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for child in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        if child.path().is_dir() {
            processes(&child.path(), found);
        }
    }
}

/// Cgroups are removed from the leaves; their files go with them.
fn remove_cgroups(dir: &Path) -> Result<(), Error> {
    for child in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        if child.path().is_dir() {
            remove_cgroups(&child.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", dir)(error)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
    let path = path.as_ref().to_owned();
    move |source| Error::File { action, path, source }
}
