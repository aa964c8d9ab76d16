//! What is wrong with a policy.

/// Why a policy cannot be evaluated. The text says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The time zone is unknown.
    #[error(
        "spec.timeZone: {0:?} is not in the IANA time zone database; use a name such as Europe/Berlin, America/New_York or UTC"
    )]
    UnknownTimeZone(String),
    /// A schedule is not five fields of cron.
    #[error("spec.windows[{window}].schedule: {schedule:?}: {why}; write it as in \"0 8 * * MON-FRI\"")]
    InvalidSchedule {
        /// Name of the window.
        window: String,
        /// Its schedule.
        schedule: String,
        /// What is wrong.
        why: String,
    },
    /// A schedule names a day that no year has.
    #[error("spec.windows[{window}].schedule: {schedule:?} never opens: no month that it names has such a day")]
    NeverOpens {
        /// Name of the window.
        window: String,
        /// Its schedule.
        schedule: String,
    },
    /// A window is too short or too long.
    #[error("spec.windows[{window}].duration: must be at least 1m and at most 8784h (366 days)")]
    InvalidDuration {
        /// Name of the window.
        window: String,
    },
    /// The period of warning is too long.
    #[error("spec.warningPeriod: must be at most 168h (7 days)")]
    InvalidWarningPeriod,
    /// The time for which budgets hold is too long.
    #[error("spec.evictionTimeout: must be at most 168h (7 days)")]
    InvalidEvictionTimeout,
}
