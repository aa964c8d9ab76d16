//! What is closed because endpoints change, and when it is open again.

#[path = "endpoint_changes_counting_tests.rs"]
mod counting_tests;
#[path = "endpoint_changes_write_tests.rs"]
mod write_tests;

use super::*;

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

/// The time that comparing each with all others takes is minutes.
#[test]
fn one_change_of_very_many_services_is_counted_in_one_pass() {
    const SERVICES: usize = 50_000;
    let mut fixture = Fixture::new(SERVICES);
    assert_eq!(fixture.flip("a", &[("app", "a")]).len(), SERVICES - AT_ONCE);
    assert_eq!(fixture.changes.count_closed(), SERVICES - AT_ONCE);
}
