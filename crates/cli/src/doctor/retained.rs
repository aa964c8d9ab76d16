//! Volumes of tenants' claims that were deleted, which stay because their reclaim policy says so. No team is charged for them, and no quota counts them. Pure.

use std::collections::BTreeMap;

use berth_api::{names, quantity};
use k8s_openapi::api::core::v1::PersistentVolume;

use super::CheckResult;
use super::facts::Facts;

const CHECK: &str = "retained volumes";
/// Namespaces that the message names.
const NAMED: usize = 5;
/// Thousandths of a byte in a GiB.
const GIBIBYTE: i128 = 1000 << 30;

/// What stays of the claims of one namespace.
#[derive(Default)]
struct Retained {
    volumes: usize,
    /// In thousandths of a byte.
    size: i128,
}

pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    let volumes = match &facts.volumes {
        Ok(volumes) => volumes,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let mut by_namespace: BTreeMap<&str, Retained> = BTreeMap::new();
    for volume in volumes {
        if let Some(namespace) = find_namespace(volume) {
            let retained = by_namespace.entry(namespace).or_default();
            retained.volumes += 1;
            retained.size = retained.size.saturating_add(read_size(volume));
        }
    }
    if by_namespace.is_empty() {
        return vec![CheckResult::ok(
            CHECK,
            "no volume is left of a deleted claim of a tenant",
        )];
    }
    let count: usize = by_namespace.values().map(|retained| retained.volumes).sum();
    let size = by_namespace
        .values()
        .fold(0_i128, |sum, retained| sum.saturating_add(retained.size));
    let mut largest: Vec<(&str, Retained)> = by_namespace.into_iter().collect();
    largest.sort_by_key(|(_, retained)| -retained.size);
    let more = largest.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let named: Vec<String> = { largest.iter().take(NAMED) }
        .map(|(namespace, retained)| format!("{namespace} ({}, {})", retained.volumes, format_size(retained.size)))
        .collect();
    let message = format!(
        "{count} volumes with {} are left of deleted claims of tenants, in the namespaces {}{more}",
        format_size(size),
        named.join(", ")
    );
    let fix = "restore or delete them (docs/guides/volumes.md#volumes-that-stay): no team is charged for them, and no quota counts them";
    vec![CheckResult::warning(CHECK, message, fix)]
}

/// The namespace of the claim that a volume was of, if that was a tenant's and is gone, and the volume stays.
fn find_namespace(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    let phase = volume.status.as_ref()?.phase.as_deref()?;
    let is_kept = spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain");
    // One that cannot be deleted stays as well.
    let stays = phase == "Failed" || (phase == "Released" && is_kept);
    let namespace = spec.claim_ref.as_ref()?.namespace.as_deref()?;
    (stays && names::is_like_tenant_namespace(namespace)).then_some(namespace)
}

/// Its capacity, in thousandths of a byte.
fn read_size(volume: &PersistentVolume) -> i128 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let storage = capacity.and_then(|capacity| capacity.get("storage"));
    storage
        .and_then(|storage| quantity::parse(&storage.0))
        .unwrap_or_default()
}

/// In GiB, rounded up.
fn format_size(size: i128) -> String {
    format!("{} GiB", (size + GIBIBYTE - 1) / GIBIBYTE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A volume of 1536 MiB in a phase, with a reclaim policy, of a claim in a namespace.
    fn volume(phase: &str, policy: &str, namespace: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv"}, "status": {"phase": phase},
            "spec": {
                "persistentVolumeReclaimPolicy": policy, "capacity": {"storage": "1536Mi"},
                "claimRef": {"namespace": namespace, "name": "c"},
            },
        }))
        .unwrap()
    }

    const VISION: &str = "berth-vision-abcdefghijklm";

    #[test]
    fn a_volume_counts_if_the_claim_of_a_tenant_is_gone_and_the_volume_stays() {
        for (phase, policy, namespace, counts) in [
            ("Released", "Retain", VISION, true),
            ("Failed", "Delete", VISION, true),
            ("Bound", "Retain", VISION, false),
            ("Available", "Retain", VISION, false),
            // It is being deleted.
            ("Released", "Delete", VISION, false),
            ("Released", "Retain", "shop", false),
        ] {
            let volume = volume(phase, policy, namespace);
            assert_eq!(find_namespace(&volume), counts.then_some(namespace), "{phase} {policy}");
        }
        assert_eq!(find_namespace(&PersistentVolume::default()), None);
    }

    #[test]
    fn sizes_are_rounded_up() {
        let volume = volume("Released", "Retain", VISION);
        assert_eq!(format_size(read_size(&volume)), "2 GiB");
        assert_eq!(format_size(2 * read_size(&volume)), "3 GiB");
        assert_eq!(format_size(read_size(&PersistentVolume::default())), "0 GiB");
    }
}
