//! What is known of the restore of a tenant.
//!
//! That a restore is under way is recorded in etcd ([`RestoreRecord`]). This process only remembers what it does about it: losing that costs a new beginning.

pub(super) use super::restore_finding::{Finding, Refusal, TRANSIENT, ended, is_published};

use super::restore_finding::MOST_REST;
use crate::{
    clock::whole_seconds,
    datastore::{RestoreEnd, RestorePhase, RestoreRecord},
};
use berth_runtime::locks::lock;
use berth_snapshots::Written;
use jiff::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// Bytes for which the next restore waits a second: what was replaced stays in etcd for minutes, as its history.
const BYTES_PER_SECOND: u64 = 1 << 20;
/// Snapshots that are compared at the same time.
const MOST_COMPARISONS: usize = 2;

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
    /// When the last restore ended, and how many bytes it has written.
    ended: Option<(Instant, u64)>,
    /// Whether that is known: a control that has just started has to read it.
    knows_end: bool,
    /// How the last one ended that has replaced something.
    over: Option<Finding>,
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
            if matches!(finding, Finding::Done(_) | Finding::Lost(_)) {
                known.over = Some(finding.clone());
            }
            known.finding = Some(finding);
        });
    }

    /// How the last restore ended that has replaced something, until the next one does. Later findings say nothing of it, and the status that a watch shows
    /// may be from before.
    pub(super) fn over(&self, uid: &str) -> Option<Finding> {
        lock(&self.all).get(uid)?.over.clone()
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
                    Finding::UnderWay(of_task)
                    | Finding::Failing(of_task, _)
                    | Finding::OtherRefused { record: of_task, .. },
                ) => {
                    // That was read after the task had failed: what it could not record was recorded all the same.
                    let is_last = |record: &RestoreRecord| record.phase == RestorePhase::Replaced;
                    Gone::Ended(Box::new(record.filter(is_last).unwrap_or(of_task)))
                }
                Some(
                    Finding::Waiting(_)
                    | Finding::Checking(_)
                    | Finding::Stopping(_)
                    | Finding::Done(_)
                    | Finding::Lost(_),
                )
                | None => record.map_or(Gone::Unknown, |record| Gone::Ended(Box::new(record))),
            }
        })
    }

    /// Notes what etcd has, or will have in a moment. Returns whether the restore waits for another snapshot than before.
    pub(super) fn note_record(&self, uid: &str, record: RestoreRecord) -> bool {
        self.with(uid, |known| {
            known.knows_none = false;
            let before = known.record.as_ref().and_then(awaited);
            let is_other = awaited(&record).is_some_and(|name| Some(name) != before);
            if record.phase != RestorePhase::Saving {
                known.over = None;
            }
            if known.record.replace(record).is_none() {
                // They are of an earlier restore.
                let is_over =
                    |found: &mut Finding| matches!(found, Finding::Refused(_) | Finding::Done(_) | Finding::Lost(_));
                known.finding.take_if(is_over);
            }
            is_other
        })
    }

    /// Notes that nothing of the tenant runs any more: the restore does not wait for that.
    pub(super) fn note_stopped(&self, uid: &str, record: &RestoreRecord) {
        self.with(uid, |known| {
            if matches!(known.finding, Some(Finding::Stopping(_))) {
                known.finding = Some(Finding::UnderWay(record.clone()));
            }
        });
    }

    /// Notes that a restore has ended which has written so many bytes.
    pub(super) fn note_ended(&self, uid: &str, bytes: u64, now: Instant) {
        self.with(uid, |known| (known.ended, known.knows_end) = (Some((now, bytes)), true));
    }

    /// Whether this process knows how the last restore ended, or that there was none.
    pub(super) fn knows_end(&self, uid: &str) -> bool {
        lock(&self.all).get(uid).is_some_and(|known| known.knows_end)
    }

    /// Notes how the last restore ended, as etcd says; none: there was none. It is `now` by the clock of the host, and `at` by that of this process.
    pub(super) fn learn_end(&self, uid: &str, end: Option<&RestoreEnd>, now: Timestamp, at: Instant) {
        let ended = end.and_then(|end| {
            // That clock may have been set back since: no restore waits longer for that.
            let age = Duration::try_from(now.duration_since(end.ended_at)).unwrap_or_default();
            (age < MOST_REST).then(|| (at.checked_sub(age).unwrap_or(at), end.bytes))
        });
        self.with(uid, |known| (known.ended, known.knows_end) = (ended, true));
    }

    /// How long the next restore waits at most. `has_compared` says whether the tenant's syncer has compared everything on the host since the last one.
    pub(super) fn rest(&self, uid: &str, has_compared: bool, now: Instant) -> Option<Duration> {
        let (ended_at, bytes) = lock(&self.all).get(uid)?.ended?;
        let of_bytes = Duration::from_secs(bytes / BYTES_PER_SECOND).min(MOST_REST);
        let rest = if has_compared { of_bytes } else { MOST_REST };
        rest.checked_sub(now.duration_since(ended_at))
            .filter(|rest| !rest.is_zero())
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

    /// Forgets the comparison of a snapshot: nobody asks for it any more. Returns whether there was one, or whether that was found last.
    pub(super) fn forget_check(&self, uid: &str) -> bool {
        let mut all = lock(&self.all);
        let Some(known) = all.get_mut(uid) else { return false };
        let is_asked = matches!(known.finding, Some(Finding::Waiting(_) | Finding::Checking(_)));
        known.check.take().is_some() || is_asked
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
            saved_as: awaited(record).map(ToOwned::to_owned),
        })
    }
}

/// Name of the snapshot that a restore waits for.
fn awaited(record: &RestoreRecord) -> Option<&str> {
    { record.saved_as.as_deref() }.filter(|_| record.phase == RestorePhase::Saving)
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
