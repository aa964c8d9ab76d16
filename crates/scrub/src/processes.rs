//! Processes: no container of a tenant is left, no process that the kubelet started for a pod that is gone, and only the
//! platform holds GPUs.

use crate::{
    Unclean,
    cgroups::{pod_of, pods_group, service_of},
    containers,
    files::{entries, name, text},
    kata,
    node::Node,
    retry::{PAUSE, TIMEOUT, pause},
};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long processes and containers may be unreadable without interruption.
const SETTLES: Duration = Duration::from_secs(10);

/// Names of the processes of container runtimes.
const RUNTIMES: [&str; 2] = ["containerd", "crio"];

/// A process of the node.
struct Process {
    pid: u32,
    /// Its folder in `/proc`.
    folder: PathBuf,
    /// Its cgroups, as `/proc` has them.
    groups: String,
}

/// A process that must not be there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leftover {
    pid: u32,
    /// Its cgroups, as `/proc` has them.
    groups: String,
    why: String,
}

/// Kills what is left and waits until it is gone.
pub(crate) fn end(node: &Node) -> Result<String, Unclean> {
    let began = Instant::now();
    let mut unreadable_since = None;
    let mut ended = BTreeSet::new();
    loop {
        match find_all(node) {
            Ok((left, others)) if left.is_empty() && others.is_empty() => {
                return Ok(format!("{} processes of tenants were left and are gone", ended.len()));
            }
            Ok((left, others)) if began.elapsed() >= TIMEOUT => return Err(leftover_error(&left, &others)),
            Ok((left, _)) => {
                unreadable_since = None;
                for process in &left {
                    ended.insert(process.pid);
                    kill(node, process);
                }
            }
            // A bundle that is being written cannot be parsed, and programs that only read what GPUs report have them open for moments.
            Err(error) => {
                let since: &mut Instant = unreadable_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SETTLES || began.elapsed() >= TIMEOUT {
                    return Err(error);
                }
            }
        }
        pause(PAUSE);
    }
}

/// Processes that must not be there, and descriptions of what else must not: containers of tenants, and sandboxes that nothing stops any more.
fn find_all(node: &Node) -> Result<(Vec<Leftover>, Vec<String>), Unclean> {
    let left = leftovers(node)?;
    let containers = tenant_containers(node)?.into_iter();
    let mut others: Vec<String> = containers.map(|pod| format!("a container of {pod}")).collect();
    others.extend(lost_sandboxes(node)?.iter().map(|sandbox| {
        format!(
            "the sandbox {sandbox} of Kata Containers, which has no container any more: unmount and remove its folders in /run/vc/sbs and \
             /run/kata-containers/shared/sandboxes, or reboot the node"
        )
    }));
    Ok((left, others))
}

