//! What the kubelet keeps of pods on the node's disk: emptyDirs, tokens, Secrets and logs of pods that are gone.

use crate::{
    Unclean, containers,
    files::{entries, name, remove as remove_file, text},
    node::{Node, is_tenants},
    pods,
};
use std::{collections::BTreeSet, path::PathBuf};

/// Links to logs.
const LINKS: &str = "/var/log/containers";

/// Removes all of these files.
pub(crate) fn remove(node: &Node) -> Result<String, Unclean> {
    let left = left(node)?;
    let mounts = text(&PathBuf::from("/proc/self/mountinfo"))?.unwrap_or_default();
    for path in &left {
        let shown = path.display().to_string();
        let is_mounted = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .any(|point| point.starts_with(&shown));
        if is_mounted {
            return Err(Unclean::Left(format!("volumes are still mounted below {shown}")));
        }
        remove_file(path)?;
    }
    for link in entries(&node.path(LINKS))? {
        // `<pod>_<namespace>_<container>-<id>.log`
        if name(&link).split('_').nth(1).is_some_and(is_tenants) {
            remove_file(&link)?;
        }
    }
    Ok(format!("removed {} folders of pods that are gone", left.len()))
}

/// Whether nothing is left.
pub(crate) fn none_left(node: &Node) -> Result<String, Unclean> {
    match left(node)?.first() {
        None => Ok("nothing of tenants' pods is left".into()),
        Some(path) => Err(Unclean::Left(format!("{} is left", path.display()))),
    }
}

/// Folders of pods that are not the platform's, and logs of tenants' pods.
fn left(node: &Node) -> Result<Vec<PathBuf>, Unclean> {
    let mut left = pods::folders(node)?;
    // Later than the folders: a pod of the platform that has just started has its container by now.
    let running: BTreeSet<String> = containers::all(node)?
        .into_iter()
        .filter(|container| !container.is_tenants)
        .map(|container| container.pod)
        .collect();
    left.retain(|path| !running.contains(&name(path)) && !node.is_platform_pod(&name(path)));
    left.extend(pods::logs_of_tenants(node)?);
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn folders_of_tenants_are_removed_and_platform_folders_stay() {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), ["platform".to_owned()]);
        let file = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "secret").unwrap();
            path
        };
        let gone = [
            file("var/lib/kubelet/pods/tenant/volumes/kubernetes.io~empty-dir/scratch/weights"),
            file("var/log/pods/berth-vision-x_job_tenant/c/0.log"),
            file("var/log/containers/job_berth-vision-x_c-123.log"),
        ];
        let stays = [
            file("var/lib/kubelet/pods/platform/etc-hosts"),
            file("var/log/pods/kube-system_dns_platform/c/0.log"),
            file("var/log/containers/dns_kube-system_c-123.log"),
        ];
        assert!(none_left(&node).is_err());
        remove(&node).unwrap();
        assert!(gone.iter().all(|path| !path.exists()) && stays.iter().all(|path| path.exists()));
        assert!(none_left(&node).is_ok());
    }
}
