//! Claims of devices in pods.
//!
//! | field | rule |
//! |---|---|
//! | `resourceClaims[].resourceClaimName`, `resourceClaimTemplateName` | the host's name; denied if the claim or template is |
//! | `resources.claims` of containers | copied |
//! | extended resources `deviceclass.resource.kubernetes.io/…` | of device classes that the tenant's class lists |
//! | `status.resourceClaimStatuses`, `status.extendedResourceClaimStatus` | the claims as they are called in the tenant |

use crate::{
    kinds::devices::{self, class, generated},
    model::{
        Cache, KindId, denied_field, json,
        references::Target,
        resource::{Name, host_name},
    },
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use berth_api::DEVICES_BY_CLASS;
use serde_json::{Map, Value};

/// The rules of `PodResourceClaim`.
pub const CLAIM: Fields = &[
    ("name", Rule::Copy),
    ("resourceClaimName", Rule::Rewrite),
    ("resourceClaimTemplateName", Rule::Rewrite),
];
/// The rules of `ResourceClaim` in a container's resources.
pub const OF_CONTAINER: Fields = &[("name", Rule::Copy), ("request", Rule::Copy)];
/// Fields that name another object, and its kind.
const NAMES: [(&str, KindId); 2] = [
    ("resourceClaimName", KindId::ResourceClaim),
    ("resourceClaimTemplateName", KindId::ResourceClaimTemplate),
];

/// Claims and templates that a pod names, with the path of the field.
pub fn targets(pod: &Value) -> Vec<(String, Target)> {
    let namespace = json::text(pod, &["metadata", "namespace"]).unwrap_or_default();
    let claims = json::items(pod, &["spec", "resourceClaims"]).iter().enumerate();
    claims
        .flat_map(|(index, claim)| {
            NAMES.iter().filter_map(move |(field, kind)| {
                let named = json::filled(claim, &[*field])?;
                let target = Target {
                    kind: *kind,
                    name: Name::new(namespace, named),
                };
                Some((format!("spec.resourceClaims[{index}].{field}"), target))
            })
        })
        .collect()
}

/// The host pod's `resourceClaims`; denies those that it may not have.
pub fn translate(cache: &Cache, name: &Name, pod: &Value, issues: &mut FieldIssues) -> Vec<Value> {
    for (path, target) in targets(pod) {
        if let Some(denied) = devices::denied(cache, &target) {
            issues.deny(
                path,
                format!("{} is denied: {}", target.name.name, denied_field::message(&denied)),
            );
        }
    }
    by_class(cache, &pod["spec"], issues);
    json::items(pod, &["spec", "resourceClaims"])
        .iter()
        .enumerate()
        .map(|(index, claim)| {
            let mut copied = fields::copy(claim, &format!("spec.resourceClaims[{index}]"), CLAIM, issues);
            for (field, kind) in NAMES {
                if let Some(named) = json::filled(claim, &[field]) {
                    let target = Name::new(&name.namespace, named);
                    copied.insert(field.into(), on_host(cache, kind, &target).into());
                }
            }
            copied.into()
        })
        .collect()
}

/// Requests that controllers of the host make for the claims of a new host pod. kube-controller-manager makes a claim for each template, and names
/// them in the pod's status; for a claim with a name of its own, the scheduler reserves it and kube-controller-manager frees it later.
pub fn requests(pod: &Value) -> u64 {
    match json::items(pod, &["spec", "resourceClaims"]).len() as u64 {
        0 => 0,
        claims => claims + 1,
    }
}

/// The host's name of a claim or template. A claim that the host made itself has a name of its own there.
fn on_host(cache: &Cache, kind: KindId, name: &Name) -> String {
    let mirrored = KindId::GeneratedClaim.key(name.clone());
    match cache.mirror_sources().source(&mirrored) {
        Some(source) if kind == KindId::ResourceClaim => source.name.name.to_string(),
        _ => host_name(kind, name),
    }
}

/// Denies extended resources that stand for device classes that are not offered. Those with names of their own are
/// offered to all tenants, like those of device plugins.
fn by_class(cache: &Cache, spec: &Value, issues: &mut FieldIssues) {
    for list in ["initContainers", "containers"] {
        for (index, container) in json::items(spec, &[list]).iter().enumerate() {
            let limits = json::at(container, &["resources", "limits"]).and_then(Value::as_object);
            for resource in limits.into_iter().flatten().map(|(resource, _)| resource) {
                if let Some(class) = resource
                    .strip_prefix(DEVICES_BY_CLASS)
                    .filter(|class| !class::is_offered(cache, class))
                {
                    let path = format!("spec.{list}[{index}].resources.limits[{resource}]");
                    issues.deny(path, format!("the device class {class} is not offered here"));
                }
            }
        }
    }
}

/// Claims of a container.
pub fn of_container(resources: &Value, path: &str, issues: &mut FieldIssues) -> Vec<Value> {
    let claims = json::items(resources, &["claims"]).iter().enumerate();
    claims
        .map(|(index, claim)| fields::copy(claim, &format!("{path}.claims[{index}]"), OF_CONTAINER, issues).into())
        .collect()
}

/// Puts the tenant's names of claims that the host made for the pod into its status.
pub fn sync_status(pod: &Name, status: &mut Map<String, Value>) {
    let rename = |entry: &mut Value, claim: &str| {
        if let Some(host) = json::text(entry, &["resourceClaimName"]) {
            let mirrored = generated::mirrored_name(&pod.name, claim, host);
            entry["resourceClaimName"] = mirrored.into();
        }
    };
    let statuses = status.get_mut("resourceClaimStatuses").and_then(Value::as_array_mut);
    for entry in statuses.into_iter().flatten() {
        let claim = json::text(entry, &["name"]).unwrap_or_default().to_owned();
        rename(entry, &claim);
    }
    if let Some(extended) = status.get_mut("extendedResourceClaimStatus") {
        rename(extended, generated::EXTENDED_CLAIM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{store::Stored, tenant::test_tenant};
    use crate::registry;
    use berth_api::SyncPolicy;
    use serde_json::json;
    use std::sync::Arc;

    fn cache() -> Cache {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.devices.classes = vec!["gpu.example.com".into()];
        tenant.policy = Arc::new(policy);
        registry::new_cache(tenant)
    }

    fn name() -> Name {
        Name::new("research", "train-0")
    }

    fn put(cache: &Cache, kind: KindId, claim: &str, class: &str) {
        let object = json!({"metadata": {"name": claim, "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class}}]}}});
        cache
            .stores
            .tenant(kind)
            .written(Name::new("research", claim), Stored::new(&object));
    }

    fn pod(claims: &Value) -> Value {
        json!({"metadata": {"name": "train-0", "namespace": "research"}, "spec": {"resourceClaims": claims, "containers": []}})
    }

    fn translate(cache: &Cache, pod: &Value) -> (Vec<Value>, Vec<String>) {
        let mut issues = FieldIssues::default();
        let claims = super::translate(cache, &name(), pod, &mut issues);
        (claims, issues.denied.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn claims_and_templates_have_the_hosts_names_whether_they_exist_or_not() {
        let cache = cache();
        put(&cache, KindId::ResourceClaim, "mine", "gpu.example.com");
        let host = KindId::GeneratedClaim.key(Name::new("", "other-abcdefghijklm-gpu-12345"));
        let mirrored = KindId::GeneratedClaim.key(Name::new("research", "other-gpu-12345"));
        cache.mirror_sources().set(&host, vec![mirrored]);
        let pod = pod(
            &json!([{"name": "a", "resourceClaimName": "mine"}, {"name": "b", "resourceClaimTemplateName": "of-the-host"},
            {"name": "c", "resourceClaimName": "other-gpu-12345"}]),
        );
        let (claims, denied) = translate(&cache, &pod);
        let host = |kind, name| host_name(kind, &Name::new("research", name));
        let wanted = json!([
            {"name": "a", "resourceClaimName": host(KindId::ResourceClaim, "mine")},
            {"name": "b", "resourceClaimTemplateName": host(KindId::ResourceClaimTemplate, "of-the-host")},
            {"name": "c", "resourceClaimName": "other-abcdefghijklm-gpu-12345"}]);
        assert_eq!((Value::from(claims), denied), (wanted, Vec::new()));
    }

    #[test]
    fn each_claim_of_a_new_pod_costs_a_request_and_the_status_one_more() {
        let claims = |count: u32| -> Vec<Value> {
            let names = (0..count).map(|number| format!("gpu-{number}"));
            names
                .map(|name| json!({"name": name, "resourceClaimTemplateName": "one-gpu"}))
                .collect()
        };
        let costs = [0, 1, 32].map(|count| requests(&pod(&json!(claims(count)))));
        assert_eq!(costs, [0, 2, 33]);
        assert_eq!(requests(&json!({"spec": {}})), 0);
        let rules = crate::kinds::pod::KIND.rules_to_host().unwrap();
        let full = pod(&json!(claims(32)));
        let costs = [true, false].map(|is_new| rules.controller_requests(&full, is_new));
        assert_eq!(costs, [33, 0], "no claim is made when a pod changes");
    }

    #[test]
    fn a_pod_names_the_denied_fields_of_its_claim() {
        let cache = cache();
        put(&cache, KindId::ResourceClaim, "mine", "secret.example.com");
        let mut pod = pod(&json!([{"name": "a", "resourceClaimName": "mine", "novelty": 1}]));
        pod["spec"]["containers"] = json!([{"resources": {"limits": {
            "deviceclass.resource.kubernetes.io/secret.example.com": "1", "deviceclass.resource.kubernetes.io/gpu.example.com": "1", "example.com/gpu": "1"}}}]);
        insta::assert_yaml_snapshot!(translate(&cache, &pod).1);
    }

    #[test]
    fn the_status_names_the_tenants_claims() {
        let mut status = json!({
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-0-abcdefghijklm-gpu-12345"}, {"name": "unused"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "train-0-abcdefghijklm-extended-resources-67890",
                "requestMappings": [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}]}});
        sync_status(&name(), status.as_object_mut().unwrap());
        insta::assert_yaml_snapshot!(status);
    }
}
