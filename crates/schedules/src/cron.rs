//! Schedules as five fields of cron, on a clock without a time zone.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::civil::DateTime;

/// Names of weekdays.
const WEEKDAYS: [&str; 7] = ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"];
/// Names of months.
const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
/// Days of the months, in a year with 29 February.
const DAYS: [u16; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// When a window opens.
#[derive(Clone, Debug)]
pub(crate) struct Openings(Cron);

/// Why a text gives no openings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CronFault {
    /// It is not a schedule.
    Invalid(String),
    /// It names a day that does not exist.
    Never,
}

impl Openings {
    /// Reads five fields: minute, hour, day of the month, month, day of the week.
    pub(crate) fn parse(text: &str) -> Result<Self, CronFault> {
        check_names(text).map_err(CronFault::Invalid)?;
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser
            .parse(text)
            .map_err(|error| CronFault::Invalid(error.to_string()))?;
        // Before anybody searches: the parser would look for such a day in all years until 5000, which takes it a thousand times as long.
        if can_open(&cron) {
            Ok(Self(cron))
        } else {
            Err(CronFault::Never)
        }
    }

    /// The first opening after `shown`.
    pub(crate) fn next(&self, shown: DateTime) -> Option<DateTime> {
        self.0.find_next_occurrence(&shown, false).ok()
    }

    /// The last opening at or before `shown`.
    pub(crate) fn last(&self, shown: DateTime) -> Option<DateTime> {
        self.0.find_previous_occurrence(&shown, true).ok()
    }
}

/// Whether there is a day on which the schedule opens. A weekday is in each month; without one, it takes a day of the month that exists.
fn can_open(cron: &Cron) -> bool {
    let pattern = &cron.pattern;
    let days = pattern.days.values();
    let has_day = |month: u16| {
        let length = DAYS.get(usize::from(month).wrapping_sub(1));
        length.is_some_and(|length| days.iter().any(|day| day <= length))
    };
    !pattern.is_dow_wildcard() || pattern.months.values().into_iter().any(has_day)
}

/// Checks what the parser would take for something else: it knows further fields and letters, and names of months in any field.
fn check_names(text: &str) -> Result<(), String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("it has {} fields instead of 5", fields.len()));
    }
    for (index, field) in fields.into_iter().enumerate() {
        let known: &[&str] = match index {
            3 => &MONTHS,
            4 => &WEEKDAYS,
            _ => &[],
        };
        if let Some(unknown) = field.chars().find(|letter| !is_allowed(*letter)) {
            return Err(format!("{unknown:?} is not allowed"));
        }
        // The parser skips empty items. A field with nothing else would match nothing, which takes it seconds to find out.
        if field.split(',').any(str::is_empty) {
            return Err(format!(
                "a number or a name is missing beside a comma in field {}",
                index + 1
            ));
        }
        let mut words = field.split(|letter: char| !letter.is_ascii_alphanumeric());
        let is_known = |word: &str| {
            word.bytes().all(|letter| letter.is_ascii_digit()) || known.contains(&word.to_ascii_uppercase().as_str())
        };
        if let Some(unknown) = words.find(|word| !is_known(word)) {
            return Err(format!("{unknown:?} is not known in field {}", index + 1));
        }
    }
    Ok(())
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '*' | ',' | '-' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn at(text: &str) -> DateTime {
        text.parse().unwrap()
    }

    #[test]
    fn schedules_are_five_fields_with_names_where_cron_has_them() {
        for text in [
            "0 8 * * MON-FRI",
            "*/15 * * * *",
            "0 8 * * mon,wed,fri",
            "30 6 1 JAN *",
            "0 0 29 2 *",
            "0 22 * jul-aug 0-6",
        ] {
            assert!(Openings::parse(text).is_ok(), "{text}");
        }
        for (text, why) in [
            ("0 8 * *", "4 fields"),
            ("0 0 8 * * *", "6 fields"),
            ("@daily", "1 fields"),
            ("0 8 L * *", "\"L\" is not known in field 3"),
            ("0 8 15W * *", "\"15W\" is not known in field 3"),
            // The parser would read 11, which is November.
            ("0 8 1 1JAN *", "\"1JAN\" is not known in field 4"),
            (", 8 * * *", "missing beside a comma in field 1"),
            ("0 8,,9 * * *", "missing beside a comma in field 2"),
            ("0 8 * * MON#2", "'#' is not allowed"),
            ("0 8 ? * *", "'?' is not allowed"),
            ("0 8 MON * *", "\"MON\" is not known in field 3"),
        ] {
            let Err(CronFault::Invalid(found)) = Openings::parse(text) else {
                panic!("{text} is accepted");
            };
            assert!(found.contains(why), "{text}: {found}");
        }
        for text in [
            "60 * * * *",
            "0 24 * * *",
            "0 8 32 * *",
            "0 8 * 13 *",
            "0 8 * * 9",
            "5-1 x * * *",
        ] {
            assert!(matches!(Openings::parse(text), Err(CronFault::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn a_day_that_no_month_has_is_found_at_once() {
        let begun = Instant::now();
        // One search of the second took 30 ms, so all would take 30 s.
        for text in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 FEB *"].repeat(1000) {
            assert_eq!(Openings::parse(text).err(), Some(CronFault::Never), "{text}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        for text in ["0 0 31 2,3 *", "0 0 30 4 *", "0 0 29 2 *", "0 0 31 4 MON", "0 0 * 2 *"] {
            assert!(
                Openings::parse(text).unwrap().next(at("2026-05-01T00:00")).is_some(),
                "{text}"
            );
        }
    }

    #[test]
    fn openings_are_found_in_both_directions() {
        let leap = Openings::parse("0 0 29 2 *").unwrap();
        assert_eq!(leap.next(at("2026-05-01T00:00")), Some(at("2028-02-29T00:00")));
        assert_eq!(leap.last(at("2026-05-01T00:00")), Some(at("2024-02-29T00:00")));
        assert_eq!(leap.next(at("2096-03-01T00:00")), Some(at("2104-02-29T00:00")));
        let daily = Openings::parse("30 6 * * *").unwrap();
        assert_eq!(daily.last(at("2026-05-01T06:30")), Some(at("2026-05-01T06:30")));
        assert_eq!(
            daily.last(at("2026-05-01T06:29:59.999999999")),
            Some(at("2026-04-30T06:30"))
        );
        assert_eq!(daily.next(at("2026-05-01T06:30")), Some(at("2026-05-02T06:30")));
        assert_eq!(
            daily.next(at("2026-05-01T06:29:59.999999999")),
            Some(at("2026-05-01T06:30"))
        );
    }

    #[test]
    fn a_day_of_the_month_and_a_weekday_are_alternatives_as_in_cron() {
        let both = Openings::parse("0 0 1 * FRI").unwrap();
        // 1 May 2026 is a Friday, 1 June a Monday.
        assert_eq!(both.next(at("2026-05-29T00:00")), Some(at("2026-06-01T00:00")));
        assert_eq!(both.next(at("2026-06-01T00:00")), Some(at("2026-06-05T00:00")));
    }
}
