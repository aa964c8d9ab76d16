//! Processor time of a cluster's processes, in groups, from `/proc/<pid>/stat`; and for how long they waited for a processor.

use berth_local::process;
use berth_process::statuses;
use berth_tests::test_cluster::TestCluster;
use std::{
    collections::BTreeMap,
    fmt, fs,
    path::Path,
    time::{Duration, Instant},
};

/// Ticks in a second, as the kernel shows times to programs (`USER_HZ`): the same on all machines that Kubernetes runs on.
const TICKS: f64 = 100.0;

/// For how long processes are looked at to know whether they have something to do.
const LOOK: Duration = Duration::from_secs(1);
/// Processors that a cluster uses which has nothing to do, at most.
const IDLE: f64 = 0.4;
/// How long to wait for that at most.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Whose processes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Those that a cluster without Berth has, too. Simulated kubelets are one of them.
    Host,
    /// Control.
    Berth,
    /// The tenants' servers, their etcd and their syncers.
    Tenants,
    /// What runs in containers of real nodes: control planes of tenants, too.
    Pods,
    /// This program.
    Benchmark,
}

/// Processes of one owner that do the same work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) owner: Owner,
    pub(crate) name: String,
}

impl Group {
    fn new(owner: Owner, name: &str) -> Self {
        Self {
            owner,
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Owner::Host => write!(f, "host's {}", self.name),
            Owner::Tenants => write!(f, "tenants' {}", self.name),
            Owner::Pods => write!(f, "{} in pods", self.name),
            Owner::Berth | Owner::Benchmark => f.write_str(&self.name),
        }
    }
}

/// Seconds of processor time by group.
pub(crate) type Seconds = BTreeMap<Group, f64>;

/// The processes of a cluster and this one, with their groups.
pub(crate) fn processes(host: &TestCluster) -> Vec<(Group, u32)> {
    processes_with_names(host, &[])
}

/// The same, where each of these tenants has groups of its own: tenants by the slugs of their ids, each with what people call it.
pub(crate) fn processes_with_names(host: &TestCluster, tenants: &[(&str, &str)]) -> Vec<(Group, u32)> {
    let mut found = running(&host.home().run(), of_host);
    found.extend(running(&host.control_records(), |_| {
        Group::new(Owner::Berth, "control")
    }));
    found.extend(running(&host.tenant_records(), |name| of_tenant(name, tenants)));
    found.push((Group::new(Owner::Benchmark, "benchmark"), std::process::id()));
    found
}

/// The processes of a cluster with the tenant whose process each of them is: none for the host's servers, etcd and control.
pub(crate) fn by_tenant(host: &TestCluster) -> Vec<(Option<String>, u32)> {
    let mut found = running(&host.home().run(), |_| None);
    found.extend(running(&host.control_records(), |_| None));
    found.extend(running(&host.tenant_records(), |name| {
        name.rsplit_once('.').map(|(tenant, _)| tenant.to_owned())
    }));
    found
}

fn running<T>(records: &Path, whose: impl Fn(&str) -> T) -> Vec<(T, u32)> {
    let all = statuses(records).into_iter();
    all.filter_map(|process| Some((whose(&process.name), process.pid?)))
        .collect()
}

fn of_host(name: &str) -> Group {
    match name {
        process::DATASTORE => Group::new(Owner::Tenants, "etcd"),
        process::KWOK => Group::new(Owner::Host, "simulated kubelets"),
        other => Group::new(Owner::Host, program_of(other)),
    }
}

/// The program of a process that is named after a node or a tenant and the program, with a dot between.
fn program_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, program)| program)
}

/// The processes of a cluster, and those that run in pods.
fn processes_and_pods(host: &TestCluster) -> Vec<(Group, u32)> {
    let mut found = processes(host);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        if read("cgroup").contains("kubepods") {
            found.push((Group::new(Owner::Pods, read("comm").trim()), process));
        }
    }
    found
}

/// A tenant's process is named after the tenant and the component, with a dot between.
fn of_tenant(name: &str, tenants: &[(&str, &str)]) -> Group {
    let slug = name.rsplit_once('.').map(|(slug, _)| slug);
    let program = program_of(name);
    match tenants.iter().find(|(tenant, _)| slug == Some(*tenant)) {
        Some((_, called)) => Group::new(Owner::Tenants, &format!("{program} of the {called}")),
        None => Group::new(Owner::Tenants, program),
    }
}

