//! Days and months in UTC.

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use std::{fmt, str::FromStr};

/// Seconds of a day. UTC here has no leap seconds, as everywhere in Kubernetes.
pub(crate) const DAY: i64 = 86_400;

/// The day of an instant, in UTC.
pub fn day_of(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

/// A month of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(
    /// Its first day.
    Date,
);

impl Month {
    /// The month of a day.
    pub fn of(day: Date) -> Self {
        Self(day.first_of_month())
    }

    /// The month of an instant, in UTC.
    pub fn of_timestamp(at: Timestamp) -> Self {
        Self::of(day_of(at))
    }

    /// Its first day.
    pub fn first_day(self) -> Date {
        self.0
    }

    /// Its last day.
    pub fn last_day(self) -> Date {
        self.0.last_of_month()
    }

    /// Number of its days.
    pub fn days(self) -> usize {
        usize::from(self.0.days_in_month().unsigned_abs())
    }

    /// When it begins, in UTC.
    pub fn start(self) -> Timestamp {
        start_of(self.0)
    }

    /// When the next one begins, in UTC.
    pub fn end(self) -> Timestamp {
        timestamp_of(start_second(self.last_day()).saturating_add(DAY))
    }

    /// Months since the year 0, to compare months by their distance.
    pub(crate) fn number(self) -> i32 {
        i32::from(self.0.year()) * 12 + i32::from(self.0.month())
    }
}

impl fmt::Display for Month {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04}-{:02}", self.0.year(), self.0.month())
    }
}

impl FromStr for Month {
    type Err = MonthError;

    /// Reads `2026-11`.
    fn from_str(text: &str) -> Result<Self, MonthError> {
        let is_like_a_month = text.len() == 7
            && text.bytes().enumerate().all(|(index, byte)| {
                if index == 4 {
                    byte == b'-'
                } else {
                    byte.is_ascii_digit()
                }
            });
        let day = is_like_a_month.then(|| format!("{text}-01").parse::<Date>());
        match day {
            Some(Ok(day)) => Ok(Self(day)),
            _ => Err(MonthError(text.into())),
        }
    }
}

/// A text is not a month.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a month; write it as in 2026-11")]
pub struct MonthError(String);

/// When a day begins, in UTC.
pub(crate) fn start_of(day: Date) -> Timestamp {
    timestamp_of(start_second(day))
}

/// The second of the epoch at which a day begins.
pub(crate) fn start_second(day: Date) -> i64 {
    day.duration_since(Date::constant(1970, 1, 1)).as_secs()
}

/// The instant at which a second of the epoch begins, or the nearest that there is.
pub(crate) fn timestamp_of(second: i64) -> Timestamp {
    let nearest = if second < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(second).unwrap_or(nearest)
}

/// The day that has a second of the epoch.
pub(crate) fn day_of_second(second: i64) -> Date {
    day_of(timestamp_of(second))
}

/// The second of the epoch of an instant, rounded down.
pub(crate) fn second_of(at: Timestamp) -> i64 {
    at.as_second() - i64::from(at.subsec_nanosecond() < 0)
}

/// The position of a day in its month, from 0.
pub(crate) fn position_in_month(day: Date) -> usize {
    usize::from(day.day().unsigned_abs()).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn days_and_months_begin_at_midnight_in_utc() {
        assert_eq!(day_of(at("2026-11-30T23:59:59.999Z")), date(2026, 11, 30));
        assert_eq!(day_of(at("2026-12-01T00:00:00Z")), date(2026, 12, 1));
        assert_eq!(day_of(at("2026-12-01T00:30:00+01:00")), date(2026, 11, 30));
        let december = Month::of_timestamp(at("2026-12-01T00:00:00Z"));
        assert_eq!(december, Month::of(date(2026, 12, 31)));
        assert_eq!(december.start(), at("2026-12-01T00:00:00Z"));
        assert_eq!(december.end(), at("2027-01-01T00:00:00Z"));
        assert_eq!(
            (december.first_day(), december.last_day()),
            (date(2026, 12, 1), date(2026, 12, 31))
        );
    }

    #[test]
    fn months_have_their_days() {
        let days = |text: &str| text.parse::<Month>().unwrap().days();
        assert_eq!(days("2026-01"), 31);
        assert_eq!(days("2026-02"), 28);
        assert_eq!(days("2028-02"), 29);
        assert_eq!(days("2100-02"), 28);
        assert_eq!(days("2026-04"), 30);
        assert_eq!("2028-02".parse::<Month>().unwrap().end(), at("2028-03-01T00:00:00Z"));
    }

    #[test]
    fn months_are_read_and_written() {
        let month: Month = "2026-11".parse().unwrap();
        assert_eq!(month.to_string(), "2026-11");
        assert_eq!("0001-02".parse::<Month>().unwrap().to_string(), "0001-02");
        for text in [
            "",
            "2026",
            "2026-13",
            "2026-00",
            "2026-1",
            "26-11",
            "2026-11-01",
            "2026/11",
            "-026-11",
            "2026-+1",
            "äöü-1",
        ] {
            let error = text.parse::<Month>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{text:?} is not a month; write it as in 2026-11")
            );
        }
    }

    #[test]
    fn months_are_numbered_across_years() {
        let number = |text: &str| text.parse::<Month>().unwrap().number();
        assert_eq!(number("2027-01") - number("2026-12"), 1);
        assert_eq!(number("2027-12") - number("2026-11"), 13);
    }

    #[test]
    fn seconds_and_days_fit() {
        for text in ["1969-12-31", "1970-01-01", "2028-02-29", "2026-11-05"] {
            let day: Date = text.parse().unwrap();
            let start = start_second(day);
            assert_eq!(day_of_second(start), day);
            assert_eq!(day_of_second(start + DAY - 1), day);
            assert_ne!(day_of_second(start - 1), day);
            assert_eq!(start_of(day), at(&format!("{text}T00:00:00Z")));
        }
        assert_eq!(day_of_second(i64::MAX), day_of(Timestamp::MAX));
        assert_eq!(day_of_second(i64::MIN), day_of(Timestamp::MIN));
        assert_eq!(position_in_month(date(2026, 11, 1)), 0);
        assert_eq!(position_in_month(date(2026, 12, 31)), 30);
    }

    #[test]
    fn the_last_month_of_all_ends() {
        assert!(Month::of_timestamp(Timestamp::MAX).end() >= Timestamp::MAX);
        assert!(Month::of_timestamp(Timestamp::MIN).start() <= at("1970-01-01T00:00:00Z"));
    }

    #[test]
    fn parts_of_a_second_are_dropped() {
        assert_eq!(second_of(at("1970-01-01T00:00:01.9Z")), 1);
        assert_eq!(second_of(at("1969-12-31T23:59:59.5Z")), -1);
    }
}
