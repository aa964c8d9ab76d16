//! When a tenant expires, and when its team is warned: pure.
//!
//! No tenant is deleted that was not warned for a while. The end that is published in the status moves towards now only up to the
//! last warning before it: a shorter TTL, or a control that did not run, takes nobody by surprise.

/// Seconds since the epoch.
pub(super) type Seconds = i64;

const DAY: i64 = 24 * 3600;
const HOUR: i64 = 3600;
/// Seconds before the end at which the team is warned, as far as the tenant exists for longer than that.
const WARNINGS: [i64; 3] = [DAY, HOUR, 600];

/// Seconds between the last warning and the end at least, however short the TTL is.
const SHORTEST_WARNING: i64 = 30;

/// A time that a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// The time in seconds.
    pub(super) seconds: i64,
    /// What it keeps, if the platform has reduced it.
    pub(super) grace: Option<Grace>,
}

/// What a tenant keeps whose time the platform has reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grace {
    /// Seconds that it had before; none: it had no limit.
    pub(super) previous: Option<i64>,
    /// The reduced time ends nothing before.
    pub(super) until: Seconds,
}

impl Limit {
    /// The end of the time that begins at `from`, and how long before it the team can be warned.
    fn end(&self, from: Seconds) -> (Seconds, i64) {
        let own = from.saturating_add(self.seconds);
        let kept = self.grace.map_or(own, |grace| {
            let before = grace.previous.map(|previous| from.saturating_add(previous));
            before.map_or(grace.until, |before| before.min(grace.until))
        });
        if kept > own {
            // All warnings are due, although the time is short.
            (kept, self.seconds.max(DAY + 1))
        } else {
            (own, self.seconds)
        }
    }
}

/// What the end of a tenant depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// When the tenant was created.
    pub(super) created: Seconds,
    /// How long it may exist.
    pub(super) ttl: Option<Limit>,
    /// How long it may have no pods.
    pub(super) idle_limit: Option<Limit>,
    /// Since when it has none; none if it has.
    pub(super) idle_since: Option<Seconds>,
    /// Since when this control watches its pods. Before that, it may have had some.
    pub(super) watched_since: Option<Seconds>,
    /// The end that the team was warned of.
    pub(super) warned_of: Option<Seconds>,
}

/// Why a tenant expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It has existed for long enough.
    Ttl,
    /// It had no pods for long enough.
    Idle,
}

/// How near the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No warning is due yet.
    Later,
    /// Within a day.
    Day,
    /// Within an hour.
    Hour,
    /// The last warning is due.
    Soon,
    /// It is over.
    Expired,
}

/// The end of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: Seconds,
    pub(super) cause: Cause,
    pub(super) stage: Stage,
    /// When the stage changes; now if it is over.
    pub(super) next: Seconds,
}

/// The end of a tenant; none if it has none as far as is known now.
pub(super) fn evaluate(facts: &Facts, now: Seconds) -> Option<End> {
    let by_ttl = facts.ttl.map(|ttl| {
        let (nominal, duration) = ttl.end(facts.created);
        (nominal, duration, Cause::Ttl)
    });
    let idle = facts.idle_since.zip(facts.idle_limit);
    let by_idle = idle.map(|(since, limit)| {
        let (nominal, duration) = limit.end(since);
        // Whoever was warned while no control ran, and started a pod, can show it again.
        let watched = facts
            .watched_since
            .unwrap_or(since)
            .saturating_add(last_warning(duration));
        (nominal.max(watched), duration, Cause::Idle)
    });
    let ends = by_ttl.into_iter().chain(by_idle);
    let (nominal, duration, cause) = ends.min_by_key(|(nominal, _, _)| *nominal)?;
    let last = last_warning(duration);
    // It was warned of this end, or is warned now.
    let earliest = now.saturating_add(last);
    let earliest = facts.warned_of.map_or(earliest, |warned| warned.min(earliest));
    let at = nominal.max(earliest);
    let left = at.saturating_sub(now);
    Some(End {
        at,
        cause,
        stage: stage(left, duration, last),
        next: next_change(at, duration, last, now),
    })
}

