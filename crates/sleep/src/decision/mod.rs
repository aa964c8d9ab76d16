//! What follows from all that is known of a tenant.
//!
//! A tenant goes from [`SleepState::Awake`] over [`SleepState::FallingAsleep`] to [`SleepState::Sleeping`], and over
//! [`SleepState::Waking`] back. If the rules of its class change while it sleeps, it goes over [`SleepState::Enforcing`] to
//! [`SleepState::Sleeping`] again. Each state is recorded before anything is done for it, so that a process that is killed goes on where it
//! was. What is not known keeps a tenant awake.

use berth_api::{
    ScheduleState, SleepCause, SleepMode, SleepState,
    requests::{WAKE_CLOCK_SKEW, is_wake_due},
};
use jiff::{SignedDuration, Timestamp};

/// How long a request to sleep is tried. Pods that run for longer than that win: the tenant must not fall asleep hours later.
const SLEEP_REQUEST_LIFETIME: SignedDuration = SignedDuration::from_mins(10);
/// How much longer than its pods may take a tenant falls asleep at most.
const FALL_ASLEEP_MARGIN: SignedDuration = SignedDuration::from_mins(5);
/// How long before a CronJob or a schedule is due a tenant wakes.
const WAKE_AHEAD: SignedDuration = SignedDuration::from_secs(60);
/// The shortest sleep: for less, stopping and starting is not worth it.
const SHORTEST_SLEEP: SignedDuration = SignedDuration::from_mins(5);

/// When a tenant was used last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// At this time.
    Known(Timestamp),
    /// Nobody knows, for the given reason.
    Unknown(String),
}

/// What is known of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// The time.
    pub now: Timestamp,
    /// `spec.sleep.mode`.
    pub mode: SleepMode,
    /// Time without use after which it falls asleep; none: not by itself.
    pub after_idle: Option<SignedDuration>,
    /// Whether it may fall asleep while pods run.
    pub stops_pods: bool,
    /// How long its pods may take to end once it falls asleep.
    pub pods_end_within: SignedDuration,
    /// Its state, as it was recorded last.
    pub state: SleepState,
    /// Why it sleeps or falls asleep.
    pub cause: Option<SleepCause>,
    /// Since when it sleeps or falls asleep, or when it was woken.
    pub since: Option<Timestamp>,
    /// When it wakes by itself, as it was recorded when it fell asleep.
    pub wakes_at: Option<Timestamp>,
    /// When it was used last.
    pub activity: Activity,
    /// Whether the host has pods of it that have not ended.
    pub has_pods: bool,
    /// Whether its API server answers and its syncer runs.
    pub is_ready: bool,
    /// Whether its API server answers, or has answered since the tenant was woken.
    pub serves: bool,
    /// What its objects on the host follow.
    pub enforcement: Enforcement,
    /// When it was asked to sleep.
    pub sleep_requested: Option<Timestamp>,
    /// When it was asked to wake.
    pub wake_requested: Option<Timestamp>,
    /// What schedules let it do.
    pub schedule: ScheduleState,
    /// When schedules that restrict it, now or later, let it run again.
    pub next_start: Option<Timestamp>,
    /// What was read in it just now; none if nothing was.
    pub inside: Option<Inside>,
}

/// Whether the objects of a tenant on the host follow the rules of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// They follow those that the class has now: as its syncer says, and of a tenant that sleeps as it was recorded.
    Present,
    /// They may follow earlier ones.
    Earlier(Turn),
}

/// Whether the syncer of a tenant that sleeps may run because the rules of its class have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is started, or goes on.
    Now,
    /// It is not started yet: few are at the same time. One that runs goes on.
    Later,
    /// It had its time, and its objects did not follow the rules even so. It is started again after a pause.
    Over,
}

