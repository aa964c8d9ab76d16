//! The object in the tenant that owns idle pods: how it is stopped at the last step, and started again, once.
//!
//! | object | what happens |
//! |---|---|
//! | due | one patch scales it to zero and records in [`STOPPED`] what it was |
//! | stopped, and the team wants it back | one patch scales it up and removes the record |
//! | stopped, and somebody has scaled it up meanwhile | one patch removes the record: nothing is left to restore |
//! | without the record | it is the team's own; nobody touches it |
//!
//! Each patch names the resource version that it was made for, so it does all or nothing, and nothing at all to an object that changed
//! meanwhile. A record is used up by the patch that restores it, so nothing is restored twice, whichever process dies when.
//!
//! A team can write the record. It decides by it about the replicas of its own object only, and only of one that Berth listed as
//! stopped.

#[cfg(test)]
mod tests;

use berth_api::labels::{GPUS_IDLE_WARNING, MANAGED_BY, RESTORE, RESTORE_WANTED, STOPPED};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most replicas that are restored: more than any workload on GPUs has. A record with more is not one of Berth's.
const MAX_REPLICAS: u32 = 100_000;
/// Reason in a record.
const REASON: &str = "IdleGPUs";
/// Names in a path of a field at most. Those of the kinds of Kubernetes have two.
const MAX_PATH: usize = 8;

/// How an owner is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// By its number of replicas.
    Replicas {
        /// Path of the field in the spec.
        wanted: Vec<String>,
        /// Path of the field that counts what exists.
        observed: Vec<String>,
    },
    /// By the suspension of a Job.
    Suspend,
}

/// What an owner was before it was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRecord {
    /// Its replicas; none for a Job, which was not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// When it was stopped.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
    /// The class whose rules say so, if the tenant has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// Why an owner cannot be stopped. Its idle pods are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotStop {
    /// It is stopped, has ended or is being deleted.
    HasStopped,
    /// It is one of Berth's or of the platform, which would start it again.
    NotOfTeam,
    /// It has pods that were not judged, or are not idle.
    HasOtherPods,
    /// Its fields are not as those of its kind.
    Unreadable,
}

/// What is to be done about an owner that is listed as stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Review {
    /// Nothing, it stays stopped.
    Keep,
    /// It has no record, so it is no longer Berth's concern.
    Forget,
    /// Remove the record with this patch: somebody has started it, or the record is none of Berth's.
    RemoveRecord(Value),
    /// Start it with this patch.
    Restore(Value),
}

impl Switch {
    /// That of a kind of Kubernetes itself; none for others.
    pub fn of_built_in(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("", "ReplicationController") => {
                Self::of_scale(".spec.replicas", ".status.replicas")
            }
            ("batch", "Job") => Some(Self::Suspend),
            _ => None,
        }
    }

    /// That of a kind with the subresource scale, by the paths in its CustomResourceDefinition. None if these are not paths below
    /// `.spec` and `.status`.
    pub fn of_scale(wanted: &str, observed: &str) -> Option<Self> {
        Some(Self::Replicas {
            wanted: parse_path(wanted, "spec")?,
            observed: parse_path(observed, "status")?,
        })
    }
}

fn parse_path(path: &str, root: &str) -> Option<Vec<String>> {
    let names: Vec<&str> = path.strip_prefix('.')?.split('.').collect();
    let is_name = |name: &&str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || ['-', '_'].contains(&c))
    };
    let is_path = names.first() == Some(&root) && (2..=MAX_PATH).contains(&names.len()) && names.iter().all(is_name);
    is_path.then(|| names.into_iter().map(ToOwned::to_owned).collect())
}

/// The group of an `apiVersion`.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn field<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, name| &value[name.as_str()])
}

fn count(object: &Value, path: &[String], default: u32) -> Option<u32> {
    match field(object, path) {
        Value::Null => Some(default),
        value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// Whether a Job has completed or failed.
fn has_ended(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        let is_end = condition["type"] == "Complete" || condition["type"] == "Failed";
        is_end && condition["status"] == "True"
    })
}

/// Whether an owner wants pods; none if its fields cannot be read. An object without the field has one replica.
pub fn is_running(object: &Value, switch: &Switch) -> Option<bool> {
    match switch {
        Switch::Replicas { wanted, .. } => Some(count(object, wanted, 1)? > 0),
        Switch::Suspend => match &object["spec"]["suspend"] {
            Value::Null => Some(true),
            value => value.as_bool().map(|is_suspended| !is_suspended),
        },
    }
}

