//! Images of containerd, by its tool `ctr`.
//!
//! containerd has several records of one image: by name, by name and digest, and by ID (`sha256:…`). Each keeps the content,
//! and a pod can run each. All of them name the same target, by which they are found.

use super::{has_prefix, left};
use crate::{
    error::Unclean,
    node::{Node, is_tenants},
    program::{ctr, ctr_at_most},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Selects records of images that the node's configuration pins.
const PINNED: &str = r#"labels."io.cri-containerd.pinned"==pinned"#;
/// Bytes of a manifest. An index is the tenant's and can name anything as a manifest, such as a layer with a whole model: a
/// longer blob is none, and is not read into memory.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;
/// Names in one call. A command line has a limited length, and a tenant can pull thousands of images.
const NAMES_PER_CALL: usize = 200;

/// One attempt. `content` collects what must be gone from the content store.
pub(super) fn remove(node: &Node, keep: &[&str], content: &mut BTreeSet<String>) -> Result<String, Unclean> {
    let containers = containers(node)?;
    if !containers.iter().any(|container| node.is_platform_pod(&container.pod)) {
        return Err(Unclean::Left(
            "containerd has no container of this pod: the kubelet uses another runtime, whose images are unknown"
                .into(),
        ));
    }
    remove_ended(node, &containers)?;
    let names = lines(&ctr(node, &["images", "ls", "-q"])?);
    let kept = kept_targets(node, &names, &containers, keep)?;
    let stays = names_of(node, &kept)?;
    let removable: Vec<String> = names.difference(&stays).cloned().collect();

    let present = lines(&ctr(node, &["content", "ls", "-q"])?);
    let read = |digest: &str| ctr_at_most(node, MAX_MANIFEST, &["content", "get", digest]);
    content.extend(reachable(targets_of(node, &removable)?, &present, read)?);
    let needed = reachable(kept, &present, read)?;
    content.retain(|digest| present.contains(digest) && !needed.contains(digest));

    // The last removal of a call waits until the garbage collector has removed what belonged to any image removed so far.
    in_parts(&["images", "rm", "--sync"], &removable, |arguments| {
        ctr(node, arguments)
    })?;
    let names = lines(&ctr(node, &["images", "ls", "-q"])?);
    let again: Vec<String> = removable.iter().filter(|name| names.contains(*name)).cloned().collect();
    if !again.is_empty() {
        return Err(left("images are left", &again));
    }
    let present = lines(&ctr(node, &["content", "ls", "-q"])?);
    let still: Vec<String> = content.intersection(&present).cloned().collect();
    if !still.is_empty() {
        return Err(left("blobs of removed images are left in containerd", &still));
    }
    Ok(format!(
        "removed {} names of images, {} stay",
        removable.len(),
        stays.len()
    ))
}

/// A container as containerd has it, running or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Container {
    id: String,
    /// Name of its image.
    image: String,
    /// UID of its pod.
    pod: String,
    is_tenants: bool,
    /// Whether it holds the namespaces of a pod. The node's configuration names its image, not the pod.
    is_sandbox: bool,
}

impl Container {
    fn new(info: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let labels = &info["Labels"];
        Self {
            id: text(&info["ID"]),
            image: text(&info["Image"]),
            pod: text(&labels["io.kubernetes.pod.uid"]),
            is_tenants: is_tenants(&text(&labels["io.kubernetes.pod.namespace"])),
            is_sandbox: labels["io.cri-containerd.kind"] == "sandbox",
        }
    }
}

fn containers(node: &Node) -> Result<Vec<Container>, Unclean> {
    let mut all = Vec::new();
    for id in lines(&ctr(node, &["containers", "ls", "-q"])?) {
        let info = ctr(node, &["containers", "info", &id])?;
        let info: Value = serde_json::from_str(&info)
            .map_err(|error| Unclean::Program(format!("ctr containers info {id}: {error}")))?;
        all.push(Container::new(&info));
    }
    Ok(all)
}