/// What only the tenant's API server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Whether it has pods that have not ended, on the host or not.
    pub has_pods: bool,
    /// Whether it knows of some of them that a node has started them. Such pods have ended on the host, or will end there, and the tenant must
    /// learn how: once it sleeps, their nodes are given back, and a pod that is gone from the host counts as failed, and is run again.
    pub has_started_pods: bool,
    /// Whether it has Jobs that have not ended and are not suspended. Such a Job may be between two pods.
    pub has_jobs: bool,
    /// When the next of its CronJobs is due; none: never. Or why that is not known.
    pub next_job: Result<Option<Timestamp>, String>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The state stays.
    Stay(Stay),
    /// Nothing is against sleep; [`Facts::inside`] is needed.
    LookInside,
    /// Record that it falls asleep.
    FallAsleep {
        /// Why.
        cause: SleepCause,
        /// When it wakes by itself.
        wakes_at: Option<Timestamp>,
    },
    /// Record that its API server and its syncer run for the rules of its class, while it sleeps.
    Enforce,
    /// Record that both run no more, although its objects may not follow the rules of its class.
    StopEnforcing,
    /// Record that it sleeps: nothing of it runs but the control plane.
    Sleep {
        /// When it wakes by itself.
        wakes_at: Option<Timestamp>,
    },
    /// Record that it wakes.
    Wake(WakeCause),
    /// Record that it is awake.
    Awake,
}

/// Why a state stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It does not fall asleep by itself.
    NoLimit,
    /// `spec.sleep.mode` is Awake.
    KeptAwake,
    /// It is used: it falls asleep at `until` if it is not used again.
    InUse {
        /// When it was used long enough ago.
        until: Timestamp,
    },
    /// Pods run or wait that may not be stopped.
    PodsRun,
    /// It is not known whether it is used, for the given reason.
    ActivityUnknown(String),
    /// It is not known when one of its CronJobs is due, for the given reason.
    JobUnknown(String),
    /// Its objects on the host may not follow the rules of its class yet.
    NotEnforced,
    /// A CronJob or a schedule needs it soon.
    DueSoon {
        /// When it would have to wake.
        at: Timestamp,
    },
    /// It falls asleep, and its pods end.
    PodsEnd,
    /// It falls asleep, and its API server does not answer.
    NotAnswering,
    /// It sleeps.
    Sleeping {
        /// When it wakes by itself.
        wakes_at: Option<Timestamp>,
    },
    /// It sleeps, and its syncer enforces the rules of its class.
    Enforcing,
    /// It wakes.
    Waking {
        /// Whether its API server answers already.
        serves: bool,
    },
}

/// Why a tenant wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WakeCause {
    /// Somebody asked for it.
    Requested,
    /// `spec.sleep.mode` was changed.
    Mode,
    /// A CronJob or a schedule is due.
    Scheduled,
    /// It was used, or got pods, while it fell asleep.
    Used,
    /// It could not fall asleep in time: its pods have not ended, or it is not known whether they have.
    Overdue,
}

impl WakeCause {
    /// Its name, as the label `cause` of a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requested => "Requested",
            Self::Mode => "Mode",
            Self::Scheduled => "Scheduled",
            Self::Used => "InUse",
            Self::Overdue => "Overdue",
        }
    }
}

/// What to do with a tenant.
pub fn decide(facts: &Facts) -> Decision {
    match facts.state {
        SleepState::Awake => facts.decide_awake(),
        SleepState::FallingAsleep => facts
            .wake_cause()
            .map_or_else(|| facts.decide_falling_asleep(), Decision::Wake),
        SleepState::Sleeping => facts
            .wake_cause()
            .map_or_else(|| facts.decide_sleeping(), Decision::Wake),
        SleepState::Enforcing => facts
            .wake_cause()
            .map_or_else(|| facts.decide_enforcing(), Decision::Wake),
        SleepState::Waking if facts.is_ready => Decision::Awake,
        SleepState::Waking => Decision::Stay(Stay::Waking { serves: facts.serves }),
    }
}

impl Facts {
    fn decide_awake(&self) -> Decision {
        if self.mode == SleepMode::Awake {
            return Decision::Stay(Stay::KeptAwake);
        }
        let cause = if self.mode == SleepMode::Asleep {
            SleepCause::Mode
        } else if self.is_asked_to_sleep() {
            SleepCause::Requested
        } else {
            match self.find_use() {
                Some(stay) => return Decision::Stay(stay),
                None => SleepCause::Idle,
            }
        };
        if self.has_pods && !self.stops_pods {
            return Decision::Stay(Stay::PodsRun);
        }
        if !self.is_ready {
            let why = "its API server or its syncer does not answer";
            return Decision::Stay(Stay::ActivityUnknown(why.into()));
        }
        if self.enforcement != Enforcement::Present {
            return Decision::Stay(Stay::NotEnforced);
        }
        let Some(inside) = &self.inside else {
            return Decision::LookInside;
        };
        if self.must_keep(inside) {
            return Decision::Stay(Stay::PodsRun);
        }
        match self.find_wake_time(inside) {
            Err(why) => Decision::Stay(Stay::JobUnknown(why)),
            Ok(Some(at)) if at.duration_since(self.now) < SHORTEST_SLEEP => Decision::Stay(Stay::DueSoon { at }),
            Ok(wakes_at) => Decision::FallAsleep { cause, wakes_at },
        }
    }

