//! What tenants use of the host's storage: of each PersistentVolumeClaim its classes and by how much its volume is larger than what it requests, of each
//! pod the drivers of its inline volumes.

use berth_api::{StorageOffer, quantity};
use berth_node_lifecycle::pod_phase::has_ended;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{PoisonError, RwLock},
};

/// Requested storage, as a `ResourceQuota` counts it.
const REQUESTED: &str = "requests.storage";

/// What each object uses, by namespace and name. What uses nothing is left out.
#[derive(Debug, Default)]
pub struct StorageUses {
    offers: RwLock<BTreeMap<String, Vec<StorageOffer>>>,
    excess: RwLock<BTreeMap<String, Excess>>,
}

/// What the volume of a claim has beyond what the claim requests. The smallest volume of a class can be far larger than a claim, and so can one that
/// the platform has prepared. A `ResourceQuota` counts what claims request.
#[derive(Debug)]
struct Excess {
    class: Option<String>,
    bytes: u64,
}

impl StorageUses {
    /// What the objects in a namespace of the host use, with the number of those that use it.
    pub fn of(&self, namespace: &str) -> BTreeMap<StorageOffer, usize> {
        let objects = self.offers.read().unwrap_or_else(PoisonError::into_inner);
        let mut used = BTreeMap::new();
        for offer in in_namespace(&objects, namespace).flatten() {
            *used.entry(offer.clone()).or_default() += 1;
        }
        used
    }

    /// The bytes that the volumes of claims in a namespace have beyond what these request, by the names under which a `ResourceQuota` counts
    /// requests: of all claims, and of those of each StorageClass.
    pub fn excess(&self, namespace: &str) -> BTreeMap<String, u64> {
        let claims = self.excess.read().unwrap_or_else(PoisonError::into_inner);
        let mut sum: BTreeMap<String, u64> = BTreeMap::new();
        for Excess { class, bytes } in in_namespace(&claims, namespace) {
            let of_class = class
                .as_ref()
                .map(|class| format!("{class}.storageclass.storage.k8s.io/{REQUESTED}"));
            for name in of_class.into_iter().chain([REQUESTED.to_owned()]) {
                let amount = sum.entry(name).or_default();
                *amount = amount.saturating_add(*bytes);
            }
        }
        sum
    }

    /// Adds the same to what a `ResourceQuota` has counted in a namespace.
    pub fn add_excess(&self, namespace: &str, counted: &mut BTreeMap<String, u64>) {
        for (name, excess) in self.excess(namespace) {
            if let Some(amount) = counted.get_mut(&name) {
                *amount = amount.saturating_add(excess);
            }
        }
    }

    /// Sets what the volume of a claim has beyond its request. None: the claim is gone.
    pub fn put_volume(&self, claim_name: &str, claim: Option<&PersistentVolumeClaim>) {
        let excess = claim.and_then(excess_of_volume);
        let mut claims = self.excess.write().unwrap_or_else(PoisonError::into_inner);
        match excess {
            Some(excess) => claims.insert(claim_name.to_owned(), excess),
            None => claims.remove(claim_name),
        };
    }

    /// Sets what an object uses, given by its namespace and name. Nothing: also if it is gone.
    pub fn put(&self, object: &str, offers: Vec<StorageOffer>) {
        let mut objects = self.offers.write().unwrap_or_else(PoisonError::into_inner);
        if offers.is_empty() {
            objects.remove(object);
        } else {
            objects.insert(object.to_owned(), offers);
        }
    }

    /// Forgets all objects but these.
    pub fn retain(&self, names: &HashSet<String>) {
        let mut objects = self.offers.write().unwrap_or_else(PoisonError::into_inner);
        objects.retain(|name, _| names.contains(name));
        let mut claims = self.excess.write().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|name, _| names.contains(name));
    }
}

/// What is known of the objects in a namespace.
fn in_namespace<'a, V>(objects: &'a BTreeMap<String, V>, namespace: &str) -> impl Iterator<Item = &'a V> + use<'a, V> {
    let prefix = format!("{namespace}/");
    let from = objects.range(prefix.clone()..);
    from.take_while(move |(name, _)| name.starts_with(&prefix))
        .map(|(_, value)| value)
}

/// None: it has no volume, or one that is not larger than its request.
fn excess_of_volume(claim: &PersistentVolumeClaim) -> Option<Excess> {
    let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
    let requested = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    // A ResourceQuota counts this if it is more: the host has begun to expand the volume to it.
    let allocated = status.allocated_resources.as_ref().and_then(|all| all.get("storage"));
    let counted = quantity::parse(&requested.0)?.max(allocated.and_then(|size| quantity::parse(&size.0)).unwrap_or(0));
    let volume = status.capacity.as_ref()?.get("storage")?;
    let thousandths = quantity::parse(&volume.0)?.checked_sub(counted)?;
    let bytes = u64::try_from(thousandths / 1000).ok().filter(|bytes| *bytes > 0)?;
    Some(Excess {
        class: spec.storage_class_name.clone().filter(|class| !class.is_empty()),
        bytes,
    })
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
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
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
    fn volumes_that_are_larger_than_their_claims_are_summed_up_by_class() {
        let uses = StorageUses::default();
        let claim = |class: &str, requested: &str, capacity: Value| {
            let claim = json!({"metadata": {"name": "x"}, "status": {"capacity": capacity},
                "spec": {"storageClassName": class, "resources": {"requests": {"storage": requested}}}});
            serde_json::from_value::<PersistentVolumeClaim>(claim).unwrap()
        };
        let volume = |size: &str| json!({"storage": size});
        for (name, class, requested, capacity) in [
            ("a/x", "fast", "1", volume("1Ki")),
            ("a/y", "slow", "10Gi", volume("11Gi")),
            ("a/z", "", "1Gi", volume("2Gi")),
            ("a/same", "fast", "1Gi", volume("1Gi")),
            ("a/expanded", "fast", "2Gi", volume("1Gi")),
            ("a/waits", "fast", "2Gi", json!({})),
            ("a-b/x", "fast", "1Gi", volume("1Ti")),
        ] {
            uses.put_volume(name, Some(&claim(class, requested, capacity)));
        }
        let of_class = |class: &str| format!("{class}.storageclass.storage.k8s.io/requests.storage");
        let expected = [
            (of_class("fast"), 1023),
            (of_class("slow"), 1 << 30),
            (REQUESTED.to_owned(), (2 << 30) + 1023),
        ];
        assert_eq!(uses.excess("a"), expected.into());
        let mut counted = [(REQUESTED.to_owned(), 5), ("count/pods".to_owned(), 7)].into();
        uses.add_excess("a", &mut counted);
        assert_eq!((counted[REQUESTED], counted["count/pods"]), ((2 << 30) + 1028, 7));
        assert_eq!(counted.len(), 2);
        // The host counts what it expands a volume to.
        let mut expands = claim("fast", "1Gi", volume("4Gi"));
        expands.status.as_mut().unwrap().allocated_resources =
            Some([("storage".to_owned(), Quantity("3Gi".into()))].into());
        uses.put_volume("c/x", Some(&expands));
        assert_eq!(uses.excess("c")[REQUESTED], 1 << 30);
        uses.put_volume("a/y", None);
        uses.retain(&["a/z".to_owned()].into());
        assert_eq!(uses.excess("a"), [(REQUESTED.to_owned(), 1 << 30)].into());
        assert_eq!(uses.excess("a-b"), BTreeMap::new());
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
