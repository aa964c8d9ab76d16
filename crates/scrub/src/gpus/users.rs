//! Which processes have GPUs open, by the files of `/dev/nvidia*` that they have open, and what they belong to: so that a message says what to stop.

use crate::{
    Unclean,
    containers::{self, Container},
    files::{entries, name, text},
    node::Node,
};
use std::{collections::BTreeSet, fs, path::Path};

/// How many processes are named.
const NAMED: usize = 6;

/// Describes the processes that have GPUs open; none if there are none.
pub(crate) fn describe(node: &Node) -> Result<Option<String>, Unclean> {
    // Only for the message: an unreadable container is reported by other steps.
    let containers = containers::all(node).unwrap_or_default();
    let mut users = Vec::new();
    for process in entries(&node.path("/proc"))? {
        if name(&process).parse::<u32>().is_err() {
            continue;
        }
        let devices = open_devices(&process);
        if !devices.is_empty() {
            users.push(describe_process(&process, &devices, &containers));
        }
    }
    if users.len() > NAMED {
        let more = users.len() - NAMED;
        users.truncate(NAMED);
        users.push(format!("{more} more"));
    }
    Ok((!users.is_empty()).then(|| users.join("; ")))
}

/// The names of the devices of NVIDIA's driver that a process has open.
fn open_devices(process: &Path) -> BTreeSet<String> {
    // Kernel threads have no open files, nor has a process that ended meanwhile.
    let Ok(open) = fs::read_dir(process.join("fd")) else {
        return BTreeSet::new();
    };
    let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter_map(|target| device(&target.to_string_lossy())).collect()
}

/// The name of the device that an open file is: `nvidia0`, `nvidiactl`, `nvidia-uvm` and the like. A process with another root, as in the driver container,
/// has it below another folder.
fn device(target: &str) -> Option<String> {
    let (_, device) = target.rsplit_once("/dev/")?;
    let kind = device.strip_prefix("nvidia")?;
    let is_device = kind == "ctl" || kind.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    is_device.then(|| device.to_owned())
}

fn describe_process(process: &Path, devices: &BTreeSet<String>, containers: &[Container]) -> String {
    // The process may have ended meanwhile.
    let read = |file: &str| text(&process.join(file)).ok().flatten().unwrap_or_default();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    format!(
        "process {} ({}){} has {} open",
        name(process),
        read("comm").trim(),
        describe_owner(&read("cgroup"), containers),
        devices.join(", ")
    )
}

/// The pod or the service that a process belongs to, from its cgroups. The name of a container's cgroup has its ID in it.
fn describe_owner(groups: &str, containers: &[Container]) -> String {
    let of_container = |container: &&Container| !container.id.is_empty() && groups.contains(&container.id);
    if let Some(container) = containers.iter().find(of_container) {
        return format!(" of the pod {}", container.pod_name);
    }
    let mut parts = groups.split(['/', '\n']);
    match parts.find(|part| part.ends_with(".service")) {
        Some(service) => format!(" of {service}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    /// A process of a node: its ID, its name, its cgroup, and what its open files are.
    type Process<'a> = (u32, &'a str, &'a str, &'a [&'a str]);

    fn machine(processes: &[Process<'_>]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        for (pid, command, group, open) in processes {
            let process = folder.path().join("proc").join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("comm"), format!("{command}\n")).unwrap();
            fs::write(process.join("cgroup"), format!("0::{group}\n")).unwrap();
            for (number, target) in open.iter().enumerate() {
                symlink(target, process.join("fd").join(number.to_string())).unwrap();
            }
        }
        let bundle = folder
            .path()
            .join("run/containerd/io.containerd.runtime.v2.task/k8s.io/0a1b");
        fs::create_dir_all(&bundle).unwrap();
        let config = json!({"annotations": {
            "io.kubernetes.cri.sandbox-namespace": "gpu-operator", "io.kubernetes.cri.sandbox-name": "nvidia-dcgm-x",
            "io.kubernetes.cri.sandbox-uid": "u",
        }});
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let node = Node::new(folder.path(), []);
        (folder, node)
    }

    #[test]
    fn a_process_is_named_with_its_pod_or_service_and_its_devices() {
        const POD: &str = "/kubepods.slice/kubepods-pod3_4.slice/cri-containerd-0a1b.scope";
        const SERVICE: &str = "/system.slice/nvidia-persistenced.service";
        let (_folder, node) = machine(&[
            (
                7,
                "nv-hostengine",
                POD,
                &["/dev/nvidia0", "/dev/null", "/dev/nvidiactl", "/dev/nvidia0"],
            ),
            (
                8,
                "nvidia-persiste",
                SERVICE,
                &["/run/nvidia/driver/dev/nvidia-caps/nvidia-cap1"],
            ),
            (9, "python", "/user.slice", &["/dev/nvidia-uvm"]),
            (10, "bash", "/user.slice", &["/home/dev/nvidia/notes", "socket:[7]"]),
        ]);
        assert_eq!(
            describe(&node).unwrap().unwrap(),
            "process 7 (nv-hostengine) of the pod gpu-operator/nvidia-dcgm-x has nvidia0, nvidiactl open; \
             process 8 (nvidia-persiste) of nvidia-persistenced.service has nvidia-caps/nvidia-cap1 open; \
             process 9 (python) has nvidia-uvm open"
        );
    }

    #[test]
    fn a_long_list_is_cut() {
        let all: Vec<Process<'_>> = (1..=8).map(|pid| (pid, "python", "/", &["/dev/nvidia0"][..])).collect();
        let (_folder, node) = machine(&all);
        let described = describe(&node).unwrap().unwrap();
        assert!(described.ends_with("; 2 more"), "{described}");
        let (_folder, node) = machine(&[(1, "init", "/init.scope", &["/dev/null"])]);
        assert_eq!(describe(&node).unwrap(), None);
    }
}
