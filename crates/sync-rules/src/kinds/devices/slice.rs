//! ResourceSlices, mirrored: the devices of the tenant's nodes. The syncer may not read those of the host; control publishes
//! with each node the slices that belong to it.
//!
//! | field | rule |
//! |---|---|
//! | which | those in the status of a TenantNode, as long as they are there |
//! | name, spec | as published |

use super::resource;
use crate::model::{
    Cache, Dependency, Kind, KindId, Mirror, json,
    resource::{Key, Name, Resource},
};
use berth_api::SchedulingMode;
use serde_json::{Value, json};

const RESOURCE_SLICE: Resource = resource("ResourceSlice", "resourceslices");

/// The kind.
pub const KIND: Kind =
    Kind::mirror(RESOURCE_SLICE, &Slices).depends_on(&[Dependency::on_host(KindId::Node, published)]);

/// Keys to reconcile because the slices of a node have changed, or the node was added or removed.
pub fn published(cache: &Cache, node: &Name) -> Vec<Key> {
    let stored = cache.stores.host(KindId::Node).get(node);
    let object = stored.map(|stored| stored.object()).unwrap_or_default();
    let slices = json::items(&object, &["status", "resourceSlices"])
        .iter()
        .filter_map(|slice| Some(KindId::ResourceSlice.key(Name::new("", json::text(slice, &["name"])?))))
        .collect();
    cache.mirror_sources().set(&KindId::Node.key(node.clone()), slices)
}

struct Slices;

impl Mirror for Slices {
    fn resource(&self) -> Resource {
        RESOURCE_SLICE
    }

    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value> {
        if cache.tenant.scheduling == SchedulingMode::Tenant {
            return None;
        }
        let node = cache
            .mirror_sources()
            .source(&KindId::ResourceSlice.key(name.clone()))?;
        let node = cache.stores.host(KindId::Node).get(&node.name)?.object();
        let slice = json::items(&node, &["status", "resourceSlices"])
            .iter()
            .find(|slice| json::text(slice, &["name"]) == Some(&*name.name))?;
        Some(json!({"metadata": {}, "spec": slice["spec"]}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::Side, store::Stored, tenant::test_tenant};
    use crate::registry;

    fn publish(cache: &Cache, version: &str, slices: &Value) -> Vec<String> {
        let name = Name::new("", "gpu-1");
        let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": version}, "spec": {"nodeName": "gpu-1"}, "status": {"resourceSlices": slices}});
        cache
            .stores
            .host(KindId::Node)
            .written(name.clone(), Stored::new(&node));
        let keys = cache.update_dependents(Side::Host, KindId::Node, &name);
        keys.iter()
            .filter(|key| key.kind == KindId::ResourceSlice)
            .map(|key| key.name.to_string())
            .collect()
    }

    #[test]
    fn slices_come_and_go_with_their_node() {
        let cache = registry::new_cache(test_tenant());
        let slice = |name: &str| json!({"name": name, "spec": {"driver": "d", "nodeName": "gpu-1"}});
        assert_eq!(publish(&cache, "1", &json!([slice("a"), slice("b")])), ["a", "b"]);
        let desired = |name: &str| Slices.mirrored_object(&cache, &Name::new("", name));
        assert_eq!(
            desired("a").unwrap()["spec"],
            json!({"driver": "d", "nodeName": "gpu-1"})
        );
        assert_eq!(publish(&cache, "2", &json!([slice("b")])), ["a", "b"]);
        assert_eq!(desired("a"), None);
        let node = Name::new("", "gpu-1");
        cache.stores.host(KindId::Node).forget(&node);
        cache.update_dependents(Side::Host, KindId::Node, &node);
        assert_eq!(desired("b"), None);
    }
}
