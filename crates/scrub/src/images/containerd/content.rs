//! What images consist of in containerd's content store, and what is there without an image.

use super::ctr::Ctr;
use crate::{error::Unclean, images::names::in_parts};
use serde_json::Value;
use std::collections::BTreeSet;

/// Indexes and manifests that are read of one image. Images have a handful. A tenant can make an index of thousands that ends in an image of the
/// platform, so that containerd gives a new container of the platform the name that the tenant chose.
const MAX_MANIFESTS: usize = 100;
/// Selects leases that end by themselves, as those of pulls: those of pods do not.
const EXPIRING: &str = r#"labels."containerd.io/gc.expire""#;
/// Selects content that the platform has labelled to stay. No pull makes this label: of what a registry says, containerd makes labels under keys
/// of its own alone. Who can set it has containerd's socket, and so is root on the node.
const KEPT: &str = r#"labels."berth.dev/keep""#;

/// Digests of what an image consists of, as far as it is present.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) all: BTreeSet<String>,
    /// Those of configurations. containerd knows an image by its configuration, whatever names it has.
    pub(super) configs: BTreeSet<String>,
}

/// What an image with this target consists of; nothing if it has too many manifests.
pub(super) fn parts_of(ctr: &impl Ctr, target: &str, present: &BTreeSet<String>) -> Result<Option<Parts>, Unclean> {
    let mut found = BTreeSet::new();
    let mut configs = BTreeSet::new();
    let mut manifests = 0;
    let mut next = vec![target.to_owned()];
    while let Some(digest) = next.pop() {
        if !present.contains(&digest) || !found.insert(digest.clone()) {
            continue;
        }
        manifests += 1;
        if manifests > MAX_MANIFESTS {
            return Ok(None);
        }
        let manifest: Value = serde_json::from_str(&ctr.read_manifest(&digest)?).unwrap_or_default();
        let digests = |parts: &Value| -> Vec<String> {
            let parts = parts.as_array().into_iter().flatten();
            parts
                .filter_map(|part| part["digest"].as_str().map(str::to_owned))
                .collect()
        };
        next.extend(digests(&manifest["manifests"]));
        configs.extend(manifest["config"]["digest"].as_str().map(str::to_owned));
        found.extend(digests(&manifest["layers"]));
    }
    configs.retain(|digest| present.contains(digest));
    found.retain(|digest| present.contains(digest));
    found.extend(configs.iter().cloned());
    Ok(Some(Parts { all: found, configs }))
}

/// Digests of content that stays without an image, because the platform has labelled it: what tools of the host keep. Each blob counts for itself.
pub(super) fn labelled_to_stay(ctr: &impl Ctr) -> Result<BTreeSet<String>, Unclean> {
    ctr.list(&["content", "ls", "-q", KEPT])
}

/// Ends leases that would end by themselves, and waits until the garbage collector has removed what only they kept. A pull that was aborted
/// leaves such a lease, and its content, for a day. A pull of the platform that goes on at the time fails, and the kubelet begins it again.
pub(super) fn collect_garbage(ctr: &impl Ctr) -> Result<(), Unclean> {
    // The collector runs after the last deletion of a call: with this one there is at least one.
    ctr.run(&["leases", "create"])?;
    let leases: Vec<String> = ctr.list(&["leases", "ls", "-q", EXPIRING])?.into_iter().collect();
    in_parts(&["leases", "delete", "--sync"], &leases, |arguments| ctr.run(arguments)).map(drop)
}
