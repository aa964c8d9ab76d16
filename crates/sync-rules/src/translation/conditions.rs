//! Conditions in a status, for every kind that has them.

use crate::model::{DeniedField, denied_field, json};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Type of the condition that says whether the host has the object as the tenant wants it.
pub const SYNCED: &str = "berth.dev/Synced";

/// The condition of this type.
pub fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    json::items(status, &["conditions"])
        .iter()
        .find(|condition| json::text(condition, &["type"]) == Some(kind))
}

/// A condition with the transition time of its predecessor in the status `before`, unless it flipped.
pub fn with_time(before: &Value, mut new: Value, now: Timestamp) -> Value {
    let old = json::text(&new, &["type"]).and_then(|kind| condition(before, kind));
    let since = old
        .filter(|old| old.get("status") == new.get("status"))
        .and_then(|old| old.get("lastTransitionTime"))
        .cloned();
    new["lastTransitionTime"] = since.unwrap_or_else(|| time(now).into());
    new
}

/// As Kubernetes writes times, in whole seconds.
pub fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The condition [`SYNCED`] of an object whose spec has denied fields. `before` is its status.
pub fn synced(before: &Value, denied: &[DeniedField], now: Timestamp) -> Value {
    not_synced(before, "FieldDenied", &denied_field::message(denied), now)
}

/// The condition [`SYNCED`] of an object that is not on the host for this reason. `before` is its status.
pub fn not_synced(before: &Value, reason: &str, message: &str, now: Timestamp) -> Value {
    with_time(
        before,
        json!({"type": SYNCED, "status": "False", "reason": reason, "message": message}),
        now,
    )
}

/// Sets a condition in a status.
pub fn put(status: &mut Value, condition: Value) {
    let mut conditions = json::items(status, &["conditions"]).to_vec();
    put_into(&mut conditions, condition);
    status["conditions"] = conditions.into();
}

/// Sets a condition in a list of conditions.
pub fn put_into(conditions: &mut Vec<Value>, condition: Value) {
    conditions.retain(|known| known.get("type") != condition.get("type"));
    conditions.push(condition);
}
