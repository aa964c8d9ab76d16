//! When something that Berth does again and again is due: five fields of cron, on the clock of a time zone.

use crate::{
    cron::{CronFault, Openings},
    zone::Zone,
};
use jiff::{SignedDuration, Timestamp};

/// Times at which something is due.
#[derive(Clone, Debug)]
pub struct Recurrence {
    openings: Openings,
    zone: Zone,
}

impl Recurrence {
    /// Reads five fields of cron, and the name of a time zone.
    ///
    /// # Errors
    /// One of them cannot be read, or the fields name a day that no year has. The text says what to change.
    pub fn parse(cron: &str, time_zone: &str) -> Result<Self, String> {
        let openings = Openings::parse(cron).map_err(|fault| match fault {
            CronFault::Invalid(why) => format!("cron {cron:?}: {why}; write it as in \"0 2 * * *\""),
            CronFault::Never => {
                format!("cron {cron:?} is never due: no month that it names has such a day")
            }
        })?;
        let zone = Zone::find(time_zone).ok_or_else(|| {
            format!(
                "timeZone {time_zone:?} is not in the IANA time zone database; use a name such as Europe/Berlin or UTC"
            )
        })?;
        Ok(Self { openings, zone })
    }

    /// The last time at or before `at`. None: there is none.
    pub fn last(&self, at: Timestamp) -> Option<Timestamp> {
        let shown = self.openings.last(self.zone.shown(at))?;
        self.zone.instant(shown)
    }

    /// The first time after `at`. None: there is none.
    pub fn next(&self, at: Timestamp) -> Option<Timestamp> {
        let shown = self.openings.next(self.zone.shown(at))?;
        self.zone.instant(shown)
    }

    /// The time before the last one: something that was not done since then was left out twice.
    pub fn last_but_one(&self, at: Timestamp) -> Option<Timestamp> {
        let before = self.last(at)?.checked_sub(SignedDuration::from_secs(1)).ok()?;
        self.last(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn times_are_found_in_both_directions() {
        let nightly = Recurrence::parse("0 2 * * *", "Europe/Berlin").unwrap();
        let now = at("2026-11-30T12:00:00Z");
        assert_eq!(nightly.last(now), Some(at("2026-11-30T01:00:00Z")));
        assert_eq!(nightly.last_but_one(now), Some(at("2026-11-29T01:00:00Z")));
        assert_eq!(nightly.next(now), Some(at("2026-12-01T01:00:00Z")));
        // The moment itself is the last one, and not the next.
        let due = at("2026-11-30T01:00:00Z");
        assert_eq!(nightly.last(due), Some(due));
        assert_eq!(nightly.next(due), Some(at("2026-12-01T01:00:00Z")));
    }

    #[test]
    fn a_time_comes_once_also_when_the_clock_is_changed() {
        let nightly = Recurrence::parse("30 2 * * *", "Europe/Berlin").unwrap();
        // The clock is put back at 03:00: 02:30 comes twice.
        assert_eq!(
            nightly.last(at("2026-10-25T02:00:00Z")),
            Some(at("2026-10-25T00:30:00Z"))
        );
        // It is put forward at 02:00: 02:30 is left out.
        assert_eq!(
            nightly.last(at("2026-03-29T06:00:00Z")),
            Some(at("2026-03-29T01:00:00Z"))
        );
    }

    #[test]
    fn what_cannot_be_read_is_an_error_that_says_what_to_change() {
        for (cron, zone, text) in [
            ("0 2 * *", "UTC", "4 fields"),
            ("@daily", "UTC", "1 fields"),
            ("0 0 30 2 *", "UTC", "never due"),
            ("0 2 * * *", "Mars", "Mars"),
        ] {
            let error = Recurrence::parse(cron, zone).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
