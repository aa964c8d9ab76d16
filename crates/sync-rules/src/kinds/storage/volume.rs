//! PersistentVolumes: mirrored, so that a bound claim has its volume as on any cluster.
//!
//! Host volumes are cluster-scoped and name every tenant's claims, so the syncer may not read them: what is mirrored is made
//! of what the host's claim and its class say.
//!
//! | field | from |
//! |---|---|
//! | name | `spec.volumeName` of the host's claim |
//! | `capacity`, `accessModes`, `volumeAttributesClassName` | status of the host's claim |
//! | `volumeMode`, `storageClassName` | spec of the host's claim |
//! | `claimRef` | the tenant's claim |
//! | `persistentVolumeReclaimPolicy`, `mountOptions` | the class |
//! | `csi` | the class's provisioner; the volume's name as handle. Neither is used |
//! | status | `Bound` |
//! | node affinity, secrets, attributes | not known |
//!
//! It goes with the claim, whatever the reclaim policy: a volume that the host retains belongs to the platform.

use crate::{
    model::{
        Cache, Dependency, Kind, KindId, Mirror, json,
        mirror::is_mirrored,
        resource::{Name, Resource},
        store::{WatchSpec, is_origin},
    },
    translation::metadata,
};
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("", "v1", "PersistentVolume", "persistentvolumes");

/// The kind.
pub const KIND: Kind = Kind::mirror(RESOURCE, &Volumes)
    .watch_tenant(WatchSpec::own(RESOURCE).trimmed(metadata::without_last_applied))
    .with_tenant_rights(&[("persistentvolumes/status", &["patch"])])
    // A volume is made of what the host's claim says.
    .depends_on(&[Dependency::on_host(KindId::PersistentVolumeClaim, |cache, claim| {
        let claim = cache.stores.tenant(KindId::PersistentVolumeClaim).get(claim);
        let claim = claim.map(|claim| claim.object()).unwrap_or_default();
        let volume = json::text(&claim, &["spec", "volumeName"]);
        let key = volume.map(|volume| KindId::PersistentVolume.key(Name::new("", volume)));
        key.into_iter().collect()
    })]);

/// Longest name of a driver that an API server takes.
const LONGEST_DRIVER: usize = 63;

struct Volumes;

impl Mirror for Volumes {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value> {
        // Claims reference their volumes.
        let claims = cache.references().users(&KindId::PersistentVolume.key(name.clone()));
        claims.iter().find_map(|claim| volume_of(cache, name, &claim.name))
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_before_deletion(&self) -> Option<Value> {
        // The tenant's controllers keep a volume that is bound.
        Some(json!({"phase": "Released"}))
    }

    fn unmanaged_message(&self) -> Option<&'static str> {
        Some("Volumes made here have no effect: claim one of a class that the platform offers.")
    }
}

/// The volume of that name, if it is the one of the claim.
fn volume_of(cache: &Cache, name: &Name, claim_name: &Name) -> Option<Value> {
    let claim = cache.stores.tenant(KindId::PersistentVolumeClaim).get(claim_name)?;
    let host = cache.stores.host(KindId::PersistentVolumeClaim).get(claim_name)?;
    let is_origin = is_origin(&claim, &host);
    let host = host.object();
    if !is_origin || json::text(&host, &["spec", "volumeName"]) != Some(&*name.name) {
        return None;
    }
    // Present as long as the claim is bound.
    let capacity = json::text(&host, &["status", "capacity", "storage"])?;
    let class_name = json::filled(&host, &["spec", "storageClassName"])?;
    let class = cache.stores.host(KindId::StorageClass).get(&Name::new("", class_name));
    let class = class.map(|class| class.object()).unwrap_or_default();
    let live = cache.stores.tenant(KindId::PersistentVolume).get(name);
    let live = live
        .map(|live| live.object())
        .filter(|live| is_mirrored(live))
        .unwrap_or_default();
    // What it was created with stays: the class may be recreated with another driver, or be deleted.
    let provisioner = json::filled(&live, &["metadata", "annotations", PROVISIONER])
        .or_else(|| json::filled(&class, &["provisioner"]))
        .unwrap_or("unknown");
    let reclaim = json::filled(&live, &["spec", "persistentVolumeReclaimPolicy"])
        .or_else(|| json::filled(&class, &["reclaimPolicy"]))
        .unwrap_or("Delete");
    let mut spec = json!({
        "accessModes": host["status"]["accessModes"],
        "capacity": {"storage": capacity},
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": claim.uid,
            "namespace": &*claim_name.namespace, "name": &*claim_name.name,
        },
        "csi": {"driver": driver_name(provisioner), "volumeHandle": &*name.name},
        "persistentVolumeReclaimPolicy": reclaim,
        "storageClassName": class_name,
        "volumeMode": json::filled(&host, &["spec", "volumeMode"]).unwrap_or("Filesystem"),
    });
    if let Some(options) = class.get("mountOptions") {
        spec["mountOptions"] = options.clone();
    }
    if let Some(attributes) = json::filled(&host, &["status", "currentVolumeAttributesClassName"]) {
        spec["volumeAttributesClassName"] = attributes.into();
    }
    let mut status = json!({"phase": "Bound"});
    if let Some(since) = json::text(&live, &["status", "lastPhaseTransitionTime"]) {
        status["lastPhaseTransitionTime"] = since.into();
    }
    Some(json!({"metadata": {"annotations": {PROVISIONER: provisioner}}, "spec": spec, "status": status}))
}

