//! What wakes a tenant that sleeps, and what does not.

use super::*;

#[test]
fn a_request_wakes_a_tenant_if_it_came_after_it_fell_asleep() {
    let with = |requested: i64| {
        decide(&Facts {
            wake_requested: Some(at(requested)),
            ..sleeping()
        })
    };
    let stays = Decision::Stay(Stay::Sleeping { wakes_at: None });
    assert_eq!(with(NOW - 11), stays);
    assert_eq!(with(NOW - 10), Decision::Wake(WakeCause::Requested), "the same second");
    assert_eq!(with(NOW), Decision::Wake(WakeCause::Requested));
    assert_eq!(
        with(NOW + 60),
        Decision::Wake(WakeCause::Requested),
        "a clock that is ahead"
    );
    assert_eq!(with(NOW + 61), stays, "a wake for later is at most a minute early");
}

#[test]
fn a_request_for_later_is_decided_when_it_counts() {
    let asleep = |second| {
        let facts = Facts {
            wake_requested: Some(at(second)),
            sleep_requested: Some(at(NOW + 5)),
            ..sleeping()
        };
        facts.next_request()
    };
    assert_eq!(asleep(NOW + HOUR), Some(at(NOW + HOUR - 60)));
    assert_eq!(asleep(NOW + 60), None, "it counts already");
    let awake = |second| {
        let facts = Facts {
            sleep_requested: Some(at(second)),
            wake_requested: Some(at(NOW + HOUR)),
            ..idle()
        };
        facts.next_request()
    };
    assert_eq!(awake(NOW + 30), Some(at(NOW + 30)));
    assert_eq!(awake(NOW), None);
    assert_eq!(idle().next_request(), None);
}

#[test]
fn a_tenant_wakes_at_its_time_and_at_an_earlier_start_of_a_schedule() {
    let with = |wakes_at: Option<i64>, start: Option<i64>| {
        decide(&Facts {
            wakes_at: wakes_at.map(at),
            next_start: start.map(at),
            ..sleeping()
        })
    };
    let until = |second: i64| {
        Decision::Stay(Stay::Sleeping {
            wakes_at: Some(at(second)),
        })
    };
    assert_eq!(with(Some(NOW + 1), None), until(NOW + 1));
    assert_eq!(with(Some(NOW), None), Decision::Wake(WakeCause::Scheduled));
    assert_eq!(
        with(Some(NOW - HOUR), None),
        Decision::Wake(WakeCause::Scheduled),
        "control was down"
    );
    assert_eq!(with(Some(NOW + HOUR), Some(NOW + 90)), until(NOW + 30));
    assert_eq!(with(None, Some(NOW + 60)), Decision::Wake(WakeCause::Scheduled));
    // A policy that was removed since: the time that was recorded stays.
    assert_eq!(with(Some(NOW + HOUR), None), until(NOW + HOUR));
}

#[test]
fn nothing_wakes_a_tenant_that_is_to_be_asleep() {
    let facts = Facts {
        mode: SleepMode::Asleep,
        cause: Some(SleepCause::Idle),
        wake_requested: Some(at(NOW)),
        wakes_at: Some(at(NOW - 5)),
        next_start: Some(at(NOW - 5)),
        ..sleeping()
    };
    assert_eq!(decide(&facts), Decision::Stay(Stay::Sleeping { wakes_at: None }));
}

#[test]
fn a_change_of_the_mode_wakes() {
    let mut facts = sleeping();
    facts.mode = SleepMode::Awake;
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Mode));
    // Nothing was recorded that would wake it later.
    facts.mode = SleepMode::Auto;
    facts.cause = Some(SleepCause::Mode);
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Mode));
    facts.state = SleepState::FallingAsleep;
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Mode));
}

#[test]
fn waking_ends_when_the_tenant_is_ready() {
    let mut facts = sleeping();
    facts.state = SleepState::Waking;
    facts.mode = SleepMode::Asleep;
    assert_eq!(decide(&facts), Decision::Stay(Stay::Waking { serves: false }));
    facts.serves = true;
    assert_eq!(decide(&facts), Decision::Stay(Stay::Waking { serves: true }));
    facts.is_ready = true;
    assert_eq!(decide(&facts), Decision::Awake);
}

/// Requests that stay in the annotations change nothing any more, whatever the state.
#[test]
fn a_wake_is_one_wake() {
    let mut facts = sleeping();
    facts.wake_requested = Some(at(NOW));
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Requested));
    facts.state = SleepState::Waking;
    facts.since = Some(at(NOW));
    facts.cause = None;
    for request in [NOW - 1, NOW, NOW + 1] {
        facts.wake_requested = Some(at(request));
        assert_eq!(decide(&facts), Decision::Stay(Stay::Waking { serves: false }));
    }
    facts.is_ready = true;
    assert_eq!(decide(&facts), Decision::Awake);
}

#[test]
fn a_clock_that_went_back_keeps_no_tenant_asleep() {
    // It fell asleep while the clock was five hours ahead. The gateway and `berth` write times after that.
    let began = NOW + 5 * HOUR;
    let asleep = Facts {
        since: Some(at(began)),
        ..sleeping()
    };
    let stays = Decision::Stay(Stay::Sleeping { wakes_at: None });
    assert_eq!(decide(&asleep), stays);
    for requested in [NOW, began + 1] {
        let facts = Facts {
            wake_requested: Some(at(requested)),
            ..asleep.clone()
        };
        assert_eq!(decide(&facts), Decision::Wake(WakeCause::Requested), "{requested}");
    }
    let tomorrow = Facts {
        wake_requested: Some(at(began + 24 * HOUR)),
        ..asleep
    };
    assert_eq!(decide(&tomorrow), stays);
}

#[test]
fn a_clock_that_went_back_keeps_no_tenant_half_asleep() {
    for has_pods in [false, true] {
        let falls = Facts {
            since: Some(at(NOW + 5 * HOUR)),
            stops_pods: true,
            has_pods,
            ..falling(SleepCause::Idle)
        };
        assert_eq!(decide(&falls), Decision::Wake(WakeCause::Overdue));
        let asleep_by_mode = Facts {
            mode: SleepMode::Asleep,
            cause: Some(SleepCause::Mode),
            ..falls
        };
        assert_ne!(decide(&asleep_by_mode), Decision::Wake(WakeCause::Overdue));
    }
    let awake = Facts {
        since: Some(at(NOW + 5 * HOUR)),
        ..idle()
    };
    assert_eq!(decide(&awake), falls_asleep(SleepCause::Idle), "it was used long ago");
}
