//! What is known of the restore of a tenant, and what its status says of it.
//!
//! That a restore is under way is recorded in etcd ([`RestoreRecord`]). This process only remembers what it does about it: losing that costs a new beginning.

use crate::{
    clock::whole_seconds,
    datastore::{RestorePhase, RestoreRecord},
};
use berth_api::{
    RestoreStatus, TenantCluster, TenantClusterStatus,
    conditions::{ConditionUpdate, RESTORED},
};
use berth_runtime::locks::lock;
use berth_snapshots::Written;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// Snapshots that are compared at the same time.
const MOST_COMPARISONS: usize = 2;
/// Reason while a snapshot is compared with what was written.
const CHECKING: &str = "Checking";
/// Reason while the control plane is stopped.
const STOPPING: &str = "Stopping";
/// Reason while a snapshot is taken of what is there.
const SAVING: &str = "Saving";
/// Reason while everything is replaced.
const REPLACING: &str = "Replacing";
/// Reason while that fails and is tried again.
const FAILING: &str = "RestoreFailing";
/// Reason while that fails, and another snapshot that somebody asked for meanwhile cannot be used.
const OTHER_REFUSED: &str = "OtherSnapshotRefused";
/// Reason of a restore of which nothing is known any more, and that has replaced nothing.
const INTERRUPTED: &str = "Interrupted";
/// Reasons of restores that are not over.
const UNDER_WAY: [&str; 6] = [CHECKING, STOPPING, SAVING, REPLACING, FAILING, OTHER_REFUSED];
/// Reasons of a restore that is under way: nobody has to do anything.
pub(super) const TRANSIENT: [&str; 4] = [CHECKING, STOPPING, SAVING, REPLACING];

/// Why a tenant is not set back to a snapshot, before anything of it is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What was found last of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The snapshot of this name is compared with what was written.
    Checking(String),
    /// There is no restore.
    Refused(Refusal),
    /// The control plane does not end yet, for a reason.
    Stopping(String),
    /// A snapshot is taken of what is there, or everything is replaced, as the record says.
    UnderWay(RestoreRecord),
    /// The last try failed, for a reason.
    Failing(RestoreRecord, String),
    /// The same, and another snapshot that somebody asked for meanwhile cannot be used.
    OtherRefused {
        record: RestoreRecord,
        /// Why the last try failed.
        why: String,
        /// Why the other snapshot cannot be used.
        refused: String,
    },
    /// It is over.
    Done(RestoreStatus),
}

impl Finding {
    /// Of a restore that replaced nothing, and of which nothing else is known.
    pub(super) fn interrupted() -> Self {
        Self::Refused(Refusal {
            reason: INTERRUPTED,
            message: "the restore was given up before anything was replaced".into(),
        })
    }

    /// Of a request that was there and is gone.
    pub(super) fn withdrawn() -> Self {
        Self::Refused(Refusal {
            reason: "RequestWithdrawn",
            message: "the request was removed from the TenantCluster before the restore began".into(),
        })
    }

    /// What the condition Restored says.
    pub(super) fn condition(&self) -> ConditionUpdate {
        let unmet = |reason, message: String| ConditionUpdate::mark_false(RESTORED, reason, message);
        match self {
            Self::Checking(name) => unmet(
                CHECKING,
                format!(
                    "the TenantSnapshot {name} is read and compared with its checksum; nothing of the tenant is changed yet"
                ),
            ),
            Self::Refused(Refusal { reason, message }) => unmet(
                *reason,
                format!(
                    "{message}. Nothing of the tenant was changed; ask for the restore again once this is resolved"
                ),
            ),
            Self::Stopping(why) => unmet(
                STOPPING,
                format!("the control plane is stopped before anything is replaced: {why}"),
            ),
            Self::UnderWay(record) => match (record.phase, &record.saved_as) {
                (RestorePhase::Saving, Some(name)) => unmet(
                    SAVING,
                    format!("what the tenant stores is saved as the TenantSnapshot {name}; nothing is replaced yet"),
                ),
                _ => unmet(
                    REPLACING,
                    format!(
                        "what the tenant stores is replaced by that of the TenantSnapshot {}",
                        record.snapshot_name
                    ),
                ),
            },
            Self::Failing(record, why) => unmet(FAILING, describe_failure(record, why)),
            Self::OtherRefused { record, why, refused } => unmet(
                OTHER_REFUSED,
                format!(
                    "{refused}. The restore to the TenantSnapshot {} goes on: {}",
                    record.snapshot_name,
                    describe_failure(record, why)
                ),
            ),
            Self::Done(status) => ConditionUpdate::mark_true(
                RESTORED,
                "Restored",
                format!("the tenant was set back to the TenantSnapshot {}", status.snapshot_name),
            ),
        }
    }

