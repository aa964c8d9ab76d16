//! Whether the host's scheduler allocates devices for a pod: for its claims, and for extended resources that stand for a DeviceClass, of which it makes a claim.

use crate::model::{Cache, KindId, json};
use berth_api::DEVICES_BY_CLASS;
use serde_json::Value;

/// The field of a DeviceClass with the extended resource that stands for it.
const EXTENDED_RESOURCE: &str = "extendedResourceName";

/// Whether a pod has claims, allocated or not, or requests an extended resource that stands for a DeviceClass. The syncer reads the classes of the host if the
/// tenant's class lists any; of others it does not know the resources.
pub fn is_needed(cache: &Cache, pod: &Value) -> bool {
    if !json::items(pod, &["spec", "resourceClaims"]).is_empty() {
        return true;
    }
    let mut extended = extended_resources(pod).peekable();
    // Most pods request none: to know that, no class is unpacked.
    if extended.peek().is_none() {
        return false;
    }
    let of_classes = resources_of_classes(cache);
    extended.any(|resource| {
        resource.starts_with(DEVICES_BY_CLASS) || of_classes.iter().any(|of_class| of_class == resource)
    })
}

/// The extended resources that containers of a pod request. A request without a limit is not valid.
fn extended_resources(pod: &Value) -> impl Iterator<Item = &str> {
    let containers = ["initContainers", "containers"].into_iter();
    let containers = containers.flat_map(move |list| json::items(pod, &["spec", list]));
    let limits = containers.filter_map(|container| json::at(container, &["resources", "limits"])?.as_object());
    let resources = limits.flat_map(|limits| limits.keys().map(String::as_str));
    resources.filter(|resource| resource.contains('/'))
}

/// The extended resources that stand for classes of the host.
fn resources_of_classes(cache: &Cache) -> Vec<String> {
    let classes = cache.stores.host(KindId::DeviceClass).all().into_iter();
    let with_resource = classes.filter(|(_, class)| class.mentions(EXTENDED_RESOURCE));
    with_resource
        .filter_map(|(_, class)| json::filled(&class.object(), &["spec", EXTENDED_RESOURCE]).map(ToOwned::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{resource::Name, store::Stored, tenant::test_tenant},
        registry,
    };
    use serde_json::json;

    #[test]
    fn claims_and_extended_resources_of_classes_need_devices_and_those_of_device_plugins_do_not() {
        let cache = registry::new_cache(test_tenant());
        for (name, spec) in [
            ("gpu.example.com", json!({"extendedResourceName": "example.com/gpu"})),
            ("nic.example.com", json!({})),
        ] {
            let class = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec});
            let classes = cache.stores.host(KindId::DeviceClass);
            classes.written(Name::new("", name), Stored::new(&class));
        }
        let with_limit = |list: &str, resource: &str| {
            let plain = json!({"name": "a", "resources": {"limits": {"cpu": "1"}}});
            json!({"spec": {list: [plain, {"name": "b", "resources": {"limits": {resource: "1"}}}]}})
        };
        let claims = |claims: Value| json!({"spec": {"containers": [], "resourceClaims": claims}});
        for (pod, expected) in [
            (claims(json!([{"name": "gpu", "resourceClaimName": "a"}])), true),
            (claims(json!([])), false),
            (with_limit("containers", "example.com/gpu"), true),
            (with_limit("initContainers", "example.com/gpu"), true),
            (
                with_limit("containers", "deviceclass.resource.kubernetes.io/nic.example.com"),
                true,
            ),
            (with_limit("containers", "nvidia.com/gpu"), false),
            (with_limit("containers", "memory"), false),
        ] {
            assert_eq!(is_needed(&cache, &pod), expected, "{pod}");
        }
    }
}
