use super::*;

mod enforcement;
mod waking;

const NOW: i64 = 1_000_000;
const HOUR: i64 = 3600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn quiet() -> Inside {
    Inside {
        has_pods: false,
        has_started_pods: false,
        has_jobs: false,
        next_job: Ok(None),
    }
}

/// Awake, ready, and not used for more than half an hour.
fn idle() -> Facts {
    Facts {
        now: at(NOW),
        mode: SleepMode::Auto,
        after_idle: Some(SignedDuration::from_mins(30)),
        stops_pods: false,
        pods_end_within: SignedDuration::from_mins(15),
        state: SleepState::Awake,
        cause: None,
        since: None,
        wakes_at: None,
        activity: Activity::Known(at(NOW - HOUR)),
        has_pods: false,
        is_ready: true,
        serves: true,
        enforcement: Enforcement::Present,
        sleep_requested: None,
        wake_requested: None,
        schedule: ScheduleState::Running,
        next_start: None,
        inside: Some(quiet()),
    }
}

fn falling(cause: SleepCause) -> Facts {
    Facts {
        state: SleepState::FallingAsleep,
        cause: Some(cause),
        since: Some(at(NOW - 10)),
        ..idle()
    }
}

fn sleeping() -> Facts {
    Facts {
        state: SleepState::Sleeping,
        is_ready: false,
        serves: false,
        activity: Activity::Unknown("it sleeps".into()),
        inside: None,
        ..falling(SleepCause::Idle)
    }
}

fn falls_asleep(cause: SleepCause) -> Decision {
    Decision::FallAsleep { cause, wakes_at: None }
}

fn in_use(until: i64) -> Decision {
    Decision::Stay(Stay::InUse { until: at(until) })
}

#[test]
fn a_tenant_falls_asleep_after_its_time_without_use() {
    assert_eq!(decide(&idle()), falls_asleep(SleepCause::Idle));
    let used = |second| Facts {
        activity: Activity::Known(at(second)),
        ..idle()
    };
    assert_eq!(decide(&used(NOW - 1800)), falls_asleep(SleepCause::Idle));
    assert_eq!(decide(&used(NOW - 1799)), in_use(NOW + 1));
    assert_eq!(decide(&used(NOW + 5)), in_use(NOW + 1805), "the clock was set back");
}

#[test]
fn without_a_time_it_falls_asleep_only_when_it_is_asked_to() {
    let mut facts = idle();
    facts.after_idle = None;
    assert_eq!(decide(&facts), Decision::Stay(Stay::NoLimit));
    facts.sleep_requested = Some(at(NOW));
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Requested));
}

#[test]
fn unknown_activity_never_sleeps() {
    let mut facts = idle();
    facts.activity = Activity::Unknown("it does not answer".into());
    assert_eq!(
        decide(&facts),
        Decision::Stay(Stay::ActivityUnknown("it does not answer".into()))
    );
    // A request does not depend on activity.
    facts.sleep_requested = Some(at(NOW - 1));
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Requested));
}

#[test]
fn a_tenant_that_does_not_answer_stays_awake() {
    for (mode, requested) in [
        (SleepMode::Auto, None),
        (SleepMode::Auto, Some(at(NOW))),
        (SleepMode::Asleep, None),
    ] {
        let facts = Facts {
            mode,
            sleep_requested: requested,
            is_ready: false,
            ..idle()
        };
        assert!(
            matches!(decide(&facts), Decision::Stay(Stay::ActivityUnknown(_))),
            "{mode:?}"
        );
    }
}

#[test]
fn being_woken_is_use() {
    let mut facts = idle();
    facts.since = Some(at(NOW - 60));
    assert_eq!(decide(&facts), in_use(NOW + 1740));
    facts.since = Some(at(NOW - HOUR));
    facts.wake_requested = Some(at(NOW - 120));
    assert_eq!(decide(&facts), in_use(NOW + 1680));
    // A clock that is ahead gains nothing.
    facts.wake_requested = Some(at(NOW + 60));
    assert_eq!(decide(&facts), in_use(NOW + 1800));
    // A request for another day is none yet.
    facts.wake_requested = Some(at(NOW + 61));
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Idle));
}