    /// What the status says of a restore that replaces something, or is over; none if it says what it said before.
    fn status(&self) -> Option<RestoreStatus> {
        match self {
            Self::UnderWay(record) | Self::Failing(record, _) | Self::OtherRefused { record, .. } => {
                (record.phase != RestorePhase::Saving).then(|| published(record))
            }
            Self::Done(status) => Some(status.clone()),
            Self::Checking(_) | Self::Refused(_) | Self::Stopping(_) => None,
        }
    }

    /// Sets what the status says of the restore.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        if let Some(restore) = self.status() {
            status.restore = Some(restore);
        }
    }
}

/// What people read of a restore whose last try failed.
fn describe_failure(record: &RestoreRecord, why: &str) -> String {
    let is_saved = record.phase != RestorePhase::Saving;
    let saved = { record.saved_as.as_ref() }
        .filter(|_| is_saved)
        .map(|name| format!(". The TenantSnapshot {name} has what the tenant stored before"));
    format!(
        "{why}; Berth tries again, and no API server is started before{}",
        saved.unwrap_or_default()
    )
}

/// What the status says of a restore under way.
pub(super) fn published(record: &RestoreRecord) -> RestoreStatus {
    RestoreStatus {
        snapshot_name: record.snapshot_name.clone(),
        saved_as: record.saved_as.clone(),
        started_at: Time(whole_seconds(record.started_at)),
        completed_at: None,
    }
}

/// What is known of a restore of which there is no record any more, from what this process knew of it or from what the status says. None: there was none,
/// or it is known how it ended.
pub(super) fn ended(known: Option<&RestoreRecord>, cluster: &TenantCluster, now: Timestamp) -> Option<Finding> {
    let status = cluster.status.as_ref();
    let before = known
        .filter(|record| record.phase != RestorePhase::Saving)
        .map(published)
        .or_else(|| {
            let restore = status?.restore.clone()?;
            restore.completed_at.is_none().then_some(restore)
        });
    if let Some(before) = before {
        return Some(Finding::Done(RestoreStatus {
            completed_at: Some(Time(whole_seconds(now))),
            ..before
        }));
    }
    let is_under_way =
        |condition: &&Condition| condition.type_ == RESTORED && UNDER_WAY.contains(&condition.reason.as_str());
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().find(is_under_way).map(|_| Finding::interrupted())
}

/// A comparison of a snapshot with what was written.
#[derive(Debug)]
struct Check {
    snapshot_uid: String,
    task: AbortOnDropHandle<Result<(), Refusal>>,
}

/// How far the comparison of a snapshot is.
#[derive(Debug)]
pub(super) enum Checked {
    /// It has not begun.
    No,
    /// It goes on.
    Running,
    /// This is how it ended.
    Ended(Result<(), Refusal>),
}

/// What a task that replaces what a tenant stores shares with the reconciles of this tenant.
#[derive(Debug)]
pub(super) struct Progress(Mutex<(Finding, Option<Instant>)>);

impl Progress {
    pub(super) fn new(finding: Finding) -> Arc<Self> {
        Arc::new(Self(Mutex::new((finding, None))))
    }

    pub(super) fn set(&self, finding: Finding) {
        *lock(&self.0) = (finding, None);
    }

    /// Nothing is tried again before `retry_at`.
    pub(super) fn fail(&self, finding: Finding, retry_at: Instant) {
        *lock(&self.0) = (finding, Some(retry_at));
    }

    fn get(&self) -> Finding {
        lock(&self.0).0.clone()
    }

    fn retry_at(&self) -> Option<Instant> {
        lock(&self.0).1
    }
}

/// What is remembered of the restore of one tenant.
#[derive(Debug, Default)]
struct Remembered {
    finding: Option<Finding>,
    check: Option<Check>,
    /// The record, as it was read or written last.
    record: Option<RestoreRecord>,
    task: Option<(AbortOnDropHandle<()>, Arc<Progress>)>,
    /// Why another snapshot cannot be used that somebody asked for while the restore failed.
    refused: Option<String>,
    /// Whether etcd said last that there is no record.
    knows_none: bool,
}

