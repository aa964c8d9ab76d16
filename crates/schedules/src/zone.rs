//! The clock on the wall of a time zone.
//!
//! A time of day comes once a day, also when the clock is changed: it comes at the first instant at which the clock has shown it or a
//! later time. So a time in a skipped hour comes when the clock is put forward, and a time in a repeated hour comes when the clock shows
//! it first; in the second pass the clock counts as standing still.

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

/// Changes of a clock that are looked at to find the last one that put it back.
const MAX_CHANGES: usize = 4;

/// A time zone.
#[derive(Clone, Debug)]
pub(crate) struct Zone(TimeZone);

impl Zone {
    /// The zone with this name in the IANA database.
    pub(crate) fn find(name: &str) -> Option<Self> {
        TimeZone::get(name).ok().map(Self)
    }

    /// This zone.
    pub(crate) fn of(zone: TimeZone) -> Self {
        Self(zone)
    }

    /// The latest time that the clock has shown at `at`: what it shows, or in the second pass of a repeated hour the last moment
    /// of the first pass.
    pub(crate) fn shown(&self, at: Timestamp) -> DateTime {
        let shown = self.0.to_datetime(at);
        let ambiguous = self.0.to_ambiguous_timestamp(shown);
        let AmbiguousOffset::Fold { before, .. } = ambiguous.offset() else {
            return shown;
        };
        let Ok(first_pass) = ambiguous.earlier() else {
            return shown;
        };
        if at <= first_pass {
            return shown;
        }
        let Ok(soon) = at.checked_add(SignedDuration::from_secs(1)) else {
            return shown;
        };
        let put_back = self
            .0
            .preceding(soon)
            .map(|change| change.timestamp())
            .take(MAX_CHANGES)
            .take_while(|change| *change > first_pass)
            .last();
        put_back.map_or(shown, |change| {
            before.to_datetime(change).saturating_sub(SignedDuration::from_nanos(1))
        })
    }

    /// The first instant at which the clock has shown this time or a later one.
    pub(crate) fn instant(&self, shown: DateTime) -> Option<Timestamp> {
        let ambiguous = self.0.to_ambiguous_timestamp(shown);
        let earlier = ambiguous.earlier().ok()?;
        match ambiguous.offset() {
            AmbiguousOffset::Gap { .. } => self.0.following(earlier).next().map(|change| change.timestamp()),
            _ => Some(earlier),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(zone: &str, shown: &str, instant: &str) {
        let found = Zone::find(zone).unwrap().instant(shown.parse().unwrap());
        assert_eq!(found.unwrap().to_string(), instant, "{zone} {shown}");
    }

    fn shows(zone: &str, at: &str) -> String {
        Zone::find(zone).unwrap().shown(at.parse().unwrap()).to_string()
    }

    #[test]
    fn unknown_zones_are_not_found() {
        for name in ["Europe/Bonn", "Mars", "", "CET+1"] {
            assert!(Zone::find(name).is_none(), "{name}");
        }
        assert!(Zone::find("UTC").is_some() && Zone::find("America/Argentina/Buenos_Aires").is_some());
    }

    #[test]
    fn a_time_that_is_skipped_comes_when_the_clock_is_put_forward() {
        for shown in [
            "2026-03-29T02:00",
            "2026-03-29T02:30",
            "2026-03-29T02:59:59",
            "2026-03-29T03:00",
        ] {
            check("Europe/Berlin", shown, "2026-03-29T01:00:00Z");
        }
        check("America/New_York", "2026-03-08T02:30", "2026-03-08T07:00:00Z");
        // Half an hour.
        check("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30:00Z");
        // Samoa left out a day.
        check("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00:00Z");
    }

    #[test]
    fn a_time_that_is_repeated_comes_once() {
        check("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30:00Z");
        check("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30:00Z");
        check("Australia/Lord_Howe", "2026-04-05T01:45", "2026-04-04T14:45:00Z");
    }

    #[test]
    fn the_clock_stands_still_in_the_second_pass() {
        assert_eq!(shows("Europe/Berlin", "2026-10-25T00:30:00Z"), "2026-10-25T02:30:00");
        for second in ["2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T01:59:59Z"] {
            assert_eq!(shows("Europe/Berlin", second), "2026-10-25T02:59:59.999999999");
        }
        assert_eq!(shows("Europe/Berlin", "2026-10-25T02:00:00Z"), "2026-10-25T03:00:00");
        assert_eq!(
            shows("Australia/Lord_Howe", "2026-04-04T15:15:00Z"),
            "2026-04-05T01:59:59.999999999"
        );
        assert_eq!(
            shows("Australia/Lord_Howe", "2026-04-04T15:30:00Z"),
            "2026-04-05T02:00:00"
        );
    }

    #[test]
    fn the_clock_jumps_over_a_skipped_hour() {
        assert_eq!(shows("Europe/Berlin", "2026-03-29T00:59:59Z"), "2026-03-29T01:59:59");
        assert_eq!(shows("Europe/Berlin", "2026-03-29T01:00:00Z"), "2026-03-29T03:00:00");
    }
}
