//! The configuration of the host's scheduler. With it, the scheduler ignores flags for what it contains.

use std::path::Path;

use serde_json::json;

/// The file in the home, as JSON. The supervisor of processes keeps its records in files that end with `.json`.
pub(crate) const FILE: &str = "scheduler.yaml";
/// How long the scheduler looks for devices for a pod on one node. The default is ten seconds, for which claims of one tenant can keep the pods of all others
/// waiting, again and again.
const FILTER_TIMEOUT: &str = "200ms";

/// The content of the file. `kubeconfig` is what the scheduler authenticates with, and the two numbers are its requests in a second, and at once.
pub(crate) fn configuration(kubeconfig: &Path, (qps, burst): (u32, u32)) -> String {
    let devices = json!({"name": "DynamicResources", "args": {"filterTimeout": FILTER_TIMEOUT}});
    let configuration = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig.display().to_string(), "qps": qps, "burst": burst},
        "enableProfiling": false,
        "profiles": [{"schedulerName": "default-scheduler", "pluginConfig": [devices]}],
    });
    configuration.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_recommends_the_same_timeout() {
        let guide = include_str!("../../../docs/guides/install.md");
        assert!(guide.contains(&format!("filterTimeout: {FILTER_TIMEOUT}")));
        let configuration = configuration(Path::new("kubeconfig"), (500, 1000));
        assert!(configuration.contains(FILTER_TIMEOUT), "{configuration}");
    }
}
