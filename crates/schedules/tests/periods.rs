//! What is published of policies: for tenants as a whole and for some of their pods, over nights in which the clock is changed, and after
//! a time in which control was down.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use berth_api::{
    KubeDuration, LabelSelector, SchedulePeriod, ScheduleState, ScheduleTarget, ScheduleTargetKind, TenantScheduleSpec,
    WorkloadSelector,
};
use berth_schedules::{
    Place, PolicyIndex, Schedule,
    periods::{publish, with_sleep},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::sync::Arc;
use support::{FORBID, RUNNING, STOP, STOPPED, at, spec};

fn batch() -> WorkloadSelector {
    WorkloadSelector {
        namespaces: vec!["jobs".into()],
        selector: Some(LabelSelector {
            match_labels: [("tier".to_owned(), "batch".to_owned())].into(),
            match_expressions: Vec::new(),
        }),
    }
}

fn target(kind: ScheduleTargetKind, name: &str, workloads: Option<WorkloadSelector>) -> ScheduleTarget {
    ScheduleTarget {
        kind,
        name: name.into(),
        namespace: (kind == ScheduleTargetKind::TenantCluster).then(|| "team".into()),
        workloads,
    }
}

fn place() -> Place {
    Place {
        class: Some("gold".into()),
        namespace: "team".into(),
        name: "vision".into(),
        ..Place::default()
    }
}

type Policy = (ScheduleTarget, Arc<Schedule>);

fn index(policies: &[Policy]) -> PolicyIndex {
    let policies = policies.iter();
    PolicyIndex::new(policies.map(|(target, schedule)| (std::slice::from_ref(target), Arc::clone(schedule))))
}

/// A policy for a target: `evenings` forbids starts, `small-hours` stops in Berlin from 02:30 to 04:30, any other stops at night.
fn policy(name: &str, target: ScheduleTarget) -> Policy {
    let (zone, window) = match name {
        "evenings" => ("UTC", (FORBID, "0 18 * * *", "4h")),
        "small-hours" => ("Europe/Berlin", (STOP, "30 2 * * *", "2h")),
        _ => ("UTC", (STOP, "0 22 * * *", "8h")),
    };
    (target, Arc::new(Schedule::parse(name, &spec(zone, &[window])).unwrap()))
}

fn published(index: &PolicyIndex, now: &str, before: Option<&TenantScheduleSpec>) -> Option<TenantScheduleSpec> {
    publish(&index.stack(&place()), &index.rules(&place()), at(now), before)
}

fn texts(periods: &[SchedulePeriod]) -> Vec<(String, ScheduleState)> {
    periods
        .iter()
        .map(|period| (period.from.0.to_string(), period.state))
        .collect()
}

fn expect(periods: &[SchedulePeriod], expected: &[(&str, ScheduleState)]) {
    let expected: Vec<_> = expected.iter().map(|(at, state)| ((*at).to_owned(), *state)).collect();
    assert_eq!(texts(periods)[..expected.len()], expected);
}

#[test]
fn a_tenant_without_policies_has_nothing_published() {
    assert_eq!(published(&PolicyIndex::default(), "2026-05-05T12:00:00Z", None), None);
    let elsewhere = index(&[policy(
        "nights",
        target(ScheduleTargetKind::TenantClass, "silver", Some(batch())),
    )]);
    assert_eq!(published(&elsewhere, "2026-05-05T12:00:00Z", None), None);
}

#[test]
fn a_policy_for_workloads_leaves_the_tenant_as_it_is() {
    let index = index(&[policy(
        "nights",
        target(ScheduleTargetKind::TenantClass, "gold", Some(batch())),
    )]);
    assert!(index.stack(&place()).is_empty());
    assert_eq!(index.stack(&place()).state(at("2026-05-05T23:00:00Z")), RUNNING);
    let spec = published(&index, "2026-05-05T12:00:00Z", None).unwrap();
    assert!(spec.tenant.is_empty());
    let [rule] = &spec.workloads[..] else {
        panic!("{spec:?}")
    };
    assert_eq!((rule.policy_name.as_str(), &rule.workloads), ("nights", &batch()));
    assert_eq!(rule.periods.len(), 8);
    expect(
        &rule.periods,
        &[
            ("2026-05-05T12:00:00Z", RUNNING),
            ("2026-05-05T22:00:00Z", STOPPED),
            ("2026-05-06T06:00:00Z", RUNNING),
        ],
    );
    let (running, stop) = (&rule.periods[0], &rule.periods[1]);
    assert_eq!((&running.policy_name, running.warning_period_seconds), (&None, None));
    assert_eq!(
        (stop.policy_name.as_deref(), stop.window_name.as_deref()),
        (Some("nights"), Some("w0"))
    );
    assert_eq!(
        (stop.warning_period_seconds, stop.eviction_timeout_seconds),
        (Some(900), Some(3600))
    );
}

#[test]
fn policies_of_all_levels_are_published_the_outermost_first() {
    let index = index(&[
        policy(
            "a-tenant",
            target(ScheduleTargetKind::TenantCluster, "vision", Some(batch())),
        ),
        policy(
            "b-class",
            target(ScheduleTargetKind::TenantClass, "gold", Some(batch())),
        ),
        policy("evenings", target(ScheduleTargetKind::TenantClass, "gold", None)),
    ]);
    let spec = published(&index, "2026-05-05T12:00:00Z", None).unwrap();
    let names: Vec<&str> = spec.workloads.iter().map(|rule| rule.policy_name.as_str()).collect();
    assert_eq!(names, ["b-class", "a-tenant"]);
    expect(
        &spec.tenant,
        &[
            ("2026-05-05T12:00:00Z", RUNNING),
            ("2026-05-05T18:00:00Z", ScheduleState::StartsForbidden),
        ],
    );
}

#[test]
fn a_state_that_goes_on_began_when_it_was_published_first() {
    let index = index(&[policy("nights", target(ScheduleTargetKind::TenantClass, "gold", None))]);
    // Created in the middle of its window: budgets have their whole time.
    let first = published(&index, "2026-05-05T23:30:00.75Z", None).unwrap();
    expect(
        &first.tenant,
        &[("2026-05-05T23:30:00Z", STOPPED), ("2026-05-06T06:00:00Z", RUNNING)],
    );
    let again = published(&index, "2026-05-06T03:00:00Z", Some(&first)).unwrap();
    assert_eq!(again, first, "nothing is written while nothing changes");
}

#[test]
fn a_control_that_was_down_over_a_transition_goes_on_from_what_was_published() {
    let index = index(&[policy("nights", target(ScheduleTargetKind::TenantClass, "gold", None))]);
    let before = published(&index, "2026-05-05T12:00:00Z", None).unwrap();
    let now = "2026-05-06T01:00:00Z";
    // The reader has known since 22:00.
    assert_eq!(SchedulePeriod::at(&before.tenant, at(now)).unwrap().state, STOPPED);
    let after = published(&index, now, Some(&before)).unwrap();
    expect(
        &after.tenant,
        &[("2026-05-05T22:00:00Z", STOPPED), ("2026-05-06T06:00:00Z", RUNNING)],
    );
    assert_eq!(after.tenant.len(), 8);
}

/// The stop of a sleep that began at a time.
fn sleep(from: &str) -> SchedulePeriod {
    SchedulePeriod {
        from: Time(at(from)),
        state: STOPPED,
        policy_name: None,
        window_name: None,
        warning_period_seconds: None,
        eviction_timeout_seconds: Some(300),
    }
}

#[test]
fn a_stop_in_which_a_tenant_sleeps_and_wakes_began_when_it_began() {
    let index = index(&[
        policy("nights", target(ScheduleTargetKind::TenantClass, "gold", None)),
        policy(
            "batch-nights",
            target(ScheduleTargetKind::TenantClass, "gold", Some(batch())),
        ),
    ]);
    // It falls asleep in the stop and before it, and twice without anything between that was published.
    for sleeps in [
        &["2026-05-05T22:50:00Z"][..],
        &["2026-05-05T21:58:00Z"],
        &["2026-05-05T22:10:00Z", "2026-05-05T22:20:00Z"],
    ] {
        let mut known = published(&index, "2026-05-05T21:00:00Z", None).unwrap();
        for since in sleeps {
            known = with_sleep(published(&index, since, Some(&known)), sleep(since));
            let now = SchedulePeriod::at(&known.tenant, at("2026-05-06T12:00:00Z")).unwrap();
            assert_eq!(now, known.tenant.last().unwrap(), "it sleeps until it is woken");
            assert_eq!((now.state, &now.policy_name), (STOPPED, &None));
        }
        let awake = published(&index, "2026-05-05T22:55:00Z", Some(&known)).unwrap();
        let began = ("2026-05-05T22:00:00Z", STOPPED);
        expect(&awake.tenant, &[began, ("2026-05-06T06:00:00Z", RUNNING)]);
        expect(&awake.workloads[0].periods, &[began, ("2026-05-06T06:00:00Z", RUNNING)]);
        assert_eq!(awake.tenant[0].policy_name.as_deref(), Some("nights"));
    }
}

#[test]
fn budgets_hold_no_longer_because_a_stopped_tenant_falls_asleep() {
    let nights = index(&[policy("nights", target(ScheduleTargetKind::TenantClass, "gold", None))]);
    let known = published(&nights, "2026-05-05T21:00:00Z", None);
    // The policy lets budgets hold for an hour.
    for (since, expected) in [
        ("2026-05-05T21:30:00Z", 300),
        ("2026-05-05T22:30:00Z", 300),
        ("2026-05-05T22:58:00Z", 120),
        ("2026-05-06T01:00:00Z", 0),
    ] {
        let policies = published(&nights, since, known.as_ref());
        let asleep = with_sleep(policies, sleep(since));
        let stop = asleep.tenant.last().unwrap();
        assert_eq!(stop.eviction_timeout_seconds, Some(expected), "{since}");
    }
    let asleep = with_sleep(None, sleep("2026-05-05T22:30:00Z"));
    assert_eq!(asleep.tenant, [sleep("2026-05-05T22:30:00Z")], "without policies");
}

#[test]
fn a_clock_that_was_set_back_leaves_no_beginning_in_the_future() {
    let index = index(&[policy("nights", target(ScheduleTargetKind::TenantClass, "gold", None))]);
    let before = published(&index, "2026-05-06T23:00:00Z", None).unwrap();
    let after = published(&index, "2026-05-05T23:00:00Z", Some(&before)).unwrap();
    expect(&after.tenant, &[("2026-05-05T23:00:00Z", STOPPED)]);
}

#[test]
fn workloads_stop_once_in_the_night_in_which_the_clock_is_put_forward() {
    let nights = index(&[policy(
        "small-hours",
        target(ScheduleTargetKind::TenantClass, "gold", Some(batch())),
    )]);
    // 02:30 is skipped on 29 March: the window opens at 03:00, which is 01:00 UTC, and closes at 04:30.
    let spec = published(&nights, "2026-03-28T12:00:00Z", None).unwrap();
    expect(
        &spec.workloads[0].periods,
        &[
            ("2026-03-28T12:00:00Z", RUNNING),
            ("2026-03-29T01:00:00Z", STOPPED),
            ("2026-03-29T02:30:00Z", RUNNING),
            ("2026-03-30T00:30:00Z", STOPPED),
        ],
    );
}

#[test]
fn workloads_stop_once_in_the_night_in_which_the_clock_is_put_back() {
    let nights = index(&[policy(
        "small-hours",
        target(ScheduleTargetKind::TenantClass, "gold", Some(batch())),
    )]);
    // 02:30 comes twice on 25 October: the window opens the first time, and closes at 04:30, which is 03:30 UTC.
    let spec = published(&nights, "2026-10-24T12:00:00Z", None).unwrap();
    let periods = &spec.workloads[0].periods;
    expect(
        periods,
        &[
            ("2026-10-24T12:00:00Z", RUNNING),
            ("2026-10-25T00:30:00Z", STOPPED),
            ("2026-10-25T03:30:00Z", RUNNING),
            ("2026-10-26T01:30:00Z", STOPPED),
        ],
    );
    let state = |now: &str| SchedulePeriod::at(periods, at(now)).unwrap().state;
    assert_eq!(
        state("2026-10-25T01:30:00Z"),
        STOPPED,
        "the second 02:30 changes nothing"
    );
}

#[test]
fn the_time_for_which_budgets_hold_is_limited() {
    let mut spec = spec("UTC", &[(STOP, "0 22 * * *", "8h")]);
    spec.eviction_timeout = Some(KubeDuration::from("169h"));
    let error = Schedule::parse("nights", &spec).unwrap_err().to_string();
    assert!(error.contains("spec.evictionTimeout"), "{error}");
}