/// The patch that stops an owner of `idle_pods` pods, all of which are idle.
///
/// # Errors
/// It cannot be stopped.
pub fn stop(
    object: &Value,
    switch: &Switch,
    idle_pods: usize,
    class: Option<&str>,
    now: Timestamp,
) -> Result<Value, CannotStop> {
    let metadata = &object["metadata"];
    if !metadata["labels"][MANAGED_BY].is_null() {
        return Err(CannotStop::NotOfTeam);
    }
    let is_running = is_running(object, switch).ok_or(CannotStop::Unreadable)?;
    if !is_running || !metadata["deletionTimestamp"].is_null() {
        return Err(CannotStop::HasStopped);
    }
    let (replicas, existing) = match switch {
        Switch::Replicas { wanted, observed } => {
            let replicas = count(object, wanted, 1).filter(|replicas| *replicas <= MAX_REPLICAS);
            (
                Some(replicas.ok_or(CannotStop::Unreadable)?),
                count(object, observed, 0),
            )
        }
        Switch::Suspend if has_ended(object) => return Err(CannotStop::HasStopped),
        Switch::Suspend => (None, count(object, &["status".into(), "active".into()], 0)),
    };
    let existing = existing.ok_or(CannotStop::Unreadable)?;
    if usize::try_from(existing).map_or(true, |existing| existing > idle_pods) {
        return Err(CannotStop::HasOtherPods);
    }
    let record = StopRecord {
        replicas,
        at: now,
        reason: REASON.into(),
        class: class.map(ToOwned::to_owned),
    };
    let record = serde_json::to_string(&record).map_err(|_| CannotStop::Unreadable)?;
    let annotations = json!({STOPPED: record, GPUS_IDLE_WARNING: null, RESTORE: null});
    switched(object, switch, replicas.map(|_| 0), true, &annotations).ok_or(CannotStop::Unreadable)
}

/// Whether the API server did what [`stop`] asks for: admission of the tenant may have changed the patch.
pub fn is_stopped(object: &Value, switch: &Switch) -> bool {
    is_running(object, switch) == Some(false) && object["metadata"]["annotations"][STOPPED].is_string()
}

/// What is to be done about an owner that is listed as stopped. `is_wanted`: somebody asked on the host to start it.
pub fn review(object: &Value, switch: &Switch, is_wanted: bool) -> Review {
    let annotations = &object["metadata"]["annotations"];
    if annotations[STOPPED].is_null() || !object["metadata"]["deletionTimestamp"].is_null() {
        return Review::Forget;
    }
    let used_up = json!({STOPPED: null, RESTORE: null});
    let remove = || {
        let patch = annotations_patch(object, &used_up);
        patch.map_or(Review::Forget, Review::RemoveRecord)
    };
    if is_running(object, switch) != Some(false) {
        return remove();
    }
    if !is_wanted && annotations[RESTORE] != RESTORE_WANTED {
        return Review::Keep;
    }
    let Some(record) = read_record(&annotations[STOPPED], switch) else {
        return remove();
    };
    let patch = switched(object, switch, record.replicas, false, &used_up);
    patch.map_or(Review::Forget, Review::Restore)
}

/// The record, if it is one for this kind of object.
fn read_record(annotation: &Value, switch: &Switch) -> Option<StopRecord> {
    let record: StopRecord = serde_json::from_str(annotation.as_str()?).ok()?;
    let fits = match (switch, record.replicas) {
        (Switch::Replicas { .. }, Some(replicas)) => (1..=MAX_REPLICAS).contains(&replicas),
        (Switch::Suspend, None) => true,
        _ => false,
    };
    fits.then_some(record)
}

/// A merge patch of the object as it was read; none if it has no resource version.
fn annotations_patch(object: &Value, annotations: &Value) -> Option<Value> {
    let version = object["metadata"]["resourceVersion"].as_str()?;
    Some(json!({"metadata": {"resourceVersion": version, "annotations": annotations}}))
}

fn switched(
    object: &Value,
    switch: &Switch,
    replicas: Option<u32>,
    is_suspended: bool,
    annotations: &Value,
) -> Option<Value> {
    let mut patch = annotations_patch(object, annotations)?;
    match switch {
        Switch::Replicas { wanted, .. } => {
            let value = wanted.iter().fold(&mut patch, |value, name| &mut value[name.as_str()]);
            *value = replicas?.into();
        }
        Switch::Suspend => patch["spec"]["suspend"] = is_suspended.into(),
    }
    Some(patch)
}