/// Kills a process that must not be there. The kernel gives IDs of processes again: with many short ones, a tenant lets it come to that within
/// seconds. So the process is held while its cgroups are read again.
fn kill(node: &Node, left: &Leftover) {
    let Some(pid) = i32::try_from(left.pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    let held = pidfd_open(pid, PidfdFlags::empty());
    if !is_still(node, left) {
        return;
    }
    // The process may have ended meanwhile.
    let _ = match held {
        Ok(held) => pidfd_send_signal(&held, Signal::KILL),
        // A kernel before 5.3.
        Err(Errno::NOSYS) => kill_process(pid, Signal::KILL),
        Err(error) => Err(error),
    };
}

/// Whether the process with this ID is in the same cgroups as the one that was found.
fn is_still(node: &Node, left: &Leftover) -> bool {
    let process = node.path("/proc").join(left.pid.to_string());
    text(&process.join("cgroup")).is_ok_and(|groups| groups.as_ref() == Some(&left.groups))
}

/// Whether nothing is left.
pub(crate) fn none_left(node: &Node) -> Result<(), Unclean> {
    let (left, others) = find_all(node)?;
    if left.is_empty() && others.is_empty() {
        return Ok(());
    }
    Err(leftover_error(&left, &others))
}

fn leftover_error(left: &[Leftover], others: &[String]) -> Unclean {
    let mut all: Vec<String> = left
        .iter()
        .map(|process| format!("process {} {}", process.pid, process.why))
        .collect();
    all.extend_from_slice(others);
    all.truncate(10);
    Unclean::Left(format!("left on the node: {}", all.join("; ")))
}

/// Pods of tenants' containers.
fn tenant_containers(node: &Node) -> Result<Vec<String>, Unclean> {
    let all = containers::all(node)?.into_iter();
    Ok(all
        .filter(|container| container.is_tenants)
        .map(|container| container.pod_name)
        .collect())
}

/// IDs of Kata's sandboxes that are still there, although their containers are gone.
fn lost_sandboxes(node: &Node) -> Result<Vec<String>, Unclean> {
    let sandboxes = kata::sandboxes(node)?;
    if sandboxes.is_empty() {
        return Ok(Vec::new());
    }
    kata::lost(node, sandboxes, &containers::all(node)?)
}

fn leftovers(node: &Node) -> Result<Vec<Leftover>, Unclean> {
    let proc = node.path("/proc");
    let own_groups = text(&proc.join("self/cgroup"))?.unwrap_or_default();
    let Some(own) = pods_group(&own_groups) else {
        return Err(Unclean::Left(
            "cannot find the cgroup of the node's pods; check that the pod has hostPID".into(),
        ));
    };
    // Where this pod is not recognized, no other is.
    if pod_of(&own_groups, &own).is_none_or(|pod| !node.is_platform_pod(&pod)) {
        return Err(Unclean::Left(format!(
            "cannot find this pod in its own cgroup, so cgroups of other pods are not known either: {}",
            own_groups.trim()
        )));
    }
    let processes = processes(&proc)?;
    let runtimes = runtime_services(&processes);
    // Later than the processes: one of a pod of the platform that has just started has its container by now.
    let containers = containers::all(node)?;
    let of_platform = || containers.iter().filter(|container| !container.is_tenants);
    let pods: BTreeSet<&str> = of_platform().map(|container| container.pod.as_str()).collect();
    let sandboxes: BTreeSet<&str> = of_platform().map(|container| container.id.as_str()).collect();
    let mut left = Vec::new();
    for process in processes {
        let why = if let Some(pod) = pod_of(&process.groups, &own) {
            let is_platforms = pods.contains(pod.as_str()) || node.is_platform_pod(&pod);
            (!is_platforms).then(|| format!("of the pod {pod}"))
        } else if let Some(sandbox) = kata::sandbox_of(&process.groups) {
            (!sandboxes.contains(sandbox)).then(|| format!("of the sandbox {sandbox:?} of Kata Containers"))
        } else {
            check_devices(&process, &runtimes)?;
            None
        };
        if let Some(why) = why {
            left.push(Leftover {
                pid: process.pid,
                groups: process.groups,
                why,
            });
        }
    }
    Ok(left)
}

/// All processes, of which those are left out that end meanwhile.
fn processes(proc: &Path) -> Result<Vec<Process>, Unclean> {
    let mut processes = Vec::new();
    for folder in entries(proc)? {
        let Ok(pid) = name(&folder).parse::<u32>() else {
            continue;
        };
        if let Ok(Some(groups)) = text(&folder.join("cgroup")) {
            processes.push(Process { pid, folder, groups });
        }
    }
    Ok(processes)
}

/// Checks that a process that belongs to no pod holds no GPU, unless it is of a service of the machine itself: NVIDIA's persistence daemon, DCGM. The
/// services of container runtimes are none of these: what runs there was started for a pod, and stays there if systemd is slow to move it.
fn check_devices(process: &Process, runtimes: &BTreeSet<String>) -> Result<(), Unclean> {
    let is_machines = match service_of(&process.groups) {
        Some(service) => !runtimes.contains(service),
        None => process.groups.contains("/init.scope"),
    };
    if is_machines {
        return Ok(());
    }
    let Some(device) = gpu_held(&process.folder) else {
        return Ok(());
    };
    let pid = process.pid;
    Err(Unclean::Left(format!(
        "process {pid} belongs to no pod and holds {device}"
    )))
}

/// The services in which container runtimes run.
fn runtime_services(processes: &[Process]) -> BTreeSet<String> {
    let is_runtime = |process: &&Process| {
        // The process may have ended meanwhile.
        let command = text(&process.folder.join("comm")).ok().flatten();
        command.is_some_and(|command| RUNTIMES.contains(&command.trim()))
    };
    let services = processes.iter().filter(|process| service_of(&process.groups).is_some());
    services
        .filter(is_runtime)
        .filter_map(|process| service_of(&process.groups).map(str::to_owned))
        .collect()
}

/// The GPU that a process holds: the device of the driver, or that by which a virtual machine has a whole PCI device. Which of these are GPUs is not
/// known.
fn gpu_held(process: &Path) -> Option<String> {
    // Kernel threads have no open files, nor has a process that ended meanwhile.
    let open = fs::read_dir(process.join("fd")).ok()?;
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .find(|target| {
            // `/dev/vfio/<group>`, and `/dev/vfio/devices/vfio<number>` with iommufd. `/dev/vfio/vfio` is no device.
            ["/dev/nvidia", "/dev/vfio/", "/dev/vfio/devices/vfio"]
                .iter()
                .filter_map(|device| target.strip_prefix(device))
                .any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(processes: &[(u32, &str)]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc");
        for (pid, group) in processes {
            let process = proc.join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("cgroup"), group).unwrap();
        }
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::write(proc.join("self/cgroup"), "0::/kubepods/besteffort/podme/c\n").unwrap();
        let bundles = folder
            .path()
            .join("run/containerd/io.containerd.runtime.v2.task/k8s.io");
        for (id, namespace, uid) in [("c1", "kube-system", "plat"), ("c2", "berth-vision-x", "tenant")] {
            fs::create_dir_all(bundles.join(id)).unwrap();
            let config = serde_json::json!({"annotations": {
                "io.kubernetes.cri.sandbox-namespace": namespace, "io.kubernetes.cri.sandbox-uid": uid,
                "io.kubernetes.cri.sandbox-name": "p",
            }});
            fs::write(bundles.join(id).join("config.json"), config.to_string()).unwrap();
        }
        let node = Node::new(folder.path(), ["me".to_owned(), "done".to_owned()]);
        (folder, node)
    }

    #[test]
    fn processes_of_no_platform_pod_are_left_over() {
        let (folder, node) = machine(&[
            (1, "0::/init.scope\n"),
            (10, "0::/kubepods/podplat/c\n"),
            (11, "0::/kubepods/podtenant/c\n"),
            (12, "0::/kubepods/besteffort/podvanished/c\n"),
            (13, "0::/kubepods/besteffort/poddone/c\n"),
            (14, "0::/user.slice\n"),
        ]);
        let pids: Vec<u32> = leftovers(&node).unwrap().iter().map(|left| left.pid).collect();
        assert_eq!(pids, [11, 12]);
        assert_eq!(tenant_containers(&node).unwrap(), ["berth-vision-x/p"]);
        assert!(none_left(&node).is_err());
        std::os::unix::fs::symlink("/dev/nvidia3", folder.path().join("proc/14/fd/7")).unwrap();
        let error = leftovers(&node).unwrap_err().to_string();
        assert!(
            error.contains("process 14") && error.contains("/dev/nvidia3"),
            "{error}"
        );
    }

    #[test]
    fn processes_of_sandboxes_outside_of_their_pods_are_left_over() {
        let (folder, node) = machine(&[
            (20, "0::/kata_overhead/c1\n"),
            (21, "0::/kata_overhead/c2\n"),
            (22, "0::/kata_overhead/vanished\n"),
            (23, "0::/kata.slice/kata-overhead.slice/runtime-rs-c1.scope\n"),
            (24, "0::/kata.slice/kata-overhead.slice/runtime-rs-vanished.scope\n"),
            // cgroup v1
            (
                25,
                "4:memory:/kata_overhead/vanished\n1:name=systemd:/system.slice/containerd.service\n",
            ),
            (26, "0::/kata_overhead\n"),
        ]);
        let left = leftovers(&node).unwrap();
        let pids: Vec<u32> = left.iter().map(|left| left.pid).collect();
        assert_eq!(pids, [21, 22, 24, 25, 26], "c1 is a sandbox of the platform");
        fs::remove_dir_all(folder.path().join("run")).unwrap();
        let pids: Vec<u32> = leftovers(&node).unwrap().iter().map(|left| left.pid).collect();
        assert_eq!(pids, [20, 21, 22, 23, 24, 25, 26], "the runtime knows none of them");
    }

    #[test]
    fn a_sandbox_that_the_runtime_has_lost_is_left_over() {
        let (folder, node) = machine(&[]);
        let state = folder.path().join("run/vc/sbs");
        for sandbox in ["c1", "c2", "vanished"] {
            fs::create_dir_all(state.join(sandbox)).unwrap();
            fs::write(state.join(sandbox).join("persist.json"), "{}").unwrap();
        }
        assert_eq!(lost_sandboxes(&node).unwrap(), ["vanished"]);
        let bundles = folder
            .path()
            .join("run/containerd/io.containerd.runtime.v2.task/k8s.io");
        fs::remove_dir_all(bundles.join("c2")).unwrap();
        fs::remove_dir_all(state.join("c2")).unwrap();
        let error = none_left(&node).unwrap_err().to_string();
        assert!(error.contains("the sandbox vanished of Kata Containers"), "{error}");
        fs::remove_dir_all(state.join("vanished")).unwrap();
        none_left(&node).unwrap();
    }

    #[test]
    fn devices_of_virtual_machines_are_the_platforms() {
        for (target, is_device) in [
            ("/dev/vfio/12", true),
            ("/dev/vfio/devices/vfio0", true),
            ("/dev/vfio/vfio", false),
            ("/dev/nvidiactl", false),
        ] {
            let (folder, node) = machine(&[(14, "0::/user.slice\n")]);
            std::os::unix::fs::symlink(target, folder.path().join("proc/14/fd/7")).unwrap();
            match leftovers(&node) {
                Ok(left) => assert!(!is_device && left.is_empty(), "{target}: {left:?}"),
                Err(error) => assert!(is_device && error.to_string().contains(target), "{target}: {error}"),
            }
        }
    }

    #[test]
    fn services_of_container_runtimes_hold_no_gpus() {
        const RUNTIME: &str = "0::/system.slice/k3s.service\n";
        let (folder, node) = machine(&[
            (30, RUNTIME),
            (31, RUNTIME),
            (32, "0::/system.slice/nvidia-persistenced.service\n"),
        ]);
        let proc = folder.path().join("proc");
        std::os::unix::fs::symlink("/dev/nvidia0", proc.join("32/fd/3")).unwrap();
        std::os::unix::fs::symlink("/dev/vfio/12", proc.join("31/fd/3")).unwrap();
        assert!(
            leftovers(&node).is_ok(),
            "no container runtime runs in either of the services"
        );
        fs::write(proc.join("30/comm"), "containerd\n").unwrap();
        let error = leftovers(&node).unwrap_err().to_string();
        assert!(
            error.contains("process 31") && error.contains("/dev/vfio/12"),
            "{error}"
        );
    }

    #[test]
    fn services_of_a_machine_that_is_a_container_are_kept_apart() {
        let (folder, node) = machine(&[
            (30, "0::/system.slice/docker-0a.scope/system.slice/containerd.service\n"),
            (
                32,
                "0::/system.slice/docker-0a.scope/system.slice/nvidia-persistenced.service\n",
            ),
        ]);
        let proc = folder.path().join("proc");
        fs::write(proc.join("30/comm"), "containerd\n").unwrap();
        std::os::unix::fs::symlink("/dev/nvidia0", proc.join("32/fd/3")).unwrap();
        assert!(leftovers(&node).unwrap().is_empty());
        std::os::unix::fs::symlink("/dev/nvidia0", proc.join("30/fd/3")).unwrap();
        assert!(leftovers(&node).unwrap_err().to_string().contains("process 30"));
    }

    #[test]
    fn an_id_that_another_process_has_by_now_is_noticed() {
        let of_tenant = "0::/kubepods/podtenant/c\n";
        let (folder, node) = machine(&[(11, of_tenant)]);
        let left = leftovers(&node).unwrap().remove(0);
        assert!(is_still(&node, &left));
        let groups = folder.path().join("proc/11/cgroup");
        fs::write(&groups, "0::/system.slice/kubelet.service\n").unwrap();
        assert!(!is_still(&node, &left));
        fs::remove_file(&groups).unwrap();
        assert!(!is_still(&node, &left), "it has ended");
    }

    #[test]
    fn a_bundle_that_is_being_written_is_read_again() {
        let (folder, node) = machine(&[]);
        let bundles = folder
            .path()
            .join("run/containerd/io.containerd.runtime.v2.task/k8s.io");
        fs::remove_dir_all(bundles.join("c2")).unwrap();
        let config = bundles.join("c1/config.json");
        let whole = fs::read(&config).unwrap();
        fs::write(&config, &whole[..10]).unwrap();
        assert!(none_left(&node).is_err());
        let writer = std::thread::spawn(move || {
            pause(PAUSE / 2);
            fs::write(&config, whole).unwrap();
        });
        let ended = end(&node);
        writer.join().unwrap();
        assert_eq!(ended.unwrap(), "0 processes of tenants were left and are gone");
    }

    #[test]
    fn nothing_is_clean_where_the_pod_does_not_find_itself() {
        let (folder, node) = machine(&[(10, "0::/kubepods/podplat/c\n")]);
        assert!(leftovers(&node).is_ok());
        for groups in ["0::/kubepods/besteffort/c\n", "0::/kubepods/besteffort/podanother/c\n"] {
            fs::write(folder.path().join("proc/self/cgroup"), groups).unwrap();
            let error = leftovers(&node).unwrap_err().to_string();
            assert!(error.contains("cannot find this pod"), "{error}");
        }
    }
}