/// The annotation that says who made a volume.
const PROVISIONER: &str = "pv.kubernetes.io/provisioned-by";

/// The name of a provisioner as that of a CSI driver: those of Kubernetes itself have a slash.
fn driver_name(provisioner: &str) -> String {
    let name = provisioner.replace('/', ".");
    name[..name.floor_char_boundary(LONGEST_DRIVER)]
        .trim_end_matches(['.', '-'])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kinds::storage::fixtures, model::references::Target};

    fn bound() -> Cache {
        let cache = fixtures::cache();
        let mut claim = fixtures::claim(&json!({"volumeName": "pvc-1"}));
        claim["status"] = json!({"phase": "Bound"});
        let (id, name) = (KindId::PersistentVolumeClaim, fixtures::name());
        fixtures::put_tenant(&cache, id, &name, &claim);
        fixtures::put_host(&cache, id, &name, &fixtures::host_claim());
        let target = Target {
            kind: KindId::PersistentVolume,
            name: Name::new("", "pvc-1"),
        };
        cache.references().set(&id.key(name), [target].into());
        cache
    }

    #[test]
    fn a_volume_is_made_of_what_the_claim_says() {
        insta::assert_yaml_snapshot!(Volumes.mirrored_object(&bound(), &Name::new("", "pvc-1")));
    }

    #[test]
    fn a_volume_without_its_claim_is_not_mirrored() {
        let (volume, id) = (Name::new("", "pvc-1"), KindId::PersistentVolumeClaim);
        assert_eq!(Volumes.mirrored_object(&bound(), &Name::new("", "pvc-2")), None);
        let cache = bound();
        cache.stores.host(id).forget(&fixtures::name());
        assert_eq!(Volumes.mirrored_object(&cache, &volume), None);
        let cache = bound();
        let mut foreign = fixtures::host_claim();
        foreign["metadata"]["annotations"]["berth.dev/origin-uid"] = "another".into();
        foreign["metadata"]["resourceVersion"] = "10".into();
        fixtures::put_host(&cache, id, &fixtures::name(), &foreign);
        assert_eq!(Volumes.mirrored_object(&cache, &volume), None);
    }

    #[test]
    fn a_volume_keeps_the_driver_and_reclaim_policy_it_was_created_with() {
        let cache = bound();
        let name = Name::new("", "pvc-1");
        let live = json!({"metadata": {"name": "pvc-1", "resourceVersion": "3", "labels": {"berth.dev/managed-by": "syncer"},
                "annotations": {"pv.kubernetes.io/provisioned-by": "old.example.com"}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
            "status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-11-20T10:00:00Z"}});
        fixtures::put_tenant(&cache, KindId::PersistentVolume, &name, &live);
        let volume = Volumes.mirrored_object(&cache, &name).unwrap();
        assert_eq!(volume["spec"]["csi"]["driver"], "old.example.com");
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(volume["status"], live["status"]);
    }

    #[test]
    fn names_of_provisioners_become_names_of_drivers() {
        assert_eq!(driver_name("disks.example.com"), "disks.example.com");
        assert_eq!(
            driver_name("kubernetes.io/no-provisioner"),
            "kubernetes.io.no-provisioner"
        );
        assert!(driver_name(&"a-".repeat(60)).len() <= LONGEST_DRIVER);
    }
}
