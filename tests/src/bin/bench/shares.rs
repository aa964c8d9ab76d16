//! Shares of the processors: a tenant's servers together get as much as another tenant's, and the host's as much as those of all tenants.
//!
//! Without that, the kernel divides the time among all threads, and a greedy tenant, whose servers have more threads to run, gets more of it. On
//! clusters the servers of tenants run in pods, which have shares by their CPU requests, and the host's on other machines: half of the
//! processors stand for these, as where benchmarks give the host cores of its own.

use crate::processor::by_tenant;
use berth_tests::test_cluster::TestCluster;
use rustix::io::Errno;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// Begin of the names of control groups that benchmarks make.
const PREFIX: &str = "bench-berth-";
/// Rest of the name of the control group of the host's servers.
const HOST: &str = "host";
/// Where a control group has its weight: of version 1 and of version 2 of control groups.
const WEIGHTS: [&str; 2] = ["cpu.shares", "cpu.weight"];

/// Control groups of a cluster's processes. Its end dissolves them.
pub(crate) struct Shares(io::Result<Groups>);

impl Shares {
    /// Puts the processes of each tenant into a control group, and those of the host, with etcd and control, into another, which weighs as
    /// much as all others together. Processes that a process starts later are in its group.
    pub(crate) fn by_tenant(host: &TestCluster) -> Self {
        if std::env::var_os("BENCH_SHARES").is_some_and(|shares| shares == "none") {
            return Self(Err(io::Error::other("BENCH_SHARES=none")));
        }
        Self(Groups::make(&by_tenant(host)))
    }

    /// Whether they have them.
    pub(crate) fn are_equal(&self) -> bool {
        self.0.is_ok()
    }

    /// A sentence for people.
    pub(crate) fn describe(&self) -> String {
        match &self.0 {
            Ok(_) => {
                "the servers of each tenant have equal shares of the processors, and those of the host half of them"
                    .to_owned()
            }
            Err(error) => format!("processes have no shares of the processors: {error}"),
        }
    }
}

/// The groups of one benchmark.
struct Groups {
    root: PathBuf,
}

impl Groups {
    fn make(members: &[(Option<String>, u32)]) -> io::Result<Self> {
        let root = find_root(&fs::read_to_string("/proc/self/mountinfo")?)?;
        clean_up(&root);
        let control = root.join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+cpu")?;
        }
        let groups = Self { root };
        let tenants: BTreeSet<&str> = members.iter().filter_map(|(tenant, _)| tenant.as_deref()).collect();
        let host = groups.folder(HOST);
        fs::create_dir_all(&host)?;
        multiply_weight(&host, tenants.len())?;
        for (tenant, process) in members {
            let group = groups.folder(tenant.as_deref().unwrap_or(HOST));
            fs::create_dir_all(&group)?;
            match fs::write(group.join("cgroup.procs"), process.to_string()) {
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
                result => result?,
            }
        }
        Ok(groups)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.join(format!("{PREFIX}{}-{name}", std::process::id()))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let own = format!("{PREFIX}{}-", std::process::id());
        for group in groups(&self.root, &own) {
            let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for process in members.lines() {
                // It may have ended.
                let _ = fs::write(self.root.join("cgroup.procs"), process);
            }
        }
        clean_up(&self.root);
    }
}

/// Removes groups without processes: those of this benchmark, and of others that were killed.
fn clean_up(root: &Path) {
    for group in groups(root, PREFIX) {
        let _ = fs::remove_dir(group);
    }
}

/// Lets a new control group weigh `times` as much as those that keep the weight with which groups are made.
fn multiply_weight(group: &Path, times: usize) -> io::Result<()> {
    let files = WEIGHTS.map(|name| group.join(name));
    let file = files.iter().find(|file| file.exists());
    let file = file.ok_or_else(|| io::Error::other("control groups have no weight"))?;
    let weight: usize = fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)?;
    fs::write(file, (weight * times).to_string())
}

fn groups(root: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)))
        .map(|entry| entry.path())
        .collect()
}

/// Finds in `/proc/self/mountinfo` where the control groups for processors are: those of version 1 if they are mounted, else those of
/// version 2. In both, groups have the same weight unless somebody sets another.
fn find_root(mounts: &str) -> io::Result<PathBuf> {
    // <id> <parent> <device> <root> <mount point> <options> <optional fields> - <type> <source> <options of the file system>
    let mounted = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut fields = file_system.split(' ');
            let is_kind = fields.next() == Some(kind);
            let mut options = fields.nth(1)?.split(',');
            let has_option = option.is_none_or(|option| options.any(|one| one == option));
            (is_kind && has_option).then(|| mount.split(' ').nth(4).map(PathBuf::from))?
        })
    };
    let found = mounted("cgroup", Some("cpu")).or_else(|| mounted("cgroup2", None));
    found.ok_or_else(|| io::Error::other("no control groups are mounted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let v1 = "31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
            32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 master:1 - cgroup cgroup rw,cpu,cpuacct\n";
        let of = |mounts: &str| find_root(mounts).ok();
        assert_eq!(of(v2), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(of(&format!("{v2}{v1}")), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(of("1 2 0:1 / /proc rw - proc proc rw\n"), None);
    }
}