    fn decide_falling_asleep(&self) -> Decision {
        if self.is_since_ahead() && self.mode != SleepMode::Asleep {
            // How long it has taken, and whether the tenant was used meanwhile, is not known.
            return Decision::Wake(WakeCause::Overdue);
        }
        let used_since = match (&self.activity, self.since) {
            (Activity::Known(last), Some(since)) => *last > since,
            _ => false,
        };
        if self.cause == Some(SleepCause::Idle) && used_since {
            return Decision::Wake(WakeCause::Used);
        }
        if self.has_pods {
            return if self.stops_pods {
                self.keep_falling_asleep(Stay::PodsEnd)
            } else {
                Decision::Wake(WakeCause::Used)
            };
        }
        if !self.is_ready {
            return self.keep_falling_asleep(Stay::NotAnswering);
        }
        if self.enforcement != Enforcement::Present {
            // The class has changed since. Nothing enforces it while the tenant sleeps.
            return self.keep_falling_asleep(Stay::NotEnforced);
        }
        let Some(inside) = &self.inside else {
            return Decision::LookInside;
        };
        if self.must_keep(inside) {
            return Decision::Wake(WakeCause::Used);
        }
        if inside.has_started_pods {
            return self.keep_falling_asleep(Stay::PodsEnd);
        }
        match self.find_wake_time(inside) {
            Err(_) => Decision::Wake(WakeCause::Used),
            Ok(Some(at)) if at <= self.now => Decision::Wake(WakeCause::Scheduled),
            Ok(wakes_at) => Decision::Sleep { wakes_at },
        }
    }

    /// Whatever its mode is, the rules of its class hold for a tenant that sleeps.
    fn decide_sleeping(&self) -> Decision {
        match self.enforcement {
            Enforcement::Earlier(Turn::Now) => Decision::Enforce,
            Enforcement::Earlier(Turn::Later | Turn::Over) | Enforcement::Present => Decision::Stay(Stay::Sleeping {
                wakes_at: self.wake_time(self.wakes_at),
            }),
        }
    }

    /// A tenant whose syncer cannot enforce the class does not run for ever because of that: it is started again and again, with pauses.
    fn decide_enforcing(&self) -> Decision {
        match self.enforcement {
            Enforcement::Present => Decision::Sleep {
                wakes_at: self.wake_time(self.wakes_at),
            },
            Enforcement::Earlier(Turn::Now | Turn::Later) => Decision::Stay(Stay::Enforcing),
            Enforcement::Earlier(Turn::Over) => Decision::StopEnforcing,
        }
    }

    /// What a tenant does that cannot sleep yet, for this reason: it goes on falling asleep, and is awake again once that takes too long. No pod of
    /// it starts meanwhile, and a pod whose node is lost may never end. If the mode is Asleep, it goes on until the mode is another.
    pub fn keep_falling_asleep(&self, stay: Stay) -> Decision {
        if self.is_overdue() && self.mode != SleepMode::Asleep {
            Decision::Wake(WakeCause::Overdue)
        } else {
            Decision::Stay(stay)
        }
    }

    /// Whether the tenant should sleep by now.
    pub fn is_overdue(&self) -> bool {
        let limit = self.pods_end_within.saturating_add(FALL_ASLEEP_MARGIN);
        let since = self.since.filter(|_| self.state == SleepState::FallingAsleep);
        since.is_some_and(|since| self.now.duration_since(since) >= limit)
    }

    /// Whether the state began at a time that is still to come: the clock of control went back since, or was ahead then. Who asked for
    /// something meanwhile wrote a time after that.
    fn is_since_ahead(&self) -> bool {
        self.since
            .is_some_and(|since| since.duration_since(self.now) > WAKE_CLOCK_SKEW)
    }

    /// The time that requests are compared with: those of a state that began later than now are not for later.
    fn request_clock(&self) -> Timestamp {
        let clock = self.since.filter(|_| self.is_since_ahead());
        clock.unwrap_or(self.now)
    }