#[test]
fn pods_keep_a_tenant_awake_unless_its_class_lets_them_be_stopped() {
    let mut facts = idle();
    facts.has_pods = true;
    assert_eq!(decide(&facts), Decision::Stay(Stay::PodsRun));
    facts.sleep_requested = Some(at(NOW));
    assert_eq!(decide(&facts), Decision::Stay(Stay::PodsRun), "a request is refused");
    facts.mode = SleepMode::Asleep;
    assert_eq!(decide(&facts), Decision::Stay(Stay::PodsRun));
    facts.stops_pods = true;
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Mode));
}

#[test]
fn pods_that_wait_in_the_tenant_keep_it_awake_unless_a_schedule_holds_them() {
    let mut facts = idle();
    facts.inside = Some(Inside {
        has_pods: true,
        ..quiet()
    });
    assert_eq!(decide(&facts), Decision::Stay(Stay::PodsRun));
    for held in [ScheduleState::StartsForbidden, ScheduleState::Stopped] {
        facts.schedule = held;
        assert_eq!(decide(&facts), falls_asleep(SleepCause::Idle), "{held:?}");
    }
    facts.schedule = ScheduleState::Running;
    facts.stops_pods = true;
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Idle));
}

#[test]
fn what_only_the_tenant_knows_is_read_last() {
    let mut facts = idle();
    facts.inside = None;
    assert_eq!(decide(&facts), Decision::LookInside);
    facts.activity = Activity::Known(at(NOW));
    assert_eq!(decide(&facts), in_use(NOW + 1800));
    assert_eq!(
        decide(&Facts {
            inside: None,
            ..falling(SleepCause::Idle)
        }),
        Decision::LookInside
    );
}

#[test]
fn a_tenant_wakes_a_minute_before_its_next_cron_job_or_start() {
    let with = |job: Option<i64>, start: Option<i64>| {
        decide(&Facts {
            inside: Some(Inside {
                next_job: Ok(job.map(at)),
                ..quiet()
            }),
            next_start: start.map(at),
            ..idle()
        })
    };
    let until = |second| Decision::FallAsleep {
        cause: SleepCause::Idle,
        wakes_at: Some(at(second)),
    };
    assert_eq!(with(Some(NOW + HOUR), None), until(NOW + HOUR - 60));
    assert_eq!(with(None, Some(NOW + HOUR)), until(NOW + HOUR - 60));
    assert_eq!(with(Some(NOW + 2 * HOUR), Some(NOW + HOUR)), until(NOW + HOUR - 60));
    // Five minutes of sleep at least.
    assert_eq!(with(Some(NOW + 360), None), until(NOW + 300));
    assert_eq!(
        with(Some(NOW + 359), None),
        Decision::Stay(Stay::DueSoon { at: at(NOW + 299) })
    );
    assert_eq!(
        with(Some(NOW - 5), None),
        Decision::Stay(Stay::DueSoon { at: at(NOW - 65) })
    );
}

#[test]
fn a_cron_job_that_cannot_be_read_keeps_a_tenant_awake() {
    let mut facts = idle();
    facts.inside = Some(Inside {
        next_job: Err("CronJob a/b".into()),
        ..quiet()
    });
    assert_eq!(decide(&facts), Decision::Stay(Stay::JobUnknown("CronJob a/b".into())));
    // No CronJob wakes it in this mode.
    facts.mode = SleepMode::Asleep;
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Mode));
}

#[test]
fn the_mode_decides_before_everything_else() {
    let mut facts = idle();
    facts.mode = SleepMode::Awake;
    facts.sleep_requested = Some(at(NOW));
    assert_eq!(decide(&facts), Decision::Stay(Stay::KeptAwake));
    facts.mode = SleepMode::Asleep;
    facts.activity = Activity::Known(at(NOW));
    facts.next_start = Some(at(NOW + 60));
    assert_eq!(decide(&facts), falls_asleep(SleepCause::Mode));
}

