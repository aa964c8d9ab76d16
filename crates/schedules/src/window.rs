//! A recurring window of time.

use crate::{
    ScheduleError,
    cron::{CronFault, Openings},
};
use berth_api::{ScheduleAction, ScheduleWindow};
use jiff::{SignedDuration, civil::DateTime};

/// The shortest and the longest window, in seconds.
const DURATION: (i64, i64) = (60, 366 * 24 * 3600);
/// Openings within an open window that one search for its end follows.
const MAX_EXTENSIONS: usize = 16;

/// A window with its schedule.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) name: String,
    pub(crate) action: ScheduleAction,
    openings: Openings,
    duration: SignedDuration,
}

impl Window {
    pub(crate) fn parse(window: &ScheduleWindow) -> Result<Self, ScheduleError> {
        let ScheduleWindow {
            name,
            action,
            schedule,
            duration,
        } = window;
        let openings = Openings::parse(schedule).map_err(|fault| match fault {
            CronFault::Invalid(why) => ScheduleError::InvalidSchedule {
                window: name.clone(),
                schedule: schedule.clone(),
                why,
            },
            CronFault::Never => ScheduleError::NeverOpens {
                window: name.clone(),
                schedule: schedule.clone(),
            },
        })?;
        let (shortest, longest) = DURATION;
        let seconds = duration.seconds();
        if !(shortest..=longest).contains(&seconds) {
            return Err(ScheduleError::InvalidDuration { window: name.clone() });
        }
        Ok(Self {
            name: name.clone(),
            action: *action,
            openings,
            duration: SignedDuration::from_secs(seconds),
        })
    }

    pub(crate) fn is_open(&self, shown: DateTime) -> bool {
        self.closes(shown).is_some()
    }

    /// When a window that is open now closes, unless it opens again before that. All windows are equally long, so that the one that
    /// was opened last closes last.
    fn closes(&self, shown: DateTime) -> Option<DateTime> {
        let opened = self.openings.last(shown)?;
        let closes = opened.checked_add(self.duration).ok()?;
        (shown < closes).then_some(closes)
    }

    /// A time after `shown` before which the window neither opens nor closes.
    pub(crate) fn next_edge(&self, shown: DateTime) -> Option<DateTime> {
        let Some(mut closes) = self.closes(shown) else {
            return self.openings.next(shown);
        };
        for _ in 0..MAX_EXTENSIONS {
            match self.closes(closes) {
                Some(later) => closes = later,
                None => break,
            }
        }
        Some(closes)
    }
}
