//! What is published says of pods, at any instant.

use super::*;
use crate::{
    model::{store::Stored, tenant::test_tenant},
    registry,
};
use serde_json::json;

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
}

fn period(minute: i64, state: &str, policy: &str) -> Value {
    let mut period = json!({"from": at(minute).to_string(), "state": state});
    if state != "Running" {
        period["policyName"] = policy.into();
        period["windowName"] = "night".into();
    }
    if state == "Stopped" {
        period["warningPeriodSeconds"] = 600.into();
        period["evictionTimeoutSeconds"] = 1200.into();
    }
    period
}

fn schedule(spec: &Value) -> PublishedSchedule {
    PublishedSchedule(serde_json::from_value(spec.clone()).unwrap())
}

fn rule(periods: &[Value]) -> Value {
    json!({"policyName": "batch", "workloads": {"namespaces": ["jobs"], "selector": {"matchLabels": {"tier": "batch"}}}, "periods": periods})
}

fn pod() -> Value {
    json!({"metadata": {"name": "train", "namespace": "jobs", "labels": {"tier": "batch"}}, "spec": {}})
}

/// Stopped from 100 to 200.
fn night() -> [Value; 3] {
    [
        period(0, "Running", ""),
        period(100, "Stopped", "batch"),
        period(200, "Running", ""),
    ]
}

#[test]
fn only_pods_that_the_policy_is_for_are_restricted() {
    let schedule = schedule(&json!({"workloads": [rule(&night())]}));
    let found = schedule.of_pod("jobs", &pod(), at(150)).restriction.unwrap();
    assert_eq!((found.until, found.budgets_hold_until), (Some(at(200)), Some(at(120))));
    assert_eq!(schedule.of_pod("web", &pod(), at(150)), PodSchedule::default());
    let other = json!({"metadata": {"name": "web", "namespace": "jobs"}});
    assert_eq!(schedule.of_pod("jobs", &other, at(150)), PodSchedule::default());
    assert_eq!(schedule.of_pod("jobs", &pod(), at(50)), PodSchedule::default());
    assert_eq!(
        schedule.restriction_by_any_clock(at(150)),
        None,
        "the tenant as a whole runs"
    );
}

#[test]
fn transitions_come_by_the_clock_also_if_nothing_is_published_for_days() {
    let schedule = schedule(&json!({"workloads": [rule(&night())]}));
    let is_restricted = |minute| schedule.of_pod("jobs", &pod(), at(minute)).restriction.is_some();
    assert_eq!(
        [-5, 99, 100, 199, 200, 100_000].map(is_restricted),
        [false, false, true, true, false, false]
    );
    // A syncer whose clock is behind takes the first period for the present one.
    let open = self::schedule(&json!({"tenant": [period(100, "Stopped", "nights")]}));
    assert!(open.of_pod("jobs", &pod(), at(0)).restriction.is_some());
}

#[test]
fn the_strictest_state_applies_and_the_outermost_policy_is_named() {
    let tenant = [
        period(0, "StartsForbidden", "evenings"),
        period(120, "Stopped", "nights"),
        period(300, "Running", ""),
    ];
    let schedule = schedule(&json!({"tenant": tenant, "workloads": [rule(&night())]}));
    let found = |minute| schedule.of_pod("jobs", &pod(), at(minute)).restriction.unwrap();
    let forbidden = found(50);
    assert_eq!(
        (forbidden.cause.policy.as_str(), forbidden.budgets_hold_until),
        ("evenings", None)
    );
    assert_eq!(forbidden.until, Some(at(300)), "in between it is stopped");
    assert_eq!(found(110).cause.policy, "batch");
    let both = found(150);
    assert_eq!((both.cause.policy.as_str(), both.until), ("nights", Some(at(300))));
    assert_eq!(both.budgets_hold_until, Some(at(120)), "the pod is stopped since 100");
    assert_eq!(found(250).cause.policy, "nights");
    let other = schedule.of_pod("web", &json!({}), at(150)).restriction.unwrap();
    assert_eq!(other.cause.policy, "nights", "a stop of the tenant is for all its pods");
}

#[test]
fn pods_are_warned_of_the_next_stop_by_its_own_warning_period() {
    let schedule = schedule(&json!({"workloads": [rule(&night())]}));
    let warned = |minute| schedule.of_pod("jobs", &pod(), at(minute)).warning;
    assert_eq!(warned(89), None);
    assert_eq!(warned(90).map(|warning| warning.at), Some(at(100)));
    assert_eq!(warned(100), None, "it is stopped");
    assert_eq!(
        warned(95).unwrap().message(),
        format!(
            "SchedulePolicy batch, window night, stops this pod at {}: it is evicted then. Let it write a checkpoint before.",
            at(100)
        )
    );
}

#[test]
fn pods_are_warned_also_while_nothing_starts() {
    let periods = [
        period(0, "StartsForbidden", "evenings"),
        period(120, "Stopped", "nights"),
    ];
    let schedule = schedule(&json!({"tenant": periods}));
    let found = schedule.of_pod("web", &json!({}), at(115));
    let restriction = found.restriction.unwrap();
    assert_eq!(
        (restriction.cause.policy.as_str(), restriction.budgets_hold_until),
        ("evenings", None)
    );
    assert_eq!(
        found.warning.map(|warning| (warning.cause.policy, warning.at)),
        Some(("nights".into(), at(120)))
    );
}

