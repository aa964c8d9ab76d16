//! ResourceClaims that the host makes for a pod, mirrored in the tenant as if its own cluster had made them: the
//! controller manager makes them from templates, the scheduler for extended resources that are backed by devices.
//!
//! | field | rule |
//! |---|---|
//! | which | those whose owner is a host pod of the tenant, as long as the tenant's pod exists |
//! | name | the tenant's pod, the name of the claim in the pod, and the five characters that make the host's name unique |
//! | labels | those of the tenant's template, and the host's but for reserved ones |
//! | annotations | the host's but for reserved ones |
//! | owner | the tenant's pod |
//! | spec | the host's |
//! | status | see `status` |
//!
//! The host's claims are stored under their own names, without namespace. Their names in the tenant follow from their
//! pods, and are kept in [`MirrorSources`](crate::model::mirror_sources::MirrorSources).

use super::{claim::RESOURCE_CLAIM, status};
use crate::{
    model::{
        Cache, Dependency, HostNamespace, HostWatch, Kind, KindId, Mirror, json,
        resource::{Key, Name, Resource},
        store::{Stored, WatchSpec},
    },
    translation::metadata,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The kind.
pub const KIND: Kind = Kind::mirror(RESOURCE_CLAIM, &Generated)
    .watch_tenant(WatchSpec::own(RESOURCE_CLAIM).labelled("berth.dev/managed-by=syncer"))
    .watch_host(
        HostNamespace::Workloads,
        WatchSpec::own(RESOURCE_CLAIM)
            .labelled("!berth.dev/managed-by")
            .named_by(host_key),
    )
    .watch_host_when(HostWatch::OnDemand)
    .with_tenant_rights(&[("resourceclaims/status", &["patch"])])
    .depends_on(&[
        Dependency::on_host(KindId::GeneratedClaim, changed),
        Dependency::on_host(KindId::Pod, of_pod),
    ]);

/// Annotation of claims made from a template: the name of the claim in the pod.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Annotation of claims made for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// Stands for the name of the pod's claim in the name of a claim for extended resources.
pub const EXTENDED_CLAIM: &str = "extended-resources";
/// Characters that an API server adds to a `generateName`.
const RANDOM: usize = 5;
/// Longest name before those characters.
const LONGEST_BASE: usize = 58;

fn host_key(claim: &Value) -> Option<Name> {
    Some(Name::new("", json::text(claim, &["metadata", "name"])?))
}

/// The tenant's name of a claim that the host calls `host_name`, for the claim `claim` of the pod `pod`.
pub fn mirrored_name(pod: &str, claim: &str, host_name: &str) -> String {
    let random = &host_name[host_name.floor_char_boundary(host_name.len().saturating_sub(RANDOM))..];
    let claim = &claim[..claim.floor_char_boundary(LONGEST_BASE / 2)];
    let pod_length = LONGEST_BASE - claim.len() - 2;
    let pod = pod[..pod.floor_char_boundary(pod_length)].trim_end_matches(['.', '-']);
    format!("{pod}-{claim}-{random}")
}

/// The name of the host's pod that owns a claim, and which of its claims it is.
fn owner(claim: &Value) -> Option<(&str, &str)> {
    let pod = json::items(claim, &["metadata", "ownerReferences"])
        .iter()
        .find(|owner| json::text(owner, &["kind"]) == Some("Pod"))?;
    let annotation = |key| json::text(claim, &["metadata", "annotations", key]);
    let which = match annotation(EXTENDED) {
        Some("true") => EXTENDED_CLAIM,
        _ => annotation(POD_CLAIM)?,
    };
    Some((json::text(pod, &["name"])?, which))
}

/// Keys to reconcile because a claim on the host was added, changed or deleted.
pub fn changed(cache: &Cache, host_name: &Name) -> Vec<Key> {
    let stored = cache.stores.host(KindId::GeneratedClaim).get(host_name);
    let claim = stored.map(|stored| stored.object()).unwrap_or_default();
    let mirrored = owner(&claim).and_then(|(pod, which)| {
        let pod = cache.stores.host(KindId::Pod).tenant_name(pod)?;
        Some(Name::new(
            &pod.namespace,
            &mirrored_name(&pod.name, which, &host_name.name),
        ))
    });
    let keys = mirrored
        .map(|name| KindId::GeneratedClaim.key(name))
        .into_iter()
        .collect();
    cache
        .mirror_sources()
        .set(&KindId::GeneratedClaim.key(host_name.clone()), keys)
}

/// Keys to reconcile because a host pod has changed: the claims that its status names. They may have been created
/// before it was observed.
pub fn of_pod(cache: &Cache, pod: &Name) -> Vec<Key> {
    let pod = cache.stores.host(KindId::Pod).get(pod);
    // Most pods have none: to know that, they are not unpacked.
    let may_name_some = |pod: &Arc<Stored>| pod.fresh_object().is_some() || pod.mentions("resourceClaimName");
    let Some(pod) = pod.filter(may_name_some) else {
        return Vec::new();
    };
    let mut keys = Vec::new();
    for name in names_in(&pod.object()["status"]) {
        let name = Name::new("", &name);
        keys.extend(changed(cache, &name));
        // The watch of these claims may wait for the first of them.
        keys.push(KindId::GeneratedClaim.key(name));
    }
    keys
}

/// The host's names of the claims that were made for a pod with this status.
fn names_in(status: &Value) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |value: &Value| names.extend(value.as_str().map(ToOwned::to_owned));
    json::each(status, "resourceClaimStatuses[].resourceClaimName", &mut add);
    json::each(status, "extendedResourceClaimStatus.resourceClaimName", &mut add);
    names
}

