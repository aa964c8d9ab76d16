//! What is to be done about the snapshots of one tenant: pure.

use super::tries::{Failure, has_store_error};
use crate::clock::whole_seconds;
use berth_api::{
    ClassSnapshots, MOST_SNAPSHOT_ATTEMPTS as MOST_ATTEMPTS, RestoreStatus, SnapshotPhase, SnapshotTrigger,
    TenantClusterStatus, TenantSnapshot,
    conditions::{COMPLETED, CONTROL_PLANE_READY},
    labels,
};
use berth_schedules::Recurrence;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Snapshots that restores have made which are kept for each tenant.
const KEPT_OF_RESTORES: u32 = 2;
/// Snapshots of a schedule, and of restores, that have failed and are kept for each tenant, for people to read why.
const KEPT_FAILED: u32 = 3;
/// How long a snapshot may be there before its tenant: both may come from the same files.
const TENANT_APPEARS_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// Time within which the control plane of a tenant has ended once its status says that it sleeps.
const STOPPED_WITHIN: SignedDuration = SignedDuration::from_mins(5);
/// How long the snapshots of a tenant that was deleted are kept.
const KEPT_WITHOUT_TENANT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// What is known of a tenant.
#[derive(Clone, Debug)]
pub(super) struct TenantFacts {
    pub(super) uid: String,
    pub(super) created: Timestamp,
    /// Whether its API server was started once, so that it stores something.
    pub(super) has_run: bool,
    pub(super) is_deleting: bool,
    /// What its class says.
    pub(super) rules: ClassSnapshots,
    /// Since when it stores nothing new, if it sleeps: see [`unchanged_since`].
    pub(super) unchanged_since: Option<Timestamp>,
    /// The snapshot that a restore of it waits for. None: no restore is under way, as far as this process knows.
    pub(super) restore: Option<RestoreFacts>,
}

/// Since when a tenant that sleeps stores nothing more, as its status says. Its sleep begins when it begins to fall asleep: until its control plane is stopped,
/// it still stores how its pods end.
pub(super) fn silent_since(status: &TenantClusterStatus) -> Option<Timestamp> {
    let began = status.sleep.as_ref()?.since.as_ref()?.0;
    let mut conditions = status.conditions.iter();
    let stopped = conditions.find(|known| known.type_ == CONTROL_PLANE_READY && known.status == "False");
    let stopped = stopped.map_or(began, |known| known.last_transition_time.0.max(began));
    stopped.checked_add(STOPPED_WITHIN).ok()
}

/// Since when a tenant stores nothing new. One that runs may do so at any time, and so does one that is set back. `sleeps_since` says since when it sleeps, if it
/// does, and `restore` what its status says of its last restore: that may have been while it slept.
pub(super) fn unchanged_since(sleeps_since: Option<Timestamp>, restore: Option<&RestoreStatus>) -> Option<Timestamp> {
    let since = sleeps_since?;
    match restore {
        None => Some(since),
        Some(restore) => restore.completed_at.as_ref().map(|completed| completed.0.max(since)),
    }
}

/// What is known of a restore under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestoreFacts {
    /// UID of the snapshot to which the tenant is set back.
    pub(super) snapshot_uid: String,
    /// The snapshot that it waits for.
    pub(super) saved_as: Option<String>,
}

impl RestoreFacts {
    /// Whether it waits for this snapshot.
    fn waits_for(&self, snapshot: &TenantSnapshot) -> bool {
        self.saved_as.is_some() && self.saved_as == snapshot.metadata.name
    }
}

/// What is known of the snapshots with the name of one tenant.
#[derive(Clone, Debug)]
pub(super) struct Facts<'f> {
    pub(super) now: Timestamp,
    /// Name of the TenantCluster.
    pub(super) name: &'f str,
    /// Whether there is an object store.
    pub(super) has_store: bool,
    /// The TenantCluster; none if there is none of this name.
    pub(super) tenant: Option<&'f TenantFacts>,
    pub(super) snapshots: &'f [Arc<TenantSnapshot>],
    /// UIDs of those that this process takes now.
    pub(super) running: &'f BTreeSet<String>,
    /// UIDs of those that are not begun yet, because the last attempt failed a moment ago.
    pub(super) paused: &'f BTreeSet<String>,
    /// Why none is begun now; none: they may be.
    pub(super) postponed: Option<Failure>,
}

