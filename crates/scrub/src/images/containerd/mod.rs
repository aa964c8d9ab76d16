//! Images of containerd, by its tool `ctr`.
//!
//! containerd has several records of one image: by name, by name and digest, and by ID (`sha256:…`). Each keeps the content,
//! and a pod can run each. All of them name the same target, by which they are found.
//!
//! What a tenant has pulled is removed without reading it: it can consist of any number of indexes, and each is a call. Only what stays is read.

mod containers;
mod content;
mod ctr;

use super::{
    keep::Keep,
    names::{complete, in_parts, left},
};
use crate::{error::Unclean, node::Node};
use containers::{Awaited, Container, Containers};
use content::{collect_garbage, labelled_to_stay, parts_of};
use ctr::{Ctr, lines};
use std::collections::BTreeSet;

/// Selects records of images that the node's configuration pins.
const PINNED: &str = r#"labels."io.cri-containerd.pinned"==pinned"#;
/// Lists the content store.
const CONTENT: [&str; 3] = ["content", "ls", "-q"];

/// What was there when the first attempt began. What comes later is of pods of the platform.
#[derive(Default)]
pub(super) struct Before {
    /// What must be gone from the content store: all that was there, without what kept images need.
    content: Option<BTreeSet<String>>,
    /// Folders of containers, without those that have their container.
    folders: Option<Awaited>,
}

/// One attempt.
pub(super) fn remove(node: &Node, ctr: &impl Ctr, keep: &Keep, before: &mut Before) -> Result<String, Unclean> {
    let containers = Containers::list(node, ctr)?;
    if !containers
        .platform
        .iter()
        .any(|container| node.is_platform_pod(&container.pod))
    {
        return Err(Unclean::Left(
            "containerd has no container of this pod: the kubelet uses another runtime, whose images are unknown"
                .into(),
        ));
    }
    containers.remove_ended(node, ctr)?;
    containers.remove_forgotten(node, &mut before.folders)?;
    let names = ctr.list(&["images", "ls", "-q"])?;
    let present = ctr.list(&CONTENT)?;
    let kept = find_kept(ctr, &names, &containers.platform, keep, &present)?;
    let removable: Vec<String> = names.difference(&kept.names).cloned().collect();
    let content = before.content.get_or_insert_with(|| present.clone());
    content.retain(|digest| present.contains(digest) && !kept.content.contains(digest));

    // The last removal of a call waits until the garbage collector has removed what belonged to any image removed so far.
    in_parts(&["images", "rm", "--sync"], &removable, |arguments| ctr.run(arguments))?;
    let names = ctr.list(&["images", "ls", "-q"])?;
    let again: Vec<String> = removable.iter().filter(|name| names.contains(*name)).cloned().collect();
    if !again.is_empty() {
        return Err(left("images are left", &again));
    }
    let mut still = find_left(ctr, content)?;
    if !still.is_empty() {
        collect_garbage(ctr)?;
        let labelled = labelled_to_stay(ctr)?;
        still = find_left(ctr, content)?;
        still.retain(|digest| !labelled.contains(digest));
    }
    if !still.is_empty() {
        return Err(left("blobs that no kept image needs are left in containerd", &still));
    }
    Ok(format!(
        "removed {} names of images, {} stay",
        removable.len(),
        kept.names.len()
    ))
}

/// What must be gone and is in the content store.
fn find_left(ctr: &impl Ctr, content: &BTreeSet<String>) -> Result<Vec<String>, Unclean> {
    let present = ctr.list(&CONTENT)?;
    Ok(content.intersection(&present).cloned().collect())
}

/// What stays.
#[derive(Default)]
struct Kept {
    /// Names of images.
    names: BTreeSet<String>,
    /// Digests of what these images consist of.
    content: BTreeSet<String>,
}

/// Finds the images that stay, and what they consist of.
fn find_kept(
    ctr: &impl Ctr,
    names: &BTreeSet<String>,
    containers: &[Container],
    keep: &Keep,
    present: &BTreeSet<String>,
) -> Result<Kept, Unclean> {
    let pinned = ctr.list(&["images", "ls", "-q", PINNED])?;
    let chosen = choose_names(names, containers, &pinned, keep);
    let mut kept = Kept::default();
    let mut targets = Vec::new();
    let mut configs = BTreeSet::new();
    for target in targets_of(ctr, &chosen.asked)? {
        if let Some(parts) = parts_of(ctr, &target, present)? {
            kept.content.extend(parts.all);
            configs.extend(parts.configs);
            targets.push(target);
        }
    }
    for target in targets_of(ctr, &chosen.found)? {
        // An image that stays under its own name needs no other.
        if let Some(parts) = parts_of(ctr, &target, present)?
            && parts.configs.is_disjoint(&configs)
        {
            kept.content.extend(parts.all);
            targets.push(target);
        }
    }
    kept.names = names_of(ctr, &targets)?;
    Ok(kept)
}

/// Names of images that stay.
#[derive(Debug, PartialEq, Eq)]
struct ChosenNames {
    /// By which the platform asks for images: its pods, the node's configuration, the pool.
    asked: Vec<String>,
    /// Others that containers of the platform have from containerd. One can be a tenant's: of an index that leads to the platform's image, and
    /// to images of the tenant besides.
    found: Vec<String>,
}

/// Chooses the names of images that containers of the platform use, of pinned ones, and of those that stay without a container.
fn choose_names(
    names: &BTreeSet<String>,
    containers: &[Container],
    pinned: &BTreeSet<String>,
    keep: &Keep,
) -> ChosenNames {
    let (mut asked, mut found) = (BTreeSet::new(), BTreeSet::new());
    for container in containers {
        if container.is_tenants && !container.is_sandbox {
            continue;
        }
        let of_pod = [container.asked.clone(), complete(&container.asked)];
        match of_pod.into_iter().find(|name| names.contains(name)) {
            Some(name) => asked.insert(name),
            None => found.insert(&container.image),
        };
    }
    let is_asked = |name: &&String| asked.contains(*name) || pinned.contains(*name) || keep.has(name);
    ChosenNames {
        asked: names.iter().filter(is_asked).cloned().collect(),
        found: names.iter().filter(|name| found.contains(*name)).cloned().collect(),
    }
}

/// Digests that these images lead to.
fn targets_of(ctr: &impl Ctr, names: &[String]) -> Result<BTreeSet<String>, Unclean> {
    let filters: Vec<String> = names.iter().map(|name| format!("name=={name:?}")).collect();
    let listed = in_parts(&["images", "ls"], &filters, |arguments| ctr.run(arguments))?;
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
fn names_of(ctr: &impl Ctr, targets: &[String]) -> Result<BTreeSet<String>, Unclean> {
    let filters: Vec<String> = targets
        .iter()
        .map(|target| format!("target.digest=={target:?}"))
        .collect();
    let listed = in_parts(&["images", "ls", "-q"], &filters, |arguments| ctr.run(arguments))?;
    Ok(listed.iter().flat_map(|part| lines(part)).collect())
}

#[cfg(test)]
mod tests;