/// What became of a restore of which etcd has no record any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// It had this record.
    Ended(Box<RestoreRecord>),
    /// It was given up before anything was replaced, and it is noted why.
    GivenUp,
    /// This process knows of none.
    Unknown,
}

/// What this process does about restores. Tasks end with this.
#[derive(Debug)]
pub struct Restores {
    /// By UIDs of TenantClusters.
    all: Mutex<BTreeMap<String, Remembered>>,
    /// Turns of those that compare a snapshot: each keeps some megabytes of it in memory.
    pub(super) comparisons: Arc<Semaphore>,
    /// The turn of the one that replaces something. What it writes is compared with the room in etcd, which two would both find.
    pub(super) replacements: Arc<Semaphore>,
}

impl Default for Restores {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            comparisons: Arc::new(Semaphore::new(MOST_COMPARISONS)),
            replacements: Arc::new(Semaphore::new(1)),
        }
    }
}

/// A restore that other controllers take account of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreUnderWay {
    /// UID of the TenantSnapshot to which the tenant is set back.
    pub snapshot_uid: String,
    /// The TenantSnapshot that it waits for.
    pub saved_as: Option<String>,
}

impl Restores {
    fn with<T>(&self, uid: &str, change: impl FnOnce(&mut Remembered) -> T) -> T {
        change(lock(&self.all).entry(uid.to_owned()).or_default())
    }

    /// What was found last.
    pub(super) fn finding(&self, uid: &str) -> Option<Finding> {
        let all = lock(&self.all);
        let known = all.get(uid)?;
        let of_task = known.task.as_ref().map(|(_, progress)| progress.get());
        let found = of_task.or_else(|| known.finding.clone())?;
        Some(match (found, &known.refused) {
            (Finding::Failing(record, why), Some(refused)) => Finding::OtherRefused {
                record,
                why,
                refused: refused.clone(),
            },
            (found, _) => found,
        })
    }

    /// Notes what was found, unless a task knows more.
    pub(super) fn note(&self, uid: &str, finding: Finding) {
        self.with(uid, |known| {
            known.task.take_if(|(task, _)| task.is_finished());
            known.finding = Some(finding);
        });
    }

    /// Whether etcd said last that no restore is under way. Only this process begins one.
    pub(super) fn knows_none(&self, uid: &str) -> bool {
        lock(&self.all).get(uid).is_some_and(|known| known.knows_none)
    }

    /// Notes that etcd has no record. Returns what became of the one that it had, as far as this process knows.
    pub(super) fn note_none(&self, uid: &str) -> Gone {
        self.with(uid, |known| {
            known.knows_none = true;
            known.refused = None;
            let record = known.record.take();
            let of_task = known.task.take().map(|(_, progress)| progress.get());
            // It may also have been given up before there was a task. Without a record, what was found is of an earlier restore.
            let is_given_up = |found: &Finding| record.is_some() && matches!(found, Finding::Refused(_));
            match of_task.or_else(|| known.finding.clone().filter(is_given_up)) {
                Some(Finding::Refused(refusal)) => {
                    known.finding = Some(Finding::Refused(refusal));
                    Gone::GivenUp
                }
                Some(
                    Finding::UnderWay(record) | Finding::Failing(record, _) | Finding::OtherRefused { record, .. },
                ) => Gone::Ended(Box::new(record)),
                Some(Finding::Checking(_) | Finding::Stopping(_) | Finding::Done(_)) | None => {
                    record.map_or(Gone::Unknown, |record| Gone::Ended(Box::new(record)))
                }
            }
        })
    }

    /// Notes what etcd has, or will have in a moment.
    pub(super) fn note_record(&self, uid: &str, record: RestoreRecord) {
        self.with(uid, |known| {
            known.knows_none = false;
            if known.record.replace(record).is_none() {
                // They are of an earlier restore.
                let is_over = |found: &mut Finding| matches!(found, Finding::Refused(_) | Finding::Done(_));
                known.finding.take_if(is_over);
            }
        });
    }

    /// Whether a task works on the restore.
    pub(super) fn is_running(&self, uid: &str) -> bool {
        let all = lock(&self.all);
        let task = all.get(uid).and_then(|known| known.task.as_ref());
        task.is_some_and(|(task, _)| !task.is_finished())
    }

