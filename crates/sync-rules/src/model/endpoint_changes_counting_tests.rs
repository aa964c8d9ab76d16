//! What counts as a change of endpoints.

use super::*;
use crate::model::{resource::Side, tenant::test_tenant};
use crate::registry;
use serde_json::json;

/// A Service on the host without a selector.
fn without_selector(applied: u64) -> Option<Written> {
    let mut state = written(1, applied)?;
    state.selects = false;
    Some(state)
}

#[test]
fn services_that_are_not_on_the_host_do_not_count() {
    let mut fixture = Fixture::new(0);
    for number in 0..=AT_ONCE {
        fixture.changes.set_selector(&service(number), labels(&[("app", "a")]));
    }
    assert!(fixture.flip("a", &[("app", "a")]).is_empty());
    assert!(fixture.changes.activities.is_empty());
}

#[test]
fn only_what_changes_endpoints_counts() {
    let mut fixture = Fixture::new(1);
    let app = || Some(labels(&[("app", "a")]));
    let changes = &mut fixture.changes;
    changes.set_pod(&pod("a"), Some((1, 1)), app, false);
    assert!(!changes.activities.contains_key(&service(0)), "it was listed");
    changes.set_pod(&pod("a"), Some((1, 1)), || panic!("nothing has changed"), true);
    changes.set_pod(&pod("a"), Some((1, 2)), app, true);
    assert!(!fixture.has_counted(&service(0)), "an annotation");
    for (state, pairs) in [
        (Some((1, 3)), labels(&[("app", "a"), ("version", "2")])),
        (Some((2, 3)), labels(&[("app", "not-written-yet")])),
        (None, Labels::new()),
        (Some((2, 3)), labels(&[("app", "a")])),
    ] {
        fixture.changes.activities.clear();
        fixture.changes.set_pod(&pod("a"), state, || Some(pairs), true);
        assert!(fixture.has_counted(&service(0)), "{state:?}");
    }
}

#[test]
fn services_of_old_labels_count_as_those_of_new_ones() {
    let mut fixture = Fixture::new(0);
    fixture.add(&service(0), &[("app", "a")]);
    fixture.add(&service(1), &[("app", "b")]);
    fixture
        .changes
        .set_pod(&pod("p"), Some((1, 1)), || Some(labels(&[("app", "a")])), false);
    fixture
        .changes
        .set_pod(&pod("p"), Some((1, 2)), || Some(labels(&[("app", "b")])), true);
    assert!(fixture.has_counted(&service(0)) && fixture.has_counted(&service(1)));
    fixture.changes.activities.clear();
    // It was deleted in the tenant without waiting for the host.
    for state in [Some((2, 3)), None] {
        fixture.changes.activities.clear();
        fixture.changes.set_pod(&pod("p"), state, || None, true);
        assert!(!fixture.has_counted(&service(0)) && fixture.has_counted(&service(1)));
    }
    assert!(fixture.changes.pods.is_empty());
}

#[test]
fn writes_of_a_service_count_and_its_creation_does_not() {
    let mut fixture = Fixture::new(0);
    let name = service(0);
    for (state, counts) in [
        (written(1, 1), false),
        (written(1, 1), false),
        // Its reservation becomes its own, at once.
        (written(1, 2), false),
    ] {
        fixture.changes.set_written(&name, state, true);
        assert_eq!(fixture.has_counted(&name), counts, "{state:?}");
    }
    fixture.pass(10);
    fixture.changes.set_written(&name, written(1, 3), true);
    assert!(fixture.has_counted(&name));
    // The host makes no endpoints for it.
    let other = Name::new("team", "without-selector");
    for applied in 1..3 {
        fixture.changes.set_written(&other, without_selector(applied), true);
    }
    assert!(!fixture.changes.activities.contains_key(&other));
    // An earlier release left it without a selector, and it gets its own: no team causes that, so no Service is closed.
    fixture.use_up();
    let mut own = written(1, 3);
    own.as_mut().unwrap().is_own = true;
    assert!(fixture.changes.set_written(&other, own, true).is_empty());
    let changed = Name::new("team", "gets-a-selector");
    fixture.changes.set_written(&changed, without_selector(1), false);
    assert_eq!(fixture.changes.set_written(&changed, written(1, 2), true).len(), 1);
}

