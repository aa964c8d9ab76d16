//! Nights in which the clock is changed: each window opens and closes once, and closes at the hour that its duration says.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use support::{RUNNING, START, STOP, STOPPED, at, expect_changes, schedule};

#[test]
fn a_night_ends_in_the_morning_also_when_the_clock_is_changed() {
    let nights = schedule("Europe/Berlin", &[(STOP, "0 22 * * *", "8h")]);
    // Seven hours long, then nine.
    expect_changes(
        &nights,
        "2026-03-28T12:00:00Z",
        &[("2026-03-28T21:00:00Z", STOPPED), ("2026-03-29T04:00:00Z", RUNNING)],
    );
    expect_changes(
        &nights,
        "2026-10-24T12:00:00Z",
        &[("2026-10-24T20:00:00Z", STOPPED), ("2026-10-25T05:00:00Z", RUNNING)],
    );
    let nights = schedule("America/New_York", &[(STOP, "0 22 * * *", "8h")]);
    expect_changes(
        &nights,
        "2026-03-07T20:00:00Z",
        &[("2026-03-08T03:00:00Z", STOPPED), ("2026-03-08T10:00:00Z", RUNNING)],
    );
    expect_changes(
        &nights,
        "2026-10-31T20:00:00Z",
        &[("2026-11-01T02:00:00Z", STOPPED), ("2026-11-01T11:00:00Z", RUNNING)],
    );
    let nights = schedule("UTC", &[(STOP, "0 22 * * *", "8h")]);
    expect_changes(
        &nights,
        "2026-03-28T12:00:00Z",
        &[("2026-03-28T22:00:00Z", STOPPED), ("2026-03-29T06:00:00Z", RUNNING)],
    );
}

#[test]
fn office_hours_follow_the_clock_of_the_zone() {
    let office = schedule("Europe/Berlin", &[(START, "0 8 * * MON-FRI", "10h")]);
    // Friday in winter time, Monday in summer time.
    expect_changes(
        &office,
        "2026-03-27T06:00:00Z",
        &[
            ("2026-03-27T07:00:00Z", RUNNING),
            ("2026-03-27T17:00:00Z", STOPPED),
            ("2026-03-30T06:00:00Z", RUNNING),
        ],
    );
}

#[test]
fn an_edge_in_a_skipped_hour_moves_to_its_end() {
    let opens = schedule("Europe/Berlin", &[(STOP, "30 2 * * *", "1h")]);
    expect_changes(
        &opens,
        "2026-03-28T12:00:00Z",
        &[("2026-03-29T01:00:00Z", STOPPED), ("2026-03-29T01:30:00Z", RUNNING)],
    );
    let closes = schedule("Europe/Berlin", &[(STOP, "30 1 * * *", "1h")]);
    expect_changes(
        &closes,
        "2026-03-28T12:00:00Z",
        &[("2026-03-29T00:30:00Z", STOPPED), ("2026-03-29T01:00:00Z", RUNNING)],
    );
    // All of it is skipped: the next one is a day later.
    let within = schedule("Europe/Berlin", &[(STOP, "15 2 * * *", "30m")]);
    expect_changes(&within, "2026-03-28T12:00:00Z", &[("2026-03-30T00:15:00Z", STOPPED)]);
    let half_an_hour = schedule("Australia/Lord_Howe", &[(STOP, "10 2 * * *", "1h")]);
    expect_changes(
        &half_an_hour,
        "2026-10-03T12:00:00Z",
        &[("2026-10-03T15:30:00Z", STOPPED), ("2026-10-03T16:10:00Z", RUNNING)],
    );
}

#[test]
fn an_edge_in_a_repeated_hour_comes_once() {
    let within = schedule("Europe/Berlin", &[(STOP, "15 2 * * *", "30m")]);
    expect_changes(
        &within,
        "2026-10-24T12:00:00Z",
        &[
            ("2026-10-25T00:15:00Z", STOPPED),
            ("2026-10-25T00:45:00Z", RUNNING),
            ("2026-10-26T01:15:00Z", STOPPED),
        ],
    );
    let closes = schedule("Europe/Berlin", &[(STOP, "30 1 * * *", "1h")]);
    expect_changes(
        &closes,
        "2026-10-24T12:00:00Z",
        &[
            ("2026-10-24T23:30:00Z", STOPPED),
            ("2026-10-25T00:30:00Z", RUNNING),
            ("2026-10-26T00:30:00Z", STOPPED),
        ],
    );
    // It is open all through the second pass.
    let opens = schedule("Europe/Berlin", &[(STOP, "30 2 * * *", "45m")]);
    expect_changes(
        &opens,
        "2026-10-24T12:00:00Z",
        &[("2026-10-25T00:30:00Z", STOPPED), ("2026-10-25T02:15:00Z", RUNNING)],
    );
    let half_an_hour = schedule("Australia/Lord_Howe", &[(STOP, "40 1 * * *", "10m")]);
    expect_changes(
        &half_an_hour,
        "2026-04-04T12:00:00Z",
        &[
            ("2026-04-04T14:40:00Z", STOPPED),
            ("2026-04-04T14:50:00Z", RUNNING),
            ("2026-04-05T15:10:00Z", STOPPED),
        ],
    );
}

#[test]
fn a_zone_that_leaves_out_a_day_has_no_windows_on_it() {
    let nights = schedule("Pacific/Apia", &[(STOP, "0 12 * * *", "1h")]);
    expect_changes(
        &nights,
        "2011-12-29T23:30:00Z",
        &[("2011-12-30T22:00:00Z", STOPPED), ("2011-12-30T23:00:00Z", RUNNING)],
    );
    assert_eq!(nights.state(at("2011-12-30T10:00:00Z")), RUNNING);
}
