//! Images of CRI-O, by the tool `crictl`. The runtime removes all names of an image, and its content, with its ID.

use super::{
    keep::Keep,
    names::{in_parts, left},
};
use crate::{error::Unclean, node::Node, program::crictl};
use serde_json::Value;
use std::collections::BTreeSet;

/// One attempt.
pub(super) fn remove(node: &Node, keep: &Keep) -> Result<String, Unclean> {
    let containers = json(node, &["ps", "--all", "--output", "json"])?;
    has_this_pod(node, &containers)?;
    // It removes none that runs.
    in_parts(&["rm"], &of_tenants(node, &containers), |arguments| {
        crictl(node, arguments)
    })?;
    let used = used(node, &containers);
    let images = json(node, &["images", "--output", "json"])?;
    let ids = removable(&images, &used, keep);
    in_parts(&["rmi"], &ids, |arguments| crictl(node, arguments))?;
    let still = removable(&json(node, &["images", "--output", "json"])?, &used, keep);
    if !still.is_empty() {
        return Err(left("images are left", &still));
    }
    Ok(format!("removed {} images", ids.len()))
}

fn json(node: &Node, arguments: &[&str]) -> Result<Value, Unclean> {
    let output = crictl(node, arguments)?;
    serde_json::from_str(&output).map_err(|error| Unclean::Program(format!("crictl {}: {error}", arguments.join(" "))))
}

fn entries<'a>(listed: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    listed[field].as_array().into_iter().flatten()
}

/// The UID of a container's pod; empty if it has none.
fn pod_of(container: &Value) -> &str {
    let uid = &container["labels"]["io.kubernetes.pod.uid"];
    uid.as_str().unwrap_or_default()
}

fn is_of_tenant(node: &Node, container: &Value) -> bool {
    let namespace = &container["labels"]["io.kubernetes.pod.namespace"];
    node.is_tenants_pod(namespace.as_str().unwrap_or_default(), pod_of(container))
}

/// Whether CRI-O runs this pod. It can be installed on a node whose kubelet uses another runtime.
fn has_this_pod(node: &Node, containers: &Value) -> Result<(), Unclean> {
    if entries(containers, "containers").any(|container| node.is_platform_pod(pod_of(container))) {
        return Ok(());
    }
    Err(Unclean::Left(
        "CRI-O has no container of this pod: the kubelet uses another runtime, whose images are unknown".into(),
    ))
}

/// IDs of tenants' containers.
fn of_tenants(node: &Node, containers: &Value) -> Vec<String> {
    entries(containers, "containers")
        .filter(|container| is_of_tenant(node, container))
        .filter_map(|container| container["id"].as_str().map(str::to_owned))
        .collect()
}

/// Names and IDs of images that other containers use.
fn used<'a>(node: &Node, containers: &'a Value) -> BTreeSet<&'a str> {
    entries(containers, "containers")
        .filter(|container| !is_of_tenant(node, container))
        .flat_map(|container| {
            [
                &container["image"]["image"],
                &container["imageRef"],
                &container["imageId"],
            ]
        })
        .filter_map(Value::as_str)
        .collect()
}

/// IDs of images to remove.
fn removable(images: &Value, used: &BTreeSet<&str>, keep: &Keep) -> Vec<String> {
    entries(images, "images")
        .filter(|image| image["pinned"] != true)
        .filter_map(|image| {
            let id = image["id"].as_str()?;
            let tags = entries(image, "repoTags").chain(entries(image, "repoDigests"));
            let mut names = tags.filter_map(Value::as_str);
            let stays = used.contains(id) || names.any(|name| used.contains(name) || keep.has(name));
            (!stays).then(|| id.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn images_of_the_platform_stay() {
        let container = |namespace: &str, image: &str| {
            json!({"id": image, "image": {"image": image}, "imageRef": image,
                "labels": {"io.kubernetes.pod.namespace": namespace}})
        };
        let containers = json!({"containers": [
            container("kube-system", "dns"), container("berth-vision-x", "model"), container("berth-system", "q/scrub@sha256:1"),
        ]});
        let image = |id: &str, name: &str, pinned: bool| json!({"id": id, "repoTags": [name], "repoDigests": [], "pinned": pinned});
        let mut scrub = image("scrub", "q/scrub:1", false);
        scrub["repoDigests"] = json!(["q/scrub@sha256:1"]);
        let images = json!({"images": [
            image("dns", "q/dns:1", false), image("model", "q/model:1", false), image("pause", "q/pause:1", true),
            image("base", "q/base/os:1", false), image("plugin", "q/plugin:1", false), scrub, {"id": "unnamed", "repoTags": null},
        ]});
        let node = Node::new("/nowhere", []);
        assert_eq!(of_tenants(&node, &containers), ["model"]);
        let used = used(&node, &containers);
        let keep = Keep::from_arguments(&["--keep=q/base/".into(), "--keep-image=q/plugin:1".into()]);
        assert_eq!(removable(&images, &used, &keep), ["model", "unnamed"]);
    }

    #[test]
    fn pods_of_the_platform_are_known_by_their_uids() {
        let containers = json!({"containers": [{"id": "agent", "image": {"image": "q/agent:1"}, "imageRef": "q/agent:1",
            "labels": {"io.kubernetes.pod.namespace": "berth-vision-x", "io.kubernetes.pod.uid": "agent-pod"}}]});
        let node = Node::new("/nowhere", ["agent-pod".to_owned()]);
        assert!(has_this_pod(&node, &containers).is_ok());
        assert!(of_tenants(&node, &containers).is_empty() && used(&node, &containers).contains("q/agent:1"));
        let other = Node::new("/nowhere", ["scrub-pod".to_owned()]);
        assert!(
            has_this_pod(&other, &containers).is_err(),
            "a runtime without this pod is another one"
        );
        assert_eq!(of_tenants(&other, &containers), ["agent"]);
    }
}