#[test]
fn the_phase_changes_at_warnings_and_transitions_and_only_then() {
    let schedule = schedule(&json!({"workloads": [rule(&night())]}));
    let next = |minute| schedule.next_change(at(minute));
    assert_eq!(
        [50, 90, 100, 200].map(next),
        [Some(at(90)), Some(at(100)), Some(at(200)), None]
    );
    let phase = |minute| schedule.phase(at(minute));
    assert_eq!(phase(10), phase(89));
    for (before, after) in [(89, 90), (99, 100), (199, 200)] {
        assert_ne!(phase(before), phase(after));
    }
    assert_eq!(phase(90), phase(99));
}

#[test]
fn clocks_that_differ_a_little_are_the_schedules_doing() {
    let schedule = schedule(&json!({"tenant": night()}));
    let near = |seconds: i64, minute| {
        let at = at(minute).checked_add(SignedDuration::from_secs(seconds)).unwrap();
        schedule.restriction_by_any_clock(at).is_some()
    };
    assert_eq!([near(-31, 100), near(-30, 100), near(0, 150)], [false, true, true]);
    assert_eq!([near(29, 200), near(30, 200)], [true, false]);
}

#[test]
fn messages_say_which_policy_and_until_when() {
    let schedule = schedule(&json!({"tenant": night()}));
    let found = schedule.of_pod("jobs", &pod(), at(150)).restriction.unwrap();
    let until = at(200);
    assert_eq!(
        found.waits(),
        format!(
            "SchedulePolicy batch, window night, does not let this pod start now. It starts by itself from {until} on."
        )
    );
    assert_eq!(
        found.ends(),
        format!("SchedulePolicy batch, window night, stops this pod until {until}")
    );
    let mut outside = period(0, "Stopped", "office-hours");
    outside["windowName"] = Value::Null;
    let open = self::schedule(&json!({"tenant": [outside]}));
    let found = open.of_pod("jobs", &pod(), at(1)).restriction.unwrap();
    assert_eq!(
        found.waits(),
        "SchedulePolicy office-hours, outside its Start windows, does not let this pod start now. It starts by itself when the policy allows \
         it."
    );
}

#[test]
fn a_stop_without_a_policy_is_the_sleep_of_the_tenant() {
    let mut asleep = period(0, "Stopped", "");
    let fields = asleep.as_object_mut().unwrap();
    fields.retain(|field, _| !["policyName", "windowName", "warningPeriodSeconds"].contains(&field.as_str()));
    let schedule = schedule(&json!({"tenant": [asleep]}));
    let found = schedule.of_pod("default", &pod(), at(1)).restriction.unwrap();
    assert_eq!(
        found.waits(),
        "The sleep of the tenant does not let this pod start now. It starts by itself when the tenant is awake."
    );
    assert_eq!(found.ends(), "The sleep of the tenant stops this pod");
}

#[test]
fn what_is_published_is_read_from_the_store_and_gone_with_the_object() {
    let cache = registry::new_cache(test_tenant());
    assert_eq!(*PublishedSchedule::of(&cache), PublishedSchedule::default());
    let store = cache.stores.host(KindId::TenantSchedule);
    let name = Name::new("", TENANT_SCHEDULE);
    let spec = json!({"workloads": [rule(&night())]});
    let object = json!({"metadata": {"name": TENANT_SCHEDULE, "resourceVersion": "1"}, "spec": spec});
    store.written(name.clone(), Stored::new(&object));
    assert_eq!(*PublishedSchedule::of(&cache), schedule(&spec));
    store.forget(&name);
    assert_eq!(*PublishedSchedule::of(&cache), PublishedSchedule::default());
}

#[test]
fn concerned_are_pods_of_the_policies_and_pods_that_are_held_back() {
    let cache = registry::new_cache(test_tenant());
    let put = |side: &crate::model::store::Store, namespace: &str, of: &str, labels: &Value| {
        let object =
            json!({"metadata": {"name": of, "namespace": namespace, "resourceVersion": "1", "labels": labels}});
        side.written(Name::new(namespace, of), Stored::new(&object));
    };
    let (tenant, host) = (cache.stores.tenant(KindId::Pod), cache.stores.host(KindId::Pod));
    for (of, labels) in [("a", json!({"tier": "batch"})), ("b", json!({})), ("c", json!({}))] {
        put(tenant, "jobs", of, &labels);
        if of != "c" {
            put(host, "jobs", of, &json!({}));
        }
    }
    let concerned = |spec: &Value| {
        let keys = schedule(spec).concerned_pods(&cache);
        let mut names: Vec<String> = keys.iter().map(|key| key.name.name.to_string()).collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(concerned(&json!({})), "c");
    assert_eq!(concerned(&json!({"workloads": [rule(&night())]})), "a c");
    assert_eq!(concerned(&json!({"tenant": night()})), "a b c");
}
