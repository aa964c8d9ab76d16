//! Templates of claims of devices that a pod names. A controller of the host makes a claim of each for the pod that is on the host.
//!
//! What it cannot make it tries again and again, with an Event each time, and at once whenever the pod or the template changes. All tenants share its
//! requests. So a pod comes to the host only when its templates are there, and a template stays there while a pod waits for its claim.

use crate::model::{
    Cache, KindId, json,
    pod_addresses::is_finished,
    references::Target,
    resource::{Key, Name},
    store::{Stored, is_origin},
};
use serde_json::Value;
use std::sync::Arc;

/// Claims that are made of templates for a pod: their names in the pod, and their templates.
fn claims(pod: &Value) -> impl Iterator<Item = (&str, &str)> {
    let claims = json::items(pod, &["spec", "resourceClaims"]).iter();
    claims.filter_map(|claim| {
        let template = json::filled(claim, &["resourceClaimTemplateName"])?;
        Some((json::text(claim, &["name"])?, template))
    })
}

/// Whether claims may be made of templates for a pod: far cheaper than to count them.
fn may_have_any(pod: &Stored) -> bool {
    pod.mentions("resourceClaimTemplateName")
}

/// Number of claims that are made of templates for a pod.
pub fn count(pod: &Value) -> u64 {
    claims(pod).count() as u64
}

/// A pod of the tenant and the host pod that was made for it, as long as it has not ended.
fn pod_on_host(cache: &Cache, pod: &Name) -> Option<(Arc<Stored>, Arc<Stored>)> {
    let tenant = cache.stores.tenant(KindId::Pod).get(pod)?;
    let host = cache.stores.host(KindId::Pod).get(pod)?;
    // Most pods have none: to know that, they are not unpacked.
    (may_have_any(&tenant) && is_origin(&tenant, &host) && !is_finished(&host.object()["status"]))
        .then_some((tenant, host))
}

/// Whether a host pod has a claim, which is named as in the pod.
fn has_claim(host_pod: &Value, claim: &str) -> bool {
    let statuses = json::items(host_pod, &["status", "resourceClaimStatuses"]);
    statuses
        .iter()
        .any(|status| json::text(status, &["name"]) == Some(claim))
}

/// Number of claims that controllers of the host are about to make for the pod of a name.
pub fn count_missing(cache: &Cache, pod: &Name) -> u64 {
    pod_on_host(cache, pod).map_or(0, |(tenant, host)| {
        let (pod, host_pod) = (tenant.object(), host.object());
        let missing = claims(&pod).filter(|(claim, _)| !has_claim(&host_pod, claim));
        missing.count() as u64
    })
}

/// Whether a pod on the host waits for a claim of a template.
pub fn lacks_claim(cache: &Cache, pod: &Name, template: &Name) -> bool {
    pod_on_host(cache, pod).is_some_and(|(tenant, host)| {
        let (tenant_pod, host_pod) = (tenant.object(), host.object());
        let mut of_template = claims(&tenant_pod).filter(|(_, named)| **named == *template.name);
        host.deletion.is_none() && of_template.any(|(claim, _)| !has_claim(&host_pod, claim))
    })
}

