//! On which cores the processes of a cluster run: on a machine with enough of them, the host's servers and the others do not compete.

use crate::processor::{Owner, processes};
use berth_tests::test_cluster::TestCluster;
use rustix::{
    io::Errno,
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::fs;

/// With fewer cores each side would have only one.
const ENOUGH: usize = 4;

/// The cores of this program, and how the cluster's processes share them. Its end gives this program all of them back.
pub(crate) struct Cores {
    all: Vec<usize>,
    apart: bool,
}

impl Cores {
    /// Keeps the host's processes on one half of the cores, and all others, this program included, on the other half, if there are
    /// enough. Processes that are started later keep to the cores of the process that starts them.
    pub(crate) fn separate(host: &TestCluster) -> Self {
        let allowed = sched_getaffinity(None).unwrap();
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        let cores = Self {
            apart: all.len() >= ENOUGH,
            all,
        };
        if cores.apart {
            for (group, process) in processes(host) {
                pin(process, cores.of(group.owner));
            }
        }
        cores
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether the host's processes have cores of their own.
    pub(crate) fn are_apart(&self) -> bool {
        self.apart
    }

    /// The cores that processes of an owner run on.
    fn of(&self, owner: Owner) -> &[usize] {
        if !self.apart {
            return &self.all;
        }
        let (host, others) = self.all.split_at(self.all.len() / 2);
        match owner {
            Owner::Host => host,
            Owner::Berth | Owner::Tenants | Owner::Pods | Owner::Benchmark => others,
        }
    }

    /// A sentence for the report.
    pub(crate) fn describe(&self) -> String {
        if self.apart {
            let (host, others) = (self.of(Owner::Host), self.of(Owner::Tenants));
            format!(
                "pinned: the host's servers on the cores {host:?}, the tenants' servers and the benchmark on {others:?}"
            )
        } else {
            let count = self.count();
            format!(
                "not pinned: all processes share {count} cores; with {ENOUGH} or more the host's servers have their own"
            )
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        if self.apart {
            pin(std::process::id(), &self.all);
        }
    }
}

/// Keeps all threads of a process on these cores.
fn pin(process: u32, cores: &[usize]) {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    // A thread keeps to the cores of the one that starts it: what starts during the first pass is found by the second.
    for _ in 0..2 {
        for thread in threads(process) {
            match sched_setaffinity(Some(thread), &set) {
                // It has ended meanwhile.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => panic!("cannot keep process {process} on the cores {cores:?}: {error}"),
            }
        }
    }
}

/// The threads of a process; none if it has ended.
fn threads(process: u32) -> Vec<Pid> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_cores_of_its_own_only_if_there_are_enough() {
        let cores = |count: usize| Cores {
            all: (0..count).collect(),
            // Not true, so that the end of the value changes nothing.
            apart: false,
        };
        assert_eq!(cores(2).of(Owner::Host), [0, 1]);
        let mut four = cores(4);
        four.apart = true;
        let halves = [Owner::Host, Owner::Tenants].map(|owner| four.of(owner).to_vec());
        four.apart = false;
        assert_eq!(halves, [vec![0, 1], vec![2, 3]]);
    }
}
