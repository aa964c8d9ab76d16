//! The rules of a class that change while a tenant sleeps, or is about to.

use super::*;

const EARLIER: Enforcement = Enforcement::Earlier(Turn::Now);

fn enforcing() -> Facts {
    Facts {
        state: SleepState::Enforcing,
        enforcement: EARLIER,
        ..sleeping()
    }
}

#[test]
fn a_tenant_does_not_fall_asleep_before_its_class_is_enforced() {
    for mode in [SleepMode::Auto, SleepMode::Asleep] {
        let awake = Facts {
            mode,
            enforcement: EARLIER,
            ..idle()
        };
        assert_eq!(decide(&awake), Decision::Stay(Stay::NotEnforced), "{mode:?}");
    }
    // It has changed since.
    let falls = Facts {
        enforcement: EARLIER,
        ..falling(SleepCause::Idle)
    };
    assert_eq!(decide(&falls), Decision::Stay(Stay::NotEnforced));
    let for_long = Facts {
        since: Some(at(NOW - HOUR)),
        activity: Activity::Unknown("it does not answer".into()),
        ..falls
    };
    assert_eq!(decide(&for_long), Decision::Wake(WakeCause::Overdue));
    let by_mode = Facts {
        mode: SleepMode::Asleep,
        cause: Some(SleepCause::Mode),
        ..for_long
    };
    assert_eq!(decide(&by_mode), Decision::Stay(Stay::NotEnforced));
}

#[test]
fn a_class_that_changes_is_enforced_whatever_the_mode_is() {
    for (mode, cause) in [
        (SleepMode::Auto, SleepCause::Idle),
        (SleepMode::Auto, SleepCause::Requested),
        (SleepMode::Asleep, SleepCause::Mode),
    ] {
        let mut facts = Facts {
            mode,
            cause: Some(cause),
            enforcement: EARLIER,
            ..sleeping()
        };
        assert_eq!(decide(&facts), Decision::Enforce, "{mode:?}");
        let waits = Decision::Stay(Stay::Sleeping { wakes_at: None });
        for turn in [Turn::Later, Turn::Over] {
            facts.enforcement = Enforcement::Earlier(turn);
            assert_eq!(decide(&facts), waits, "{turn:?}");
        }
    }
}

#[test]
fn a_tenant_sleeps_again_once_its_class_is_enforced_and_not_before() {
    let mut facts = enforcing();
    facts.mode = SleepMode::Asleep;
    facts.since = Some(at(NOW - 24 * HOUR));
    assert_eq!(
        decide(&facts),
        Decision::Stay(Stay::Enforcing),
        "however long that takes"
    );
    facts.enforcement = Enforcement::Present;
    assert_eq!(decide(&facts), Decision::Sleep { wakes_at: None });
    // What is recorded of its CronJobs stays.
    facts.mode = SleepMode::Auto;
    facts.wakes_at = Some(at(NOW + HOUR));
    let wakes_at = Some(at(NOW + HOUR));
    assert_eq!(decide(&facts), Decision::Sleep { wakes_at });
}

/// Each tenant that sleeps would run otherwise, if no syncer can enforce anything.
#[test]
fn a_tenant_that_had_its_time_sleeps_until_it_is_started_again() {
    for mode in [SleepMode::Auto, SleepMode::Asleep] {
        let mut facts = Facts { mode, ..enforcing() };
        for (turn, decision) in [
            (Turn::Now, Decision::Stay(Stay::Enforcing)),
            (Turn::Later, Decision::Stay(Stay::Enforcing)),
            (Turn::Over, Decision::StopEnforcing),
        ] {
            facts.enforcement = Enforcement::Earlier(turn);
            assert_eq!(decide(&facts), decision, "{mode:?} {turn:?}");
        }
    }
    // Somebody needs it.
    let requested = Facts {
        wake_requested: Some(at(NOW)),
        enforcement: Enforcement::Earlier(Turn::Over),
        ..enforcing()
    };
    assert_eq!(decide(&requested), Decision::Wake(WakeCause::Requested));
}

#[test]
fn a_tenant_wakes_while_its_class_is_enforced() {
    let requested = Facts {
        wake_requested: Some(at(NOW)),
        ..enforcing()
    };
    assert_eq!(decide(&requested), Decision::Wake(WakeCause::Requested));
    let due = Facts {
        wakes_at: Some(at(NOW)),
        ..enforcing()
    };
    assert_eq!(decide(&due), Decision::Wake(WakeCause::Scheduled));
    let later = Facts {
        wake_requested: Some(at(NOW + HOUR)),
        ..enforcing()
    };
    assert_eq!(later.next_request(), Some(at(NOW + HOUR - 60)));
    let mut by_mode = Facts {
        mode: SleepMode::Asleep,
        ..requested
    };
    assert_eq!(decide(&by_mode), Decision::Stay(Stay::Enforcing));
    by_mode.mode = SleepMode::Awake;
    assert_eq!(decide(&by_mode), Decision::Wake(WakeCause::Mode));
}

/// A class that was already enforced wakes nobody a second time.
#[test]
fn what_is_recorded_as_enforced_starts_nothing() {
    assert_eq!(decide(&sleeping()), Decision::Stay(Stay::Sleeping { wakes_at: None }));
}