#[test]
fn a_request_to_sleep_counts_for_ten_minutes_and_is_honoured_once() {
    let with = |requested: i64, since: Option<i64>, woken: Option<i64>| {
        decide(&Facts {
            after_idle: None,
            sleep_requested: Some(at(requested)),
            since: since.map(at),
            wake_requested: woken.map(at),
            ..idle()
        })
    };
    let (honoured, ignored) = (falls_asleep(SleepCause::Requested), Decision::Stay(Stay::NoLimit));
    assert_eq!(with(NOW, None, None), honoured);
    assert_eq!(with(NOW - 599, None, None), honoured);
    assert_eq!(with(NOW - 600, None, None), ignored, "too old");
    assert_eq!(with(NOW + 1, None, None), ignored, "not yet due");
    assert_eq!(with(NOW - 5, Some(NOW - 10), None), honoured);
    assert_eq!(with(NOW - 10, Some(NOW - 10), None), ignored, "it was woken since");
    assert_eq!(with(NOW - 10, Some(NOW - 5), None), ignored);
    let same_second = Facts {
        after_idle: None,
        sleep_requested: Some(Timestamp::from_millisecond((NOW - 5) * 1000 + 700).unwrap()),
        since: Some(at(NOW - 5)),
        ..idle()
    };
    assert_eq!(decide(&same_second), ignored);
    assert_eq!(with(NOW - 5, None, Some(NOW - 6)), honoured);
    assert_eq!(with(NOW - 5, None, Some(NOW - 5)), ignored, "the request to wake wins");
    assert_eq!(
        with(NOW - 5, None, Some(NOW + 24 * HOUR)),
        honoured,
        "it is to wake tomorrow"
    );
}

#[test]
fn a_tenant_sleeps_once_its_pods_have_ended() {
    for cause in [SleepCause::Idle, SleepCause::Requested] {
        assert_eq!(decide(&falling(cause)), Decision::Sleep { wakes_at: None });
        let mut facts = falling(cause);
        facts.has_pods = true;
        assert_eq!(decide(&facts), Decision::Wake(WakeCause::Used), "{cause:?}");
        facts.stops_pods = true;
        assert_eq!(decide(&facts), Decision::Stay(Stay::PodsEnd));
    }
}

/// Nothing of the tenant starts meanwhile, and the pod of a lost node never ends.
#[test]
fn a_tenant_whose_pods_do_not_end_is_awake_again() {
    const LIMIT: i64 = 20 * 60;
    let on_host = Facts {
        has_pods: true,
        ..falling(SleepCause::Requested)
    };
    let in_tenant = Facts {
        inside: Some(Inside {
            has_pods: true,
            has_started_pods: true,
            ..quiet()
        }),
        ..falling(SleepCause::Requested)
    };
    let silent = Facts {
        is_ready: false,
        ..falling(SleepCause::Requested)
    };
    for (facts, stay) in [
        (on_host, Stay::PodsEnd),
        (in_tenant, Stay::PodsEnd),
        (silent, Stay::NotAnswering),
    ] {
        let after = |seconds: i64, cause, mode| {
            decide(&Facts {
                cause: Some(cause),
                mode,
                since: Some(at(NOW - seconds)),
                activity: Activity::Unknown("it does not answer".into()),
                stops_pods: true,
                ..facts.clone()
            })
        };
        for cause in [SleepCause::Requested, SleepCause::Idle] {
            let early = after(LIMIT - 1, cause, SleepMode::Auto);
            assert_eq!(early, Decision::Stay(stay.clone()), "{cause:?}");
            let late = after(LIMIT, cause, SleepMode::Auto);
            assert_eq!(late, Decision::Wake(WakeCause::Overdue), "{cause:?}");
        }
        let kept = after(LIMIT, SleepCause::Mode, SleepMode::Asleep);
        assert_eq!(kept, Decision::Stay(stay), "it would fall asleep again at once");
    }
    // Control was down while the pods ended.
    let late = Facts {
        since: Some(at(NOW - LIMIT)),
        ..falling(SleepCause::Requested)
    };
    assert!(late.is_overdue());
    assert_eq!(decide(&late), Decision::Sleep { wakes_at: None });
    // The request is not honoured again.
    let awake = Facts {
        since: Some(at(NOW)),
        sleep_requested: Some(at(NOW - LIMIT)),
        after_idle: None,
        ..idle()
    };
    assert!(!awake.is_overdue());
    assert_eq!(decide(&awake), Decision::Stay(Stay::NoLimit));
}

