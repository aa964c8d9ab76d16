//! What windows mean, alone and together.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use berth_api::KubeDuration;
use berth_schedules::{NextChange, Schedule};
use support::{FORBID, FORBIDDEN, RUNNING, START, STOP, STOPPED, at, expect_changes, schedule, spec};

#[test]
fn each_action_has_its_meaning() {
    let stop = schedule("UTC", &[(STOP, "0 22 * * *", "8h")]);
    let start = schedule("UTC", &[(START, "0 8 * * *", "10h")]);
    let forbid = schedule("UTC", &[(FORBID, "0 16 * * *", "2h")]);
    for (hour, expected) in [
        ("05:59", [STOPPED, STOPPED, RUNNING]),
        ("06:00", [RUNNING, STOPPED, RUNNING]),
        ("08:00", [RUNNING, RUNNING, RUNNING]),
        ("16:00", [RUNNING, RUNNING, FORBIDDEN]),
        ("18:00", [RUNNING, STOPPED, RUNNING]),
        ("22:00", [STOPPED, STOPPED, RUNNING]),
    ] {
        let now = at(&format!("2026-05-05T{hour}:00Z"));
        let found = [&stop, &start, &forbid].map(|schedule| schedule.state(now));
        assert_eq!(found, expected, "{hour}");
    }
}

#[test]
fn the_strictest_of_overlapping_windows_applies() {
    let week = schedule(
        "UTC",
        &[
            (START, "0 8 * * *", "10h"),
            (FORBID, "0 17 * * *", "1h"),
            // Christmas.
            (STOP, "0 0 25 12 *", "24h"),
        ],
    );
    let standing = |text: &str| {
        let standing = week.standing(at(text));
        (standing.state, standing.window.map(ToOwned::to_owned))
    };
    assert_eq!(standing("2026-12-24T10:00:00Z"), (RUNNING, Some("w0".into())));
    assert_eq!(standing("2026-12-24T17:30:00Z"), (FORBIDDEN, Some("w1".into())));
    assert_eq!(standing("2026-12-24T19:00:00Z"), (STOPPED, None));
    assert_eq!(standing("2026-12-25T10:00:00Z"), (STOPPED, Some("w2".into())));
    // The night before and after is a stop as well: no change until the morning.
    assert_eq!(
        week.next_change(at("2026-12-24T19:00:00Z")),
        NextChange::At(at("2026-12-26T08:00:00Z"))
    );
}

#[test]
fn windows_that_are_longer_than_their_period_never_close() {
    let always = schedule("UTC", &[(STOP, "0 0 * * *", "25h")]);
    assert_eq!(always.state(at("2026-05-05T23:59:59Z")), STOPPED);
    assert!(matches!(
        always.next_change(at("2026-05-05T12:00:00Z")),
        NextChange::NotBefore(_)
    ));
    // A window that opens at the moment at which it closes stays open.
    let seamless = schedule("UTC", &[(STOP, "0 0 * * *", "24h")]);
    assert!(matches!(
        seamless.next_change(at("2026-05-05T12:00:00Z")),
        NextChange::NotBefore(_)
    ));
    // Nor in the year 5000, in which the schedules of the library end.
    let years = schedule("UTC", &[(STOP, "0 0 1 1 *", "8784h")]);
    assert!(matches!(
        years.next_change(at("2026-05-05T12:00:00Z")),
        NextChange::NotBefore(_)
    ));
    let every_minute = schedule("UTC", &[(FORBID, "* * * * *", "2m")]);
    let NextChange::NotBefore(until) = every_minute.next_change(at("2026-05-05T12:00:00Z")) else {
        panic!("it never closes");
    };
    assert!(
        until > at("2026-05-06T12:00:00Z"),
        "the search went far enough: {until}"
    );
}

#[test]
fn windows_that_open_again_before_they_close_are_one() {
    // From Friday 18:00 to Tuesday 18:00.
    let weekend = schedule("UTC", &[(STOP, "0 18 * * FRI,SAT,SUN,MON", "24h")]);
    expect_changes(
        &weekend,
        "2026-05-06T12:00:00Z",
        &[("2026-05-08T18:00:00Z", STOPPED), ("2026-05-12T18:00:00Z", RUNNING)],
    );
}

#[test]
fn leap_days_are_found_years_ahead() {
    let leap = schedule("UTC", &[(STOP, "0 0 29 2 *", "24h")]);
    expect_changes(
        &leap,
        "2026-05-05T12:00:00Z",
        &[
            ("2028-02-29T00:00:00Z", STOPPED),
            ("2028-03-01T00:00:00Z", RUNNING),
            ("2032-02-29T00:00:00Z", STOPPED),
        ],
    );
}

#[test]
fn the_state_is_the_same_whatever_was_evaluated_before() {
    let nights = schedule("Europe/Berlin", &[(STOP, "0 22 * * *", "8h")]);
    let night = at("2026-05-05T21:00:00Z");
    // A control that was down since noon, one that ran all the time, and one with a clock that jumped back.
    assert_eq!(nights.state(night), STOPPED);
    for minute in 0..12 * 60 {
        nights.keep(at("2026-05-05T10:00:00Z") + jiff::SignedDuration::from_mins(minute));
    }
    assert_eq!(nights.state(night), STOPPED);
    nights.keep(at("2027-01-01T12:00:00Z"));
    assert_eq!(nights.state(night), STOPPED);
    assert_eq!(nights.next_change(night), NextChange::At(at("2026-05-06T04:00:00Z")));
}

#[test]
fn faults_say_which_field_to_change() {
    let fault = |spec: &berth_api::SchedulePolicySpec| Schedule::parse("p", spec).unwrap_err().to_string();
    assert!(fault(&spec("Europe/Bonn", &[])).starts_with("spec.timeZone: \"Europe/Bonn\""));
    let broken = fault(&spec("UTC", &[(STOP, "0 25 * * *", "1h")]));
    assert!(
        broken.starts_with("spec.windows[w0].schedule: \"0 25 * * *\""),
        "{broken}"
    );
    assert!(fault(&spec("UTC", &[(STOP, "0 0 30 2 *", "1h")])).contains("never opens"));
    for duration in ["30s", "9000h", "0s"] {
        let fault = fault(&spec("UTC", &[(STOP, "0 0 * * *", duration)]));
        assert!(fault.starts_with("spec.windows[w0].duration"), "{fault}");
    }
    let mut warned = spec("UTC", &[(STOP, "0 0 * * *", "1h")]);
    warned.warning_period = Some(KubeDuration::from("169h"));
    assert!(fault(&warned).starts_with("spec.warningPeriod"));
}
