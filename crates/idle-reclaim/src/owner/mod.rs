//! The object in the tenant that owns idle pods: how it is stopped at the last step, and started again, once.
//!
//! | object | what happens |
//! |---|---|
//! | due | one patch scales it to zero, or suspends it, and records in [`STOPPED`] what it was |
//! | stopped, and the team wants it back | one patch makes it what it was and removes the record |
//! | stopped, and somebody has started it meanwhile | one patch removes the record: nothing is left to restore |
//! | without the record | it is the team's own; nobody touches it |
//!
//! Each patch names the resource version that it was made for, so it does all or nothing, and nothing at all to an object that changed
//! meanwhile. A record is used up by the patch that restores it, so nothing is restored twice, whichever process dies when.
//!
//! A team can write the record. It decides by it about the replicas, or the field or annotation that suspends, of its own object only,
//! and only of one that Berth listed as stopped.

mod switch;
#[cfg(test)]
mod tests;

pub use switch::Switch;

use berth_api::labels::{GPUS_IDLE_WARNING, MANAGED_BY, RESTORE, RESTORE_WANTED, STOPPED};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most replicas that are restored: more than any workload on GPUs has. A record with more is not one of Berth's.
const MAX_REPLICAS: u32 = 100_000;
/// Bytes of a resource version. Those of API servers are numbers; a server of the team's writes any text, and patches are kept for a while.
const MAX_RESOURCE_VERSION: usize = 64;
/// Bytes of an annotation that suspends, as it was before.
const MAX_BEFORE: usize = 1024;
/// Reason in a record.
const REASON: &str = "IdleGPUs";
/// What an owner was before it was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRecord {
    /// Its replicas; none for what has no such number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The field or the annotation by which it was suspended, if the class names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_by: Option<String>,
    /// What that was before; none if it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
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

/// The pods with GPUs that an owner has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedPods {
    /// Those that were judged, all of them idle.
    pub idle: usize,
    /// Others that are known. They are looked for if [`Switch::counts_pods`] is false.
    pub others: usize,
}

/// The group of an `apiVersion`.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Whether a Job has completed or failed.
fn has_ended(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        let is_end = condition["type"] == "Complete" || condition["type"] == "Failed";
        is_end && condition["status"] == "True"
    })
}

/// The patch that stops an owner with these pods.
///
/// # Errors
/// It cannot be stopped.
pub fn stop(
    object: &Value,
    switch: &Switch,
    pods: OwnedPods,
    class: Option<&str>,
    now: Timestamp,
) -> Result<Value, CannotStop> {
    let metadata = &object["metadata"];
    if !metadata["labels"][MANAGED_BY].is_null() {
        return Err(CannotStop::NotOfTeam);
    }
    let is_running = switch.is_running(object).ok_or(CannotStop::Unreadable)?;
    let has_stopped = !is_running || !metadata["deletionTimestamp"].is_null();
    if has_stopped || (*switch == Switch::Job && has_ended(object)) {
        return Err(CannotStop::HasStopped);
    }
    let replicas = switch.replicas(object);
    if replicas.is_some_and(|replicas| replicas > MAX_REPLICAS) {
        return Err(CannotStop::Unreadable);
    }
    let existing = switch.pods(object).ok_or(CannotStop::Unreadable)?;
    let has_more = usize::try_from(existing).map_or(true, |existing| existing > pods.idle);
    if has_more || pods.others > 0 {
        return Err(CannotStop::HasOtherPods);
    }
    let before = switch.value(object);
    if before.as_str().is_some_and(|text| text.len() > MAX_BEFORE) {
        return Err(CannotStop::Unreadable);
    }
    let record = StopRecord {
        replicas,
        suspended_by: switch.name(),
        before: (!before.is_null()).then(|| before.clone()),
        at: now,
        reason: REASON.into(),
        class: class.map(ToOwned::to_owned),
    };
    let record_text = serde_json::to_string(&record).map_err(|_| CannotStop::Unreadable)?;
    let annotations = json!({STOPPED: record_text, GPUS_IDLE_WARNING: null, RESTORE: null});
    let mut patch = annotations_patch(object, &annotations).ok_or(CannotStop::Unreadable)?;
    match switch {
        Switch::Replicas { wanted, .. } => set(&mut patch, wanted, 0.into()),
        Switch::Job => patch["spec"]["suspend"] = true.into(),
        Switch::Field { path } => set(&mut patch, path, true.into()),
        Switch::Annotation { name, value } => {
            // As the programs do that only look whether it is there.
            let value = value.clone().unwrap_or_else(|| now.to_string());
            patch["metadata"]["annotations"][name.as_str()] = value.into();
        }
    }
    Ok(patch)
}

/// Whether the API server did what [`stop`] asks for: admission of the tenant may have changed the patch.
pub fn is_stopped(object: &Value, switch: &Switch) -> bool {
    switch.is_running(object) == Some(false) && object["metadata"]["annotations"][STOPPED].is_string()
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
    if switch.is_running(object) != Some(false) {
        return remove();
    }
    if !is_wanted && annotations[RESTORE] != RESTORE_WANTED {
        return Review::Keep;
    }
    let Some(record) = read_record(&annotations[STOPPED], switch) else {
        return remove();
    };
    let patch = annotations_patch(object, &used_up).map(|patch| restored(patch, switch, record));
    patch.map_or(Review::Forget, Review::Restore)
}

/// Adds to a patch what an owner was.
fn restored(mut patch: Value, switch: &Switch, record: StopRecord) -> Value {
    let before = record.before.unwrap_or_default();
    match switch {
        Switch::Replicas { wanted, .. } => set(&mut patch, wanted, record.replicas.into()),
        Switch::Job => patch["spec"]["suspend"] = false.into(),
        Switch::Field { path } => set(&mut patch, path, before),
        Switch::Annotation { name, .. } => patch["metadata"]["annotations"][name.as_str()] = before,
    }
    patch
}

/// The record, if it is one for this kind of object.
fn read_record(annotation: &Value, switch: &Switch) -> Option<StopRecord> {
    let record: StopRecord = serde_json::from_str(annotation.as_str()?).ok()?;
    let before = record.before.as_ref();
    let fits = match switch {
        Switch::Replicas { .. } => record
            .replicas
            .is_some_and(|replicas| (1..=MAX_REPLICAS).contains(&replicas)),
        Switch::Job => record.replicas.is_none(),
        Switch::Field { .. } => before.is_none_or(|before| *before == false),
        Switch::Annotation { value, .. } => {
            before.is_none_or(|before| before.is_string() && before.as_str() != value.as_deref())
        }
    };
    (fits && record.suspended_by == switch.name()).then_some(record)
}

/// A merge patch of the object as it was read; none if it has no resource version, or one that no API server writes.
fn annotations_patch(object: &Value, annotations: &Value) -> Option<Value> {
    let version = object["metadata"]["resourceVersion"].as_str()?;
    if version.len() > MAX_RESOURCE_VERSION {
        return None;
    }
    Some(json!({"metadata": {"resourceVersion": version, "annotations": annotations}}))
}

fn set(patch: &mut Value, path: &[String], to: Value) {
    let field = path.iter().fold(patch, |value, name| &mut value[name.as_str()]);
    *field = to;
}
