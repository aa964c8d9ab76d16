//! Volumes that are claimed, and volumes that a driver makes for a pod alone.
//!
//! | source | rule |
//! |---|---|
//! | persistentVolumeClaim | the host's claim; the pod waits until it is there; denied if a class of it is no longer offered |
//! | ephemeral | the claim that the tenant's controllers make for the pod: an ordinary one on the host, with the same rule |
//! | csi | drivers in `storage.inlineDrivers`; `nodePublishSecretRef` renamed |
//!
//! What is on the host decides on the classes of a claim. A pod that has a node there keeps running until the class or the driver is withdrawn; from
//! then on it is denied as well, and ends.

use super::placement;
use crate::{
    kinds::{devices::claims_of_pods, storage::classes::offered},
    model::{
        Cache, KindId, json,
        references::Target,
        resource::{Key, Name, host_name},
    },
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use berth_api::StorageOffer;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The rules of `PersistentVolumeClaimVolumeSource`.
pub const CLAIM: Fields = &[("claimName", Rule::Rewrite), ("readOnly", Rule::Copy)];

/// The rules of `EphemeralVolumeSource`.
pub const EPHEMERAL: Fields = &[(
    "volumeClaimTemplate",
    Rule::Ignore("the tenant's controllers make a claim of it"),
)];

/// The rules of `CSIVolumeSource`.
pub const INLINE: Fields = &[
    ("driver", Rule::Rewrite),
    ("fsType", Rule::Copy),
    ("nodePublishSecretRef", Rule::Rewrite),
    ("readOnly", Rule::Copy),
    ("volumeAttributes", Rule::Rewrite),
];

/// Prefix of the attributes by which a kubelet says to a driver which pod it is. A kubelet does so only for drivers that ask for it.
pub const KUBELET_ATTRIBUTES: &str = "csi.storage.k8s.io/";

/// The name of the claim that the tenant's controllers make for an ephemeral volume of a pod.
pub fn ephemeral(pod: &Value, volume: &Value) -> Option<String> {
    volume.get("ephemeral").filter(|source| !source.is_null())?;
    let name = |object, path: &[&str]| json::text(object, path).map(ToOwned::to_owned);
    Some(format!(
        "{}-{}",
        name(pod, &["metadata", "name"])?,
        name(volume, &["name"])?
    ))
}

/// What must be on the host before the pod: existing objects that it references, claims that the tenant's controllers are about to make, and
/// templates of claims of devices.
pub fn prerequisites(cache: &Cache, pod: &Value, references: BTreeSet<Target>) -> Vec<Key> {
    let made: Vec<String> = json::items(pod, &["spec", "volumes"])
        .iter()
        .filter_map(|volume| ephemeral(pod, volume))
        .collect();
    let is_made = |target: &Target| {
        target.kind == KindId::PersistentVolumeClaim && made.iter().any(|claim| **claim == *target.name.name)
    };
    references
        .into_iter()
        .filter(|target| {
            is_made(target)
                || cache.stores.tenant(target.kind).contains(&target.name)
                || claims_of_pods::must_exist(cache, target)
        })
        .map(|target| target.kind.key(target.name))
        .collect()
}

/// Requests that controllers of the host make for the claims of volumes that a new host pod names: from 1.37 on, one into the status of each claim when
/// its first pod is there, and one when its last pod has ended.
pub fn requests(pod: &Value) -> u64 {
    let volumes = json::items(pod, &["spec", "volumes"]).iter();
    let claims: BTreeSet<&str> = volumes
        .filter_map(|volume| json::text(volume, &["persistentVolumeClaim", "claimName"]))
        .collect();
    2 * claims.len() as u64
}

fn claim_on_host(pod: &Name, claim: &str) -> String {
    host_name(KindId::PersistentVolumeClaim, &Name::new(&pod.namespace, claim))
}

/// The classes of a claim that is on the host and that the tenant's class no longer offers. Its volume has the attributes of a class until they are
/// changed to those of the next one.
fn unoffered_classes(cache: &Cache, pod: &Name, claim: &str) -> Vec<StorageOffer> {
    let claims = cache.stores.host(KindId::PersistentVolumeClaim);
    let Some(host) = claims.get(&Name::new(&pod.namespace, claim)) else {
        return Vec::new();
    };
    let host = host.object();
    let class = |path: &[&str]| json::filled(&host, path).map(ToOwned::to_owned);
    let wanted = class(&["spec", "volumeAttributesClassName"]);
    let current =
        class(&["status", "currentVolumeAttributesClassName"]).filter(|current| wanted.as_ref() != Some(current));
    let attributes = wanted.into_iter().chain(current).map(StorageOffer::AttributesClass);
    let storage = class(&["spec", "storageClassName"]).map(StorageOffer::StorageClass);
    let mut offers: Vec<_> = storage.into_iter().chain(attributes).collect();
    offers.retain(|offer| !offer.is_offered(&cache.tenant.policy.storage));
    offers
}

/// Whether a pod keeps something that is no longer offered: it has a node, and that is not withdrawn.
fn may_keep(cache: &Cache, pod: &Name, offer: &StorageOffer) -> bool {
    placement::is_placed(cache, pod) && !cache.tenant.withdrawn_storage.contains(offer)
}

/// Denies a claim with a class that is no longer offered, to all pods but those that have a node before the class is withdrawn.
fn check_classes(cache: &Cache, pod: &Name, claim: &str, path: &str, issues: &mut FieldIssues) {
    let policy = &cache.tenant.policy.storage;
    for unoffered in unoffered_classes(cache, pod, claim) {
        if may_keep(cache, pod, &unoffered) {
            continue;
        }
        let (kind, class) = (unoffered.kind(), unoffered.name());
        let advice = if let StorageOffer::AttributesClass(_) = unoffered {
            let offer = offered(cache, KindId::VolumeAttributesClass, &policy.attributes_classes);
            format!("give the claim another one ({offer})")
        } else {
            let offer = offered(cache, KindId::StorageClass, &policy.classes);
            format!("use a claim of another class ({offer})")
        };
        issues.deny(
            path,
            format!(
                "the claim {claim} has the {kind} {class}, which the platform no longer offers. The claim and its data stay: {advice}, or ask the \
                 platform team to offer {class} again"
            ),
        );
    }
}

/// Something of the host's storage that a pod uses and that is no longer offered.
#[derive(Debug)]
pub struct UnofferedStorage {
    /// What it is.
    pub offer: StorageOffer,
    /// The claim that it belongs to, if it is not the pod's own.
    claim: Option<String>,
}

impl UnofferedStorage {
    /// Reason of the end of a pod that uses it.
    pub fn reason(&self) -> &'static str {
        match self.offer {
            StorageOffer::StorageClass(_) => "StorageClassWithdrawn",
            StorageOffer::AttributesClass(_) => "VolumeAttributesClassWithdrawn",
            StorageOffer::InlineDriver(_) => "InlineDriverWithdrawn",
        }
    }

    /// A message about that.
    pub fn message(&self) -> String {
        let (kind, name) = (self.offer.kind(), self.offer.name());
        match &self.claim {
            Some(claim) => format!(
                "The pod mounts the claim {claim}, whose {kind} {name} the platform no longer offers. The claim and its data stay."
            ),
            None => format!("The pod has an inline volume of the {kind} {name}, which the platform no longer offers."),
        }
    }
}

