//! Claims of devices in pods whose users are limited: a pod gets the claims that control has counted, and no others of the same name.
//!
//! Control takes the gate of a pod off when its claims are within the limits of its user. A host pod names claims by their names, and these can
//! be deleted and made again with more devices before the scheduler has tried the pod. So a claim is not created on the host while a host
//! pod waits for a node that names it. Such a pod is replaced first: it gets its gate again, and control counts the new claim.

use crate::model::{
    Cache, KindId,
    references::Target,
    resource::{Key, Name},
    store::is_origin,
};

/// Whether the claim is not on the host, and must not be created there yet because a host pod waits that names it.
pub fn is_held(cache: &Cache, claim: &Name) -> bool {
    let waits = |pod: &Key| {
        let host = cache.stores.host(KindId::Pod).get(&pod.name);
        host.is_some_and(|host| !host.has_node)
    };
    if !is_missing(cache, claim) {
        return false;
    }
    let target = KindId::ResourceClaim.key(claim.clone());
    let references = cache.references();
    references.users_that_are_pods(&target).any(waits)
        || references
            .left_out_on_host()
            .any(|user| may_name(user, claim) && waits(user))
}

/// Whether an object for whose references there is no room is a pod that may name the claim.
fn may_name(user: &Key, claim: &Name) -> bool {
    user.kind == KindId::Pod && user.name.namespace == claim.namespace
}

/// Whether one of the claims that a pod names is not on the host, but could be: a host pod of it that waits for a node is to be replaced.
pub fn is_outdated(cache: &Cache, named: &[(String, Target)]) -> bool {
    let is_missing =
        |(_, target): &(String, Target)| target.kind == KindId::ResourceClaim && is_missing(cache, &target.name);
    cache.tenant.users.are_limited && named.iter().any(is_missing)
}

/// The pods that a change of a claim in the tenant concerns: none once the host has this claim.
pub fn find_pods(cache: &Cache, claim: &Name) -> Vec<Key> {
    if !is_missing(cache, claim) {
        return Vec::new();
    }
    let mut pods = cache.keys_that_reference(KindId::Pod, &KindId::ResourceClaim.key(claim.clone()));
    let references = cache.references();
    let unknown = references.left_out_on_host().filter(|user| may_name(user, claim));
    pods.extend(unknown.cloned());
    pods
}