#[test]
fn the_states_of_both_sides_are_followed() {
    let cache = registry::new_cache(test_tenant());
    let put = |side: Side, kind: KindId, name: &Name, object: Value| {
        cache.stores.of(side, kind).watched(name.clone(), Stored::from(object));
        cache.update_dependents(side, kind, name)
    };
    let counted = || {
        let activity = cache.endpoint_changes().activities.remove(&service(0));
        activity.is_some_and(|activity| activity.score >= 1.0)
    };
    let written = |version: &str, hash: &str| {
        json!({"metadata": {"name": "s-x", "uid": "h", "resourceVersion": version, "annotations": {"berth.dev/applied-hash": hash}},
            "spec": {"selector": {"pod.berth.dev/app": "a"}}})
    };
    put(Side::Host, KindId::Service, &service(0), written("1", "a"));
    // The host's is older: the change waits, or was rejected after its reservation.
    let spec = json!({"metadata": {"name": "s0000", "resourceVersion": "1"}, "spec": {"selector": {"app": "quiet"}}});
    put(Side::Tenant, KindId::Service, &service(0), spec);
    let inside = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"app": "a"}}});
    put(Side::Tenant, KindId::Pod, &pod("a"), inside);
    let host = |version: &str, address: &str, ready: &str, phase: &str| {
        json!({"metadata": {"name": "a-x", "resourceVersion": version}, "status": {"phase": phase, "podIP": address,
            "conditions": [{"type": "Ready", "status": ready}]}})
    };
    put(
        Side::Host,
        KindId::Pod,
        &pod("a"),
        host("1", "10.0.0.1", "False", "Running"),
    );
    assert!(!counted(), "the pods are not listed yet");
    cache.stores.host(KindId::Pod).set_listed();
    for (version, address, ready, phase, counts) in [
        ("2", "10.0.0.1", "False", "Running", false),
        ("3", "10.0.0.1", "True", "Running", true),
        ("4", "10.0.0.2", "True", "Running", true),
        ("5", "10.0.0.2", "True", "Succeeded", true),
        ("6", "", "False", "Succeeded", false),
    ] {
        put(Side::Host, KindId::Pod, &pod("a"), host(version, address, ready, phase));
        assert_eq!(counted(), counts, "{version}");
    }
    let mut inert = written("2", "b");
    inert["spec"]["selector"][labels::ENDPOINTS] = labels::ENDPOINTS_NONE.into();
    put(Side::Host, KindId::Service, &service(0), inert);
    counted();
    put(
        Side::Host,
        KindId::Pod,
        &pod("a"),
        host("7", "10.0.0.3", "True", "Running"),
    );
    assert!(!counted(), "it selects no pod");
    assert!(cache.endpoint_changes().may_create());
    put(Side::Host, KindId::Service, &service(0), written("2", "b"));
    assert!(!counted(), "the Services are not listed yet");
    cache.stores.host(KindId::Service).set_listed();
    put(Side::Host, KindId::Service, &service(0), written("3", "c"));
    assert!(counted());
}

#[test]
fn labels_that_the_host_sets_itself_are_not_compared() {
    let zone = "topology.kubernetes.io/zone";
    let service = |selector: Value| {
        let mut selector = selector;
        selector[labels::TENANT] = "t".into();
        selector[labels::TENANT_OBJECT_NAMESPACE] = "team".into();
        selector_of(&json!({"spec": {"selector": selector}}))
    };
    let host = |pairs: &[(&str, &str)]| labels(pairs);
    assert_eq!(
        service(json!({zone: "a", "pod.berth.dev/app": "a"})),
        host(&[("pod.berth.dev/app", "a")])
    );
    let all = host(&[(labels::TENANT_OBJECT_NAMESPACE, "team")]);
    assert_eq!(service(json!({zone: "a"})), all, "all pods of the namespace");
    let of_pod = |own: Value| labels_of(&pod("a"), &json!({"metadata": {"labels": own}}));
    assert_eq!(of_pod(json!({zone: "a"})), all);
    assert_eq!(
        of_pod(json!({"app": "a", "job-name": "j"})),
        host(&[
            (labels::TENANT_OBJECT_NAMESPACE, "team"),
            ("job-name", "j"),
            ("pod.berth.dev/app", "a")
        ])
    );
}