/// Whether a pod that names a target must wait until the host has it, although the tenant does not have it: it is a template. Those that a
/// controller of the host makes for another object of the tenant need only that object.
pub fn must_exist(cache: &Cache, target: &Target) -> bool {
    let made_for = |user: &Key| cache.stores.host(user.kind).contains(&user.name);
    target.kind == KindId::ResourceClaimTemplate && {
        let template = target.kind.key(target.name.clone());
        // All pods that wait for a template ask, and again and again.
        !cache.references().users_besides_pods(&template).any(made_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::storage::fixtures::{put_host, put_tenant},
        model::{resource::Side, tenant::test_tenant},
        registry::{self, kind},
    };
    use berth_api::{
        labels,
        sync_policy::{FieldReference, SyncPolicy, SyncedKind},
    };
    use serde_json::json;

    fn name(of: &str) -> Name {
        Name::new("ml", of)
    }

    fn template() -> Key {
        KindId::ResourceClaimTemplate.key(name("one-gpu"))
    }

    fn pod() -> Value {
        json!({"metadata": {"name": "p", "namespace": "ml", "uid": "p", "resourceVersion": "1"}, "spec": {"containers": [], "resourceClaims": [
            {"name": "a", "resourceClaimTemplateName": "one-gpu"}, {"name": "b", "resourceClaimTemplateName": "one-gpu"},
            {"name": "c", "resourceClaimName": "mine"}]}})
    }

    fn put_pod(cache: &Cache) {
        put_tenant(cache, KindId::Pod, &name("p"), &pod());
        cache.update_dependents(Side::Tenant, KindId::Pod, &name("p"));
    }

    /// Puts the pod on the host, with a part of its metadata and its status.
    fn put_host_pod(cache: &Cache, origin: &str, deleted: &Value, status: &Value) {
        let host = json!({"metadata": {"name": "p-1", "resourceVersion": "1", "deletionTimestamp": deleted,
            "annotations": {labels::ORIGIN_UID: origin}}, "spec": {}, "status": status});
        put_host(cache, KindId::Pod, &name("p"), &host);
    }

    fn put_template(cache: &Cache) {
        let object = json!({"metadata": {"name": "one-gpu", "uid": "t", "resourceVersion": "1"}, "spec": {"metadata": {}, "spec": {}}});
        put_tenant(cache, KindId::ResourceClaimTemplate, &template().name, &object);
    }

    fn prerequisites(cache: &Cache) -> Vec<Key> {
        let rules = cache.rules_to_host(KindId::Pod).unwrap();
        rules.prerequisites(cache, &name("p"), &pod())
    }

    #[test]
    fn a_pod_waits_for_its_template_whether_it_exists_or_not_and_not_for_its_claim() {
        let cache = registry::new_cache(test_tenant());
        put_pod(&cache);
        assert_eq!(prerequisites(&cache), [template()]);
        put_template(&cache);
        assert_eq!(prerequisites(&cache), [template()]);
    }

    #[test]
    fn a_template_that_the_host_makes_for_another_object_is_not_waited_for() {
        let mut tenant = test_tenant();
        let kinds = vec![SyncedKind {
            group: "example.com".into(),
            version: "v1".into(),
            kind: "Domain".into(),
            resource: "domains".into(),
            fields: vec!["spec".into()],
            status: false,
            references: vec![FieldReference {
                path: "spec.template".into(),
                kind: "ResourceClaimTemplate".into(),
            }],
            selectors: Vec::new(),
            denied_fields: Vec::new(),
            annotations: Vec::new(),
            labels: Vec::new(),
        }];
        tenant.policy = Arc::new(SyncPolicy {
            kinds,
            ..SyncPolicy::default()
        });
        let cache = registry::new_cache(tenant);
        put_pod(&cache);
        let domains = cache.find_kind_by_name("Domain.example.com").unwrap();
        let domain =
            json!({"metadata": {"name": "d", "uid": "d", "resourceVersion": "1"}, "spec": {"template": "one-gpu"}});
        put_tenant(&cache, domains, &name("d"), &domain);
        cache.update_dependents(Side::Tenant, domains, &name("d"));
        assert_eq!(
            prerequisites(&cache),
            [template()],
            "the host does not have the object yet"
        );
        put_host(&cache, domains, &name("d"), &domain);
        let keys = cache.update_dependents(Side::Host, domains, &name("d"));
        assert_eq!(keys, [KindId::Pod.key(name("p"))], "it looks again");
        assert_eq!(prerequisites(&cache), []);
    }

    #[test]
    fn claims_that_pods_on_the_host_lack_are_counted_until_the_pods_end() {
        let cache = registry::new_cache(test_tenant());
        put_pod(&cache);
        let count = |cache: &Cache| count_missing(cache, &name("p"));
        assert_eq!((super::count(&pod()), count(&cache)), (2, 0));
        put_host_pod(&cache, "p", &Value::Null, &json!({}));
        assert_eq!(count(&cache), 2);
        let status = json!({"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "x"}]});
        put_host_pod(&cache, "p", &Value::Null, &status);
        assert_eq!(count(&cache), 1);
        put_host_pod(&cache, "p", &Value::Null, &json!({"phase": "Succeeded"}));
        assert_eq!(count(&cache), 0);
        put_host_pod(&cache, "another", &Value::Null, &json!({}));
        assert_eq!(count(&cache), 0);
    }

    #[test]
    fn a_template_stays_on_the_host_while_a_pod_there_lacks_its_claim() {
        let cache = registry::new_cache(test_tenant());
        let rules = kind(KindId::ResourceClaimTemplate).rules_to_host().unwrap();
        let stays = || rules.is_needed_on_host(&cache, &template().name);
        put_pod(&cache);
        assert!(!stays(), "it is not on the host");
        let kept = Value::Null;
        let made = |names: &[&str]| {
            let statuses = names.iter().map(|name| json!({"name": name, "resourceClaimName": "x"}));
            json!({"resourceClaimStatuses": statuses.collect::<Vec<_>>()})
        };
        put_host_pod(&cache, "p", &kept, &json!({}));
        assert!(stays());
        put_host_pod(&cache, "p", &kept, &made(&["a"]));
        assert!(stays());
        put_host_pod(&cache, "p", &kept, &made(&["a", "b"]));
        assert!(!stays());
        put_host_pod(&cache, "p", &json!("2026-01-01T00:00:00Z"), &json!({}));
        assert!(!stays(), "nothing is made for a pod that is deleted");
        put_host_pod(&cache, "another", &kept, &json!({}));
        assert!(!stays());
    }
}
