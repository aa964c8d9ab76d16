//! What a tenant keeps when the platform gives it less time than before: pure.
//!
//! A class may get a lower maximum, or a tenant another class. Then the tenant keeps what it had for the grace period of the class, which
//! begins when control sees the change first. The status has what the limit was and when that was ([`ExpirationLimit`]). It never gets more
//! than it had: a team that changes between two classes gains nothing. A limit that the team itself sets holds at once.

use super::{
    duration_text,
    rules::{Grace, Limit, Seconds},
};
use berth_api::ExpirationLimit;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A limit as it is now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// Seconds; none: no limit.
    pub(super) limit: Option<i64>,
    /// What the spec requests.
    pub(super) requested: Option<i64>,
}

/// What is known besides the limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Whether it is not known what the limit was: the tenant is new, or another release of Berth did not record it.
    pub(super) is_first: bool,
    /// Grace period of the class in seconds.
    pub(super) grace: i64,
    pub(super) now: Seconds,
}

/// What the status says of a limit from now on. `before` is what it says; none: there was no limit.
pub(super) fn track(before: Option<&ExpirationLimit>, current: Current, rules: Rules) -> Option<ExpirationLimit> {
    let Rules { is_first, grace, now } = rules;
    let seconds = current.limit?;
    let settled = ExpirationLimit {
        limit: duration_text(seconds).as_str().into(),
        previous_limit: None,
        reduced_at: None,
    };
    if is_first || current.requested == Some(seconds) {
        return Some(settled);
    }
    let kept = before.filter(|before| {
        let reduced = before.reduced_at.as_ref().map(|at| at.0.as_second());
        reduced.is_some_and(|at| at.saturating_add(grace) > now)
    });
    let (previous, reduced_at) = match (kept, before) {
        (Some(kept), _) => (kept.previous_limit.clone(), kept.reduced_at.clone()),
        (None, before) => (
            before.map(|before| before.limit.clone()),
            Timestamp::from_second(now).ok().map(Time),
        ),
    };
    let is_reduced = previous.as_ref().is_none_or(|previous| seconds < previous.seconds());
    if !is_reduced {
        return Some(settled);
    }
    Some(ExpirationLimit {
        previous_limit: previous,
        reduced_at,
        ..settled
    })
}

/// The limit for the rules.
pub(super) fn limit_of(tracked: &ExpirationLimit, grace: i64) -> Limit {
    let reduced_at = tracked.reduced_at.as_ref().map(|at| at.0.as_second());
    Limit {
        seconds: tracked.limit.seconds(),
        grace: reduced_at.map(|at| Grace {
            previous: tracked.previous_limit.as_ref().map(berth_api::KubeDuration::seconds),
            until: at.saturating_add(grace),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn rules(now: Seconds) -> Rules {
        Rules {
            is_first: false,
            grace: DAY,
            now,
        }
    }

    fn of_class(limit: i64) -> Current {
        Current {
            limit: Some(limit),
            requested: None,
        }
    }

    fn settled(limit: &str) -> ExpirationLimit {
        ExpirationLimit {
            limit: limit.into(),
            previous_limit: None,
            reduced_at: None,
        }
    }

    fn reduced(limit: &str, previous: Option<&str>, at: Seconds) -> ExpirationLimit {
        ExpirationLimit {
            limit: limit.into(),
            previous_limit: previous.map(Into::into),
            reduced_at: Timestamp::from_second(at).ok().map(Time),
        }
    }

    #[test]
    fn a_lower_limit_of_the_platform_is_recorded_once() {
        let before = settled("4h");
        let after = track(Some(&before), of_class(3600), rules(100)).unwrap();
        assert_eq!(after, reduced("1h", Some("4h"), 100));
        assert_eq!(track(Some(&after), of_class(3600), rules(200)), Some(after.clone()));
        let limit = limit_of(&after, DAY);
        let grace = Grace {
            previous: Some(4 * 3600),
            until: 100 + DAY,
        };
        assert_eq!((limit.seconds, limit.grace), (3600, Some(grace)));
        // The record ends with the grace period, and is not made again.
        let over = track(Some(&after), of_class(3600), rules(101 + DAY)).unwrap();
        assert_eq!(over, settled("1h"));
        assert_eq!(track(Some(&over), of_class(3600), rules(102 + DAY)), Some(over.clone()));
    }

    #[test]
    fn a_first_limit_of_an_old_tenant_has_a_grace_period_and_that_of_a_new_one_has_none() {
        assert_eq!(track(None, of_class(3600), rules(100)), Some(reduced("1h", None, 100)));
        let first = Rules {
            is_first: true,
            ..rules(100)
        };
        assert_eq!(track(None, of_class(3600), first), Some(settled("1h")));
        let none = Current {
            limit: None,
            requested: None,
        };
        assert_eq!(track(Some(&settled("1h")), none, rules(100)), None);
    }

    #[test]
    fn what_the_team_sets_holds_at_once() {
        let own = Current {
            limit: Some(3600),
            requested: Some(3600),
        };
        assert_eq!(track(Some(&settled("4h")), own, rules(100)), Some(settled("1h")));
    }

    #[test]
    fn going_to_and_fro_between_limits_gains_nothing() {
        let before = settled("4h");
        let once = track(Some(&before), of_class(3600), rules(100)).unwrap();
        let less = track(Some(&once), of_class(1800), rules(200)).unwrap();
        assert_eq!(less, reduced("30m", Some("4h"), 100));
        let more = track(Some(&less), of_class(3600), rules(300)).unwrap();
        assert_eq!(more, reduced("1h", Some("4h"), 100));
        let back = track(Some(&more), of_class(4 * 3600), rules(400)).unwrap();
        assert_eq!(back, settled("4h"));
        // Another grace period never reaches beyond what the tenant had.
        let again = track(Some(&back), of_class(3600), rules(500)).unwrap();
        assert_eq!(limit_of(&again, DAY).grace.unwrap().previous, Some(4 * 3600));
    }
}
