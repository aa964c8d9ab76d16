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

/// A Service on the host with a selector: which object, and what was written of it.
#[expect(clippy::unnecessary_wraps, reason = "`set_written` takes it so")]
fn written(uid: u64, applied: u64) -> Option<Written> {
    Some(Written {
        uid,
        applied,
        selects: true,
        is_own: false,
    })
}

/// The same without a selector.
fn without_selector(applied: u64) -> Option<Written> {
    let mut state = written(1, applied)?;
    state.selects = false;
    Some(state)
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
        let mut fixture = Self {
            changes: EndpointChanges::new(1, now),
            now,
            state: 0,
        };
        // The allowances are whole.
        fixture.pass(ALLOWANCE_SECONDS);
        for number in 0..services {
            fixture.add(&service(number), &[("app", "a")]);
        }
        fixture
    }

    /// Adds a Service that was listed on both sides.
    fn add(&mut self, service: &Name, selector: &[(&str, &str)]) {
        self.changes.set_selector(service, labels(selector));
        self.changes.set_written(service, written(0, 0), false);
    }

    /// Deletes a Service on both sides.
    fn delete(&mut self, service: &Name) {
        self.changes.set_selector(service, Labels::new());
        assert!(self.changes.set_written(service, None, true).is_empty());
    }

    /// Takes all that other Services may change and be made.
    fn use_up(&mut self) {
        while self.changes.pace.take_at_once(1, self.now) {}
        while self.changes.creations.take_at_once(1, self.now) {}
    }

    fn has_counted(&self, service: &Name) -> bool {
        let activity = self.changes.activities.get(service);
        activity.is_some_and(|activity| activity.score >= 1.0)
    }

    fn pass(&mut self, seconds: u64) -> Vec<Name> {
        self.now += Duration::from_secs(seconds);
        self.changes.tick(self.now)
    }

    /// The readiness of a pod with these labels changes. Returns what is closed.
    fn flip(&mut self, name: &str, pairs: &[(&str, &str)]) -> Vec<Name> {
        self.state += 1;
        self.changes
            .set_pod(&pod(name), Some((self.state, 0)), || Some(labels(pairs)), true)
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
fn a_syncer_that_starts_has_a_tenth_of_what_is_allowed_at_once() {
    let mut fixture = Fixture::new(AT_ONCE);
    fixture.changes.pace = EndpointChanges::new(1, fixture.now).pace;
    assert_eq!(fixture.flip("a", &[("app", "a")]).len(), AT_ONCE - AT_ONCE / 10);
    let mut changes = EndpointChanges::new(1, fixture.now);
    for number in 0..AT_ONCE / 10 {
        assert!(changes.may_create());
        assert!(changes.set_written(&service(number), written(1, 1), true).is_empty());
    }
    assert!(!changes.may_create());
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
    fixture.add(&quiet, &[("app", "quiet")]);
    fixture.add(&busy, &[("app", "busy")]);
    for number in 1..300 {
        fixture.add(&service(number), &[("app", "busy")]);
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
fn a_service_that_is_gone_when_its_time_is_over_takes_nothing() {
    let mut fixture = Fixture::new(1);
    fixture.add(&service(1), &[("app", "b")]);
    for name in [service(0), service(1)] {
        fixture.changes.close(&name);
    }
    fixture.delete(&service(0));
    fixture.now += CLOSED;
    fixture.use_up();
    assert_eq!(fixture.pass(0), [service(0)], "nothing is left for the other one");
    assert_eq!(fixture.pass(1), [service(1)]);
    assert!(!fixture.changes.activities.contains_key(&service(0)));
    fixture.delete(&service(1));
    assert!(fixture.changes.activities.is_empty() && fixture.changes.written.is_empty());
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

/// The time that comparing each with all others takes is minutes.
#[test]
fn one_change_of_very_many_services_is_counted_in_one_pass() {
    const SERVICES: usize = 50_000;
    let mut fixture = Fixture::new(SERVICES);
    assert_eq!(fixture.flip("a", &[("app", "a")]).len(), SERVICES - AT_ONCE);
    assert_eq!(fixture.changes.count_closed(), SERVICES - AT_ONCE);
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
fn services_that_a_release_changes_wait_and_none_is_closed() {
    let mut fixture = Fixture::new(AT_ONCE);
    fixture.changes.pace = EndpointChanges::new(1, fixture.now).pace;
    let written_in = |fixture: &mut Fixture| {
        let mut count = 0;
        for number in 0..AT_ONCE {
            let name = service(number);
            let is_done = fixture.changes.written[&name].applied == 1;
            if is_done || !fixture.changes.may_write(&name) {
                continue;
            }
            fixture.changes.begin_write(&name);
            let closed = fixture.changes.set_written(&name, written(0, 1), true);
            assert!(closed.is_empty(), "{closed:?}");
            count += 1;
        }
        count
    };
    assert_eq!(written_in(&mut fixture), 30, "half of what a syncer starts with");
    // Pods have the other half.
    for number in AT_ONCE..AT_ONCE + 30 {
        let app = format!("app-{number}");
        fixture.add(&service(number), &[("app", app.as_str())]);
        assert!(fixture.flip(&app, &[("app", app.as_str())]).is_empty());
    }
    fixture.pass(10);
    assert_eq!(written_in(&mut fixture), 0, "pods come first");
    fixture.pass(30);
    assert_eq!(written_in(&mut fixture), 10, "one a second");
    fixture.pass(ALLOWANCE_SECONDS);
    assert_eq!(written_in(&mut fixture), AT_ONCE - 40);
    assert_eq!(fixture.changes.count_closed(), 0);
}

#[test]
fn a_service_is_changed_although_pods_use_up_all_that_grows() {
    let mut fixture = Fixture::new(AT_ONCE);
    let quiet = Name::new("other", "quiet");
    fixture.add(&quiet, &[("app", "quiet")]);
    let flips = |fixture: &mut Fixture| {
        fixture.pass(10);
        let closed = fixture.flip("a", &[("app", "a")]);
        assert!(!closed.contains(&quiet), "{closed:?}");
    };
    (0..200).for_each(|_| flips(&mut fixture));
    let mut rounds = 0;
    while !fixture.changes.may_write(&quiet) {
        rounds += 1;
        assert!(rounds < 10, "it waits for ever");
        flips(&mut fixture);
    }
    fixture.changes.begin_write(&quiet);
    assert!(fixture.changes.set_written(&quiet, written(0, 1), true).is_empty());
    // What flips pays for it.
    flips(&mut fixture);
}

#[test]
fn what_does_not_count_need_not_wait_to_be_written() {
    let mut fixture = Fixture::new(2);
    let [counted, closed] = [service(0), service(1)];
    fixture.changes.begin_write(&counted);
    fixture.changes.close(&closed);
    fixture.use_up();
    for name in [&counted, &closed, &Name::new("team", "not-on-the-host")] {
        assert!(fixture.changes.may_write(name), "{name}");
    }
    fixture.pass(10);
    assert!(!fixture.changes.may_write(&counted), "it counts again");
}

#[test]
fn services_that_are_made_have_an_allowance_of_their_own() {
    let mut fixture = Fixture::new(1);
    for number in 0..AT_ONCE {
        assert!(fixture.changes.may_create(), "asking takes nothing");
        assert!(fixture.changes.may_create());
        let name = Name::new("team", &format!("new-{number}"));
        assert!(fixture.changes.set_written(&name, written(1, 1), true).is_empty());
        fixture.delete(&name);
    }
    assert!(!fixture.changes.may_create());
    assert!(fixture.flip("a", &[("app", "a")]).is_empty(), "others go on");
    // What was asked about in time is made even so, and made up for.
    fixture.changes.set_written(&service(2), written(1, 1), true);
    fixture.pass(1);
    assert!(!fixture.changes.may_create());
    fixture.pass(1);
    assert!(fixture.changes.may_create());
}

#[test]
fn a_service_that_is_deleted_and_made_again_and_again_is_counted() {
    let mut fixture = Fixture::new(1);
    let mut uid = 0;
    // The deletion was seen, or not.
    while fixture.changes.may_create() {
        uid += 1;
        assert!(uid <= 600, "it is not counted");
        if uid % 2 == 0 {
            fixture.changes.set_written(&service(0), None, true);
        }
        assert!(
            fixture
                .changes
                .set_written(&service(0), written(uid, 0), true)
                .is_empty()
        );
    }
    assert_eq!(uid, 600);
    let mut fixture = Fixture::new(0);
    fixture.use_up();
    fixture.pass(1);
    fixture.changes.set_written(&service(0), written(1, 0), false);
    assert!(fixture.changes.may_create(), "what is listed is not made");
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