/// What to do.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Say that there is no snapshot, for a reason and with a message.
    Fail(Arc<TenantSnapshot>, &'static str, String),
    /// Take it, if there is room for another one.
    Start(Arc<TenantSnapshot>),
    /// Say why it is not taken now.
    Postpone(Arc<TenantSnapshot>, Failure),
    /// Delete the object.
    Delete(Arc<TenantSnapshot>),
    /// Delete what is in the store of a snapshot that is being deleted.
    CleanUp(Arc<TenantSnapshot>),
    /// Say when it ends; none: it does not.
    Expire(Arc<TenantSnapshot>, Option<Timestamp>),
    /// Say for people how large it is, which an earlier Berth has not.
    DescribeSize(Arc<TenantSnapshot>),
    /// Create one of the schedule, with this name.
    Create(String),
}

/// What was decided about one tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    pub(super) actions: Vec<Action>,
    /// When the next action is due, if nothing changes before.
    pub(super) next: Option<Timestamp>,
    /// What metrics say of the schedule; none without one.
    pub(super) schedule: Option<ScheduleState>,
}

/// How far the schedule of a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleState {
    /// When the last snapshot was completed.
    pub(super) completed_at: Option<Timestamp>,
    /// Whether there is none since the time before the last.
    pub(super) is_overdue: bool,
}

