//! What the kubelet has of each pod on the node's disk: a folder, and one for logs.
//!
//! The kubelet can be configured to have them elsewhere. So the pod that runs this must find itself there: where it does not, nothing is known
//! of other pods.

use crate::{
    Unclean,
    files::{entries, name},
    node::Node,
};
use std::path::{Path, PathBuf};

/// Folders of pods, by UID.
const FOLDERS: &str = "/var/lib/kubelet/pods";
/// Logs of pods: `<namespace>_<name>_<UID>`.
const LOGS: &str = "/var/log/pods";

/// Folders of all pods, whose names are UIDs.
pub(crate) fn folders(node: &Node) -> Result<Vec<PathBuf>, Unclean> {
    with_this_pod(node, FOLDERS, |folder| node.is_platform_pod(&name(folder)))
}

/// Folders with the logs of tenants' pods.
pub(crate) fn logs_of_tenants(node: &Node) -> Result<Vec<PathBuf>, Unclean> {
    let mut logs = with_this_pod(node, LOGS, |logs| node.is_platform_pod(&pod_of_logs(logs).1))?;
    logs.retain(|logs| {
        let (namespace, uid) = pod_of_logs(logs);
        node.is_tenants_pod(&namespace, &uid)
    });
    Ok(logs)
}

/// Namespace and UID of the pod that logs are of. Neither namespaces nor names of pods can have the character between them.
fn pod_of_logs(logs: &Path) -> (String, String) {
    let name = name(logs);
    let namespace = name.split('_').next().unwrap_or_default();
    let uid = name.rsplit('_').next().unwrap_or_default();
    (namespace.to_owned(), uid.to_owned())
}

/// What is in a folder of the kubelet, which has something of this pod, or of another one that is known to be on the node.
fn with_this_pod(node: &Node, folder: &str, is_known: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, Unclean> {
    let all = entries(&node.path(folder))?;
    if all.iter().any(|path| is_known(path)) {
        return Ok(all);
    }
    Err(Unclean::Left(format!(
        "{folder} has nothing of this pod: the kubelet uses another folder, and what tenants left there is unknown"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A node with these folders. The pod `me` runs there.
    fn machine(folders: &[&str]) -> (tempfile::TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        for path in folders {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        let node = Node::new(folder.path(), ["me".to_owned(), "agent".to_owned()]);
        (folder, node)
    }

    #[test]
    fn folders_without_this_pod_are_those_of_no_kubelet() {
        for (own, is_known) in [("me", true), ("another", false)] {
            let paths = [
                format!("var/lib/kubelet/pods/{own}"),
                format!("var/log/pods/berth-system_scrub_{own}"),
            ];
            let (_folder, node) = machine(&paths.each_ref().map(String::as_str));
            assert_eq!(folders(&node).is_ok(), is_known, "{own}");
            assert_eq!(logs_of_tenants(&node).is_ok(), is_known, "{own}");
        }
        let (_folder, node) = machine(&[]);
        let error = folders(&node).unwrap_err().to_string();
        assert!(
            error.contains("/var/lib/kubelet/pods has nothing of this pod"),
            "{error}"
        );
        assert!(logs_of_tenants(&node).is_err());
    }

    #[test]
    fn logs_of_the_platforms_pods_are_not_of_tenants() {
        let (_folder, node) = machine(&[
            "var/log/pods/berth-system_scrub_me",
            "var/log/pods/berth-vision-x_agent_agent",
            "var/log/pods/berth-vision-x_job_tenant",
            "var/log/pods/kube-system_dns_other",
        ]);
        let names: Vec<String> = logs_of_tenants(&node).unwrap().iter().map(|path| name(path)).collect();
        assert_eq!(names, ["berth-vision-x_job_tenant"]);
    }
}
