//! CSI drivers of the host, mirrored under their own names.
//!
//! | field | rule |
//! |---|---|
//! | which | the drivers of StorageClasses that are mirrored, and `storage.inlineDrivers` |
//! | `attachRequired`, `fsGroupPolicy`, `podInfoOnMount`, `requiresRepublish`, `seLinuxMount`, `volumeLifecycleModes` | mirrored |
//! | `storageCapacity` | false: the capacities are objects of the host, and a scheduler of the tenant would find no node |
//! | everything else | not mirrored: it is between the driver and the host |

use crate::{
    model::{
        Cache, Dependency, HostNamespace, Kind, KindId, Mirror,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::metadata,
};
use berth_api::sync_policy::{SyncPolicy, allows};
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("storage.k8s.io", "v1", "CSIDriver", "csidrivers");

const WATCH: WatchSpec = WatchSpec::own(RESOURCE).trimmed(metadata::without_last_applied);

/// The kind.
pub const KIND: Kind = Kind::mirror(RESOURCE, &Drivers)
    .watch_tenant(WATCH)
    .watch_host(HostNamespace::Cluster, WATCH)
    // Drivers are mirrored because mirrored classes name them.
    .depends_on(&[Dependency::on_host(KindId::StorageClass, |cache, _| {
        let names = cache.stores.names(KindId::CsiDriver).into_iter();
        names.map(|name| KindId::CsiDriver.key(name)).collect()
    })]);

const SHOWN: &[&str] = &[
    "attachRequired",
    "fsGroupPolicy",
    "podInfoOnMount",
    "requiresRepublish",
    "seLinuxMount",
    "volumeLifecycleModes",
];

struct Drivers;

impl Mirror for Drivers {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value> {
        let policy = &cache.tenant.policy.storage;
        let serves_a_class = || {
            let classes = cache.stores.host(KindId::StorageClass).all().into_iter();
            classes
                .filter(|(class, _)| allows(&policy.classes, &class.name))
                .any(|(_, class)| class.object()["provisioner"] == *name.name)
        };
        if !allows(&policy.inline_drivers, &name.name) && !serves_a_class() {
            return None;
        }
        let driver = cache.stores.host(KindId::CsiDriver).get(name)?.object();
        let mut mirrored = json!({"metadata": {}, "spec": {"storageCapacity": false}});
        for field in SHOWN {
            if let Some(value) = driver["spec"].get(*field) {
                mirrored["spec"][*field] = value.clone();
            }
        }
        Some(mirrored)
    }

    fn is_offered(&self, policy: &SyncPolicy) -> bool {
        !policy.storage.classes.is_empty() || !policy.storage.inline_drivers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::storage::fixtures;

    #[test]
    fn drivers_of_offered_classes_are_mirrored() {
        let cache = fixtures::cache();
        let driver = json!({"metadata": {"resourceVersion": "1"}, "spec": {"attachRequired": true, "storageCapacity": true,
            "tokenRequests": [{"audience": "vault"}], "volumeLifecycleModes": ["Persistent"]}});
        for name in ["disks.example.com", "inline.example.com", "other.example.com"] {
            let name = Name::new("", name);
            fixtures::put_host(&cache, KindId::CsiDriver, &name, &driver);
            let mirrored = Drivers.mirrored_object(&cache, &name);
            if &*name.name == "other.example.com" {
                assert_eq!(mirrored, None);
            } else {
                let spec =
                    json!({"attachRequired": true, "storageCapacity": false, "volumeLifecycleModes": ["Persistent"]});
                assert_eq!(mirrored.unwrap()["spec"], spec);
            }
        }
        assert_eq!(
            Drivers.mirrored_object(&cache, &Name::new("", "absent.example.com")),
            None
        );
    }
}
