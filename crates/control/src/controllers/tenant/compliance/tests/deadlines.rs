//! Grace periods: when it is reported what is forbidden, and when it is withdrawn.

use super::{
    super::{super::access::POOL_NOT_ALLOWED, report::ENFORCED, *},
    DAY, STORAGE_CLASS_NOT_ALLOWED, at,
};
use std::time::Duration;

fn forbidden(reason: &'static str, withdrawal: Withdrawal, grace: i64) -> Forbidden {
    Forbidden {
        reason,
        object: "HostNodePool/h100".into(),
        message: "not allowed".into(),
        withdrawal,
        grace,
    }
}

#[test]
fn a_grace_period_begins_once_and_ends_once() {
    let of_pool = |grace| vec![forbidden(POOL_NOT_ALLOWED, Withdrawal::OwnNodes, grace)];
    let first = assess(of_pool(DAY), &[], at(100));
    assert_eq!(first.violations[0].deadline, Some(Time(at(100 + DAY))));
    assert_eq!((first.violations[0].enforced, first.withdrawals.len()), (false, 0));
    let later = assess(of_pool(DAY), &first.violations, at(100 + DAY - 1));
    assert_eq!(later, first, "nothing changes before the deadline");
    assert_eq!(
        until_next_deadline(&first.violations, at(100 + DAY - 30)),
        Some(Duration::from_secs(30))
    );
    let over = assess(of_pool(DAY), &later.violations, at(100 + DAY));
    assert!(over.violations[0].enforced);
    assert_eq!(over.withdrawals, [Withdrawal::OwnNodes]);
    assert_eq!(until_next_deadline(&over.violations, at(100 + DAY)), None);
    // The platform may change the period while it runs.
    assert!(assess(of_pool(60), &later.violations, at(200)).violations[0].enforced);
    assert!(!assess(of_pool(2 * DAY), &later.violations, at(100 + DAY)).violations[0].enforced);
    // What is allowed again begins anew.
    let allowed = assess(Vec::new(), &over.violations, at(100 + 2 * DAY));
    assert_eq!(allowed, Assessment::default());
    let again = assess(of_pool(DAY), &allowed.violations, at(100 + 3 * DAY));
    assert!(!again.violations[0].enforced);
}

/// A StorageClass that the tenant uses and its class does not offer.
fn unoffered(class: &str) -> Vec<Forbidden> {
    let offer = StorageOffer::StorageClass(class.into());
    vec![Forbidden {
        object: offer.to_string(),
        ..forbidden(STORAGE_CLASS_NOT_ALLOWED, Withdrawal::Storage(offer), DAY)
    }]
}

/// Otherwise a team that may use two classes keeps what either of them does not offer.
#[test]
fn two_classes_in_turn_give_no_second_grace_period() {
    // A violation of something else has a grace period of its own.
    let of_networks = vec![forbidden("NetworkNotAllowed", Withdrawal::Networks, DAY)];
    let of_networks = assess(of_networks, &[], at(0)).violations;
    let mut recorded = assess_in_new_class(unoffered("slow"), &of_networks, at(100)).violations;
    for (class, second) in [("fast", DAY / 3), ("slow", DAY / 2), ("fast", DAY)] {
        let found = assess_in_new_class(unoffered(class), &recorded, at(second));
        assert_eq!(found.violations[0].deadline, Some(Time(at(100 + DAY))), "{class}");
        assert!(found.withdrawals.is_empty(), "{class}");
        recorded = assess(unoffered(class), &found.violations, at(second + 1)).violations;
    }
    let reported = assess_in_new_class(unoffered("slow"), &recorded, at(2 * DAY));
    assert!(reported.withdrawals.is_empty(), "it is reported first");
    let over = assess(unoffered("slow"), &reported.violations, at(2 * DAY));
    assert_eq!(over.withdrawals.len(), 1);
    // A class that offers everything ends it.
    let offered = assess_in_new_class(Vec::new(), &over.violations, at(3 * DAY)).violations;
    let again = assess_in_new_class(unoffered("slow"), &offered, at(4 * DAY)).violations;
    assert_eq!(again[0].since, Time(at(4 * DAY)));
}

