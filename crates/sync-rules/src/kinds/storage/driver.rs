//! CSI drivers of the host, shown under their own names.
//!
//! | field | rule |
//! |---|---|
//! | which | the drivers of StorageClasses that are shown, and `storage.inlineDrivers` |
//! | `attachRequired`, `fsGroupPolicy`, `podInfoOnMount`, `requiresRepublish`, `seLinuxMount`, `volumeLifecycleModes` | shown |
//! | `storageCapacity` | false: the capacities are objects of the host, and a scheduler of the tenant would find no node |
//! | everything else | not shown: it is between the driver and the host |

use super::classes::VIEW;
use crate::{
    kinds::{Flow, HostNamespace, Kind, Rights, View},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::sync_policy::{SyncPolicy, allows};
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("storage.k8s.io", "v1", "CSIDriver", "csidrivers");

const WATCH: WatchSpec = WatchSpec::own(RESOURCE).trimmed(super::without_last_applied);

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WATCH),
    host: Some((HostNamespace::Cluster, WATCH)),
    flow: Flow::View(&Drivers),
    rights: Rights {
        tenant: &[("csidrivers", VIEW)],
        host: &[],
    },
};

const SHOWN: &[&str] = &[
    "attachRequired",
    "fsGroupPolicy",
    "podInfoOnMount",
    "requiresRepublish",
    "seLinuxMount",
    "volumeLifecycleModes",
];

struct Drivers;

impl View for Drivers {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        let policy = &world.tenant.policy.storage;
        let serves_a_class = || {
            let classes = world.stores.host(KindId::StorageClass).all().into_iter();
            classes
                .filter(|(class, _)| allows(&policy.classes, &class.name))
                .any(|(_, class)| class.object()["provisioner"] == *name.name)
        };
        if !allows(&policy.inline_drivers, &name.name) && !serves_a_class() {
            return None;
        }
        let driver = world.stores.host(KindId::CsiDriver).get(name)?.object();
        let mut shown = json!({"metadata": {}, "spec": {"storageCapacity": false}});
        for field in SHOWN {
            if let Some(value) = driver["spec"].get(*field) {
                shown["spec"][*field] = value.clone();
            }
        }
        Some(shown)
    }

    fn offers(&self, policy: &SyncPolicy) -> bool {
        !policy.storage.classes.is_empty() || !policy.storage.inline_drivers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::storage::fixtures;

    #[test]
    fn drivers_are_shown_if_something_that_is_offered_needs_them() {
        let world = fixtures::world();
        let driver = json!({"metadata": {"resourceVersion": "1"}, "spec": {"attachRequired": true, "storageCapacity": true,
            "tokenRequests": [{"audience": "vault"}], "volumeLifecycleModes": ["Persistent"]}});
        for name in ["disks.example.com", "inline.example.com", "other.example.com"] {
            let name = Name::new("", name);
            fixtures::put_host(&world, KindId::CsiDriver, &name, &driver);
            let shown = Drivers.desired(&world, &name);
            if &*name.name == "other.example.com" {
                assert_eq!(shown, None);
            } else {
                let spec =
                    json!({"attachRequired": true, "storageCapacity": false, "volumeLifecycleModes": ["Persistent"]});
                assert_eq!(shown.unwrap()["spec"], spec);
            }
        }
        assert_eq!(Drivers.desired(&world, &Name::new("", "absent.example.com")), None);
    }
}