/// Seconds before the end at which the last warning is due.
fn last_warning(duration: i64) -> i64 {
    let shorter = WARNINGS.into_iter().filter(|warning| *warning < duration);
    shorter.min().unwrap_or(duration / 2).max(SHORTEST_WARNING)
}

fn stage(left: i64, duration: i64, last: i64) -> Stage {
    match left {
        ..=0 => Stage::Expired,
        left if left <= last => Stage::Soon,
        ..=HOUR if HOUR < duration => Stage::Hour,
        ..=DAY if DAY < duration => Stage::Day,
        _ => Stage::Later,
    }
}

fn next_change(at: Seconds, duration: i64, last: i64, now: Seconds) -> Seconds {
    let warnings = WARNINGS.into_iter().filter(|warning| *warning < duration);
    let changes = warnings.chain([last, 0]).map(|before| at.saturating_sub(before));
    changes.filter(|change| *change > now).min().unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a sequence of passes publishes: stages with the time at which each was first seen. It ends with the deletion.
    fn run(mut facts: Facts, start: Seconds, passes: usize) -> Vec<(Stage, Seconds)> {
        let (mut now, mut seen) = (start, Vec::new());
        for _ in 0..passes {
            let Some(end) = evaluate(&facts, now) else { break };
            if seen.last().is_none_or(|(stage, _)| *stage != end.stage) {
                seen.push((end.stage, now));
            }
            facts.warned_of = (end.stage != Stage::Later).then_some(end.at);
            if end.stage == Stage::Expired {
                break;
            }
            assert!(end.next > now);
            now = end.next;
        }
        seen
    }

    fn limit(seconds: i64) -> Limit {
        Limit { seconds, grace: None }
    }

    fn with_ttl(ttl: i64) -> Facts {
        Facts {
            ttl: Some(limit(ttl)),
            ..Facts::default()
        }
    }

    #[test]
    fn warnings_come_a_day_an_hour_and_ten_minutes_before_the_end() {
        assert_eq!(
            run(with_ttl(3 * DAY), 0, 10),
            [
                (Stage::Later, 0),
                (Stage::Day, 2 * DAY),
                (Stage::Hour, 3 * DAY - HOUR),
                (Stage::Soon, 3 * DAY - 600),
                (Stage::Expired, 3 * DAY)
            ]
        );
        // Those that are not shorter than the TTL are left out.
        assert_eq!(
            run(with_ttl(DAY), 0, 10),
            [
                (Stage::Later, 0),
                (Stage::Hour, DAY - HOUR),
                (Stage::Soon, DAY - 600),
                (Stage::Expired, DAY)
            ]
        );
        assert_eq!(
            run(with_ttl(120), 0, 10),
            [(Stage::Later, 0), (Stage::Soon, 60), (Stage::Expired, 120)]
        );
    }

    #[test]
    fn a_tenant_that_is_overdue_is_warned_first() {
        // Control did not run, or a tenant that is old gets a TTL.
        let start = 30 * DAY;
        assert_eq!(
            run(with_ttl(2 * DAY), start, 10),
            [(Stage::Soon, start), (Stage::Expired, start + 600)]
        );
        // It was warned of an end that is over since.
        let facts = Facts {
            warned_of: Some(2 * DAY),
            ..with_ttl(2 * DAY)
        };
        assert_eq!(run(facts, start, 10), [(Stage::Expired, start)]);
        // It was warned of a later end, and the TTL is shorter now.
        let facts = Facts {
            warned_of: Some(start + 3000),
            ..with_ttl(2 * DAY)
        };
        assert_eq!(
            run(facts, start, 10),
            [(Stage::Soon, start), (Stage::Expired, start + 600)]
        );
    }

    #[test]
    fn no_ttl_is_so_short_that_there_is_no_warning() {
        for ttl in [-5, 0, 1, 59] {
            let seen = run(with_ttl(ttl), 1000, 10);
            assert_eq!(seen, [(Stage::Soon, 1000), (Stage::Expired, 1030)], "{ttl}");
        }
    }

    #[test]
    fn a_longer_ttl_takes_the_warning_back() {
        let facts = Facts {
            warned_of: Some(2 * DAY),
            ..with_ttl(9 * DAY)
        };
        let end = evaluate(&facts, 2 * DAY - 1).unwrap();
        assert_eq!((end.at, end.stage, end.next), (9 * DAY, Stage::Later, 8 * DAY));
    }

    #[test]
    fn the_earlier_of_both_ends_counts_and_pods_take_back_idleness() {
        let mut facts = Facts {
            idle_limit: Some(limit(2 * HOUR)),
            idle_since: Some(HOUR),
            ..with_ttl(DAY)
        };
        let end = evaluate(&facts, HOUR).unwrap();
        assert_eq!((end.at, end.cause, end.next), (3 * HOUR, Cause::Idle, 2 * HOUR));
        facts.idle_since = None;
        let end = evaluate(&facts, HOUR).unwrap();
        assert_eq!((end.at, end.cause), (DAY, Cause::Ttl));
        facts.ttl = None;
        assert_eq!(evaluate(&facts, HOUR), None);
        assert_eq!(evaluate(&Facts::default(), HOUR), None);
    }

    #[test]
    fn an_idle_tenant_does_not_end_just_after_control_has_started() {
        // It was warned, and control did not run at the end.
        let facts = Facts {
            idle_limit: Some(limit(2 * HOUR)),
            idle_since: Some(0),
            warned_of: Some(2 * HOUR),
            watched_since: Some(3 * HOUR),
            ..Facts::default()
        };
        let end = evaluate(&facts, 3 * HOUR).unwrap();
        assert_eq!((end.at, end.stage), (3 * HOUR + 600, Stage::Soon));
        let end = evaluate(&facts, 3 * HOUR + 600).unwrap();
        assert_eq!(end.stage, Stage::Expired);
        // One that watched for longer is right.
        let facts = Facts {
            watched_since: Some(HOUR),
            ..facts
        };
        assert_eq!(evaluate(&facts, 2 * HOUR).unwrap().stage, Stage::Expired);
    }

    #[test]
    fn a_time_that_was_reduced_ends_nothing_before_its_grace_period() {
        let start = 30 * DAY;
        let reduced = |previous, until| Facts {
            ttl: Some(Limit {
                seconds: HOUR,
                grace: Some(Grace { previous, until }),
            }),
            ..Facts::default()
        };
        assert_eq!(
            run(reduced(None, start + 2 * DAY), start, 10),
            [
                (Stage::Later, start),
                (Stage::Day, start + DAY),
                (Stage::Hour, start + 2 * DAY - HOUR),
                (Stage::Soon, start + 2 * DAY - 600),
                (Stage::Expired, start + 2 * DAY)
            ]
        );
        // Not later than without the reduction.
        let seen = run(reduced(Some(30 * DAY + HOUR), start + DAY), start, 10);
        assert_eq!(seen.last(), Some(&(Stage::Expired, start + HOUR)));
        // A grace period that is over, and one that ends before the reduced time, change nothing.
        assert_eq!(
            run(reduced(None, start - DAY), start, 10),
            run(with_ttl(HOUR), start, 10)
        );
        assert_eq!(run(reduced(None, HOUR / 2), 0, 10), run(with_ttl(HOUR), 0, 10));
    }

    proptest! {
        #[test]
        fn every_tenant_is_warned_before_it_ends_and_ends_in_time(
            ttl in 60..100 * DAY,
            start in 0..200 * DAY,
            warned in prop::option::of(0..200 * DAY),
        ) {
            let facts = Facts { warned_of: warned, ..with_ttl(ttl) };
            let seen = run(facts, start, 20);
            let (last, end) = *seen.last().unwrap();
            prop_assert_eq!(last, Stage::Expired);
            prop_assert!(end >= ttl && end <= ttl.max(start + last_warning(ttl)));
            // Unless it was warned before the first pass.
            if warned.is_none() {
                let warning = seen.iter().find(|(stage, _)| *stage == Stage::Soon);
                prop_assert!(warning.is_some_and(|(_, at)| end - at >= last_warning(ttl)));
            }
        }
    }
}