/// Seconds of processor time of a process since it started; none if it has ended.
pub(crate) fn used(process: u32) -> Option<f64> {
    seconds(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Seconds for which the threads of a process were ready to run and no processor was free; none if it has ended. What threads waited that have
/// ended is not in it.
pub(crate) fn waited(process: u32) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let each = threads.filter_map(|thread| {
        let schedstat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        seconds_waited(&schedstat)
    });
    Some(each.sum())
}

/// What was counted for each process since it started, in seconds.
pub(crate) struct Snapshot(BTreeMap<u32, (Group, f64)>);

impl Snapshot {
    /// Reads the times of all processes.
    pub(crate) fn take(host: &TestCluster) -> Self {
        Self::of(processes(host), used)
    }

    /// Reads the times of all processes, and of those in pods.
    pub(crate) fn take_with_pods(host: &TestCluster) -> Self {
        Self::of(processes_and_pods(host), used)
    }

    /// Reads these processes by [`used`] or [`waited`].
    pub(crate) fn of(processes: Vec<(Group, u32)>, read: fn(u32) -> Option<f64>) -> Self {
        Self(
            processes
                .into_iter()
                .filter_map(|(group, process)| Some((process, (group, read(process)?))))
                .collect(),
        )
    }

    /// The time that was counted between two snapshots. A process that was started meanwhile counts from its start.
    pub(crate) fn since(&self, before: &Self) -> Seconds {
        let mut used = Seconds::new();
        for (process, (group, now)) in &self.0 {
            let earlier = before.0.get(process).map_or(0.0, |(_, seconds)| *seconds);
            *used.entry(group.clone()).or_default() += now - earlier;
        }
        used
    }
}

/// Waits until a cluster has little to do, so that what one measurement leaves behind, such as objects that are deleted, is no work of the next one.
pub(crate) async fn until_idle(host: &TestCluster) {
    let begun = Instant::now();
    loop {
        let before = Snapshot::take(host);
        tokio::time::sleep(LOOK).await;
        let used = Snapshot::take(host).since(&before).values().sum::<f64>() / LOOK.as_secs_f64();
        if used <= IDLE {
            return;
        }
        if begun.elapsed() + LOOK > LONGEST_WAIT {
            eprintln!(
                "the cluster still uses {used:.2} processors after {} s, although nothing is measured: the next figure has that as well",
                begun.elapsed().as_secs()
            );
            return;
        }
    }
}

/// User and system time in a line of `/proc/<pid>/stat`. The second field, the program's name, may contain blanks and parentheses.
fn seconds(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// The second number in a file `schedstat`: nanoseconds on a processor, nanoseconds in wait for one, time slices.
fn seconds_waited(schedstat: &str) -> Option<f64> {
    let nanoseconds: f64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_wait_for_a_processor_is_read() {
        assert_eq!(seconds_waited("534095000 2500000000 2\n"), Some(2.5));
        assert_eq!(seconds_waited("534095000\n"), None);
    }

    #[test]
    fn user_and_system_time_are_added() {
        let stat = "42 (a) b (c) S 1 40 40 0 -1 4194304 1 0 0 0 150 25 7 7 20 0 1 0 12345 1000 1";
        assert_eq!(seconds(stat), Some(1.75));
        assert_eq!(seconds("42 (a"), None);
    }

    #[test]
    fn processes_have_groups() {
        let greedy = [("greedy-9x1z", "greedy tenant")];
        for (group, text) in [
            (of_host("kube-apiserver"), "host's kube-apiserver"),
            (of_host("kwok"), "host's simulated kubelets"),
            (of_host("gpu-h100-01.kubelet"), "host's kubelet"),
            (Group::new(Owner::Pods, "berth-syncer"), "berth-syncer in pods"),
            (of_host("datastore"), "tenants' etcd"),
            (of_tenant("vision-4k2m.kube-apiserver", &[]), "tenants' kube-apiserver"),
            (of_tenant("vision-4k2m.syncer", &greedy), "tenants' syncer"),
            (
                of_tenant("greedy-9x1z.syncer", &greedy),
                "tenants' syncer of the greedy tenant",
            ),
        ] {
            assert_eq!(group.to_string(), text);
        }
    }
}
