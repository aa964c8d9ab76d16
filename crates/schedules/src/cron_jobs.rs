//! When a `CronJob` of Kubernetes is due next.
//!
//! Its schedules are read by another library than those of SchedulePolicies, and may have more forms: macros such as `@daily`, and `?`
//! for any. `@every` counts from the last run, which only the controller knows. In an hour that a clock repeats, or skips, the two
//! libraries differ by that hour at most.

use crate::{
    cron::{CronFault, Openings},
    zone::Zone,
};
use jiff::{Timestamp, tz::TimeZone};

/// Macros, and what they stand for.
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Bytes of the longest schedule that is read. All minutes, hours, days and months, one by one, have 400. API servers take any length,
/// and a program that reads those of a tenant does nothing else meanwhile.
const MAX_BYTES: usize = 1024;

/// When a CronJob with this `schedule` is due after `after`, in the zone of its `timeZone` or, without one, in that of the controller
/// manager, which is this machine's. None: it never is.
///
/// # Errors
/// The schedule or the zone cannot be read; the text says what to change.
pub fn next_run(schedule: &str, time_zone: Option<&str>, after: Timestamp) -> Result<Option<Timestamp>, String> {
    if schedule.len() > MAX_BYTES {
        return Err(format!(
            "its schedule has more than {MAX_BYTES} characters; write a shorter one"
        ));
    }
    let known = MACROS.iter().find(|(name, _)| *name == schedule.trim());
    let fields = known.map_or_else(|| schedule.replace('?', "*"), |(_, fields)| (*fields).to_owned());
    let openings = match Openings::parse(&fields) {
        Ok(openings) => openings,
        Err(CronFault::Never) => return Ok(None),
        Err(CronFault::Invalid(why)) => {
            return Err(format!(
                "schedule {schedule:?}: {why}; write it as five fields, such as \"0 8 * * MON-FRI\""
            ));
        }
    };
    let zone = match time_zone {
        Some(name) => {
            Zone::find(name).ok_or_else(|| format!("timeZone {name:?} is not in the IANA time zone database"))?
        }
        None => Zone::of(TimeZone::system()),
    };
    let next = openings.next(zone.shown(after));
    Ok(next.and_then(|next| zone.instant(next)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, zone: Option<&str>) -> Result<Option<String>, String> {
        let after: Timestamp = "2026-05-05T12:00:00Z".parse().unwrap();
        let next = next_run(schedule, zone, after)?;
        Ok(next.map(|next| next.to_string()))
    }

    fn found(schedule: &str, zone: &str) -> String {
        next(schedule, Some(zone)).unwrap().unwrap()
    }

    #[test]
    fn a_schedule_is_read_in_its_time_zone() {
        assert_eq!(found("0 8 * * *", "UTC"), "2026-05-06T08:00:00Z");
        assert_eq!(found("0 8 * * *", "Europe/Berlin"), "2026-05-06T06:00:00Z");
        assert_eq!(found("*/15 * * * *", "UTC"), "2026-05-05T12:15:00Z");
        assert_eq!(
            found("0 12 * * *", "UTC"),
            "2026-05-06T12:00:00Z",
            "the present run has begun"
        );
        assert!(next("0 8 * * *", None).unwrap().is_some());
        assert!(next("0 8 * * *", Some("Mars")).unwrap_err().contains("Mars"));
    }

    #[test]
    fn macros_and_question_marks_are_known() {
        for (schedule, expected) in [
            ("@hourly", "2026-05-05T13:00:00Z"),
            ("@daily", "2026-05-06T00:00:00Z"),
            ("@midnight", "2026-05-06T00:00:00Z"),
            // 5 May 2026 is a Tuesday.
            ("@weekly", "2026-05-10T00:00:00Z"),
            ("@monthly", "2026-06-01T00:00:00Z"),
            ("@yearly", "2027-01-01T00:00:00Z"),
            ("@annually", "2027-01-01T00:00:00Z"),
            ("0 8 ? * *", "2026-05-06T08:00:00Z"),
        ] {
            assert_eq!(found(schedule, "UTC"), expected, "{schedule}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for schedule in ["@every 1h", "@reboot", "TZ=UTC 0 8 * * *", "", "0 8 * *"] {
            assert!(next(schedule, Some("UTC")).is_err(), "{schedule}");
        }
    }

    #[test]
    fn long_schedules_are_not_read() {
        let schedule = |minutes: usize| format!("{} * * * *", vec!["10"; minutes].join(","));
        assert!(next(&schedule(339), None).is_ok(), "{}", schedule(339).len());
        let why = next(&schedule(340), None).unwrap_err();
        assert!(why.contains("more than 1024 characters"), "{why}");
    }

    #[test]
    fn a_skipped_hour_is_due_when_the_clock_is_put_forward() {
        let after: Timestamp = "2026-03-29T00:00:00Z".parse().unwrap();
        let next = next_run("30 2 * * *", Some("Europe/Berlin"), after).unwrap().unwrap();
        assert_eq!(next.to_string(), "2026-03-29T01:00:00Z");
    }
}