/// Labels of the mirrored claim `name` for the host's claim of the tenant's pod. Those of the template stay on the claim when the template is gone, as
/// in any cluster.
fn labels(cache: &Cache, name: &Name, pod: &Value, host: &Value) -> Map<String, Value> {
    let which = json::text(host, &["metadata", "annotations", POD_CLAIM]);
    let claims = json::items(pod, &["spec", "resourceClaims"]).iter();
    let template = claims
        .filter(|claim| which.is_some() && json::text(claim, &["name"]) == which)
        .find_map(|claim| json::text(claim, &["resourceClaimTemplateName"]))
        .and_then(|template| {
            let templates = cache.stores.tenant(KindId::ResourceClaimTemplate);
            templates.get(&Name::new(&name.namespace, template))
        });
    let mut labels = match template {
        Some(template) => metadata::mirrored_labels(&template.object()["spec"]),
        None => cache
            .stores
            .tenant(KindId::GeneratedClaim)
            .get(name)
            .map(|before| metadata::mirrored_labels(&before.object()))
            .unwrap_or_default(),
    };
    labels.extend(metadata::mirrored_labels(host));
    labels
}

struct Generated;

impl Mirror for Generated {
    fn resource(&self) -> Resource {
        RESOURCE_CLAIM
    }

    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value> {
        let source = cache
            .mirror_sources()
            .source(&KindId::GeneratedClaim.key(name.clone()))?;
        let host = cache.stores.host(KindId::GeneratedClaim).get(&source.name)?.object();
        let pods = cache.stores.host(KindId::Pod);
        let pod_name = pods.tenant_name(owner(&host)?.0)?;
        let pod = cache.stores.tenant(KindId::Pod).get(&pod_name)?;
        let same = pods.get(&pod_name)?.origin_uid.as_deref() == Some(&*pod.uid);
        let before = cache.stores.tenant(KindId::GeneratedClaim).get(name);
        let before = before.map(|claim| claim.object()["status"].clone()).unwrap_or_default();
        same.then(|| {
            json!({
                "metadata": {
                    "labels": labels(cache, name, &pod.object(), &host),
                    "annotations": metadata::mirrored_annotations(&host),
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Pod", "name": &*pod_name.name, "uid": &*pod.uid, "controller": true,
                    }],
                },
                "spec": host["spec"],
                "status": status::sync_status(cache, name, &host, &before),
            })
        })
    }

    fn has_status(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        resource::{Side, host_name},
        store::Stored,
        tenant::test_tenant,
    };
    use crate::registry;
    use berth_api::labels;

    fn pod() -> Name {
        Name::new("research", "train-0")
    }

    fn put_pods(cache: &Cache, status: &Value) -> Vec<Key> {
        let host = json!({"metadata": {"name": host_name(KindId::Pod, &pod()), "uid": "host-uid", "resourceVersion": "1",
            "annotations": {labels::ORIGIN_UID: "tenant-uid"}}, "status": status});
        cache.stores.host(KindId::Pod).written(pod(), Stored::new(&host));
        let tenant = json!({"metadata": {"name": "train-0", "uid": "tenant-uid", "resourceVersion": "1"}});
        cache.stores.tenant(KindId::Pod).written(pod(), Stored::new(&tenant));
        let mut keys = cache.update_dependents(Side::Host, KindId::Pod, &pod());
        keys.retain(|key| key.kind == KindId::GeneratedClaim);
        keys
    }

    fn put_claim(cache: &Cache, annotations: &Value, name: &str) -> Vec<Key> {
        let pod = host_name(KindId::Pod, &pod());
        let claim = json!({"metadata": {"name": name, "resourceVersion": "1", "annotations": annotations, "labels": {"team": "vision"},
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "host-uid", "controller": true}]},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
            "status": {"reservedFor": [{"resource": "pods", "name": pod, "uid": "host-uid"}], "allocation": {"devices": {"results": []}}}});
        let key = Name::new("", name);
        cache
            .stores
            .host(KindId::GeneratedClaim)
            .written(key.clone(), Stored::new(&claim));
        cache.update_dependents(Side::Host, KindId::GeneratedClaim, &key)
    }

    #[test]
    fn a_claim_of_a_template_is_the_tenants_pods() {
        let cache = registry::new_cache(test_tenant());
        put_pods(&cache, &json!({}));
        let keys = put_claim(
            &cache,
            &json!({POD_CLAIM: "gpu", "note": "n"}),
            "train-0-abcdefghijklm-gpu-x7k2p",
        );
        let mirrored = Name::new("research", "train-0-gpu-x7k2p");
        assert_eq!(keys, [KindId::GeneratedClaim.key(mirrored.clone())]);
        insta::assert_yaml_snapshot!(Generated.mirrored_object(&cache, &mirrored).unwrap());
        // Reconciling the host's own key does nothing.
        assert_eq!(
            Generated.mirrored_object(&cache, &Name::new("", "train-0-abcdefghijklm-gpu-x7k2p")),
            None
        );
    }

    #[test]
    fn a_claim_of_a_template_has_the_labels_that_the_template_has_in_the_tenant() {
        let cache = registry::new_cache(test_tenant());
        put_pods(&cache, &json!({}));
        let tenant = json!({"metadata": {"name": "train-0", "uid": "tenant-uid", "resourceVersion": "2"},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}});
        cache.stores.tenant(KindId::Pod).written(pod(), Stored::new(&tenant));
        let template = json!({"metadata": {"name": "gpus", "resourceVersion": "1"},
            "spec": {"metadata": {"labels": {"project": "p", "berth.dev/tenant": "other"}}, "spec": {}}});
        let (templates, template_name) = (
            cache.stores.tenant(KindId::ResourceClaimTemplate),
            Name::new("research", "gpus"),
        );
        templates.written(template_name.clone(), Stored::new(&template));
        let mirrored = put_claim(&cache, &json!({POD_CLAIM: "gpu"}), "train-0-abcdefghijklm-gpu-x7k2p").remove(0);
        let labels =
            |cache: &Cache| Generated.mirrored_object(cache, &mirrored.name).unwrap()["metadata"]["labels"].take();
        assert_eq!(labels(&cache), json!({"project": "p", "team": "vision"}));
        // It keeps them when the template is gone.
        let claim = json!({"metadata": {"name": &*mirrored.name.name, "resourceVersion": "1", "labels": labels(&cache)}, "status": {}});
        let claims = cache.stores.tenant(KindId::GeneratedClaim);
        claims.written(mirrored.name.clone(), Stored::new(&claim));
        templates.forget(&template_name);
        assert_eq!(labels(&cache), json!({"project": "p", "team": "vision"}));
    }

    #[test]
    fn a_generated_claim_that_precedes_its_pod_is_mirrored_once_the_pod_names_it() {
        let cache = registry::new_cache(test_tenant());
        let host = "train-0-abcdefghijklm-extended-resources-abcde";
        assert_eq!(put_claim(&cache, &json!({EXTENDED: "true"}), host), []);
        let keys = put_pods(
            &cache,
            &json!({"extendedResourceClaimStatus": {"resourceClaimName": host}}),
        );
        let mirrored = KindId::GeneratedClaim.key(Name::new("research", "train-0-extended-resources-abcde"));
        assert_eq!(
            keys,
            [mirrored.clone(), KindId::GeneratedClaim.key(Name::new("", host))]
        );
        assert!(Generated.mirrored_object(&cache, &mirrored.name).is_some());
    }

    #[test]
    fn a_generated_claim_is_removed_with_the_host_claim_and_with_the_tenants_pod() {
        let cache = registry::new_cache(test_tenant());
        put_pods(&cache, &json!({}));
        let host = Name::new("", "train-0-abcdefghijklm-gpu-x7k2p");
        let mirrored = put_claim(&cache, &json!({POD_CLAIM: "gpu"}), &host.name).remove(0);
        let recreated = json!({"metadata": {"name": "train-0", "uid": "another", "resourceVersion": "2"}});
        cache.stores.tenant(KindId::Pod).written(pod(), Stored::new(&recreated));
        assert_eq!(Generated.mirrored_object(&cache, &mirrored.name), None);
        cache.stores.host(KindId::GeneratedClaim).forget(&host);
        assert_eq!(
            cache.update_dependents(Side::Host, KindId::GeneratedClaim, &host),
            std::slice::from_ref(&mirrored)
        );
        assert_eq!(cache.mirror_sources().source(&mirrored), None);
    }

    #[test]
    fn generated_names_are_never_too_long() {
        assert_eq!(mirrored_name("a", "gpu", "a-abcdefghijklm-gpu-12345"), "a-gpu-12345");
        let long = mirrored_name(&format!("{}.b", "a".repeat(200)), &"c".repeat(63), "x-12345");
        assert!(long.len() <= 63 && long.ends_with("-12345"), "{long}");
        assert_eq!(
            mirrored_name(&format!("{}.b", "a".repeat(52)), "gpu", "x-12345"),
            format!("{}-gpu-12345", "a".repeat(52))
        );
    }
}
