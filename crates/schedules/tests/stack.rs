//! Several policies for one tenant.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use berth_api::{ScheduleAction, ScheduleTarget, ScheduleTargetKind};
use berth_schedules::{NextChange, Place, PolicyIndex, Schedule, Stack};
use std::sync::Arc;
use support::{FORBID, FORBIDDEN, RUNNING, START, STOP, STOPPED, at, spec};

type Policy<'a> = (
    &'a str,
    ScheduleTarget,
    &'a str,
    &'a [(ScheduleAction, &'a str, &'a str)],
);

fn target(kind: ScheduleTargetKind, name: &str) -> ScheduleTarget {
    ScheduleTarget {
        kind,
        name: name.into(),
        namespace: (kind == ScheduleTargetKind::TenantCluster).then(|| "team".into()),
        workloads: None,
    }
}

fn place() -> Place {
    Place {
        organization: Some("acme".into()),
        project: Some("research".into()),
        class: Some("gold".into()),
        namespace: "team".into(),
        name: "vision".into(),
    }
}

fn stack(policies: &[Policy<'_>], place: &Place) -> Stack {
    let parsed: Vec<(Vec<ScheduleTarget>, Arc<Schedule>)> = policies
        .iter()
        .map(|(name, target, zone, windows)| {
            let schedule = Schedule::parse(name, &spec(zone, windows)).unwrap();
            (vec![target.clone()], Arc::new(schedule))
        })
        .collect();
    let policies = parsed
        .iter()
        .map(|(targets, schedule)| (targets.as_slice(), Arc::clone(schedule)));
    PolicyIndex::new(policies).stack(place)
}

#[test]
fn a_tenant_has_the_policies_of_all_that_it_belongs_to() {
    let organization = target(ScheduleTargetKind::Organization, "acme");
    let windows: &[_] = &[(STOP, "0 22 * * *", "8h")];
    let night = at("2026-05-05T23:00:00Z");
    for target in [
        organization.clone(),
        target(ScheduleTargetKind::Project, "research"),
        target(ScheduleTargetKind::TenantClass, "gold"),
        target(ScheduleTargetKind::TenantCluster, "vision"),
    ] {
        let stack = stack(&[("nights", target.clone(), "UTC", windows)], &place());
        assert_eq!(stack.state(night), STOPPED, "{target:?}");
    }
    let elsewhere = Place {
        namespace: "other".into(),
        name: "vision".into(),
        ..Place::default()
    };
    for target in [organization, target(ScheduleTargetKind::TenantCluster, "vision")] {
        assert!(stack(&[("nights", target, "UTC", windows)], &elsewhere).is_empty());
    }
}

#[test]
fn an_inner_policy_restricts_further_and_allows_nothing_more() {
    let nights: Policy<'_> = (
        "nights",
        target(ScheduleTargetKind::Organization, "acme"),
        "UTC",
        &[(STOP, "0 22 * * *", "8h")],
    );
    let around_the_clock: Policy<'_> = (
        "always",
        target(ScheduleTargetKind::TenantCluster, "vision"),
        "UTC",
        &[(START, "0 0 * * *", "24h")],
    );
    let noon: Policy<'_> = (
        "noon",
        target(ScheduleTargetKind::TenantCluster, "vision"),
        "UTC",
        &[(FORBID, "0 12 * * *", "1h")],
    );
    let all = stack(&[nights, around_the_clock, noon], &place());
    assert_eq!(all.state(at("2026-05-05T23:00:00Z")), STOPPED);
    assert_eq!(all.state(at("2026-05-05T12:30:00Z")), FORBIDDEN);
    assert_eq!(all.state(at("2026-05-05T14:00:00Z")), RUNNING);
    let next = |text: &str| all.next_change(at(text));
    assert_eq!(next("2026-05-05T12:30:00Z"), NextChange::At(at("2026-05-05T13:00:00Z")));
    assert_eq!(next("2026-05-05T14:00:00Z"), NextChange::At(at("2026-05-05T22:00:00Z")));
}

#[test]
fn of_equally_strict_policies_the_outermost_decides() {
    let windows: &[_] = &[(STOP, "0 22 * * *", "8h")];
    let all = stack(
        &[
            (
                "a-tenant",
                target(ScheduleTargetKind::TenantCluster, "vision"),
                "UTC",
                windows,
            ),
            (
                "b-class",
                target(ScheduleTargetKind::TenantClass, "gold"),
                "UTC",
                windows,
            ),
        ],
        &place(),
    );
    let standing = all.standing(at("2026-05-05T23:00:00Z"));
    assert_eq!(standing.schedule.map(Schedule::policy), Some("b-class"));
    assert_eq!(standing.window, Some("w0"));
    let free = all.standing(at("2026-05-05T12:00:00Z"));
    assert!(free.schedule.is_none() && free.state == RUNNING);
}

#[test]
fn a_change_that_another_policy_hides_is_none() {
    let all = stack(
        &[
            (
                "class",
                target(ScheduleTargetKind::TenantClass, "gold"),
                "UTC",
                &[(STOP, "0 20 * * *", "8h")],
            ),
            (
                "tenant",
                target(ScheduleTargetKind::TenantCluster, "vision"),
                "UTC",
                &[(STOP, "0 22 * * *", "8h")],
            ),
        ],
        &place(),
    );
    let changes: Vec<String> = all
        .transitions(at("2026-05-05T12:00:00Z"), 2)
        .into_iter()
        .map(|(at, _)| at.to_string())
        .collect();
    assert_eq!(changes, ["2026-05-05T20:00:00Z", "2026-05-06T06:00:00Z"]);
}

#[test]
fn a_tenant_without_policies_runs() {
    let none = Stack::default();
    assert_eq!(none.state(at("2026-05-05T12:00:00Z")), RUNNING);
    assert_eq!(none.next_change(at("2026-05-05T12:00:00Z")), NextChange::Never);
}
