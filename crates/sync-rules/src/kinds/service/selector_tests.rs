//! Which pods a Service selects on the host.

use super::*;
use crate::{model::tenant::test_tenant, registry, translation::pod_labels::labels_of};
use std::sync::Arc;

#[test]
fn a_service_selects_pods_by_any_label() {
    let cache = registry::new_cache(test_tenant());
    let labels = json!({"app": "a", "istio.io/rev": "r", "volcano.sh/job-name": "train", "berth.dev/tenant": "other",
        "statefulset.kubernetes.io/pod-name": "db-0"});
    let pod = labels_of(&json!({"metadata": {"labels": labels}}), &[]);
    let service = json!({"metadata": {}, "spec": {"selector": labels}});
    let translated = Services.translate(&cache, &Name::new("shop", "web"), &service).unwrap();
    assert!(translated.ignored.is_empty());
    let selector = translated.object["spec"]["selector"].as_object().unwrap();
    assert_eq!(selector.len(), pod.len() + 2);
    for (key, value) in selector {
        let scope = [labels::TENANT, labels::TENANT_OBJECT_NAMESPACE].contains(&key.as_str());
        assert!(scope || pod.get(key) == Some(value), "{key}");
    }
    assert_eq!(selector[labels::TENANT], cache.tenant.slug);
}

/// The host's controllers make nothing of a Service without a selector, also not of the endpoints that they have made before: a pod of another tenant
/// would get an address that is still there.
#[test]
fn a_service_that_loses_its_selector_selects_no_pod() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let selector_of = |version: u64, selector: &Value| {
        let service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": selector, "ports": [{"port": 80}]}});
        let host = Services.translate(&cache, &name, &service).unwrap().object;
        assert!(
            !selects_nothing(&host),
            "what is written of it waits for its turn: {host}"
        );
        let stored = json!({"metadata": {"name": "web", "resourceVersion": version.to_string()}, "spec": host["spec"]});
        let store = cache.stores.host(KindId::Service);
        store.written(name.clone(), Stored::new(&stored));
        host["spec"]["selector"].clone()
    };
    assert_eq!(selector_of(1, &Value::Null), Value::Null, "it never had one");
    let pods = selector_of(2, &json!({"app": "web"}));
    assert_eq!(pods["pod.berth.dev/app"], "web");
    let own = json!({(labels::TENANT): cache.tenant.slug, (labels::TENANT_OBJECT_NAMESPACE): "shop", (labels::ENDPOINTS): labels::ENDPOINTS_OWN});
    for (version, selector) in [(3, Value::Null), (4, json!({})), (5, Value::Null)] {
        assert_eq!(selector_of(version, &selector), own, "{selector}");
    }
    assert_eq!(selector_of(6, &json!({"app": "web"})), pods, "it has one again");
}

/// An earlier release took the selector away on the host as well, so that endpoints of the host's controllers stayed.
#[test]
fn a_service_that_may_have_lost_its_selector_before_selects_no_pod() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    let service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]}});
    let selector_beside = |version: u64, annotations: &Value, spec: &Value| {
        let metadata = json!({"name": "web", "resourceVersion": version.to_string(), "annotations": annotations});
        let host = Stored::from(json!({"metadata": metadata, "spec": spec}));
        cache.stores.host(KindId::Service).written(name.clone(), host);
        let translated = Services.translate(&cache, &name, &service).unwrap().object;
        translated["spec"]["selector"].get(labels::ENDPOINTS).cloned()
    };
    let without = json!({"spec": {"ports": []}});
    let record = Some((labels::ENDPOINTS, labels::ENDPOINTS_OWN));
    assert_eq!(
        Services.record(&cache, &name, &without),
        None,
        "the host may have it already"
    );
    cache.stores.host(KindId::Service).set_listed();
    assert_eq!(Services.record(&cache, &name, &without), record, "it is new");
    let own = Some(json!(labels::ENDPOINTS_OWN));
    assert_eq!(selector_beside(1, &json!({}), &json!({})), own);
    assert_eq!(
        Services.record(&cache, &name, &without),
        None,
        "also if a part of it is written alone"
    );
    let recorded = json!({(labels::ENDPOINTS): labels::ENDPOINTS_OWN});
    assert_eq!(selector_beside(2, &recorded, &json!({})), None, "it never had one");
    assert_eq!(Services.record(&cache, &name, &without), record);
    let selecting = json!({"selector": {"pod.berth.dev/app": "web"}});
    assert_eq!(Services.record(&cache, &name, &json!({"spec": selecting})), None);
    assert_eq!(selector_beside(3, &recorded, &selecting), own);
}

#[test]
fn a_service_that_is_closed_and_loses_its_selector_is_not_denied_one() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    cache.endpoint_changes().close(&name);
    let is_denied = |selector: Value| {
        let service = json!({"spec": {"selector": selector, "ports": [{"port": 80}]}});
        Services.translate(&cache, &name, &service).is_err()
    };
    assert!(is_denied(json!({"app": "web"})));
    assert!(!is_denied(Value::Null) && !is_denied(json!({})));
}