/// Whether limits hold and the tenant has a claim that the host does not have: only one of the same name, or none.
fn is_missing(cache: &Cache, claim: &Name) -> bool {
    let Some(tenant) = cache.stores.tenant(KindId::ResourceClaim).get(claim) else {
        return false;
    };
    let host = cache.stores.host(KindId::ResourceClaim).get(claim);
    cache.tenant.users.are_limited && host.is_none_or(|host| !is_origin(&tenant, &host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{
            DesiredState,
            references::References,
            resource::Side,
            store::Stored,
            tenant::{UserRules, test_tenant},
        },
        registry,
    };
    use berth_api::labels;
    use serde_json::{Value, json};

    fn pod() -> Value {
        json!({"metadata": {"name": "p", "namespace": "ml", "uid": "p", "resourceVersion": "1"},
            "spec": {"containers": [], "resourceClaims": [{"name": "devices", "resourceClaimName": "c"}]}})
    }

    /// A tenant with a pod that waits on the host, and with a claim that is not the one that the host has.
    fn cache(are_limited: bool) -> Cache {
        let mut tenant = test_tenant();
        tenant.users = UserRules {
            are_stamped: true,
            are_limited,
        };
        let cache = registry::new_cache(tenant);
        put_claim(&cache, Side::Tenant, "new");
        put_claim(&cache, Side::Host, "old");
        let name = Name::new("ml", "p");
        cache
            .stores
            .tenant(KindId::Pod)
            .written(name.clone(), Stored::new(&pod()));
        cache.update_dependents(Side::Tenant, KindId::Pod, &name);
        put_host_pod(&cache, None);
        cache
    }

    fn put_claim(cache: &Cache, side: Side, uid: &str) {
        let metadata = match side {
            Side::Tenant => json!({"name": "c", "namespace": "ml", "uid": uid, "resourceVersion": "1"}),
            Side::Host => json!({"name": "c-1", "resourceVersion": "1", "annotations": {labels::ORIGIN_UID: uid}}),
        };
        let claim = Stored::new(&json!({"metadata": metadata, "spec": {}}));
        cache
            .stores
            .of(side, KindId::ResourceClaim)
            .written(Name::new("ml", "c"), claim);
    }

    fn put_host_pod(cache: &Cache, node: Option<&str>) {
        let host = json!({"metadata": {"name": "p-1", "resourceVersion": "1", "annotations": {labels::ORIGIN_UID: "p"}},
            "spec": {"nodeName": node}});
        cache
            .stores
            .host(KindId::Pod)
            .written(Name::new("ml", "p"), Stored::new(&host));
    }

    /// What is to happen to the claim, and to the host pod.
    fn desired(cache: &Cache) -> (DesiredState, DesiredState) {
        let of = |kind: KindId, name: &str, object: &Value| {
            let rules = cache.rules_to_host(kind).unwrap();
            rules.desired_state(cache, &Name::new("ml", name), object)
        };
        (of(KindId::ResourceClaim, "c", &json!({})), of(KindId::Pod, "p", &pod()))
    }

    #[test]
    fn a_replaced_claim_waits_until_no_pod_waits_for_the_one_before() {
        let cache = cache(true);
        assert_eq!(desired(&cache), (DesiredState::Absent, DesiredState::Absent));
        cache.stores.host(KindId::ResourceClaim).forget(&Name::new("ml", "c"));
        assert_eq!(desired(&cache), (DesiredState::Absent, DesiredState::Absent));
        cache.stores.host(KindId::Pod).forget(&Name::new("ml", "p"));
        assert_eq!(desired(&cache), (DesiredState::Sync, DesiredState::Sync));
        // It was created, and then the pod.
        put_claim(&cache, Side::Host, "new");
        put_host_pod(&cache, None);
        assert_eq!(desired(&cache), (DesiredState::Sync, DesiredState::Sync));
    }

    #[test]
    fn a_replaced_claim_waits_for_pods_for_whose_references_there_is_no_room() {
        let cache = cache(true);
        cache.stores.host(KindId::ResourceClaim).forget(&Name::new("ml", "c"));
        *cache.references() = References::new(0);
        let pod = KindId::Pod.key(Name::new("ml", "p"));
        cache.update_dependents(Side::Tenant, KindId::Pod, &pod.name);
        assert_eq!(desired(&cache), (DesiredState::Absent, DesiredState::Absent));
        let keys = cache.update_dependents(Side::Tenant, KindId::ResourceClaim, &Name::new("ml", "c"));
        assert!(keys.contains(&pod));
        cache.stores.host(KindId::Pod).forget(&pod.name);
        assert_eq!(desired(&cache), (DesiredState::Sync, DesiredState::Sync));
    }

    #[test]
    fn pods_that_run_and_users_without_limits_are_left_alone() {
        assert_eq!(desired(&cache(false)), (DesiredState::Sync, DesiredState::Sync));
        let cache = cache(true);
        put_host_pod(&cache, Some("gpu-1"));
        assert_eq!(desired(&cache), (DesiredState::Sync, DesiredState::Sync));
    }

    #[test]
    fn pods_are_looked_at_again_when_a_claim_changes() {
        let claim = Name::new("ml", "c");
        let keys = |cache: &Cache| cache.update_dependents(Side::Tenant, KindId::ResourceClaim, &claim);
        let pod = KindId::Pod.key(Name::new("ml", "p"));
        let limited = cache(true);
        assert!(keys(&limited).contains(&pod));
        put_claim(&limited, Side::Host, "new");
        assert!(!keys(&limited).contains(&pod), "the host has it");
        assert!(!keys(&cache(false)).contains(&pod), "nothing of it changes");
    }
}
