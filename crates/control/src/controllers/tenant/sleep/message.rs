//! The condition Awake: pure.

use super::super::{remaining::PODS_OVERDUE, status::SLEEPING};
use berth_api::{
    SleepCause, SleepMode, SleepState, SleepStatus,
    conditions::{AWAKE, ConditionUpdate, SERVING},
    labels,
};
use berth_sleep::{Decision, Enforcement, Facts, Stay, Turn, WakeCause};
use jiff::{SignedDuration, Timestamp};

/// Reason of a tenant that is being started.
const WAKING: &str = "Waking";
/// End of the message of a tenant that should sleep by now.
const OVERDUE: &str = "longer than disruption budgets and grace periods allow";
/// Reason of a tenant that sleeps, and whose syncer runs because the rules of its class have changed.
const CLASS_CHANGED: &str = "ClassChanged";
/// Reason of a tenant that may have objects on the host which do not follow the rules of its class yet.
const CLASS_NOT_ENFORCED: &str = "ClassNotEnforced";
/// Reason of a tenant that is used, or may be.
const IN_USE: &str = "InUse";

/// The condition of a tenant whose state stays.
pub(super) fn condition(facts: &Facts, decision: &Decision) -> ConditionUpdate {
    match (facts.state, decision) {
        (SleepState::Awake, Decision::Stay(stay)) => awake(facts, stay),
        (SleepState::FallingAsleep, Decision::Stay(stay)) => {
            let condition = falling_asleep(facts.cause, stay);
            if facts.is_overdue() {
                ConditionUpdate::mark_false(AWAKE, PODS_OVERDUE, format!("{}, {OVERDUE}", condition.message))
            } else {
                condition
            }
        }
        (SleepState::Sleeping, Decision::Stay(Stay::Sleeping { wakes_at })) => {
            let condition = sleeping(cause_of_sleep(facts), *wakes_at);
            match facts.enforcement {
                Enforcement::Present => condition,
                Enforcement::Earlier(Turn::Now | Turn::Later) => {
                    let message = format!(
                        "{}. The rules of its class have changed, or Berth was upgraded; they are enforced once few enough other tenants are started \
                         for theirs",
                        condition.message
                    );
                    ConditionUpdate::mark_false(AWAKE, condition.reason, message)
                }
                Enforcement::Earlier(Turn::Over) => not_enforced(&condition),
            }
        }
        (SleepState::Enforcing, Decision::Stay(_)) => enforcing(cause_of_sleep(facts)),
        (SleepState::Waking, Decision::Stay(Stay::Waking { serves: true })) => serving(),
        (SleepState::Waking, _) => waking(None),
        (state, _) => ConditionUpdate::mark_unknown(AWAKE, state.name(), "the tenant changes its state"),
    }
}

fn cause_of_sleep(facts: &Facts) -> Option<SleepCause> {
    let is_kept = facts.mode == SleepMode::Asleep;
    if is_kept { Some(SleepCause::Mode) } else { facts.cause }
}

/// The condition of a tenant whose state becomes another.
pub(super) fn of_transition(next: &SleepStatus, facts: &Facts, decision: &Decision) -> ConditionUpdate {
    let wakes_at = next.wakes_at.as_ref().map(|time| time.0);
    match (next.state, decision) {
        (SleepState::Awake, Decision::Wake(cause)) => stayed_awake(facts, *cause),
        (SleepState::Awake, _) => ConditionUpdate::mark_true(AWAKE, IN_USE, "the tenant is awake"),
        (SleepState::FallingAsleep, _) => falling_asleep(next.cause, &Stay::PodsEnd),
        (SleepState::Sleeping, Decision::StopEnforcing) => not_enforced(&sleeping(next.cause, wakes_at)),
        (SleepState::Sleeping, _) => sleeping(next.cause, wakes_at),
        (SleepState::Enforcing, _) => enforcing(next.cause),
        (SleepState::Waking, Decision::Wake(cause)) => waking(Some(*cause)),
        (SleepState::Waking, _) => waking(None),
    }
}

/// The condition of a tenant that was about to fall asleep.
fn stayed_awake(facts: &Facts, cause: WakeCause) -> ConditionUpdate {
    let (reason, why) = match cause {
        WakeCause::Requested => (IN_USE, "somebody asked for it".to_owned()),
        WakeCause::Mode => (IN_USE, "spec.sleep.mode was changed".to_owned()),
        WakeCause::Scheduled => (IN_USE, "a CronJob or a SchedulePolicy is due".to_owned()),
        WakeCause::Used => (IN_USE, "it was used, or got pods".to_owned()),
        WakeCause::Overdue => {
            let what = if facts.has_pods {
                "pods on the host have not ended; look for nodes that do not answer"
            } else if facts.is_ready && facts.enforcement != Enforcement::Present {
                "its objects on the host may not follow the rules of its class yet"
            } else if facts.is_ready {
                "it is not known how its pods have ended"
            } else {
                "its API server or its syncer does not answer"
            };
            (PODS_OVERDUE, format!("{what}, {OVERDUE}"))
        }
    };
    ConditionUpdate::mark_true(AWAKE, reason, format!("the tenant did not fall asleep: {why}"))
}

