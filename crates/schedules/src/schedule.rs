//! One `SchedulePolicy`, ready to be evaluated.

use crate::{ScheduleError, search, window::Window, zone::Zone};
use berth_api::{ScheduleAction, SchedulePolicySpec, ScheduleState};
use jiff::{SignedDuration, Timestamp};
use std::sync::{Mutex, PoisonError};

/// The longest period of warning, and the longest time for which budgets hold, in seconds.
const MAX_PERIOD_SECONDS: i64 = 7 * 24 * 3600;
/// Edges of windows that a search for the next change looks at.
const MAX_EDGES: usize = 200;
/// Time ahead that this search looks at: twice the longest pause of a schedule. Schedules of cron end in the year 5000, which is no change.
const HORIZON: SignedDuration = SignedDuration::from_hours(20 * 366 * 24);

/// When the state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextChange {
    /// At this instant.
    At(Timestamp),
    /// Not before this instant: the search went no further.
    NotBefore(Timestamp),
    /// Never.
    Never,
}

impl NextChange {
    /// When to evaluate again.
    pub fn evaluate_again(self) -> Option<Timestamp> {
        match self {
            Self::At(at) | Self::NotBefore(at) => Some(at),
            Self::Never => None,
        }
    }
}

/// What is allowed at an instant, and why.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// What is allowed.
    pub state: ScheduleState,
    /// The policy that decides; none if no policy restricts anything.
    pub schedule: Option<&'a Schedule>,
    /// Its open window that decides; none outside all Start windows.
    pub window: Option<&'a str>,
}

/// A time from which on a state stays for a while.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: Timestamp,
    state: ScheduleState,
    next: NextChange,
}

impl Interval {
    fn contains(&self, at: Timestamp) -> bool {
        self.from <= at && self.next.evaluate_again().is_none_or(|end| at < end)
    }
}

/// A valid policy.
#[derive(Debug)]
pub struct Schedule {
    policy: String,
    warning_period: SignedDuration,
    eviction_timeout: SignedDuration,
    zone: Zone,
    windows: Vec<Window>,
    /// The interval of the last call of [`Schedule::keep`].
    kept: Mutex<Option<Interval>>,
}

impl Schedule {
    /// Reads the spec of the policy with this name.
    ///
    /// # Errors
    /// The first field that cannot be evaluated.
    pub fn parse(policy: &str, spec: &SchedulePolicySpec) -> Result<Self, ScheduleError> {
        let zone = Zone::find(&spec.time_zone).ok_or_else(|| ScheduleError::UnknownTimeZone(spec.time_zone.clone()))?;
        let windows: Result<Vec<Window>, ScheduleError> = spec.windows.iter().map(Window::parse).collect();
        let warning_period = spec.warning_period();
        if warning_period > MAX_PERIOD_SECONDS {
            return Err(ScheduleError::InvalidWarningPeriod);
        }
        let eviction_timeout = spec.eviction_timeout();
        if eviction_timeout > MAX_PERIOD_SECONDS {
            return Err(ScheduleError::InvalidEvictionTimeout);
        }
        Ok(Self {
            policy: policy.into(),
            warning_period: SignedDuration::from_secs(warning_period),
            eviction_timeout: SignedDuration::from_secs(eviction_timeout),
            zone,
            windows: windows?,
            kept: Mutex::new(None),
        })
    }

    /// Name of the policy.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// How long before a stop its tenants are warned.
    pub fn warning_period(&self) -> SignedDuration {
        self.warning_period
    }

    /// How long PodDisruptionBudgets may keep pods after a stop began.
    pub fn eviction_timeout(&self) -> SignedDuration {
        self.eviction_timeout
    }

    /// Remembers the state at `now` and how long it stays, so that evaluating the policy for its next ten thousand tenants costs
    /// nothing.
    pub fn keep(&self, now: Timestamp) {
        if self.kept(now).is_some() {
            return;
        }
        let interval = Interval {
            from: now,
            state: self.state(now),
            next: self.next_change(now),
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(interval);
    }

    fn kept(&self, at: Timestamp) -> Option<Interval> {
        let kept = *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.filter(|interval| interval.contains(at))
    }

    /// What the policy allows at an instant.
    pub fn state(&self, at: Timestamp) -> ScheduleState {
        match self.kept(at) {
            Some(interval) => interval.state,
            None => self.evaluate(at).0,
        }
    }

    /// What the policy allows at an instant, and why.
    pub fn standing(&self, at: Timestamp) -> Standing<'_> {
        let (state, window) = self.evaluate(at);
        Standing {
            state,
            schedule: Some(self),
            window: window.map(|window| window.name.as_str()),
        }
    }

    /// The strictest of what the windows say. A policy with Start windows stops its tenants outside all of them.
    fn evaluate(&self, at: Timestamp) -> (ScheduleState, Option<&Window>) {
        let shown = self.zone.shown(at);
        let open = |action: ScheduleAction| {
            let mut windows = self.windows.iter();
            windows.find(|window| window.action == action && window.is_open(shown))
        };
        if let Some(stop) = open(ScheduleAction::Stop) {
            return (ScheduleState::Stopped, Some(stop));
        }
        let start = open(ScheduleAction::Start);
        let has_start = self.windows.iter().any(|window| window.action == ScheduleAction::Start);
        if has_start && start.is_none() {
            return (ScheduleState::Stopped, None);
        }
        match open(ScheduleAction::Forbid) {
            Some(forbid) => (ScheduleState::StartsForbidden, Some(forbid)),
            None => (ScheduleState::Running, start),
        }
    }

    /// When the state changes after an instant.
    pub fn next_change(&self, after: Timestamp) -> NextChange {
        if let Some(interval) = self.kept(after) {
            return interval.next;
        }
        search::find_change(
            after,
            MAX_EDGES,
            |from| self.next_edge(after, from),
            |at| self.evaluate(at).0,
        )
    }

    /// The next edge of a window after `from`, as far as a search from `after` goes.
    fn next_edge(&self, after: Timestamp, from: Timestamp) -> NextChange {
        let shown = self.zone.shown(from);
        let edges = self
            .windows
            .iter()
            .filter_map(|window| self.zone.instant(window.next_edge(shown)?))
            .filter(|edge| *edge > from);
        match edges.min() {
            None => NextChange::Never,
            Some(edge) if edge.duration_since(after) > HORIZON => NextChange::NotBefore(edge),
            Some(edge) => NextChange::At(edge),
        }
    }

    /// The next changes after an instant, `count` at most.
    pub fn transitions(&self, after: Timestamp, count: usize) -> Vec<(Timestamp, Standing<'_>)> {
        search::list_transitions(after, count, |from| self.next_change(from), |at| self.standing(at))
    }
}
