//! Tests of what counts as a change of endpoints, and of what is closed.

use super::*;
use crate::model::{resource::Side, store::Stored, tenant::test_tenant};
use crate::registry;
use serde_json::json;

/// Changes that are allowed at once, with one a second.
const AT_ONCE: usize = 600;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn service(number: usize) -> Name {
    Name::new("team", &format!("s{number:04}"))
}

fn pod(name: &str) -> Name {
    Name::new("team", name)
}

/// Services, of which each selects all pods with the label `app: a`.
struct Fixture {
    changes: EndpointChanges,
    now: Instant,
    state: u64,
}

impl Fixture {
    fn new(services: usize) -> Self {
        let now = Instant::now();
        let mut changes = EndpointChanges::new(1, now);
        for number in 0..services {
            changes.set_selector(&service(number), labels(&[("app", "a")]));
        }
        Self { changes, now, state: 0 }
    }

    fn pass(&mut self, seconds: u64) -> Vec<Name> {
        self.now += Duration::from_secs(seconds);
        self.changes.tick(self.now)
    }

    /// The readiness of a pod with these labels changes. Returns what is closed.
    fn flip(&mut self, name: &str, pairs: &[(&str, &str)]) -> Vec<Name> {
        self.state += 1;
        self.changes
            .set_pod(&pod(name), Some((self.state, 0)), || labels(pairs), true)
    }
}

#[test]
fn a_pod_that_flips_closes_services_beyond_what_is_allowed_at_once() {
    let mut fixture = Fixture::new(AT_ONCE);
    assert!(fixture.flip("a", &[("app", "a")]).is_empty(), "as many as are allowed");
    let mut fixture = Fixture::new(AT_ONCE + 1);
    let closed = fixture.flip("a", &[("app", "a")]);
    assert_eq!(closed.len(), 1);
    assert!(fixture.changes.is_closed(&closed[0]));
    assert_eq!(fixture.changes.count_closed(), 1);
}

#[test]
fn a_service_counts_once_in_ten_seconds() {
    let mut fixture = Fixture::new(AT_ONCE);
    fixture.flip("a", &[("app", "a")]);
    fixture.pass(9);
    assert!(fixture.flip("a", &[("app", "a")]).is_empty(), "the same Services again");
    fixture.pass(1);
    let closed = fixture.flip("a", &[("app", "a")]).len();
    assert_eq!(closed, AT_ONCE - 10, "ten have grown again");
}

#[test]
fn what_changes_most_is_closed_and_what_is_quiet_goes_on() {
    let mut fixture = Fixture::new(0);
    let (quiet, busy) = (service(9000), service(0));
    fixture.changes.set_selector(&quiet, labels(&[("app", "quiet")]));
    fixture.changes.set_selector(&busy, labels(&[("app", "busy")]));
    for number in 1..300 {
        fixture
            .changes
            .set_selector(&service(number), labels(&[("app", "busy")]));
    }
    fixture.flip("quiet", &[("app", "quiet")]);
    let mut closed = Vec::new();
    while closed.is_empty() {
        fixture.pass(10);
        closed = fixture.flip("busy", &[("app", "busy")]);
    }
    fixture.pass(1);
    closed.extend(fixture.flip("quiet", &[("app", "quiet")]));
    assert!(!closed.contains(&quiet), "{closed:?}");
}

#[test]
fn a_tenant_that_flips_for_ever_is_bounded() {
    const SERVICES: usize = 1000;
    let mut fixture = Fixture::new(SERVICES);
    let mut most = 0;
    for round in 0..200 {
        fixture.pass(10);
        // All that are open change, and those that are opened or closed are among them.
        let changed = SERVICES - fixture.changes.count_closed();
        fixture.flip("a", &[("app", "a")]);
        if round > 1 {
            most = most.max(changed);
        }
    }
    // One a second is allowed.
    assert!(most <= 2 * 10, "{most} Services in ten seconds");
    assert!(fixture.changes.count_closed() < SERVICES, "some are open");
}

#[test]
fn a_service_is_open_again_after_ten_minutes_and_not_before() {
    let mut fixture = Fixture::new(AT_ONCE + 1);
    let closed = fixture.flip("a", &[("app", "a")]);
    assert!(fixture.pass(CLOSED.as_secs() - 1).is_empty());
    // Another one of the same name is the same.
    fixture.changes.set_selector(&closed[0], Labels::new());
    fixture.changes.set_selector(&closed[0], labels(&[("app", "a")]));
    assert!(fixture.changes.is_closed(&closed[0]));
    assert_eq!(fixture.pass(1), closed);
    assert!(!fixture.changes.is_closed(&closed[0]));
    assert!(fixture.pass(1).is_empty(), "once");
    assert!(fixture.flip("b", &[("app", "b")]).is_empty());
}

