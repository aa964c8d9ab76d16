//! DeviceClasses, shown.
//!
//! | field | rule |
//! |---|---|
//! | which | those that the tenant's class lists |
//! | labels, annotations | the host's but for reserved ones |
//! | spec | the host's |

use super::resource;
use crate::{
    kinds::{Flow, HostNamespace, Kind, Rights, View, metadata},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::{SchedulingMode, sync_policy::allows};
use serde_json::{Value, json};

const DEVICE_CLASS: Resource = resource("DeviceClass", "deviceclasses");

const WATCH: WatchSpec = WatchSpec::own(DEVICE_CLASS);

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WATCH),
    host: Some((HostNamespace::Cluster, WATCH)),
    flow: Flow::View(&Classes),
    rights: Rights {
        tenant: &[("deviceclasses", &["create", "update", "delete"])],
        host: &[],
    },
};

/// Whether a tenant may use a class.
pub fn is_offered(world: &World, name: &str) -> bool {
    allows(&world.tenant.policy.devices.classes, name)
}

struct Classes;

impl View for Classes {
    fn resource(&self) -> Resource {
        DEVICE_CLASS
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        // A scheduler in the tenant would allocate devices past the host's.
        if !is_offered(world, &name.name) || world.tenant.scheduling == SchedulingMode::Tenant {
            return None;
        }
        let host = world.stores.host(KindId::DeviceClass).get(name)?.object();
        let annotations = metadata::annotations(&host, &mut Vec::new());
        Some(json!({
            "metadata": {"labels": metadata::labels(&host), "annotations": annotations},
            "spec": host.get("spec").cloned().unwrap_or_else(|| json!({})),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{store::Stored, tenant::test_tenant};
    use berth_api::SyncPolicy;
    use std::sync::Arc;

    #[test]
    fn only_what_is_listed_is_shown() {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.devices.classes = vec!["gpu.example.com".into()];
        tenant.policy = Arc::new(policy);
        let mut world = World::new(tenant);
        for name in ["gpu.example.com", "secret.example.com"] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
                "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}], "extendedResourceName": "example.com/gpu"}});
            world
                .stores
                .host(KindId::DeviceClass)
                .written(Name::new("", name), Stored::new(&class));
        }
        let shown = |world: &World, name: &str| Classes.desired(world, &Name::new("", name));
        insta::assert_yaml_snapshot!(shown(&world, "gpu.example.com").unwrap());
        assert_eq!(shown(&world, "secret.example.com"), None);
        assert_eq!(shown(&world, "absent.example.com"), None);
        world.tenant.scheduling = SchedulingMode::Tenant;
        assert_eq!(shown(&world, "gpu.example.com"), None);
    }
}