#[test]
fn a_job_between_two_pods_keeps_a_tenant_awake_as_pods_do() {
    let half_done = Inside {
        has_jobs: true,
        ..quiet()
    };
    let with = |facts: Facts| {
        decide(&Facts {
            inside: Some(half_done.clone()),
            ..facts
        })
    };
    assert_eq!(with(idle()), Decision::Stay(Stay::PodsRun));
    assert_eq!(with(falling(SleepCause::Requested)), Decision::Wake(WakeCause::Used));
    let stopping = Facts {
        stops_pods: true,
        ..idle()
    };
    assert_eq!(with(stopping), falls_asleep(SleepCause::Idle));
    let stopped = Facts {
        schedule: ScheduleState::Stopped,
        ..idle()
    };
    assert_eq!(with(stopped), falls_asleep(SleepCause::Idle));
}

#[test]
fn a_tenant_learns_how_its_pods_ended_before_it_sleeps() {
    let facts = Facts {
        stops_pods: true,
        inside: Some(Inside {
            has_pods: true,
            has_started_pods: true,
            ..quiet()
        }),
        ..falling(SleepCause::Requested)
    };
    assert_eq!(decide(&facts), Decision::Stay(Stay::PodsEnd));
    // Pods that wait for a node wait until it wakes.
    let waiting = Facts {
        inside: Some(Inside {
            has_pods: true,
            ..quiet()
        }),
        ..facts.clone()
    };
    assert_eq!(decide(&waiting), Decision::Sleep { wakes_at: None });
    let woken = Facts {
        wake_requested: Some(at(NOW)),
        ..facts
    };
    assert_eq!(decide(&woken), Decision::Wake(WakeCause::Requested));
}

#[test]
fn use_stops_a_tenant_from_falling_asleep_that_nobody_asked_to() {
    let mut facts = falling(SleepCause::Idle);
    facts.activity = Activity::Known(at(NOW - 10));
    assert_eq!(decide(&facts), Decision::Sleep { wakes_at: None });
    facts.activity = Activity::Known(at(NOW - 9));
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Used));
    facts.cause = Some(SleepCause::Requested);
    assert_eq!(decide(&facts), Decision::Sleep { wakes_at: None });
}

#[test]
fn a_tenant_that_stops_answering_while_it_falls_asleep_waits() {
    let mut facts = falling(SleepCause::Requested);
    facts.is_ready = false;
    assert_eq!(decide(&facts), Decision::Stay(Stay::NotAnswering));
    facts.wake_requested = Some(at(NOW));
    assert_eq!(decide(&facts), Decision::Wake(WakeCause::Requested));
}

#[test]
fn pods_and_cron_jobs_that_came_meanwhile_wake_it() {
    let with = |inside: Inside| {
        decide(&Facts {
            inside: Some(inside),
            ..falling(SleepCause::Requested)
        })
    };
    let job = |next_job| Inside { next_job, ..quiet() };
    let pods = Inside {
        has_pods: true,
        ..quiet()
    };
    assert_eq!(with(pods), Decision::Wake(WakeCause::Used));
    assert_eq!(with(job(Err("a".into()))), Decision::Wake(WakeCause::Used));
    assert_eq!(with(job(Ok(Some(at(NOW + 60))))), Decision::Wake(WakeCause::Scheduled));
    let soon = Decision::Sleep {
        wakes_at: Some(at(NOW + 1)),
    };
    assert_eq!(with(job(Ok(Some(at(NOW + 61))))), soon);
}