#[test]
fn a_service_that_changes_too_often_selects_no_pod_and_keeps_its_ways_in() {
    let mut tenant = test_tenant();
    tenant.host_limits.endpoint_changes_per_second = 1;
    Arc::make_mut(&mut tenant.policy).services.node_ports = true;
    let cache = registry::new_cache(tenant);
    let name = Name::new("shop", "web");
    let service = json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.7.7", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30080}]}});
    let open = Services.translate(&cache, &name, &service).unwrap().object;
    cache.endpoint_changes().close(&name);
    let denied = Services.translate(&cache, &name, &service).unwrap_err();
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0].field, "spec.selector");
    let message = denied[0].to_string();
    assert!(message.contains("spec.limits.endpointChangesPerSecond"), "{message}");
    let WhenDenied::Reduce(reduced) = Services.when_denied(&cache, &name, &service, &Value::Null) else {
        panic!("it is not reduced");
    };
    let selector = &reduced["spec"]["selector"];
    assert_eq!(selector[labels::ENDPOINTS], labels::ENDPOINTS_NONE);
    assert_eq!(selector[labels::TENANT_OBJECT_NAMESPACE], "shop");
    assert_eq!(reduced["spec"]["clusterIP"], "10.96.7.7");
    assert_eq!(
        (&reduced["spec"]["type"], &reduced["spec"]["ports"][0]["nodePort"]),
        (&json!("NodePort"), &json!(30080))
    );
    let is_at_once = |version: u64, mut on_host: Value| {
        on_host["metadata"]["resourceVersion"] = version.to_string().into();
        cache
            .stores
            .host(KindId::Service)
            .written(name.clone(), Stored::from(on_host));
        Services.reduces_at_once(&cache, &name, &reduced)
    };
    assert!(is_at_once(1, open));
    assert!(
        !is_at_once(2, reduced.clone()),
        "it is closed, and what its team changes while it is waits"
    );
}

#[test]
fn a_closed_service_with_a_denied_field_loses_both() {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("shop", "web");
    cache.endpoint_changes().close(&name);
    let service =
        json!({"spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30080}]}});
    assert_eq!(Services.translate(&cache, &name, &service).unwrap_err().len(), 2);
    let WhenDenied::Reduce(reduced) = Services.when_denied(&cache, &name, &service, &Value::Null) else {
        panic!("it is not reduced");
    };
    assert_eq!(reduced["spec"]["type"], "ClusterIP");
    assert_eq!(reduced["spec"]["selector"][labels::ENDPOINTS], labels::ENDPOINTS_NONE);
}

#[test]
fn a_service_that_was_opened_since_it_was_denied_keeps_its_ways_in() {
    let mut tenant = test_tenant();
    Arc::make_mut(&mut tenant.policy).services.node_ports = true;
    let cache = registry::new_cache(tenant);
    let name = Name::new("shop", "web");
    let service =
        json!({"spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "nodePort": 30080}]}});
    let reduced = |when_denied: WhenDenied| {
        let WhenDenied::Reduce(reduced) = when_denied else {
            panic!("it is not reduced");
        };
        assert_eq!(reduced["spec"]["selector"].get(labels::ENDPOINTS), None);
        (
            reduced["spec"]["type"].clone(),
            reduced["spec"]["ports"][0].get("nodePort").cloned(),
        )
    };
    assert_eq!(
        reduced(Services.when_denied(&cache, &name, &service, &Value::Null)),
        (json!("NodePort"), Some(json!(30080)))
    );
    // What the host refuses is not what it is reduced to.
    assert_eq!(
        reduced(Services.when_refused(&cache, &name, &service, &Value::Null)),
        (json!("ClusterIP"), None)
    );
}

#[test]
fn a_service_that_the_tenant_may_still_reject_leads_to_no_new_pods() {
    let selector = |app: &str| json!({"berth.dev/tenant": "t", "pod.berth.dev/app": app});
    let desired = json!({"spec": {"type": "NodePort", "selector": selector("db")}});
    let mut nowhere = selector("db");
    nowhere[labels::ENDPOINTS] = labels::ENDPOINTS_NONE.into();
    assert_eq!(
        Services.reserved(desired.clone(), None),
        json!({"spec": {"type": "NodePort", "selector": nowhere}})
    );
    let live = json!({"spec": {"type": "ClusterIP", "selector": selector("web")}});
    assert_eq!(
        Services.reserved(desired.clone(), Some(&live)),
        json!({"spec": {"type": "NodePort", "selector": selector("web")}})
    );
    let without = json!({"spec": {"type": "ClusterIP"}});
    assert_eq!(Services.reserved(without.clone(), None), without);
    assert_eq!(
        Services.reserved(desired, Some(&without))["spec"]["selector"],
        Value::Null
    );
}