fn awake(facts: &Facts, stay: &Stay) -> ConditionUpdate {
    let yes = |reason, message: String| ConditionUpdate::mark_true(AWAKE, reason, message);
    let after = facts.after_idle.map(minutes).unwrap_or_default();
    match stay {
        Stay::NoLimit => yes(
            IN_USE,
            "the tenant does not fall asleep by itself; set spec.sleep.afterIdle if it should".into(),
        ),
        Stay::KeptAwake => yes("Mode", "spec.sleep.mode is Awake".into()),
        Stay::InUse { .. } => yes(
            IN_USE,
            format!("the tenant falls asleep when nobody has used its API server for {after}"),
        ),
        Stay::PodsRun => yes(
            "PodsRun",
            format!(
                "{}the tenant has pods or Jobs that have not ended, and its class does not let them be stopped; scale its workloads to zero, \
                 suspend its Jobs, or ask the platform team to set spec.sleep.stopsPods of the class",
                refused(facts)
            ),
        ),
        Stay::ActivityUnknown(why) => yes(
            "ActivityUnknown",
            format!("{}it is not known whether the tenant is used: {why}", refused(facts)),
        ),
        Stay::JobUnknown(why) => yes(
            "ScheduleUnknown",
            format!("{}it is not known when the tenant has to wake: {why}", refused(facts)),
        ),
        Stay::NotEnforced => yes(
            CLASS_NOT_ENFORCED,
            format!(
                "{}its objects on the host may not follow the rules of its class yet, which it waits for; if that lasts, ask the platform team \
                 to look at the log of its syncer",
                refused(facts)
            ),
        ),
        Stay::DueSoon { at } => yes(
            "Schedule",
            format!(
                "{}a CronJob or a SchedulePolicy would wake the tenant at {at}",
                refused(facts)
            ),
        ),
        // Not of a tenant that is awake.
        Stay::PodsEnd | Stay::NotAnswering | Stay::Sleeping { .. } | Stay::Enforcing | Stay::Waking { .. } => {
            yes(IN_USE, "the tenant is awake".into())
        }
    }
}

/// Why a condition says that a tenant stays awake that was asked to sleep, as the beginning of a message.
fn refused(facts: &Facts) -> &'static str {
    if facts.is_asked_to_sleep() {
        "the tenant was asked to sleep and stays awake: "
    } else {
        ""
    }
}

fn falling_asleep(cause: Option<SleepCause>, stay: &Stay) -> ConditionUpdate {
    let what = match stay {
        Stay::NotAnswering => "its API server or its syncer does not answer, which it waits for".to_owned(),
        Stay::ActivityUnknown(why) => format!("it waits until that is possible: {why}"),
        Stay::NotEnforced => {
            "its objects on the host may not follow the rules of its class yet, which it waits for".to_owned()
        }
        _ => "its pods end".to_owned(),
    };
    let message = format!("{}; the tenant falls asleep: {what}", why(cause));
    ConditionUpdate::mark_false(AWAKE, reason(cause), message)
}

fn sleeping(cause: Option<SleepCause>, wakes_at: Option<Timestamp>) -> ConditionUpdate {
    let how = if cause == Some(SleepCause::Mode) {
        "set spec.sleep.mode to Auto or Awake to wake it".to_owned()
    } else {
        let by_itself = wakes_at.map(|at| format!("by itself at {at}, or ")).unwrap_or_default();
        format!(
            "it wakes {by_itself}when the annotation {} asks for it",
            labels::WAKE_REQUESTED_AT
        )
    };
    let message = format!("{}; the tenant sleeps: {how}", why(cause));
    ConditionUpdate::mark_false(AWAKE, reason(cause), message)
}

/// The condition of a tenant that has run for its class as long as it may. `sleeping` is what it is otherwise.
fn not_enforced(sleeping: &ConditionUpdate) -> ConditionUpdate {
    let message = format!(
        "{}. The rules of its class have changed, or Berth was upgraded, and its syncer has not enforced them within 30 minutes, so that its objects on the \
         host may not follow them; it is started again after a pause, which doubles each time up to four hours; ask the platform \
         team to look at the log of its syncer",
        sleeping.message
    );
    ConditionUpdate::mark_false(AWAKE, CLASS_NOT_ENFORCED, message)
}

fn enforcing(cause: Option<SleepCause>) -> ConditionUpdate {
    let message = format!(
        "{}; the tenant sleeps: the rules of its class have changed, or Berth was upgraded, and its API server and its syncer run until its objects on \
         the host follow them, for 30 minutes at most",
        why(cause)
    );
    ConditionUpdate::mark_false(AWAKE, CLASS_CHANGED, message)
}

fn waking(cause: Option<WakeCause>) -> ConditionUpdate {
    let why = match cause {
        Some(WakeCause::Requested) => "somebody asked for it; ",
        Some(WakeCause::Mode) => "spec.sleep.mode was changed; ",
        Some(WakeCause::Scheduled) => "a CronJob or a SchedulePolicy is due; ",
        Some(WakeCause::Used | WakeCause::Overdue) | None => "",
    };
    let message = format!("{why}the control plane of the tenant is being started");
    ConditionUpdate::mark_false(AWAKE, WAKING, message)
}

fn serving() -> ConditionUpdate {
    let message = "the API server of the tenant answers, and the rest of its control plane is being started";
    ConditionUpdate::mark_false(AWAKE, SERVING, message)
}

fn reason(cause: Option<SleepCause>) -> &'static str {
    cause.map_or(SLEEPING, SleepCause::name)
}

fn why(cause: Option<SleepCause>) -> &'static str {
    match cause {
        Some(SleepCause::Idle) => "nobody used the tenant for spec.sleep.afterIdle",
        Some(SleepCause::Requested) => "somebody asked for it",
        Some(SleepCause::Mode) | None => "spec.sleep.mode is Asleep",
    }
}

/// A time as Kubernetes writes it, in minutes.
fn minutes(time: SignedDuration) -> String {
    format!("{}m", time.as_secs() / 60)
}
