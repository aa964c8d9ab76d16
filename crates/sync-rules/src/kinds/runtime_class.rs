//! RuntimeClasses: those of the host that the tenant's class lists, mirrored, so that pods can name them.
//!
//! | field | rule |
//! |---|---|
//! | which | `pods.runtimeClasses` of the tenant's class |
//! | `handler` | copied |
//! | `overhead` | copied: the tenant's API server adds it to pods, as the host's does |
//! | `scheduling` | left out: the host's API server adds it to the host pod, and tenants do not see such labels of nodes |
//! | labels, annotations | left out: the platform's |
//!
//! A RuntimeClass that the tenant makes stays in the tenant. Its pods run under the listed one of the host with the same handler.

use crate::{
    model::{Kind, KindId, resource::Resource},
    translation::mirrored_class::{MirroredClass, MirroredMetadata},
};

const RESOURCE: Resource = Resource::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses");

/// The kind.
pub const KIND: Kind = CLASSES.kind();

const CLASSES: &MirroredClass = &MirroredClass {
    id: KindId::RuntimeClass,
    resource: RESOURCE,
    listed: |policy| &policy.pods.runtime_classes,
    fields: &["handler", "overhead"],
    metadata: MirroredMetadata::Annotations(&[]),
    has_status: false,
    needs_host_scheduler: false,
    unmanaged_message: None,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Mirror, resource::Name, store::Stored, tenant::test_tenant};
    use crate::registry;
    use berth_api::SyncPolicy;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn only_listed_runtime_classes_are_mirrored_without_scheduling() {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.pods.runtime_classes = vec!["kata".into(), "missing".into()];
        tenant.policy = Arc::new(policy);
        let cache = registry::new_cache(tenant);
        for name in ["kata", "secret"] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"}}, "handler": "kata-qemu",
                "overhead": {"podFixed": {"memory": "120Mi"}}, "scheduling": {"nodeSelector": {"kata": "yes"}}});
            let store = cache.stores.host(KindId::RuntimeClass);
            store.written(Name::new("", name), Stored::new(&class));
        }
        let mirrored = |name: &str| CLASSES.mirrored_object(&cache, &Name::new("", name));
        let kata = json!({"metadata": {}, "handler": "kata-qemu", "overhead": {"podFixed": {"memory": "120Mi"}}});
        assert_eq!(mirrored("kata"), Some(kata));
        assert_eq!((mirrored("secret"), mirrored("missing")), (None, None));
    }
}
