//! ResourceClaims.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | not passed on: see `metadata` |
//! | spec | see `spec`; it cannot change |
//! | status | see `status` |
//! | finalizer `resource.kubernetes.io/delete-protection` | in the tenant as long as the host has it: a claim in use stays until its pods end |
//!
//! The host's scheduler allocates devices, its controller manager frees them. Tenants' controller managers run without
//! the controller for claims.

use super::{PROTECTION, resource, spec, status, user_claims};
use crate::{
    model::{
        Cache, DeniedField, Dependency, DesiredState, HostNamespace, HostWrite, Kind, KindId, Observation, TenantWrite,
        ToHost, Translated, WhenDenied, json,
        resource::{Name, Resource},
        store::{Stored, WatchSpec},
    },
    translation::{
        fields::FieldIssues,
        metadata::{self, AnnotationRules},
        sizes,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

/// `resource.k8s.io/v1/ResourceClaim`.
pub const RESOURCE_CLAIM: Resource = resource("ResourceClaim", "resourceclaims");

/// Pause before the second step of a claim that needs two. Without one, a tenant whose webhooks undo the first would be written to for ever.
const NEXT_STEP: Duration = Duration::from_millis(200);

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE_CLAIM, &Claims)
    // Without those that are mirrored.
    .watch_tenant(WatchSpec::own(RESOURCE_CLAIM).labelled("berth.dev/managed-by!=syncer"))
    .watch_host(
        HostNamespace::Workloads,
        WatchSpec::synced(RESOURCE_CLAIM).trimmed(trim_host),
    )
    // From 1.36 on allocations and the status of devices need rights of their own.
    .with_tenant_rights(&[
        ("resourceclaims", &["patch"]),
        ("resourceclaims/status", &["patch"]),
        ("resourceclaims/binding", &["patch"]),
        ("resourceclaims/driver", &["arbitrary-node:patch"]),
    ])
    // Claims say which pods use them.
    .depends_on(&[Dependency::on_host(KindId::Pod, |cache, pod| {
        let mut keys = cache.references().targets(&KindId::Pod.key(pod.clone()));
        keys.retain(|key| key.kind == KindId::ResourceClaim);
        keys
    })]);

/// The spec is in the tenant's claim.
fn trim_host(claim: &mut Value) {
    if let Some(fields) = claim.as_object_mut() {
        fields.remove("spec");
    }
}

/// Updates of kinds whose spec cannot change: labels and annotations only.
pub fn update(mut desired: Value, live: &Value) -> Vec<HostWrite> {
    desired["spec"] = live["spec"].clone();
    vec![HostWrite::Apply(desired)]
}

/// The finalizers that the tenant's claim should have; `None` if it has them.
fn finalizers(tenant: &Value, host: &Value) -> Option<Vec<Value>> {
    let has = |object: &Value| {
        json::items(object, &["metadata", "finalizers"])
            .iter()
            .any(|finalizer| finalizer == PROTECTION)
    };
    let mut finalizers = json::items(tenant, &["metadata", "finalizers"]).to_vec();
    match (has(tenant), has(host)) {
        // An object that is being deleted takes no new finalizers.
        (false, true) if tenant["metadata"].get("deletionTimestamp").is_none() => finalizers.push(PROTECTION.into()),
        (true, false) => finalizers.retain(|finalizer| finalizer != PROTECTION),
        _ => return None,
    }
    Some(finalizers)
}

fn is_allocated(host: &Value) -> bool {
    json::at(host, &["status", "allocation"]).is_some_and(|allocation| !allocation.is_null())
}

struct Claims;

impl ToHost for Claims {
    fn resource(&self) -> Resource {
        RESOURCE_CLAIM
    }

    fn desired_state(&self, cache: &Cache, name: &Name, _claim: &Value) -> DesiredState {
        if user_claims::is_held(cache, name) {
            DesiredState::Absent
        } else {
            DesiredState::Sync
        }
    }

    fn translate(&self, cache: &Cache, _name: &Name, claim: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let spec = spec::translate(cache, &claim["spec"], "spec", &mut issues);
        let annotations = metadata::annotations(claim, &AnnotationRules::default(), &mut issues);
        let metadata = json!({"annotations": annotations});
        let object = json!({"metadata": metadata, "spec": spec});
        sizes::check(sizes::RESOURCE_CLAIM, claim, &object, &mut issues);
        issues.into_result(object)
    }

    fn controller_requests(&self, desired: &Value, is_new: bool) -> u64 {
        // The spec does not change later.
        if is_new {
            sizes::compilation_requests(sizes::RESOURCE_CLAIM, desired)
        } else {
            0
        }
    }

    fn mutable_part(&self, desired: &Value) -> Value {
        desired["metadata"].clone()
    }

    fn update_needs_live(&self) -> bool {
        true
    }

    fn update(&self, desired: Value, live: &Value) -> Vec<HostWrite> {
        update(desired, live)
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _claim: &Value, host: &Value) -> WhenDenied {
        // Pods use what is allocated. The host's scheduler would allocate the rest later.
        if is_allocated(host) {
            WhenDenied::Keep
        } else {
            WhenDenied::Withdraw
        }
    }

    fn deletes_only_this_version(&self, host: &Stored) -> bool {
        // It may have been allocated meanwhile.
        !is_allocated(&host.object())
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        let Observation { tenant, host, .. } = observation;
        let before = tenant.get("status").cloned().unwrap_or_else(|| json!({}));
        let status = status::sync_status(cache, name, host, &before);
        // The finalizer is added before the allocation appears, and removed after the allocation is cleared.
        match finalizers(tenant, host) {
            Some(finalizers) if status.get("allocation").is_some() || status == before => {
                let version = tenant["metadata"].get("resourceVersion");
                let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
                // The status follows, with the claim as it is then.
                vec![TenantWrite::Patch(patch), TenantWrite::Later(NEXT_STEP)]
            }
            Some(_) => vec![TenantWrite::Status(status), TenantWrite::Later(NEXT_STEP)],
            None => vec![TenantWrite::Status(status)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use berth_api::{SchedulingMode, SyncPolicy};
    use jiff::Timestamp;
    use std::sync::Arc;

    fn cache() -> Cache {
        let mut tenant = test_tenant();
        let mut policy = SyncPolicy::default();
        policy.devices.classes = vec!["gpu.example.com".into(), "mig.example.com".into()];
        policy.devices.config_drivers = vec!["gpu.example.com".into()];
        tenant.policy = Arc::new(policy);
        registry::new_cache(tenant)
    }

    fn claim(devices: &Value) -> Value {
        json!({"metadata": {"name": "c", "namespace": "research", "labels": {"a": "b"}, "ownerReferences": [{}],
            "annotations": {"note": "n", "resource.kubernetes.io/extended-resource-claim": "true"}}, "spec": {"devices": devices}})
    }

    fn translate(cache: &Cache, devices: &Value) -> Result<Value, Vec<String>> {
        Claims
            .translate(cache, &Name::new("research", "c"), &claim(devices))
            .map(|translated| translated.object)
            .map_err(|denied| denied.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_claim_with_every_field_is_translated() {
        let cel = json!([{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'H100'"}}]);
        let devices = json!({
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "selectors": cel, "allocationMode": "ExactCount", "count": 2,
                    "capacity": {"requests": {"memory": "40Gi"}}, "tolerations": [{"key": "gpu.example.com/unhealthy", "operator": "Exists", "effect": "NoSchedule"}]}},
                {"name": "any", "firstAvailable": [
                    {"name": "big", "deviceClassName": "gpu.example.com", "allocationMode": "All"},
                    {"name": "small", "deviceClassName": "mig.example.com", "selectors": cel, "count": 1}]}],
            "constraints": [{"requests": ["gpu"], "matchAttribute": "gpu.example.com/numa"}],
            "config": [{"requests": ["gpu"], "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}}}]});
        insta::assert_yaml_snapshot!(translate(&cache(), &devices).unwrap());
    }

    #[test]
    fn fields_reserved_for_the_platform_are_denied() {
        let devices = json!({
            "requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu.example.com", "adminAccess": true, "novelty": 1}},
                {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "secret.example.com"},
                    {"name": "y", "deviceClassName": "gpu.example.com", "tolerations": [{"operator": "Exists"}, {"key": "berth.dev/scrub", "operator": "Exists"}]}]}],
            "constraints": [{"novelty": 1}],
            "config": [{"opaque": {"driver": "other.example.com", "parameters": {}}}],
            "novelty": 1});
        insta::assert_yaml_snapshot!(translate(&cache(), &devices).unwrap_err());
    }

    /// So many requests with so many alternatives, or with one. Each alternative has a selector.
    fn requests(count: usize, alternatives: Option<usize>) -> Value {
        let asked = |name: usize| json!({"name": name.to_string(), "deviceClassName": "gpu.example.com", "selectors": [{"cel": {"expression": "true"}}]});
        let request = |name: usize| match alternatives {
            Some(number) => {
                json!({"name": name.to_string(), "firstAvailable": (0..number).map(asked).collect::<Vec<_>>()})
            }
            None => json!({"name": name.to_string(), "exactly": asked(name)}),
        };
        json!({"requests": (0..count).map(request).collect::<Vec<_>>()})
    }

    #[test]
    fn a_claim_for_eight_gpus_and_eight_network_cards_is_small_and_the_largest_of_an_api_server_is_denied() {
        let cache = cache();
        for devices in [requests(16, None), requests(8, Some(8))] {
            assert!(translate(&cache, &devices).is_ok(), "{devices}");
        }
        let denied = translate(&cache, &requests(32, Some(8))).unwrap_err();
        let expected = ["alternatives", "expressions"]
            .map(|what| format!("spec.devices.requests: {what}: there are 256, and one object may have at most 64"));
        assert_eq!(denied.len(), 2);
        for (denied, expected) in denied.iter().zip(&expected) {
            assert!(denied.starts_with(expected), "{denied}");
        }
    }

    #[test]
    fn expressions_cost_requests_when_a_claim_is_made() {
        let cost = |devices: &Value, is_new| {
            let desired = translate(&cache(), devices).unwrap();
            Claims.controller_requests(&desired, is_new)
        };
        let plain = json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.example.com"}}]});
        let [one, most] = [requests(1, None), requests(8, Some(8))];
        assert_eq!([&plain, &one, &most].map(|devices| cost(devices, true)), [0, 1, 8]);
        assert_eq!(cost(&most, false), 0);
    }

    #[test]
    fn tenants_without_listed_classes_or_with_their_own_scheduler_get_no_devices() {
        let devices = json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.example.com"}}]});
        let mut cache = registry::new_cache(test_tenant());
        assert_eq!(
            translate(&cache, &devices).unwrap_err(),
            ["spec.devices.requests[0].exactly.deviceClassName: the device class gpu.example.com is not offered here"]
        );
        cache = self::cache();
        cache.tenant.scheduling = SchedulingMode::Tenant;
        assert_eq!(translate(&cache, &devices).unwrap_err().len(), 1);
    }

    #[test]
    fn a_claim_that_is_not_allocated_is_withdrawn() {
        let when_denied = |status: Value| {
            Claims.when_denied(
                &cache(),
                &Name::new("research", "c"),
                &Value::Null,
                &json!({"metadata": {}, "status": status}),
            )
        };
        assert_eq!(when_denied(Value::Null), WhenDenied::Withdraw);
        assert_eq!(when_denied(json!({})), WhenDenied::Withdraw);
        assert_eq!(when_denied(json!({"allocation": {"devices": {}}})), WhenDenied::Keep);
    }

    #[test]
    fn only_labels_and_annotations_change() {
        let devices = json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.example.com"}}]});
        let desired = translate(&cache(), &devices).unwrap();
        assert_eq!(Claims.mutable_part(&desired).get("requests"), None);
        let writes = Claims.update(desired.clone(), &json!({"spec": {"as": "created"}}));
        let [HostWrite::Apply(applied)] = writes.as_slice() else {
            panic!("{writes:?}")
        };
        assert_eq!(
            (&applied["spec"], &applied["metadata"]),
            (&json!({"as": "created"}), &desired["metadata"])
        );
    }

    #[test]
    fn a_claim_in_use_is_protected_in_the_tenant_too() {
        let cache = cache();
        let sync_status = |tenant: &Value, host: &Value| {
            let observation = Observation {
                tenant,
                host,
                in_sync: true,
                denied: &[],
                now: Timestamp::UNIX_EPOCH,
            };
            Claims.sync_status(&cache, &Name::new("research", "c"), &observation)
        };
        let then = TenantWrite::Later(NEXT_STEP);
        let patch = |finalizers: &Value| {
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": "5"}});
            [TenantWrite::Patch(patch), then.clone()]
        };
        let allocated = json!({"allocation": {"devices": {"results": [{"device": "gpu-0"}]}}});
        let tenant = |finalizers: &Value, status: &Value| json!({"metadata": {"resourceVersion": "5", "finalizers": finalizers}, "status": status});
        let host = json!({"metadata": {"finalizers": [PROTECTION]}, "status": allocated});
        let free = json!({"metadata": {}, "status": {}});
        let protected = json!(["mine", PROTECTION]);

        assert_eq!(
            sync_status(&tenant(&json!(["mine"]), &json!({})), &host),
            patch(&protected)
        );
        assert_eq!(
            sync_status(&tenant(&protected, &json!({})), &host),
            [TenantWrite::Status(allocated.clone())]
        );
        assert_eq!(
            sync_status(&tenant(&protected, &allocated), &free),
            [TenantWrite::Status(json!({})), then.clone()]
        );
        assert_eq!(
            sync_status(&tenant(&protected, &json!({})), &free),
            patch(&json!(["mine"]))
        );
        let mut deleted = tenant(&json!(["mine"]), &json!({}));
        deleted["metadata"]["deletionTimestamp"] = "now".into();
        assert_eq!(sync_status(&deleted, &host), [TenantWrite::Status(allocated)]);
        assert!(matches!(KIND.rules_to_host(), Some(rules) if !rules.finishes_deletion()));
    }
}