    /// How long nothing is tried again.
    pub(super) fn pause(&self, uid: &str, now: Instant) -> Option<Duration> {
        let all = lock(&self.all);
        let (_, progress) = all.get(uid)?.task.as_ref()?;
        let until = progress.retry_at()?;
        until.checked_duration_since(now).filter(|pause| !pause.is_zero())
    }

    /// Notes why another snapshot cannot be used that somebody asked for. It is said as long as the restore fails, beside why it does.
    pub(super) fn note_refused(&self, uid: &str, record: &RestoreRecord, refused: String) {
        self.with(uid, |known| {
            known.refused = Some(refused);
            // Of a restore of another process nobody knows why it failed.
            if known.task.is_none() && !matches!(known.finding, Some(Finding::Failing(..) | Finding::Stopping(_))) {
                let why = "the last try was interrupted".to_owned();
                known.finding = Some(Finding::Failing(record.clone(), why));
            }
        });
    }

    /// Forgets that another snapshot could not be used: somebody asks for one again.
    pub(super) fn forget_refused(&self, uid: &str) {
        self.with(uid, |known| known.refused = None);
    }

    /// Forgets how a task ended: its restore is another one by now, which nothing keeps from being gone on with.
    pub(super) fn forget_task(&self, uid: &str) {
        self.with(uid, |known| (known.task, known.refused) = (None, None));
    }

    /// Keeps a task that has begun.
    pub(super) fn keep_task(&self, uid: &str, task: AbortOnDropHandle<()>, progress: Arc<Progress>) {
        self.with(uid, |known| known.task = Some((task, progress)));
    }

    /// Forgets the comparison of a snapshot: nobody asks for it any more. Returns whether there was one.
    pub(super) fn forget_check(&self, uid: &str) -> bool {
        let mut all = lock(&self.all);
        let check = all.get_mut(uid).and_then(|known| known.check.take());
        check.is_some()
    }

    /// Keeps the comparison of a snapshot that has begun.
    pub(super) fn keep_check(&self, uid: &str, snapshot_uid: &str, task: AbortOnDropHandle<Result<(), Refusal>>) {
        let check = Check {
            snapshot_uid: snapshot_uid.to_owned(),
            task,
        };
        self.with(uid, |known| known.check = Some(check));
    }

    /// How far the comparison of this snapshot is.
    pub(super) async fn checked(&self, uid: &str, snapshot_uid: &str) -> Checked {
        let ended = self.with(uid, |known| match known.check.take() {
            Some(check) if check.snapshot_uid != snapshot_uid => Err(Checked::No),
            Some(check) if !check.task.is_finished() => {
                known.check = Some(check);
                Err(Checked::Running)
            }
            Some(check) => Ok(check.task),
            None => Err(Checked::No),
        });
        match ended {
            // One that has panicked is begun again.
            Ok(task) => task.await.map_or(Checked::No, Checked::Ended),
            Err(checked) => checked,
        }
    }

    /// Forgets a tenant, and ends what is done for it.
    pub(super) fn forget(&self, uid: &str) {
        lock(&self.all).remove(uid);
    }

    /// The restore of a tenant, if one is under way as far as this process knows.
    pub(super) fn under_way(&self, uid: &str) -> Option<RestoreUnderWay> {
        let all = lock(&self.all);
        let record = all.get(uid)?.record.as_ref()?;
        Some(RestoreUnderWay {
            snapshot_uid: record.snapshot_uid.clone(),
            saved_as: { record.saved_as.clone() }.filter(|_| record.phase == RestorePhase::Saving),
        })
    }
}

/// The record of a restore that begins.
pub(super) fn new_record(
    (name, uid, location): (&str, &str, String),
    written: Written,
    encryption_keys: Vec<String>,
    saved_as: Option<String>,
    now: Timestamp,
) -> RestoreRecord {
    let Written {
        objects,
        bytes,
        stored_bytes,
        checksum,
    } = written;
    RestoreRecord {
        snapshot_name: name.to_owned(),
        snapshot_uid: uid.to_owned(),
        location,
        objects,
        bytes,
        stored_bytes,
        checksum,
        encryption_keys,
        phase: RestorePhase::Saving,
        saved_as,
        saved_after: None,
        started_at: whole_seconds(now),
        attempts: 0,
        identity: None,
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
