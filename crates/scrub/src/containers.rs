//! The containers of the node's runtime, containerd or CRI-O, read from their bundles.

use crate::{
    Unclean,
    files::{entries, name, text},
    node::Node,
};
use serde_json::Value;

/// The label with the namespace of a container's pod, in containerd's record of the container.
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The same with the UID of the pod.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";

/// A container runtime: where it keeps the bundles of running containers, and which annotations of a bundle it makes of the pod. CRI-O also
/// copies all labels and annotations of the pod there, so annotations of the other runtime prove nothing.
struct Runtime {
    /// Folder of the bundles, by ID of the container.
    bundles: &'static str,
    /// The configuration in a bundle.
    config: &'static str,
    namespace: &'static str,
    name: &'static str,
    uid: &'static str,
}

const RUNTIMES: [Runtime; 2] = [
    // containerd
    Runtime {
        bundles: "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
        config: "config.json",
        namespace: "io.kubernetes.cri.sandbox-namespace",
        name: "io.kubernetes.cri.sandbox-name",
        uid: "io.kubernetes.cri.sandbox-uid",
    },
    // CRI-O
    Runtime {
        bundles: "/run/containers/storage/overlay-containers",
        config: "userdata/config.json",
        namespace: POD_NAMESPACE,
        name: "io.kubernetes.pod.name",
        uid: POD_UID,
    },
];

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
    for runtime in &RUNTIMES {
        for bundle in entries(&node.path(runtime.bundles))? {
            // A container that is just ending has none.
            let Some(config) = text(&bundle.join(runtime.config))? else {
                continue;
            };
            let Ok(config) = serde_json::from_str::<Value>(&config) else {
                return Err(Unclean::Left(format!(
                    "cannot parse the bundle {}: the owner of its container is unknown",
                    bundle.display()
                )));
            };
            found.push(container(node, runtime, &name(&bundle), &config));
        }
    }
    Ok(found)
}

fn container(node: &Node, runtime: &Runtime, id: &str, config: &Value) -> Container {
    let annotation = |key: &str| config["annotations"][key].as_str().unwrap_or_default();
    let (namespace, uid) = (annotation(runtime.namespace), annotation(runtime.uid));
    Container {
        id: id.to_owned(),
        pod: uid.to_owned(),
        pod_name: format!("{namespace}/{}", annotation(runtime.name)),
        is_tenants: node.is_tenants_pod(namespace, uid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    /// The container of a node with one bundle of a runtime, which has these annotations. The pod `agent` is the platform's.
    fn found(runtime: &Runtime, annotations: &Value) -> Container {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), ["agent".to_owned()]);
        let config = node.path(runtime.bundles).join("c").join(runtime.config);
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(config, json!({"annotations": annotations}).to_string()).unwrap();
        all(&node).unwrap().remove(0)
    }

    #[test]
    fn annotations_of_the_other_runtime_do_not_count() {
        let [containerd, cri_o] = &RUNTIMES;
        for (own, other) in [(containerd, cri_o), (cri_o, containerd)] {
            let container = found(
                own,
                &json!({
                    own.namespace: "berth-vision-x", own.name: "job", own.uid: "tenant",
                    // As a tenant would label its pod.
                    other.namespace: "kube-system", other.name: "dns", other.uid: "agent",
                }),
            );
            let expected = Container {
                id: "c".into(),
                pod: "tenant".into(),
                pod_name: "berth-vision-x/job".into(),
                is_tenants: true,
            };
            assert_eq!(container, expected, "{}", own.bundles);
        }
    }

    #[test]
    fn a_container_of_the_platform_in_a_tenants_namespace_is_no_tenants() {
        for runtime in &RUNTIMES {
            let annotations = json!({runtime.namespace: "berth-vision-x", runtime.name: "p", runtime.uid: "agent"});
            assert!(!found(runtime, &annotations).is_tenants, "{}", runtime.bundles);
        }
    }
}
