//! What tenants use of the host's storage: of each PersistentVolumeClaim its classes, of each pod the drivers of its inline volumes.

use berth_api::StorageOffer;
use berth_node_lifecycle::pod_phase::has_ended;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{PoisonError, RwLock},
};

/// What each object uses, by namespace and name. What uses nothing is left out.
#[derive(Debug, Default)]
pub struct StorageUses(RwLock<BTreeMap<String, Vec<StorageOffer>>>);

impl StorageUses {
    /// What the objects in a namespace of the host use, with the number of those that use it.
    pub fn of(&self, namespace: &str) -> BTreeMap<StorageOffer, usize> {
        let prefix = format!("{namespace}/");
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = objects
            .range(prefix.clone()..)
            .take_while(|(name, _)| name.starts_with(&prefix));
        let mut used = BTreeMap::new();
        for offer in of_namespace.flat_map(|(_, offers)| offers) {
            *used.entry(offer.clone()).or_default() += 1;
        }
        used
    }

    /// Sets what an object uses, given by its namespace and name. Nothing: also if it is gone.
    pub fn put(&self, object: &str, offers: Vec<StorageOffer>) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if offers.is_empty() {
            objects.remove(object);
        } else {
            objects.insert(object.to_owned(), offers);
        }
    }

    /// Forgets all objects but these.
    pub fn retain(&self, names: &HashSet<String>) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.retain(|name, _| names.contains(name));
    }
}

/// The classes of a claim. Its volume has the attributes of a class until they are changed to those of the next one.
pub fn of_claim(claim: &PersistentVolumeClaim) -> Vec<StorageOffer> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let class = spec.and_then(|spec| spec.storage_class_name.clone());
    let wanted = spec.and_then(|spec| spec.volume_attributes_class_name.clone());
    let current = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let attributes = wanted.into_iter().chain(current).map(StorageOffer::AttributesClass);
    distinct(class.map(StorageOffer::StorageClass).into_iter().chain(attributes))
}

/// The drivers of the inline volumes of a pod that has not ended.
pub fn of_pod(pod: &Pod) -> Vec<StorageOffer> {
    if has_ended(pod) {
        return Vec::new();
    }
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let drivers = volumes.filter_map(|volume| Some(volume.csi.as_ref()?.driver.clone()));
    distinct(drivers.map(StorageOffer::InlineDriver))
}

fn distinct(offers: impl Iterator<Item = StorageOffer>) -> Vec<StorageOffer> {
    let mut offers: Vec<_> = offers.filter(|offer| !offer.name().is_empty()).collect();
    offers.sort_unstable();
    offers.dedup();
    offers
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn texts(offers: &[StorageOffer]) -> Vec<String> {
        offers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn uses_are_counted_for_one_namespace() {
        let uses = StorageUses::default();
        let class = |name: &str| StorageOffer::StorageClass(name.into());
        for (name, used) in [("a/x", "fast"), ("a/y", "fast"), ("a/z", "slow"), ("a-b/x", "other")] {
            uses.put(name, vec![class(used)]);
        }
        assert_eq!(uses.of("a"), BTreeMap::from([(class("fast"), 2), (class("slow"), 1)]));
        uses.put("a/z", Vec::new());
        uses.retain(&["a/x".to_owned()].into());
        assert_eq!(uses.of("a"), BTreeMap::from([(class("fast"), 1)]));
        assert_eq!(uses.of("a-b"), BTreeMap::new());
    }

    #[test]
    fn a_claim_uses_its_classes_and_that_whose_attributes_its_volume_still_has() {
        let of = |spec: Value, status: Value| {
            let claim = json!({"metadata": {"name": "x"}, "spec": spec, "status": status});
            texts(&of_claim(&serde_json::from_value(claim).unwrap()))
        };
        let gold = json!({"storageClassName": "fast", "volumeAttributesClassName": "gold"});
        let current = |class: &str| json!({"currentVolumeAttributesClassName": class});
        assert_eq!(
            of(json!({"storageClassName": "fast"}), json!({})),
            ["StorageClass/fast"]
        );
        assert_eq!(
            of(gold.clone(), current("gold")),
            ["StorageClass/fast", "VolumeAttributesClass/gold"]
        );
        assert_eq!(
            of(gold, current("silver")),
            [
                "StorageClass/fast",
                "VolumeAttributesClass/gold",
                "VolumeAttributesClass/silver"
            ]
        );
        assert_eq!(of(json!({"storageClassName": ""}), json!({})), Vec::<String>::new());
    }

    #[test]
    fn a_pod_uses_the_drivers_of_its_inline_volumes_until_it_has_ended() {
        let of = |phase: &str| {
            let volume = |name: &str, driver: &str| json!({"name": name, "csi": {"driver": driver}});
            let volumes =
                json!([volume("a", "x.example.com"), volume("b", "x.example.com"), {"name": "c", "emptyDir": {}}]);
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}, "status": {"phase": phase}});
            texts(&of_pod(&serde_json::from_value(pod).unwrap()))
        };
        assert_eq!(of("Running"), ["CSIDriver/x.example.com"]);
        assert_eq!(of("Failed"), Vec::<String>::new());
    }
}