/// What a pod uses of the host's storage that is no longer offered.
pub fn find_unoffered(cache: &Cache, name: &Name, pod: &Value) -> Vec<UnofferedStorage> {
    let volumes = json::items(pod, &["spec", "volumes"]).iter();
    let of_volume = |volume: &Value| {
        let named = json::text(volume, &["persistentVolumeClaim", "claimName"]).map(ToOwned::to_owned);
        let claim = named.or_else(|| ephemeral(pod, volume));
        let offers = match &claim {
            Some(claim) => unoffered_classes(cache, name, claim),
            None => unoffered_driver(cache, &volume["csi"]).into_iter().collect(),
        };
        let unoffered = offers.into_iter().map(|offer| UnofferedStorage {
            offer,
            claim: claim.clone(),
        });
        unoffered.collect::<Vec<_>>()
    };
    volumes.flat_map(of_volume).collect()
}

/// Whether a pod uses storage that was withdrawn, so that it ends.
pub fn uses_withdrawn(cache: &Cache, name: &Name, pod: &Value) -> bool {
    let withdrawn = &cache.tenant.withdrawn_storage;
    let mut unoffered = find_unoffered(cache, name, pod).into_iter();
    unoffered.any(|used| withdrawn.contains(&used.offer))
}

/// The driver of an inline volume, if the tenant's class does not offer it. A volume without a driver has one that nobody offers.
fn unoffered_driver(cache: &Cache, source: &Value) -> Option<StorageOffer> {
    if source.is_null() {
        return None;
    }
    let driver = json::text(source, &["driver"]).unwrap_or_default();
    let offer = StorageOffer::InlineDriver(driver.to_owned());
    (!offer.is_offered(&cache.tenant.policy.storage)).then_some(offer)
}

