//! DeviceClasses, mirrored.
//!
//! | field | rule |
//! |---|---|
//! | which | those that the tenant's class lists |
//! | labels, annotations | the host's but for reserved ones |
//! | spec | the host's |

use super::resource;
use crate::{
    model::{Cache, Kind, KindId},
    translation::mirrored_class::{MirroredClass, MirroredMetadata},
};
use berth_api::sync_policy::allows;

/// The kind.
pub const KIND: Kind = CLASSES.kind();

const CLASSES: &MirroredClass = &MirroredClass {
    id: KindId::DeviceClass,
    resource: resource("DeviceClass", "deviceclasses"),
    listed: |policy| &policy.devices.classes,
    fields: &["spec"],
    metadata: MirroredMetadata::All,
    has_status: false,
    // A scheduler in the tenant would allocate devices beside the host's scheduler, in conflict with it.
    needs_host_scheduler: true,
    unmanaged_message: None,
};

/// Whether a tenant may use a class.
pub fn is_offered(cache: &Cache, name: &str) -> bool {
    allows(&cache.tenant.policy.devices.classes, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Mirror, resource::Name, store::Stored, tenant::test_tenant};
    use crate::registry;
    use berth_api::{SchedulingMode, SyncPolicy};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn only_listed_device_classes_are_mirrored() {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.devices.classes = vec!["gpu.example.com".into()];
        tenant.policy = Arc::new(policy);
        let mut cache = registry::new_cache(tenant);
        for name in ["gpu.example.com", "secret.example.com"] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
                "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}], "extendedResourceName": "example.com/gpu"}});
            cache
                .stores
                .host(KindId::DeviceClass)
                .written(Name::new("", name), Stored::new(&class));
        }
        let mirrored = |cache: &Cache, name: &str| CLASSES.mirrored_object(cache, &Name::new("", name));
        insta::assert_yaml_snapshot!(mirrored(&cache, "gpu.example.com").unwrap());
        assert_eq!(mirrored(&cache, "secret.example.com"), None);
        assert_eq!(mirrored(&cache, "absent.example.com"), None);
        cache.tenant.scheduling = SchedulingMode::Tenant;
        assert_eq!(mirrored(&cache, "gpu.example.com"), None);
    }
}