#[test]
fn only_services_that_select_the_pod_count() {
    let mut fixture = Fixture::new(0);
    let exact = labels(&[("app", "a"), ("tier", "web")]);
    fixture.changes.set_selector(&service(0), exact.clone());
    fixture.changes.set_selector(&service(1), labels(&[("tier", "web")]));
    fixture
        .changes
        .set_selector(&Name::new("other", "s"), labels(&[("tier", "web")]));
    fixture.changes.set_selector(&service(2), Labels::new());
    let selectors = &fixture.changes.selectors;
    let matching = |pairs: &[(&str, &str)]| {
        let mut found = selectors.matching("team", &labels(pairs));
        found.sort();
        found
    };
    assert_eq!(
        matching(&[("tier", "web"), ("app", "a"), ("x", "y")]),
        [service(0), service(1)]
    );
    assert_eq!(matching(&[("tier", "web"), ("app", "b")]), [service(1)]);
    assert!(matching(&[("app", "a")]).is_empty());
    assert!(matching(&[]).is_empty());
    fixture.changes.set_selector(&service(1), labels(&[("tier", "db")]));
    let selectors = &fixture.changes.selectors;
    assert_eq!(selectors.matching("team", &exact), [service(0)]);
    for name in [service(0), service(1), Name::new("other", "s")] {
        fixture.changes.set_selector(&name, Labels::new());
    }
    assert!(fixture.changes.selectors.by_label.is_empty() && fixture.changes.selectors.by_service.is_empty());
}

#[test]
fn only_what_changes_endpoints_counts() {
    let mut fixture = Fixture::new(1);
    let counted = |fixture: &Fixture| fixture.changes.activities.contains_key(&service(0));
    let app = || labels(&[("app", "a")]);
    let changes = &mut fixture.changes;
    changes.set_pod(&pod("a"), Some((1, 1)), app, false);
    assert!(!changes.activities.contains_key(&service(0)), "it was listed");
    changes.set_pod(&pod("a"), Some((1, 1)), || panic!("nothing has changed"), true);
    changes.set_pod(&pod("a"), Some((1, 2)), app, true);
    assert!(!counted(&fixture), "an annotation");
    for (state, pairs) in [
        (Some((1, 3)), labels(&[("app", "a"), ("version", "2")])),
        (Some((2, 3)), app()),
        (None, app()),
        (Some((2, 3)), app()),
    ] {
        fixture.changes.activities.clear();
        fixture.changes.set_pod(&pod("a"), state, || pairs, true);
        assert!(counted(&fixture), "{state:?}");
    }
}

#[test]
fn writes_of_a_service_count_and_its_creation_does_not() {
    let mut fixture = Fixture::new(1);
    let counted = |changes: &EndpointChanges| changes.activities.contains_key(&service(0));
    let changes = &mut fixture.changes;
    assert_eq!(changes.set_written(&service(0), Some("one")), None);
    assert_eq!(changes.set_written(&service(0), Some("one")), None);
    assert!(!counted(changes));
    changes.set_written(&service(0), Some("two"));
    assert!(counted(changes));
    changes.set_written(&service(0), None);
    assert!(changes.written.is_empty());
    // The host makes no endpoints for it.
    let other = Name::new("team", "without-selector");
    changes.set_written(&other, Some("one"));
    changes.set_written(&other, Some("two"));
    assert!(!changes.activities.contains_key(&other));
}

#[test]
fn new_services_take_from_the_same_allowance() {
    let mut fixture = Fixture::new(1);
    for _ in 0..AT_ONCE {
        assert!(fixture.changes.may_add_service());
    }
    assert!(!fixture.changes.may_add_service());
    assert_eq!(fixture.flip("a", &[("app", "a")]), [service(0)]);
    fixture.pass(1);
    assert!(fixture.changes.may_add_service() && !fixture.changes.may_add_service());
}

#[test]
fn the_states_of_both_sides_are_followed() {
    let cache = registry::new_cache(test_tenant());
    let put = |side: Side, kind: KindId, name: &Name, object: Value| {
        cache.stores.of(side, kind).watched(name.clone(), Stored::from(object));
        cache.update_dependents(side, kind, name)
    };
    let counted = || cache.endpoint_changes().activities.remove(&service(0)).is_some();
    let spec = json!({"metadata": {"name": "s0000", "resourceVersion": "1"}, "spec": {"selector": {"app": "a"}}});
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
    let written = |version: &str, hash: &str| json!({"metadata": {"name": "s-x", "resourceVersion": version, "annotations": {"berth.dev/applied-hash": hash}}});
    put(Side::Host, KindId::Service, &service(0), written("1", "a"));
    put(Side::Host, KindId::Service, &service(0), written("2", "b"));
    assert!(counted());
}