/// Removes containers of tenants that have ended, which keep the layers of their images. The kubelet would do so within minutes.
/// `ctr` removes none that runs.
fn remove_ended(node: &Node, containers: &[Container]) -> Result<(), Unclean> {
    let ended: Vec<&str> = containers
        .iter()
        .filter(|container| container.is_tenants && !container.is_sandbox)
        .map(|container| container.id.as_str())
        .collect();
    if ended.is_empty() {
        return Ok(());
    }
    ctr(node, &[&["containers", "rm"][..], ended.as_slice()].concat()).map(drop)
}

/// Targets of images that stay.
fn kept_targets(
    node: &Node,
    names: &BTreeSet<String>,
    containers: &[Container],
    keep: &[&str],
) -> Result<BTreeSet<String>, Unclean> {
    let pinned = lines(&ctr(node, &["images", "ls", "-q", PINNED])?);
    let stays = kept_names(names, containers, &pinned, keep);
    targets_of(node, &stays)
}

/// Names of images that containers of the platform use, of pinned ones, and of those that the pool keeps.
fn kept_names(
    names: &BTreeSet<String>,
    containers: &[Container],
    pinned: &BTreeSet<String>,
    keep: &[&str],
) -> Vec<String> {
    let used: BTreeSet<&str> = containers
        .iter()
        .filter(|container| !container.is_tenants || container.is_sandbox)
        .map(|container| container.image.as_str())
        .collect();
    names
        .iter()
        .filter(|name| used.contains(name.as_str()) || pinned.contains(*name) || has_prefix(name, keep))
        .cloned()
        .collect()
}

/// Digests that these images lead to.
fn targets_of(node: &Node, names: &[String]) -> Result<BTreeSet<String>, Unclean> {
    let filters: Vec<String> = names.iter().map(|name| format!("name=={name:?}")).collect();
    let listed = in_parts(&["images", "ls"], &filters, |arguments| ctr(node, arguments))?;
    Ok(listed.iter().flat_map(|part| targets(part)).collect())
}

/// The third column of a list of images: REF TYPE DIGEST SIZE PLATFORMS LABELS.
fn targets(listed: &str) -> BTreeSet<String> {
    listed
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect()
}

/// All names of images with these targets.
fn names_of(node: &Node, targets: &BTreeSet<String>) -> Result<BTreeSet<String>, Unclean> {
    let filters: Vec<String> = targets
        .iter()
        .map(|target| format!("target.digest=={target:?}"))
        .collect();
    let listed = in_parts(&["images", "ls", "-q"], &filters, |arguments| ctr(node, arguments))?;
    Ok(listed.iter().flat_map(|part| lines(part)).collect())
}

/// Calls with these arguments and the names behind them, as often as there are parts of the names, and gives the outputs.
/// Without names there is no call.
fn in_parts(
    arguments: &[&str],
    names: &[String],
    mut call: impl FnMut(&[&str]) -> Result<String, Unclean>,
) -> Result<Vec<String>, Unclean> {
    let mut outputs = Vec::new();
    for part in names.chunks(NAMES_PER_CALL) {
        let part: Vec<&str> = part.iter().map(String::as_str).collect();
        outputs.push(call(&[arguments, part.as_slice()].concat())?);
    }
    Ok(outputs)
}

/// Digests of what the images with these targets consist of, as far as it is present.
fn reachable(
    targets: BTreeSet<String>,
    present: &BTreeSet<String>,
    read: impl Fn(&str) -> Result<String, Unclean>,
) -> Result<BTreeSet<String>, Unclean> {
    let mut found = BTreeSet::new();
    let mut next: Vec<String> = targets.into_iter().collect();
    while let Some(digest) = next.pop() {
        if !present.contains(&digest) || !found.insert(digest.clone()) {
            continue;
        }
        let manifest: Value = serde_json::from_str(&read(&digest)?).unwrap_or_default();
        let digests = |parts: &Value| -> Vec<String> {
            let parts = parts.as_array().into_iter().flatten();
            parts
                .filter_map(|part| part["digest"].as_str().map(str::to_owned))
                .collect()
        };
        next.extend(digests(&manifest["manifests"]));
        found.extend(manifest["config"]["digest"].as_str().map(str::to_owned));
        found.extend(digests(&manifest["layers"]));
    }
    found.retain(|digest| present.contains(digest));
    Ok(found)
}

