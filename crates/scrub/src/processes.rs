//! Processes: no container of a tenant is left, no process that the kubelet started for a pod that is gone, and only the
//! platform holds GPUs.

use crate::{
    Unclean, containers,
    files::{entries, name, text},
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
    time::{Duration, Instant},
};

/// How long processes and containers may be unreadable without interruption.
const SETTLES: Duration = Duration::from_secs(10);

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
            Ok((left, containers)) if left.is_empty() && containers.is_empty() => {
                return Ok(format!("{} processes of tenants were left and are gone", ended.len()));
            }
            Ok((left, containers)) if began.elapsed() >= TIMEOUT => return Err(leftover_error(&left, &containers)),
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

/// Processes that must not be there, and pods of tenants' containers.
fn find_all(node: &Node) -> Result<(Vec<Leftover>, Vec<String>), Unclean> {
    Ok((leftovers(node)?, tenant_containers(node)?))
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
    let (left, containers) = find_all(node)?;
    if left.is_empty() && containers.is_empty() {
        return Ok(());
    }
    Err(leftover_error(&left, &containers))
}

fn leftover_error(left: &[Leftover], containers: &[String]) -> Unclean {
    let mut all: Vec<String> = left
        .iter()
        .map(|process| format!("process {} {}", process.pid, process.why))
        .collect();
    all.extend(containers.iter().map(|pod| format!("a container of {pod}")));
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
    let mut processes = Vec::new();
    for process in entries(&proc)? {
        let Ok(pid) = name(&process).parse::<u32>() else {
            continue;
        };
        // The process may have ended meanwhile.
        if let Ok(Some(groups)) = text(&process.join("cgroup")) {
            processes.push((pid, process, groups));
        }
    }
    // Later than the processes: one of a pod of the platform that has just started has its container by now.
    let containers = containers::all(node)?;
    let platform: BTreeSet<&str> = containers
        .iter()
        .filter(|container| !container.is_tenants)
        .map(|container| container.pod.as_str())
        .collect();
    let mut left = Vec::new();
    for (pid, process, groups) in processes {
        match pod_of(&groups, &own) {
            Some(pod) if platform.contains(pod.as_str()) || node.is_platform_pod(&pod) => {}
            Some(pod) => left.push(Leftover {
                pid,
                groups,
                why: format!("of the pod {pod}"),
            }),
            // A service of the machine itself may hold GPUs: NVIDIA's persistence daemon, DCGM.
            None if groups.contains("/system.slice/") || groups.contains("/init.scope") => {}
            None => {
                if let Some(device) = gpu_held(&process) {
                    return Err(Unclean::Left(format!(
                        "process {pid} belongs to no pod and holds {device}"
                    )));
                }
            }
        }
    }
    Ok(left)
}

/// The cgroup below which the node's kubelet has its pods, from the cgroups of a process in a pod: `kubepods`, in systemd's names with those
/// of the slices above (`kubelet-kubepods.slice`).
fn pods_group(groups: &str) -> Option<String> {
    let is_of_pods = |part: &str| {
        let slice = part.strip_suffix(".slice");
        part == "kubepods" || slice.is_some_and(|slice| slice == "kubepods" || slice.ends_with("-kubepods"))
    };
    groups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let parts: Vec<&str> = path.split('/').collect();
        let last = parts.iter().position(|part| is_of_pods(part))?;
        Some(parts[..=last].join("/"))
    })
}

/// The UID of the pod that a process belongs to, if it is one of this node's kubelet.
fn pod_of(groups: &str, own: &str) -> Option<String> {
    // The names of systemd's slices begin with that of the slice above: those of pods with the kubelet's own, whatever is before `kubepods`.
    let slice = own.rsplit('/').next()?.strip_suffix(".slice");
    groups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let below = path.strip_prefix(own)?;
        below.split('/').find_map(|part| {
            let uid = match slice {
                // `kubepods-burstable-pod<uid with underscores>.slice`
                Some(slice) => part.strip_prefix(slice)?.strip_suffix(".slice")?.split_once("-pod")?.1,
                None => part.strip_prefix("pod")?,
            };
            (!uid.is_empty()).then(|| uid.replace('_', "-"))
        })
    })
}

/// The GPU that a process holds.
fn gpu_held(process: &std::path::Path) -> Option<String> {
    // Kernel threads have no open files, nor has a process that ended meanwhile.
    let open = fs::read_dir(process.join("fd")).ok()?;
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .find(|target| {
            target
                .strip_prefix("/dev/nvidia")
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_read_from_either_driver_of_cgroups() {
        let own = pods_group("0::/kubepods/besteffort/pod11-22/abc\n").unwrap();
        assert_eq!(own, "/kubepods");
        assert_eq!(
            pod_of("0::/kubepods/burstable/pod33-44/x\n", &own).as_deref(),
            Some("33-44")
        );
        assert_eq!(pod_of("0::/kubepods/pod33-44/x\n", &own).as_deref(), Some("33-44"));
        assert_eq!(pod_of("0::/kubepods\n", &own), None);
        assert_eq!(pod_of("0::/system.slice/sshd.service\n", &own), None);
        let own =
            pods_group("0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice/c\n").unwrap();
        let other =
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3_4.slice/cri-containerd-x.scope\n";
        assert_eq!(pod_of(other, &own).as_deref(), Some("3-4"));
        let guaranteed = "0::/kubepods.slice/kubepods-pod5_6.slice/x\n";
        assert_eq!(pod_of(guaranteed, &own).as_deref(), Some("5-6"));
    }

    #[test]
    fn several_nodes_of_one_machine_are_kept_apart() {
        let own = pods_group("4:memory:/berth-a/node-1/kubepods/besteffort/pod1/c\n").unwrap();
        assert_eq!(own, "/berth-a/node-1/kubepods");
        assert_eq!(
            pod_of("4:memory:/berth-a/node-2/kubepods/besteffort/pod2/c\n", &own),
            None
        );
        assert_eq!(
            pod_of("4:memory:/berth-a/node-1/kubepods/besteffort/pod2/c\n", &own).as_deref(),
            Some("2")
        );
    }

    #[test]
    fn pods_are_found_below_a_cgroup_root() {
        for root in ["kubelet", "gpu-pods", "kubepods-pods"] {
            let own = format!("/{root}.slice/{root}-kubepods.slice");
            let path = |class: &str, pod: &str| {
                format!("0::{own}/{root}-kubepods-{class}.slice/{pod}/cri-containerd-x.scope\n")
            };
            let found = pods_group(&path("besteffort", &format!("{root}-kubepods-besteffort-pod1_2.slice"))).unwrap();
            assert_eq!(found, own);
            let burstable = path("burstable", &format!("{root}-kubepods-burstable-pod3_4.slice"));
            assert_eq!(pod_of(&burstable, &found).as_deref(), Some("3-4"), "{root}");
            let guaranteed = format!("0::{own}/{root}-kubepods-pod5_6.slice/cri-containerd-x.scope\n");
            assert_eq!(pod_of(&guaranteed, &found).as_deref(), Some("5-6"), "{root}");
        }
        let own = pods_group("0::/kubelet/kubepods/besteffort/pod1-2/c\n").unwrap();
        assert_eq!(
            pod_of("0::/kubelet/kubepods/burstable/pod3-4/c\n", &own).as_deref(),
            Some("3-4")
        );
    }

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
