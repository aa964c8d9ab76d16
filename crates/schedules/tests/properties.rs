//! What holds for all policies at all times.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use berth_api::{ScheduleAction, ScheduleState, ScheduleTarget, ScheduleTargetKind};
use berth_schedules::{NextChange, Place, PolicyIndex, Schedule};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use std::sync::Arc;
use support::{FORBID, START, STOP, schedule};

/// Zones whose clocks change in different ways: by an hour, by half an hour, never, at midnight.
const ZONES: [&str; 7] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "UTC",
    "Asia/Kathmandu",
    "America/Santiago",
    "Africa/Casablanca",
];
const MINUTES: [&str; 5] = ["0", "30", "*/20", "15,45", "59"];
const HOURS: [&str; 7] = ["0", "1", "2", "3", "*", "8-18/5", "22"];
const DAYS: [&str; 6] = ["* * *", "* * MON-FRI", "* * SUN", "29 2 *", "1,15 * *", "31 * *"];
const DURATIONS: [&str; 8] = ["1m", "20m", "45m", "1h", "8h", "24h", "25h", "100h"];

fn window() -> impl Strategy<Value = (ScheduleAction, String, &'static str)> {
    (
        prop::sample::select(vec![STOP, START, FORBID]),
        prop::sample::select(MINUTES.to_vec()),
        prop::sample::select(HOURS.to_vec()),
        prop::sample::select(DAYS.to_vec()),
        prop::sample::select(DURATIONS.to_vec()),
    )
        .prop_map(|(action, minute, hour, days, duration)| (action, format!("{minute} {hour} {days}"), duration))
}

fn policy() -> impl Strategy<Value = Schedule> {
    (
        prop::sample::select(ZONES.to_vec()),
        prop::collection::vec(window(), 1..4),
    )
        .prop_map(|(zone, windows)| {
            let windows: Vec<(ScheduleAction, &str, &str)> = windows
                .iter()
                .map(|(action, schedule, duration)| (*action, schedule.as_str(), *duration))
                .collect();
            schedule(zone, &windows)
        })
}

/// An instant of 2025 to 2027, mostly near a change of some clock.
fn instant() -> impl Strategy<Value = Timestamp> {
    let changes = [
        "2026-03-29T01:00:00Z",
        "2026-10-25T01:00:00Z",
        "2026-03-08T07:00:00Z",
        "2026-11-01T06:00:00Z",
        "2026-04-04T15:00:00Z",
        "2026-10-03T15:30:00Z",
        "2026-09-06T04:00:00Z",
        "2026-02-15T02:00:00Z",
    ];
    let near = (prop::sample::select(changes.to_vec()), -7200i64..7200)
        .prop_map(|(change, seconds)| change.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds));
    let anywhere = (1_735_689_600i64..1_830_297_600).prop_map(|second| Timestamp::from_second(second).unwrap());
    prop_oneof![2 => near, 1 => anywhere]
}

/// Instants between two, both excluded.
fn between(from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let seconds = to.as_second() - from.as_second();
    let evenly = (1..40).map(|part| seconds * part / 40);
    let ends = [1, 59, 60, 61, seconds - 61, seconds - 60, seconds - 1];
    evenly
        .chain(ends)
        .filter(|after| (1..seconds).contains(after))
        .map(|after| from + SignedDuration::from_secs(after))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Control sleeps until the next change: nothing may happen before, and something must happen then.
    #[test]
    fn the_state_is_constant_until_the_next_change(policy in policy(), now in instant()) {
        let state = policy.state(now);
        let next = policy.next_change(now);
        let far = now + SignedDuration::from_hours(24 * 365);
        let until = next.evaluate_again().unwrap_or(far);
        prop_assert!(until > now);
        for at in between(now, until) {
            prop_assert_eq!(policy.state(at), state, "at {} before {}", at, until);
        }
        if let NextChange::At(at) = next {
            prop_assert_ne!(policy.state(at), state);
        }
    }

    /// Minute by minute the same transitions are found as by searching for the next change.
    #[test]
    fn no_change_is_skipped(policy in policy(), now in instant()) {
        let end = now + SignedDuration::from_hours(6);
        let mut by_search = Vec::new();
        let mut from = now;
        while let NextChange::At(at) = policy.next_change(from) {
            if at > end {
                break;
            }
            by_search.push((at, policy.state(at)));
            from = at;
        }
        let first = now + SignedDuration::from_secs(60 - now.as_second().rem_euclid(60));
        let minutes = (0..360).map(|minute| first + SignedDuration::from_mins(minute));
        let mut state = policy.state(now);
        let mut by_minute = Vec::new();
        for at in minutes.filter(|at| *at <= end) {
            if policy.state(at) != state {
                state = policy.state(at);
                by_minute.push((at, state));
            }
        }
        prop_assert_eq!(by_search, by_minute);
    }

    /// What is remembered of a policy changes nothing.
    #[test]
    fn remembered_states_are_those_of_the_clock(policy in policy(), now in instant(), later in instant()) {
        let (state, next) = (policy.state(later), policy.next_change(later));
        for kept in [now, later] {
            policy.keep(kept);
            prop_assert_eq!(policy.state(later), state);
            match (policy.next_change(later), next) {
                // A search that began earlier ends earlier.
                (NextChange::NotBefore(limit), NextChange::At(at) | NextChange::NotBefore(at)) => {
                    prop_assert!(later < limit && limit <= at);
                }
                (remembered, fresh) => prop_assert_eq!(remembered, fresh),
            }
        }
    }

    /// Another policy never allows more, and the order of policies does not matter.
    #[test]
    fn a_further_policy_only_restricts(policies in prop::collection::vec(policy(), 1..4), now in instant()) {
        let target = [ScheduleTarget {
            kind: ScheduleTargetKind::TenantClass,
            name: "gold".into(),
            namespace: None,
            workloads: None,
        }];
        let policies: Vec<Arc<Schedule>> = policies.into_iter().map(Arc::new).collect();
        let place = Place { class: Some("gold".into()), ..Place::default() };
        let mut strictest = ScheduleState::Running;
        for count in 1..=policies.len() {
            let some = policies[..count].iter().map(|policy| (&target[..], Arc::clone(policy)));
            let state = PolicyIndex::new(some).stack(&place).state(now);
            prop_assert!(state >= strictest);
            strictest = state;
        }
        let reversed = policies.iter().rev().map(|policy| (&target[..], Arc::clone(policy)));
        prop_assert_eq!(PolicyIndex::new(reversed).stack(&place).state(now), strictest);
    }
}