impl Decision {
    fn wake_at(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

/// Decides what to do about the snapshots of one tenant.
pub(super) fn decide(facts: &Facts<'_>) -> Decision {
    let mut decision = Decision::default();
    let mut snapshots: Vec<Arc<TenantSnapshot>> = facts.snapshots.to_vec();
    snapshots.sort_by_key(|snapshot| (created(snapshot), snapshot.name_any()));
    let (deleted, present): (Vec<_>, Vec<_>) = { snapshots.into_iter() }.partition(|snapshot| is_deleting(snapshot));
    let has_finalizer = |snapshot: &TenantSnapshot| crate::finalizers::is_set(snapshot, labels::SNAPSHOT_FINALIZER);
    let of_store = { deleted.iter() }.filter(|snapshot| has_finalizer(snapshot));
    decision
        .actions
        .extend(of_store.map(|snapshot| Action::CleanUp(Arc::clone(snapshot))));
    let kept = end_those_that_are_over(facts, present, &mut decision);
    begin_those_that_may(facts, &kept, &mut decision);
    if let Some(tenant) = facts.tenant {
        follow_schedule(facts, tenant, &kept, &deleted, &mut decision);
    }
    decision
}

/// Deletes snapshots whose time is over, and those of a schedule or of restores that are too many. Returns the others.
fn end_those_that_are_over(
    facts: &Facts<'_>,
    present: Vec<Arc<TenantSnapshot>>,
    decision: &mut Decision,
) -> Vec<Arc<TenantSnapshot>> {
    let surplus = find_surplus(facts, &present);
    let mut kept = Vec::new();
    for snapshot in present {
        let uid = snapshot.uid().unwrap_or_default();
        let end = end(facts, &snapshot);
        let is_over = end.is_some_and(|end| end <= facts.now);
        // A restore to one that is being deleted is refused, and so is one that waits for such.
        let restore = facts.tenant.and_then(|tenant| tenant.restore.as_ref());
        let is_of_restore = restore.is_some_and(|restore| restore.snapshot_uid == uid || restore.waits_for(&snapshot));
        let is_needed = is_of_restore || facts.running.contains(&uid);
        if (is_over || surplus.contains(&uid)) && !is_needed {
            decision.actions.push(Action::Delete(snapshot));
            continue;
        }
        if let Some(end) = end {
            decision.wake_at(end);
        }
        let published = snapshot.status.as_ref().and_then(|status| status.expires_at.clone());
        let is_done = [SnapshotPhase::Completed, SnapshotPhase::Failed].contains(&snapshot.phase());
        if is_done && published.map(|at| at.0) != end {
            decision.actions.push(Action::Expire(Arc::clone(&snapshot), end));
        } else if lacks_size(&snapshot) {
            decision.actions.push(Action::DescribeSize(Arc::clone(&snapshot)));
        }
        kept.push(snapshot);
    }
    kept
}

/// Whether a snapshot was completed by a Berth that did not write its size for people.
fn lacks_size(snapshot: &TenantSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    status.is_some_and(|status| status.bytes.is_some() && status.size.is_none())
}

/// UIDs of the snapshots that are more than are kept. Those of a tenant that was deleted are not counted with those of the next one of its name, which would
/// take their place: they may be the last copies of what that tenant stored.
fn find_surplus(facts: &Facts<'_>, present: &[Arc<TenantSnapshot>]) -> BTreeSet<String> {
    let schedule = facts.tenant.and_then(|tenant| tenant.rules.schedule.as_ref());
    let kept_of_schedule = schedule.map(|schedule| schedule.keep);
    let limits = [
        (SnapshotTrigger::Schedule, SnapshotPhase::Completed, kept_of_schedule),
        (SnapshotTrigger::Schedule, SnapshotPhase::Failed, Some(KEPT_FAILED)),
        (
            SnapshotTrigger::BeforeRestore,
            SnapshotPhase::Completed,
            Some(KEPT_OF_RESTORES),
        ),
        (SnapshotTrigger::BeforeRestore, SnapshotPhase::Failed, Some(KEPT_FAILED)),
    ];
    let mut surplus = BTreeSet::new();
    for (trigger, phase, limit) in limits {
        let Some(limit) = limit else { continue };
        let of_kind = { present.iter().rev() }
            .filter(|snapshot| (snapshot.trigger(), snapshot.phase()) == (trigger, phase))
            .filter(|snapshot| phase == SnapshotPhase::Failed || !is_of_earlier_tenant(facts, snapshot));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        surplus.extend(of_kind.skip(limit).filter_map(|snapshot| snapshot.uid()));
    }
    surplus
}

/// When a snapshot ends: after its `ttl`, and 30 days after its tenant was found to be gone.
fn end(facts: &Facts<'_>, snapshot: &TenantSnapshot) -> Option<Timestamp> {
    let ttl = snapshot
        .spec
        .ttl
        .as_ref()
        .map(|ttl| SignedDuration::from_secs(ttl.seconds()));
    let of_ttl = ttl.and_then(|ttl| created(snapshot).checked_add(ttl).ok());
    let of_tenant = snapshot.status.as_ref().and_then(|status| status.tenant_uid.as_deref());
    let is_there = of_tenant.is_none() || facts.tenant.map(|tenant| tenant.uid.as_str()) == of_tenant;
    if is_there || snapshot.phase() != SnapshotPhase::Completed {
        return of_ttl;
    }
    // What was said before stays: otherwise it would never end.
    let published = snapshot.status.as_ref().and_then(|status| status.expires_at.as_ref());
    let published = published.map(|at| at.0).filter(|at| Some(*at) != of_ttl);
    let later = facts.now.checked_add(KEPT_WITHOUT_TENANT).ok().map(whole_seconds);
    [of_ttl, published.or(later)].into_iter().flatten().min()
}

/// Fails snapshots that cannot be taken, and begins the one whose turn it is.
fn begin_those_that_may(facts: &Facts<'_>, kept: &[Arc<TenantSnapshot>], decision: &mut Decision) {
    let mut used: BTreeMap<SnapshotTrigger, u64> = BTreeMap::new();
    let holds_room = |snapshot: &&Arc<TenantSnapshot>| {
        matches!(snapshot.phase(), SnapshotPhase::Completed | SnapshotPhase::Running) || is_running(facts, snapshot)
    };
    // Those of an earlier tenant that nobody has created by hand are counted for themselves: they end by themselves.
    let is_counted = |snapshot: &&Arc<TenantSnapshot>| {
        snapshot.trigger() == SnapshotTrigger::Manual || !is_of_earlier_tenant(facts, snapshot)
    };
    for snapshot in kept.iter().filter(holds_room).filter(is_counted) {
        *used.entry(snapshot.trigger()).or_default() += 1;
    }
    let mut waiting: Vec<&Arc<TenantSnapshot>> = Vec::new();
    for snapshot in kept {
        if is_running(facts, snapshot) || ![SnapshotPhase::Pending, SnapshotPhase::Running].contains(&snapshot.phase())
        {
            continue;
        }
        if let Some((reason, message)) = find_refusal(facts, snapshot, &used) {
            decision
                .actions
                .push(Action::Fail(Arc::clone(snapshot), reason, message));
            continue;
        }
        if snapshot.phase() == SnapshotPhase::Pending {
            *used.entry(snapshot.trigger()).or_default() += 1;
        }
        waiting.push(snapshot);
    }
    let is_busy = kept.iter().any(|snapshot| is_running(facts, snapshot));
    let Some(tenant) = facts.tenant.filter(|tenant| tenant.has_run && !tenant.is_deleting) else {
        if !waiting.is_empty() {
            // Its tenant may still appear, or start.
            decision.wake_at(facts.now.saturating_add(TENANT_APPEARS_WITHIN).unwrap_or(facts.now));
        }
        return;
    };
    let may_begin = |snapshot: &&&Arc<TenantSnapshot>| {
        let is_paused = snapshot.uid().is_some_and(|uid| facts.paused.contains(&uid));
        // A restore waits for it, and nothing else may be read meanwhile.
        let may_be_read = |restore: &RestoreFacts| restore.waits_for(snapshot);
        !is_paused && tenant.restore.as_ref().is_none_or(may_be_read)
    };
    if let Some(failure) = facts.postponed {
        // What one says of its own try stays.
        let silent = { waiting.iter().filter(may_begin) }.filter(|snapshot| !has_store_error(snapshot, COMPLETED));
        let postponed = silent.map(|snapshot| Action::Postpone(Arc::clone(snapshot), failure));
        decision.actions.extend(postponed);
    } else if !is_busy && let Some(first) = waiting.iter().find(may_begin) {
        decision.actions.push(Action::Start(Arc::clone(first)));
    }
}

/// Why a snapshot cannot be taken; none if it can, now or later.
fn find_refusal(
    facts: &Facts<'_>,
    snapshot: &TenantSnapshot,
    used: &BTreeMap<SnapshotTrigger, u64>,
) -> Option<(&'static str, String)> {
    if !facts.has_store {
        return Some((
            "NoSnapshotStore",
            "Berth has no object store for snapshots; the platform sets snapshots.url in the values of the chart"
                .into(),
        ));
    }
    let age = facts.now.duration_since(created(snapshot));
    let name = facts.name;
    let Some(tenant) = facts.tenant.filter(|tenant| !tenant.is_deleting) else {
        let is_late = age >= TENANT_APPEARS_WITHIN;
        return is_late.then(|| {
            (
                "TenantNotFound",
                format!("there is no TenantCluster {name} in this namespace, or it is being deleted"),
            )
        });
    };
    let begun_for = snapshot.status.as_ref().and_then(|status| status.tenant_uid.as_deref());
    if begun_for.is_some_and(|uid| uid != tenant.uid) {
        return Some((
            "TenantNotFound",
            format!("the TenantCluster {name} was deleted while the snapshot was taken; the one of now is another one"),
        ));
    }
    if !tenant.has_run {
        return (age >= TENANT_APPEARS_WITHIN).then(|| {
            (
                "TenantNotStarted",
                format!("the tenant {name} has not been started yet, so that it stores nothing"),
            )
        });
    }
    let attempts = snapshot.status.as_ref().and_then(|status| status.attempts);
    if attempts.unwrap_or_default() >= MOST_ATTEMPTS {
        return Some((
            "Interrupted",
            format!("control has ended {MOST_ATTEMPTS} times while it took the snapshot; its log may say why"),
        ));
    }
    let trigger = snapshot.trigger();
    let limit = match trigger {
        SnapshotTrigger::Manual => u64::from(tenant.rules.max),
        // One more than are kept: the oldest goes once the newest is there.
        SnapshotTrigger::Schedule => {
            { tenant.rules.schedule.as_ref() }.map_or(0, |schedule| u64::from(schedule.keep) + 1)
        }
        SnapshotTrigger::BeforeRestore => u64::from(KEPT_OF_RESTORES) + 1,
    };
    // Control asks for no more than one for each restore: others that say to be of restores do not keep it from being taken.
    let is_awaited = tenant
        .restore
        .as_ref()
        .is_some_and(|restore| restore.waits_for(snapshot));
    let is_counted = snapshot.phase() == SnapshotPhase::Running || is_awaited;
    if !is_counted && used.get(&trigger).copied().unwrap_or_default() >= limit {
        return Some((
            "TooManySnapshots",
            format!(
                "the tenant {name} has as many snapshots as its class allows ({limit}); delete one and create another one, or ask the platform to raise \
                 spec.snapshots.max of the class"
            ),
        ));
    }
    None
}

/// Creates the snapshot of the schedule that is due. One that was missed is made up for once.
fn follow_schedule(
    facts: &Facts<'_>,
    tenant: &TenantFacts,
    kept: &[Arc<TenantSnapshot>],
    deleted: &[Arc<TenantSnapshot>],
    decision: &mut Decision,
) {
    let Some(schedule) = &tenant.rules.schedule else { return };
    // The condition Ready of the class says what is wrong with it.
    let Ok(recurrence) = Recurrence::parse(&schedule.cron, &schedule.time_zone) else {
        return;
    };
    if tenant.is_deleting || !tenant.has_run {
        return;
    }
    let is_of_schedule = |snapshot: &&Arc<TenantSnapshot>| snapshot.trigger() == SnapshotTrigger::Schedule;
    let newest = kept
        .iter()
        .chain(deleted)
        .filter(is_of_schedule)
        .map(|snapshot| created(snapshot))
        .max();
    let completed = kept
        .iter()
        .filter(is_of_schedule)
        .filter(|snapshot| snapshot.phase() == SnapshotPhase::Completed);
    let statuses = completed.filter_map(|snapshot| snapshot.status.as_ref());
    let newest_completed = statuses.max_by_key(|status| status.started_at.as_ref().map(|at| at.0));
    let started_at = newest_completed
        .and_then(|status| status.started_at.as_ref())
        .map(|at| at.0);
    let completed_at = newest_completed
        .and_then(|status| status.completed_at.as_ref())
        .map(|at| at.0);
    // What sleeps stores nothing new.
    let is_unchanged = tenant
        .unchanged_since
        .is_some_and(|since| started_at.is_some_and(|at| at >= since));
    let before_last = recurrence.last_but_one(facts.now).filter(|at| *at >= tenant.created);
    decision.schedule = Some(ScheduleState {
        completed_at,
        is_overdue: !is_unchanged && before_last.is_some_and(|due| started_at.is_none_or(|at| at < due)),
    });
    if let Some(next) = recurrence.next(facts.now) {
        decision.wake_at(next);
    }
    let due = recurrence.last(facts.now).filter(|due| *due >= tenant.created);
    let due = due.filter(|due| newest.is_none_or(|newest| newest < *due));
    let Some(due) = due.filter(|_| facts.has_store && tenant.restore.is_none() && !is_unchanged) else {
        return;
    };
    decision.actions.push(Action::Create(scheduled_name(facts.name, due)));
}

/// The name of the snapshot of a schedule that is due at this time. The same time has the same name, so that a view that is late creates no second one.
fn scheduled_name(tenant: &str, due: Timestamp) -> String {
    format!("{tenant}-{}", due.strftime("%Y%m%d-%H%M"))
}

fn is_running(facts: &Facts<'_>, snapshot: &TenantSnapshot) -> bool {
    snapshot.uid().is_some_and(|uid| facts.running.contains(&uid))
}

/// Whether a snapshot was begun of another tenant than that of now: of one that had the same name before, or of one that is gone.
fn is_of_earlier_tenant(facts: &Facts<'_>, snapshot: &TenantSnapshot) -> bool {
    let of_tenant = { snapshot.status.as_ref() }.and_then(|status| status.tenant_uid.as_deref());
    of_tenant.is_some() && of_tenant != facts.tenant.map(|tenant| tenant.uid.as_str())
}

fn is_deleting(snapshot: &TenantSnapshot) -> bool {
    snapshot.metadata.deletion_timestamp.is_some()
}

fn created(snapshot: &TenantSnapshot) -> Timestamp {
    let created = snapshot.metadata.creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |created| created.0)
}

#[cfg(test)]
mod tests;