/// The source of a volume that names a claim.
pub fn claim(cache: &Cache, name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(source, path, CLAIM, issues);
    let claim = json::text(source, &["claimName"]).unwrap_or_default();
    check_classes(cache, name, claim, path, issues);
    copied.insert("claimName".into(), claim_on_host(name, claim).into());
    copied.into()
}

/// The source of a volume whose claim is made for the pod.
pub fn ephemeral_claim(
    cache: &Cache,
    name: &Name,
    pod: &Value,
    volume: &Value,
    path: &str,
    issues: &mut FieldIssues,
) -> Value {
    if let Some(source) = volume.get("ephemeral") {
        fields::copy(source, path, EPHEMERAL, issues);
    }
    let claim = ephemeral(pod, volume).unwrap_or_default();
    let stored = cache
        .stores
        .tenant(KindId::PersistentVolumeClaim)
        .get(&Name::new(&name.namespace, &claim));
    let is_pods = |claim: &Value| {
        let uid = json::text(pod, &["metadata", "uid"]);
        json::items(claim, &["metadata", "ownerReferences"])
            .iter()
            .any(|owner| owner["controller"] == true && json::text(owner, &["uid"]) == uid)
    };
    if stored.is_some_and(|stored| !is_pods(&stored.object())) {
        issues.deny(path, format!("the claim {claim} exists and was not made for this pod"));
    }
    check_classes(cache, name, &claim, path, issues);
    json!({"claimName": claim_on_host(name, &claim)})
}

/// The source of a volume that a driver makes for the pod alone.
pub fn inline(cache: &Cache, name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut copied = fields::copy(source, path, INLINE, issues);
    let driver = json::text(source, &["driver"]).unwrap_or_default();
    copied.insert("driver".into(), driver.into());
    let unoffered = unoffered_driver(cache, source);
    if unoffered.is_some_and(|offer| !may_keep(cache, name, &offer)) {
        let why = format!("the driver {driver} is not offered for volumes of pods: use a PersistentVolumeClaim");
        issues.deny(format!("{path}.driver"), why);
    }
    let attributes = json::strings(source, &["volumeAttributes"]);
    for key in attributes.keys().filter(|key| key.starts_with(KUBELET_ATTRIBUTES)) {
        let field = format!("{path}.volumeAttributes[{key}]");
        issues.deny(field, "drivers learn this from the node");
    }
    if !attributes.is_empty() {
        copied.insert("volumeAttributes".into(), json!(attributes));
    }
    if let Some(secret) = json::text(source, &["nodePublishSecretRef", "name"]) {
        let secret = host_name(KindId::Secret, &Name::new(&name.namespace, secret));
        copied.insert("nodePublishSecretRef".into(), json!({"name": secret}));
    }
    copied.into()
}

#[cfg(test)]
mod tests;
