//! Policies in a few words.
#![allow(dead_code, reason = "each test uses a part of it")]

use berth_api::{KubeDuration, ScheduleAction, SchedulePolicySpec, ScheduleState, ScheduleWindow};
use berth_schedules::Schedule;
use jiff::Timestamp;

pub(crate) const STOP: ScheduleAction = ScheduleAction::Stop;
pub(crate) const START: ScheduleAction = ScheduleAction::Start;
pub(crate) const FORBID: ScheduleAction = ScheduleAction::Forbid;
pub(crate) const RUNNING: ScheduleState = ScheduleState::Running;
pub(crate) const FORBIDDEN: ScheduleState = ScheduleState::StartsForbidden;
pub(crate) const STOPPED: ScheduleState = ScheduleState::Stopped;

/// A spec whose windows are named `w0`, `w1`, ….
pub(crate) fn spec(zone: &str, windows: &[(ScheduleAction, &str, &str)]) -> SchedulePolicySpec {
    let windows = windows.iter().enumerate();
    SchedulePolicySpec {
        time_zone: zone.into(),
        targets: Vec::new(),
        windows: windows
            .map(|(number, (action, schedule, duration))| ScheduleWindow {
                name: format!("w{number}"),
                action: *action,
                schedule: (*schedule).into(),
                duration: KubeDuration::from(*duration),
            })
            .collect(),
        warning_period: None,
        eviction_timeout: None,
    }
}

pub(crate) fn schedule(zone: &str, windows: &[(ScheduleAction, &str, &str)]) -> Schedule {
    Schedule::parse("policy", &spec(zone, windows)).unwrap()
}

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The next changes as texts.
pub(crate) fn changes(schedule: &Schedule, after: &str, count: usize) -> Vec<(String, ScheduleState)> {
    let found = schedule.transitions(at(after), count);
    found
        .into_iter()
        .map(|(at, standing)| (at.to_string(), standing.state))
        .collect()
}

/// Checks the next changes.
pub(crate) fn expect_changes(schedule: &Schedule, after: &str, expected: &[(&str, ScheduleState)]) {
    let expected: Vec<(String, ScheduleState)> =
        expected.iter().map(|(at, state)| ((*at).to_owned(), *state)).collect();
    assert_eq!(changes(schedule, after, expected.len()), expected);
}
