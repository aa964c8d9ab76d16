//! ResourceSlices, shown: the devices of the tenant's nodes. The syncer may not read those of the host; control publishes
//! with each node the slices that belong to it.
//!
//! | field | rule |
//! |---|---|
//! | which | those in the status of a TenantNode, as long as they are there |
//! | name, spec | as published |

use super::resource;
use crate::{
    json,
    kinds::{Flow, Kind, Rights, View},
    resource::{Key, KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::SchedulingMode;
use serde_json::{Value, json};

const RESOURCE_SLICE: Resource = resource("ResourceSlice", "resourceslices");

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WatchSpec::own(RESOURCE_SLICE)),
    host: None,
    flow: Flow::View(&Slices),
    rights: Rights {
        tenant: &[("resourceslices", &["create", "update", "delete"])],
        host: &[],
    },
};

/// The slices of a node have changed, or the node has come or gone.
pub fn published(world: &World, node: &Name) -> Vec<Key> {
    let stored = world.stores.host(KindId::Node).get(node);
    let object = stored.map(|stored| stored.object()).unwrap_or_default();
    let slices = json::items(&object, &["status", "resourceSlices"])
        .iter()
        .filter_map(|slice| Some(KindId::ResourceSlice.key(Name::new("", json::text(slice, &["name"])?))))
        .collect();
    world.shown().set(&KindId::Node.key(node.clone()), slices)
}

struct Slices;

impl View for Slices {
    fn resource(&self) -> Resource {
        RESOURCE_SLICE
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        if world.tenant.scheduling == SchedulingMode::Tenant {
            return None;
        }
        let node = world.shown().source(&KindId::ResourceSlice.key(name.clone()))?;
        let node = world.stores.host(KindId::Node).get(&node.name)?.object();
        let slice = json::items(&node, &["status", "resourceSlices"])
            .iter()
            .find(|slice| json::text(slice, &["name"]) == Some(&*name.name))?;
        Some(json!({"metadata": {}, "spec": slice["spec"]}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{resource::Side, store::Stored, tenant::test_tenant};

    fn publish(world: &World, version: &str, slices: &Value) -> Vec<String> {
        let name = Name::new("", "gpu-1");
        let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": version}, "spec": {"nodeName": "gpu-1"}, "status": {"resourceSlices": slices}});
        world
            .stores
            .host(KindId::Node)
            .written(name.clone(), Stored::new(&node));
        let keys = world.dependents(Side::Host, KindId::Node, &name);
        keys.iter()
            .filter(|key| key.kind == KindId::ResourceSlice)
            .map(|key| key.name.to_string())
            .collect()
    }

    #[test]
    fn slices_come_and_go_with_their_node() {
        let world = World::new(test_tenant());
        let slice = |name: &str| json!({"name": name, "spec": {"driver": "d", "nodeName": "gpu-1"}});
        assert_eq!(publish(&world, "1", &json!([slice("a"), slice("b")])), ["a", "b"]);
        let desired = |name: &str| Slices.desired(&world, &Name::new("", name));
        assert_eq!(
            desired("a").unwrap()["spec"],
            json!({"driver": "d", "nodeName": "gpu-1"})
        );
        assert_eq!(publish(&world, "2", &json!([slice("b")])), ["a", "b"]);
        assert_eq!(desired("a"), None);
        let node = Name::new("", "gpu-1");
        world.stores.host(KindId::Node).forget(&node);
        world.dependents(Side::Host, KindId::Node, &node);
        assert_eq!(desired("b"), None);
    }
}
