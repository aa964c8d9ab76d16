//! What is found of the restore of a tenant, and what its status says of that: pure.

use crate::{
    clock::whole_seconds,
    datastore::{RestorePhase, RestoreRecord},
};
use berth_api::{
    RestoreStatus, TenantCluster, TenantClusterStatus,
    conditions::{CONTROL_PLANE_READY, ConditionUpdate, RESTORED},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::time::Duration;

/// How long after a restore the next one waits at most for the tenant to compare everything on the host: one whose API server or syncer does not start can be
/// set back to another snapshot.
pub(super) const MOST_REST: Duration = Duration::from_mins(5);
/// Reason while the tenant has not compared everything on the host since the last restore.
const WAITING: &str = "Waiting";
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
/// Reason of a restore that etcd has lost in the middle, with what the tenant stored.
const LOST: &str = "RestoreLost";
/// Reasons of restores that are not over.
const UNDER_WAY: [&str; 7] = [WAITING, CHECKING, STOPPING, SAVING, REPLACING, FAILING, OTHER_REFUSED];
/// Reasons of a restore for which the versions were compared.
const COMPARED: [&str; 6] = [CHECKING, STOPPING, SAVING, REPLACING, FAILING, OTHER_REFUSED];
/// Reason of ControlPlaneReady during a restore.
const RESTORING: &str = "Restoring";
/// Reasons of a restore that is under way: nobody has to do anything.
pub(super) const TRANSIENT: [&str; 5] = [WAITING, CHECKING, STOPPING, SAVING, REPLACING];

/// Why a tenant is not set back to a snapshot, before anything of it is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What was found last of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// A restore to the snapshot of this name waits, as another one has just ended, or was given up.
    Waiting(String),
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
    /// etcd has lost it before it was over.
    Lost(RestoreStatus),
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
            Self::Waiting(name) => unmet(
                WAITING,
                format!(
                    "another restore has just ended; that to the TenantSnapshot {name} waits until the syncer has compared everything on the host, a second \
                     for each MiB that was written, and at most {} minutes",
                    MOST_REST.as_secs() / 60
                ),
            ),
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
            Self::Lost(status) => unmet(LOST, describe_loss(status)),
        }
    }

    /// What the condition ControlPlaneReady says; none if the restore does not stop the control plane.
    pub(super) fn control_plane_condition(&self) -> Option<ConditionUpdate> {
        match self {
            Self::Stopping(_) | Self::UnderWay(_) | Self::Failing(..) | Self::OtherRefused { .. } => Some(
                ConditionUpdate::mark_false(CONTROL_PLANE_READY, RESTORING, self.condition().message),
            ),
            Self::Waiting(_) | Self::Checking(_) | Self::Refused(_) | Self::Done(_) | Self::Lost(_) => None,
        }
    }

    /// What the status says of a restore that replaces something, or is over; none if it says what it said before.
    fn status(&self) -> Option<RestoreStatus> {
        match self {
            Self::UnderWay(record) | Self::Failing(record, _) | Self::OtherRefused { record, .. } => {
                (record.phase != RestorePhase::Saving).then(|| published(record))
            }
            Self::Done(status) => Some(status.clone()),
            Self::Waiting(_) | Self::Checking(_) | Self::Refused(_) | Self::Stopping(_) | Self::Lost(_) => None,
        }
    }

    /// Sets what the status says of the restore.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        // One that is lost is never over: nobody may take it for the next one later.
        if let Self::Lost(_) = self {
            status.restore = None;
        } else if let Some(restore) = self.status() {
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

/// What people read of a restore that etcd has lost.
fn describe_loss(status: &RestoreStatus) -> String {
    let saved =
        { status.saved_as.as_ref() }.map(|name| format!(". The TenantSnapshot {name} has what it stored before"));
    format!(
        "the datastore has lost the restore to the TenantSnapshot {} before it was over, with what the tenant stored; ask for it again{}",
        status.snapshot_name,
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

/// Whether the status says of a restore under way that it has replaced something. The record stays until then: a control that starts after its end knows by
/// the status only that there was one, and what it has saved.
pub(super) fn is_published(cluster: &TenantCluster, record: &RestoreRecord) -> bool {
    let known = cluster.status.as_ref().and_then(|status| status.restore.as_ref());
    known == Some(&published(record))
}

/// Whether no other minor version may be started because of a restore: it is under way, or nothing has run since with what it has written. That the version
/// which the tenant has can read the snapshot was found out before.
pub(super) fn holds_upgrades(status: &TenantClusterStatus) -> bool {
    let find = |kind: &str| status.conditions.iter().find(|one| one.type_ == kind);
    if find(RESTORED).is_some_and(|restored| COMPARED.contains(&restored.reason.as_str())) {
        return true;
    }
    let Some(restore) = &status.restore else { return false };
    let Some(completed) = &restore.completed_at else {
        return true;
    };
    let has_run = |ready: &Condition| {
        ready.status == "True" || ready.last_transition_time.0.as_second() > completed.0.as_second()
    };
    !find(CONTROL_PLANE_READY).is_some_and(has_run)
}

/// What is known of a restore of which there is no record any more, from what this process knew of it or from what the status says. None: there was none,
/// or it is known how it ended. That it is done holds only if etcd has the tenant's database: it may have lost that, with the record.
pub(super) fn ended(known: Option<&RestoreRecord>, cluster: &TenantCluster, now: Timestamp) -> Option<Finding> {
    let status = cluster.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let has_reason = |reasons: &[&str]| {
        conditions
            .iter()
            .any(|one| one.type_ == RESTORED && reasons.contains(&one.reason.as_str()))
    };
    let before = match known {
        // Everything is replaced before the record goes.
        Some(record) if record.phase == RestorePhase::Replacing => return Some(Finding::Lost(published(record))),
        Some(record) => (record.phase == RestorePhase::Replaced).then(|| published(record)),
        None => status
            .and_then(|status| status.restore.clone())
            .filter(|restore| restore.completed_at.is_none()),
    };
    if let Some(before) = before {
        return Some(Finding::Done(RestoreStatus {
            completed_at: Some(Time(whole_seconds(now))),
            ..before
        }));
    }
    has_reason(&UNDER_WAY).then(Finding::interrupted)
}