fn lines(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn set(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(ToString::to_string).collect()
    }

    fn container(namespace: &str, kind: &str, image: &str) -> Container {
        Container::new(&json!({"ID": "c", "Image": image, "Labels": {
            "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.uid": "uid", "io.cri-containerd.kind": kind,
        }}))
    }

    #[test]
    fn images_of_the_platform_stay() {
        let names = set(&[
            "example.com/model:1",
            "ghcr.io/berth-dev/x:1",
            "node.example.com/tool:1",
            "quay.io/dns:1",
            "registry.k8s.io/pause:3",
            "sha256:abc",
        ]);
        let containers = [
            container("kube-system", "container", "quay.io/dns:1"),
            container("berth-vision-x", "container", "example.com/model:1"),
            container("berth-vision-x", "sandbox", "registry.k8s.io/pause:3"),
        ];
        let pinned = set(&["node.example.com/tool:1"]);
        let kept = kept_names(&names, &containers, &pinned, &["ghcr.io/berth-dev/"]);
        assert_eq!(
            kept,
            [
                "ghcr.io/berth-dev/x:1",
                "node.example.com/tool:1",
                "quay.io/dns:1",
                "registry.k8s.io/pause:3"
            ]
        );
    }

    #[test]
    fn targets_are_read_from_the_list() {
        let listed = "REF TYPE DIGEST SIZE PLATFORMS LABELS\n\
            quay.io/dns:1 application/vnd.oci.image.index.v1+json sha256:aa 1.2 MiB linux/amd64 -\n\
            sha256:cc     application/vnd.oci.image.index.v1+json sha256:aa 1.2 MiB linux/amd64 a=b\n";
        assert_eq!(targets(listed), set(&["sha256:aa"]));
    }

    #[test]
    fn content_is_followed_through_an_index() {
        let blobs = BTreeMap::from([
            (
                "index",
                json!({"manifests": [{"digest": "amd64"}, {"digest": "arm64"}]}),
            ),
            (
                "amd64",
                json!({"config": {"digest": "config"}, "layers": [{"digest": "base"}, {"digest": "weights"}]}),
            ),
        ]);
        let present = set(&["index", "amd64", "config", "base", "weights", "other"]);
        let read = |digest: &str| {
            let blob = blobs.get(digest);
            blob.map(ToString::to_string)
                .ok_or_else(|| Unclean::Left(digest.to_owned()))
        };
        assert_eq!(
            reachable(set(&["index"]), &present, read).unwrap(),
            set(&["index", "amd64", "config", "base", "weights"]),
            "what another platform needs was never here"
        );
        assert!(reachable(set(&["other"]), &present, read).is_err(), "unknown");
    }

    #[test]
    fn what_is_too_long_for_a_manifest_has_no_parts() {
        let read = |digest: &str| {
            Ok(match digest {
                "index" => json!({"manifests": [{"digest": "weights"}]}).to_string(),
                _ => String::new(),
            })
        };
        let present = set(&["index", "weights", "other"]);
        assert_eq!(
            reachable(set(&["index"]), &present, read).unwrap(),
            set(&["index", "weights"])
        );
    }

    #[test]
    fn a_call_has_a_limited_number_of_names() {
        let names: Vec<String> = (0..=2 * NAMES_PER_CALL).map(|number| number.to_string()).collect();
        let mut called = Vec::new();
        let outputs = in_parts(&["images", "ls"], &names, |arguments| {
            assert!(arguments.starts_with(&["images", "ls"]), "{arguments:?}");
            let part = &arguments[2..];
            called.extend(part.iter().copied().map(str::to_owned));
            Ok(part.len().to_string())
        });
        assert_eq!(outputs.unwrap(), ["200", "200", "1"]);
        assert_eq!(called, names, "each name once");
    }

    #[test]
    fn there_is_no_call_without_names() {
        // A list without filters would be of all images.
        let outputs = in_parts(&["images", "ls"], &[], |_| Err(Unclean::Left("a call".into())));
        assert!(outputs.unwrap().is_empty());
    }
}