/// Claims of a StorageClass that was withdrawn long ago stay.
#[test]
fn what_was_withdrawn_long_ago_ends_no_pods_in_another_class() {
    let reported = assess(unoffered("old"), &[], at(0)).violations;
    let withdrawn = assess(unoffered("old"), &reported, at(DAY)).violations;
    assert!(withdrawn[0].enforced);
    for (second, since) in [(2 * DAY - 1, 0), (2 * DAY, 2 * DAY)] {
        let found = assess_in_new_class(unoffered("new"), &withdrawn, at(second)).violations;
        assert_eq!(found[0].since, Time(at(since)), "{second}");
        // What was reported only, whatever its deadline, has not been withdrawn.
        let found = assess_in_new_class(unoffered("new"), &reported, at(second)).violations;
        assert_eq!(found[0].since, Time(at(0)), "{second}");
    }
}

#[test]
fn nothing_is_withdrawn_before_it_is_reported() {
    let found = || vec![forbidden(POOL_NOT_ALLOWED, Withdrawal::OwnNodes, 0)];
    let first = assess(found(), &[], at(100));
    assert!(!first.violations[0].enforced);
    assert_eq!(
        until_next_deadline(&first.violations, at(100)),
        Some(Duration::from_secs(1)),
        "at once, but in another reconcile"
    );
    assert!(assess(found(), &first.violations, at(100)).violations[0].enforced);
}

#[test]
fn each_violation_has_a_time_of_its_own() {
    let first = assess(vec![forbidden(POOL_NOT_ALLOWED, Withdrawal::OwnNodes, DAY)], &[], at(0));
    let both = vec![
        forbidden(POOL_NOT_ALLOWED, Withdrawal::OwnNodes, DAY),
        forbidden("NetworkNotAllowed", Withdrawal::Networks, DAY),
    ];
    let both = assess(both, &first.violations, at(DAY - 1));
    let since: Vec<i64> = both
        .violations
        .iter()
        .map(|violation| violation.since.0.as_second())
        .collect();
    assert_eq!(since, [0, DAY - 1]);
}

#[test]
fn what_is_only_reported_has_no_deadline() {
    let only = vec![forbidden("VersionNotAllowed", Withdrawal::Nothing, 0)];
    let first = assess(only.clone(), &[], at(0));
    let later = assess(only, &first.violations, at(100 * DAY));
    assert_eq!(later, first);
    assert_eq!(condition(&later.violations).reason, "NotEnforced");
    assert_eq!(until_next_deadline(&later.violations, at(0)), None);
}

#[test]
fn conditions_and_events_say_when_it_is_withdrawn() {
    let found = || vec![forbidden(POOL_NOT_ALLOWED, Withdrawal::OwnNodes, 60)];
    let first = assess(found(), &[], at(0)).violations;
    let pending = condition(&first);
    assert_eq!((pending.status, pending.reason), (Some(false), "EnforcementPending"));
    assert_eq!(
        pending.message,
        "not allowed. Berth withdraws it at 1970-01-01T00:01:00Z"
    );
    let over = assess(found(), &first, at(60)).violations;
    assert_eq!(condition(&over).reason, "Enforced");
    let reasons = |before: &[Violation], after: &[Violation]| -> Vec<String> {
        events(before, after).into_iter().map(|(reason, _)| reason).collect()
    };
    assert_eq!(reasons(&[], &first), [POOL_NOT_ALLOWED]);
    assert_eq!(reasons(&first, &over), [ENFORCED]);
    assert!(reasons(&over, &over).is_empty() && reasons(&over, &[]).is_empty());
}
