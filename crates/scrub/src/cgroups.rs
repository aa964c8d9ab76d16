//! What the cgroups of a process say: which pod of the node's kubelet, or which service of the machine, it belongs to.

/// The service of the machine that a process belongs to, as systemd calls it. A machine that is a container has the services of its own systemd
/// below the one that it is to the systemd outside.
pub(crate) fn service_of(groups: &str) -> Option<&str> {
    let mut slices = groups.lines().filter_map(|line| line.rsplit_once("/system.slice/"));
    slices.next()?.1.split('/').next()
}

/// The cgroup below which the node's kubelet has its pods, from the cgroups of a process in a pod: `kubepods`, in systemd's names with those
/// of the slices above (`kubelet-kubepods.slice`).
pub(crate) fn pods_group(groups: &str) -> Option<String> {
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
pub(crate) fn pod_of(groups: &str, own: &str) -> Option<String> {
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

    #[test]
    fn services_are_read_from_the_slice_of_the_system() {
        for (groups, service) in [
            ("0::/system.slice/sshd.service\n", Some("sshd.service")),
            ("1:name=systemd:/system.slice/k3s.service/child\n", Some("k3s.service")),
            (
                "0::/system.slice/docker-0a.scope/system.slice/nvidia-persistenced.service\n",
                Some("nvidia-persistenced.service"),
            ),
            (
                "2:cpu:/user.slice\n1:name=systemd:/system.slice/sshd.service\n0::/\n",
                Some("sshd.service"),
            ),
            ("0::/user.slice/user-0.slice\n", None),
        ] {
            assert_eq!(service_of(groups), service, "{groups}");
        }
    }
}