    /// When a request counts that is for a later time; none: there is no such request.
    pub fn next_request(&self) -> Option<Timestamp> {
        let (requested, ahead) = match self.state {
            SleepState::Awake => (self.sleep_requested, SignedDuration::ZERO),
            SleepState::Sleeping | SleepState::Enforcing => (self.wake_requested, WAKE_CLOCK_SKEW),
            SleepState::FallingAsleep | SleepState::Waking => return None,
        };
        let counts_at = requested?.checked_sub(ahead).ok()?;
        (counts_at > self.now).then_some(counts_at)
    }

    /// Why a tenant that nobody has asked to sleep stays awake for now; none if it was not used for long enough.
    fn find_use(&self) -> Option<Stay> {
        let Some(after_idle) = self.after_idle else {
            return Some(Stay::NoLimit);
        };
        let last = match &self.activity {
            Activity::Known(last) => *last,
            Activity::Unknown(why) => return Some(Stay::ActivityUnknown(why.clone())),
        };
        // Who asks a tenant to wake is about to use it.
        let wanted = self.wake_request().map(|at| at.min(self.now));
        let since = self.since.filter(|_| !self.is_since_ahead());
        let last = [Some(last), since, wanted].into_iter().flatten().max();
        let until = last.and_then(|last| last.checked_add(after_idle).ok())?;
        (until > self.now).then_some(Stay::InUse { until })
    }

    /// Whether it was asked to sleep, and nothing has happened since that counts more. A time that is still to come is a request for
    /// then. Of a request and a wake in the same second, the wake counts: the status knows whole seconds only.
    pub fn is_asked_to_sleep(&self) -> bool {
        self.sleep_requested.is_some_and(|at| {
            at <= self.now
                && self.now.duration_since(at) < SLEEP_REQUEST_LIFETIME
                && self.since.is_none_or(|since| at.as_second() > since.as_second())
                && self.wake_request().is_none_or(|wake| at > wake)
        })
    }

    /// When it was asked to wake; none if that is a time which is still to come. A clock that is ahead a little says nothing else.
    fn wake_request(&self) -> Option<Timestamp> {
        self.wake_requested.filter(|at| is_wake_due(*at, self.request_clock()))
    }

    /// Why a tenant wakes that sleeps or falls asleep.
    fn wake_cause(&self) -> Option<WakeCause> {
        match self.mode {
            SleepMode::Awake => return Some(WakeCause::Mode),
            SleepMode::Asleep => return None,
            SleepMode::Auto => {}
        }
        if self.cause == Some(SleepCause::Mode) {
            // Requests and CronJobs did not count so far.
            return Some(WakeCause::Mode);
        }
        // Times have no fractions of a second in the status: a request of the same second may have come later.
        let is_wanted = |at: Timestamp| self.is_since_ahead() || self.since.is_none_or(|since| at >= since);
        if self.wake_request().is_some_and(is_wanted) {
            return Some(WakeCause::Requested);
        }
        let is_due = self.wake_time(self.wakes_at).is_some_and(|at| at <= self.now);
        is_due.then_some(WakeCause::Scheduled)
    }

    /// Whether the tenant has pods that would start or run if it was awake, or Jobs that would create some.
    fn must_keep(&self, inside: &Inside) -> bool {
        (inside.has_pods || inside.has_jobs) && !self.stops_pods && self.schedule == ScheduleState::Running
    }

    /// When it has to wake by itself, as far as its CronJobs and schedules say.
    fn find_wake_time(&self, inside: &Inside) -> Result<Option<Timestamp>, String> {
        if self.mode == SleepMode::Asleep {
            return Ok(None);
        }
        let job = inside.next_job.clone()?;
        Ok(self.wake_time(job.map(ahead)))
    }

    /// The earlier of `known` and of the time at which schedules let it run again. Nothing wakes it while the mode is Asleep.
    fn wake_time(&self, known: Option<Timestamp>) -> Option<Timestamp> {
        if self.mode == SleepMode::Asleep {
            return None;
        }
        known.into_iter().chain(self.next_start.map(ahead)).min()
    }
}

fn ahead(due: Timestamp) -> Timestamp {
    due.checked_sub(WAKE_AHEAD).unwrap_or(due)
}

#[cfg(test)]
mod tests;
