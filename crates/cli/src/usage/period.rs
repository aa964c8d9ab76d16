//! The days of a report, in UTC.

use berth_api::labels;
use berth_metering::Month;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::error::Error;

/// Most months of one report: those for which records can be kept (`metering.retentionMonths` of the chart), and the current one. The records of each
/// month are selected by a label.
const MOST_MONTHS: usize = 121;

/// Days from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) from: Date,
    pub(super) to: Date,
}

impl Period {
    /// The days of a month, or those that `--from` and `--to` say. Without any of them, this month up to `today`.
    ///
    /// # Errors
    /// They have not begun, are in the wrong order, or are too many.
    pub(super) fn new(month: Option<Month>, from: Option<Date>, to: Option<Date>, today: Date) -> Result<Self, Error> {
        let period = if let Some(month) = month {
            Self {
                from: month.first_day(),
                to: month.last_day(),
            }
        } else {
            let to = to.unwrap_or(today);
            let from = from.unwrap_or_else(|| to.first_of_month());
            Self { from, to }
        };
        let Self { from, to } = period;
        if from > today {
            return Err(Error::Usage(format!(
                "{from} is in the future: by the clock of the host cluster it is {today}, in UTC"
            )));
        }
        if from > to {
            return Err(Error::Usage(format!(
                "--from {from} is after --to {to}; the report has both days and those between them"
            )));
        }
        if period.months().len() > MOST_MONTHS {
            return Err(Error::Usage(format!(
                "{from} to {to} are more than {MOST_MONTHS} months; choose fewer with --from and --to"
            )));
        }
        Ok(period)
    }

    /// The months that these days are in.
    pub(super) fn months(self) -> Vec<Month> {
        let last = Month::of(self.to);
        let mut month = Month::of(self.from);
        let mut months = vec![month];
        while month < last {
            let Ok(next) = month.last_day().tomorrow() else { break };
            month = Month::of(next);
            months.push(month);
        }
        months
    }

    /// A label selector of the UsageRecords of these months, and of the month before them: its records say which tenants use something of which nothing
    /// is recorded later.
    pub(super) fn selector(self) -> String {
        let before = self.from.first_of_month().yesterday().map(Month::of).ok();
        let months: Vec<String> = before
            .into_iter()
            .chain(self.months())
            .map(|month| month.to_string())
            .collect();
        format!("{} in ({})", labels::USAGE_MONTH, months.join(","))
    }

    /// When the last day ends.
    pub(super) fn end(self) -> Timestamp {
        let next = self.to.tomorrow().and_then(|day| day.to_zoned(TimeZone::UTC));
        next.map_or(Timestamp::MAX, |midnight| midnight.timestamp())
    }
}

/// Reads `2026-11-30`.
pub(super) fn parse_day(text: &str) -> Result<Date, String> {
    // A date is also read from a date and a time.
    let day = text.parse::<Date>().ok().filter(|day| day.to_string() == text);
    day.ok_or_else(|| "expected a day such as 2026-11-30".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Date {
        parse_day(text).unwrap()
    }

    fn period(month: Option<&str>, from: Option<&str>, to: Option<&str>) -> Result<(String, String), String> {
        let month = month.map(|month| month.parse().unwrap());
        let period = Period::new(month, from.map(day), to.map(day), day("2026-11-29"));
        let text = |period: Period| (period.from.to_string(), period.to.to_string());
        period.map(text).map_err(|error| {
            assert!(matches!(error, Error::Usage(_)));
            error.to_string()
        })
    }

    fn days(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn a_report_is_of_this_month_up_to_now_if_nothing_is_said() {
        assert_eq!(period(None, None, None).unwrap(), days("2026-11-01", "2026-11-29"));
        assert_eq!(
            period(None, Some("2026-09-15"), None).unwrap(),
            days("2026-09-15", "2026-11-29")
        );
        assert_eq!(
            period(None, None, Some("2026-10-07")).unwrap(),
            days("2026-10-01", "2026-10-07")
        );
        assert_eq!(
            period(None, Some("2026-11-29"), Some("2026-11-29")).unwrap(),
            days("2026-11-29", "2026-11-29")
        );
        assert_eq!(
            period(Some("2026-11"), None, None).unwrap(),
            days("2026-11-01", "2026-11-30")
        );
        assert_eq!(
            period(Some("2028-02"), None, None).unwrap_err(),
            "2028-02-01 is in the future: by the clock of the host cluster it is 2026-11-29, in UTC"
        );
        assert_eq!(
            period(Some("2024-02"), None, None).unwrap(),
            days("2024-02-01", "2024-02-29")
        );
    }

    #[test]
    fn days_in_the_wrong_order_in_the_future_or_too_many_are_refused() {
        let error = |from, to| period(None, Some(from), to).unwrap_err();
        assert!(error("2026-11-30", None).starts_with("2026-11-30 is in the future"));
        assert!(error("2026-11-20", Some("2026-11-19")).starts_with("--from 2026-11-20 is after --to 2026-11-19"));
        assert!(error("2016-10-31", None).contains("more than 121 months"));
        assert_eq!(
            period(None, Some("2016-11-01"), None).unwrap(),
            days("2016-11-01", "2026-11-29")
        );
        assert!(error("0001-01-01", Some("2026-11-29")).contains("more than 121 months"));
    }

    #[test]
    fn records_are_selected_by_the_months_of_the_days() {
        let selector = |from, to| {
            Period {
                from: day(from),
                to: day(to),
            }
            .selector()
        };
        assert_eq!(
            selector("2026-11-30", "2026-11-30"),
            "berth.dev/usage-month in (2026-10,2026-11)"
        );
        assert_eq!(
            selector("2026-11-30", "2027-01-01"),
            "berth.dev/usage-month in (2026-10,2026-11,2026-12,2027-01)"
        );
    }

    #[test]
    fn the_last_day_ends_at_midnight() {
        let end = |to| {
            Period {
                from: day(to),
                to: day(to),
            }
            .end()
            .to_string()
        };
        assert_eq!(end("2026-12-31"), "2027-01-01T00:00:00Z");
        assert_eq!(end("2028-02-28"), "2028-02-29T00:00:00Z");
        assert!(
            end("9999-12-31").starts_with("9999-12-30"),
            "the last instant that this program knows"
        );
    }

    #[test]
    fn a_day_is_read_as_it_is_written() {
        assert_eq!(day("2026-02-28").to_string(), "2026-02-28");
        for text in [
            "",
            "2026-02-29",
            "2026-2-1",
            "20260201",
            "2026-02-01T10:00",
            "today",
            "2026-02",
        ] {
            assert_eq!(
                parse_day(text).unwrap_err(),
                "expected a day such as 2026-11-30",
                "{text}"
            );
        }
    }
}
