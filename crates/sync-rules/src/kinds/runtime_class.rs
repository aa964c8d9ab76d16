//! RuntimeClasses: those of the host that the tenant's class lists, to look at and to name in pods.
//!
//! | field | rule |
//! |---|---|
//! | which | `pods.runtimeClasses` of the tenant's class |
//! | `handler` | copied |
//! | `overhead` | copied: the tenant's API server adds it to pods, as the host's does |
//! | `scheduling` | left out: the host's API server adds it to the host pod, and tenants do not see such labels of nodes |
//! | labels, annotations | left out: the platform's |

use crate::{
    json,
    kinds::{Flow, HostNamespace, Kind, Rights, view::View},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::{SyncPolicy, sync_policy::allows};
use serde_json::{Value, json};

const RESOURCE: Resource = Resource::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses");

const WATCH: WatchSpec = WatchSpec::own(RESOURCE);

/// The kind.
pub const KIND: Kind = Kind {
    tenant: Some(WATCH),
    host: Some((HostNamespace::Cluster, WATCH)),
    flow: Flow::View(&RuntimeClasses),
    rights: Rights {
        tenant: &[("runtimeclasses", &["create", "update", "delete"])],
        host: &[],
    },
};

struct RuntimeClasses;

impl View for RuntimeClasses {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn offers(&self, policy: &SyncPolicy) -> bool {
        !policy.pods.runtime_classes.is_empty()
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        if !allows(&world.tenant.policy.pods.runtime_classes, &name.name) {
            return None;
        }
        let host = world.stores.host(KindId::RuntimeClass).get(name)?.object();
        let mut shown = json!({"metadata": {}, "handler": json::text(&host, &["handler"])?});
        if let Some(overhead) = host.get("overhead").filter(|overhead| !json::is_unset(overhead)) {
            shown["overhead"] = overhead.clone();
        }
        Some(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{store::Stored, tenant::test_tenant};
    use std::sync::Arc;

    #[test]
    fn only_listed_classes_are_shown_and_without_the_platforms_nodes() {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.pods.runtime_classes = vec!["kata".into(), "missing".into()];
        tenant.policy = Arc::new(policy);
        let world = World::new(tenant);
        for name in ["kata", "secret"] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"}}, "handler": "kata-qemu",
                "overhead": {"podFixed": {"memory": "120Mi"}}, "scheduling": {"nodeSelector": {"kata": "yes"}}});
            let store = world.stores.host(KindId::RuntimeClass);
            store.written(Name::new("", name), Stored::new(&class));
        }
        let shown = |name: &str| RuntimeClasses.desired(&world, &Name::new("", name));
        let kata = json!({"metadata": {}, "handler": "kata-qemu", "overhead": {"podFixed": {"memory": "120Mi"}}});
        assert_eq!(shown("kata"), Some(kata));
        assert_eq!((shown("secret"), shown("missing")), (None, None));
    }
}
