//! The containers of the node's runtime, containerd or CRI-O, read from their bundles.

use crate::{
    Unclean,
    files::{entries, name, text},
    node::{Node, is_tenants},
};
use serde_json::Value;

/// Where containerd keeps the bundles of running containers.
const CONTAINERD: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// Where CRI-O keeps them.
const CRI_O: &str = "/run/containers/storage/overlay-containers";

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// Its ID at the runtime.
    pub(crate) id: String,
    /// UID of its pod.
    pub(crate) pod: String,
    /// `namespace/name` of its pod.
    pub(crate) pod_name: String,
    /// Whether its pod is a tenant's.
    pub(crate) is_tenants: bool,
}

/// All containers, sandboxes included.
pub(crate) fn all(node: &Node) -> Result<Vec<Container>, Unclean> {
    let mut found = Vec::new();
    for (folder, config) in [(CONTAINERD, "config.json"), (CRI_O, "userdata/config.json")] {
        for bundle in entries(&node.path(folder))? {
            // A container that is just ending has none.
            let Some(config) = text(&bundle.join(config))? else {
                continue;
            };
            let Ok(config) = serde_json::from_str::<Value>(&config) else {
                return Err(Unclean::Left(format!(
                    "cannot parse the bundle {}: the owner of its container is unknown",
                    bundle.display()
                )));
            };
            found.push(container(&name(&bundle), &config));
        }
    }
    Ok(found)
}

fn container(id: &str, config: &Value) -> Container {
    let annotation = |keys: [&str; 2]| {
        let all = &config["annotations"];
        keys.iter()
            .find_map(|key| all[*key].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let namespace = annotation(["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]);
    let pod = annotation(["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]);
    Container {
        id: id.to_owned(),
        pod: annotation(["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"]),
        is_tenants: is_tenants(&namespace),
        pod_name: format!("{namespace}/{pod}"),
    }
}
