//! Volumes: mirrored classes, claims and snapshots that are synced to the host, and the volumes of claims.
//!
//! ```text
//!  tenant                          host
//!  StorageClass  ◄── mirrored ──── StorageClass            classes, drivers
//!  PersistentVolumeClaim ────────► PersistentVolumeClaim   claim: bound by the host
//!  PersistentVolume ◄── made of what the host claim says   volume: the host's is never read
//!  VolumeSnapshot ───────────────► VolumeSnapshot          snapshot
//! ```

pub mod claim;
pub mod classes;
pub mod driver;
pub mod snapshot;
pub mod volume;
pub mod without_volume;

use crate::model::{Cache, KindId, json, resource::Name};
use serde_json::Value;
use std::sync::Arc;

/// Requests that a controller of the host makes for a claim or a snapshot that is made or changed. kube-controller-manager makes five until a claim
/// has its volume: who provisions it, the volume's claim and phase, the claim's volume and status. Drivers and their snapshot controllers make about as many.
const REQUESTS: u64 = 5;
/// Further requests that kube-controller-manager makes for a claim: from 1.37 on it says that no pod uses the claim once that has its volume, and it
/// takes a finalizer off when the claim is deleted.
const REQUESTS_OF_NEW_CLAIM: u64 = 2;

/// The host object that was made for this very object of the tenant.
fn on_host(cache: &Cache, id: KindId, name: &Name, object: &Value) -> Option<Arc<Value>> {
    let stored = cache.stores.host(id).get(name)?;
    (stored.origin_uid.is_some() && stored.origin_uid.as_deref() == json::text(object, &["metadata", "uid"]))
        .then(|| stored.object())
}

#[cfg(test)]
pub(in crate::kinds) mod fixtures {
    //! A tenant with a class and a claim.

    use crate::model::{
        Cache, KindId,
        resource::{Name, host_name},
        store::Stored,
        tenant::test_tenant,
    };
    use berth_api::sync_policy::{StoragePolicy, SyncPolicy};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// A cache in which the host has the classes `fast` (the default, offered) and `secret` (neither), and a snapshot class
    /// `daily` (the default, offered).
    pub fn cache() -> Cache {
        let mut tenant = test_tenant();
        tenant.policy = Arc::new(SyncPolicy {
            storage: StoragePolicy {
                classes: vec!["fast".into()],
                inline_drivers: vec!["inline.example.com".into()],
                snapshot_classes: vec!["daily".into()],
                attributes_classes: vec!["gold".into()],
            },
            ..SyncPolicy::default()
        });
        let cache = crate::registry::new_cache(tenant);
        for (name, default) in [("fast", "true"), ("secret", "false")] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"platform": "x"},
                "annotations": {"storageclass.kubernetes.io/is-default-class": default, "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
                "provisioner": "disks.example.com", "parameters": {"server": "10.0.0.1"}, "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate", "allowVolumeExpansion": true});
            put_host(&cache, KindId::StorageClass, &Name::new("", name), &class);
        }
        let snapshots = json!({"metadata": {"name": "daily", "resourceVersion": "1",
            "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}},
            "driver": "disks.example.com", "deletionPolicy": "Delete", "parameters": {"secret": "s"}});
        put_host(&cache, KindId::VolumeSnapshotClass, &Name::new("", "daily"), &snapshots);
        cache
    }

    /// Puts an object into a host store.
    pub fn put_host(cache: &Cache, id: KindId, name: &Name, object: &Value) {
        cache.stores.host(id).written(name.clone(), Stored::new(object));
    }

    /// Puts an object into a tenant store.
    pub fn put_tenant(cache: &Cache, id: KindId, name: &Name, object: &Value) {
        cache.stores.tenant(id).written(name.clone(), Stored::new(object));
    }

    /// The claim that tests are about.
    pub fn name() -> Name {
        Name::new("research", "data")
    }

    /// A claim in the tenant.
    pub fn claim(spec: &Value) -> Value {
        let mut claim = json!({"metadata": {"name": "data", "namespace": "research", "uid": "claim-uid", "resourceVersion": "5"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "10Gi"}}}});
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        claim
    }

    /// The host's claim, bound.
    pub fn host_claim() -> Value {
        json!({"metadata": {"name": host_name(KindId::PersistentVolumeClaim, &name()), "resourceVersion": "9",
                "annotations": {"berth.dev/origin-uid": "claim-uid"}},
            "spec": {"volumeName": "pvc-1", "storageClassName": "fast", "volumeMode": "Filesystem"},
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}}})
    }
}
