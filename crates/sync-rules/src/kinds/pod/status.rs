//! The pod's status in the tenant.
//!
//! | field | rule |
//! |---|---|
//! | observedGeneration (of the pod and its conditions) | the tenant's generation once the kubelet has observed the current spec |
//! | conditions | the host's; those of readiness gates are the tenant's own, and the host gets their type and status; `berth.dev/Synced` = False while something is denied |
//! | PodScheduled, nominatedNodeName | the tenant's own where its schedulers decide; as long as the host cannot follow, `berth.dev/Synced` is False |
//! | `DisruptionTarget` | the tenant's once it is True: an eviction in the tenant, or a stop by a schedule; otherwise the host's |
//! | qosClass | the tenant's, which was set when the pod was created and does not change |
//! | texts | host names mapped back |
//! | resourceClaimStatuses, extendedResourceClaimStatus | the claims' names in the tenant |
//! | ephemeralContainerStatuses | without containers that the tenant's pod does not have; those that are left out of the host pod [wait](ephemeral) |
//! | phase, reason, message, `Ready`, `DisruptionTarget` of a pod that the host removes and the tenant does not | disrupted and not ready; Failed if it ends well because of that ([`removal`]) |
//! | everything else | copied |
//! | a finished pod | stays as it finished |

use super::{ephemeral, placement, removal};
use crate::{
    model::{
        Cache, DeniedField, KindId, Observation, TenantWrite, json, own_containers, pod_addresses::is_finished,
        resource::Name,
    },
    translation::{
        conditions::{SYNCED, condition, not_synced, put, put_into, synced, time, with_time},
        generation, host_text,
    },
};
use berth_api::SchedulingMode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Type of the condition of a pod that was disrupted.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// How long to wait for a node that is about to appear.
const NODE_WAIT: Duration = Duration::from_millis(500);

/// Whether a kubelet has accepted the pod: from then on it cannot be created again.
pub fn has_started(status: &Value) -> bool {
    let lists = ["initContainerStatuses", "containerStatuses"];
    !json::is_unset(&status["startTime"]) || lists.iter().any(|list| !json::items(status, &[list]).is_empty())
}

/// Whether a pod was bound to its node by a Binding, which sets this condition, rather than by hand at creation.
pub fn is_bound(pod: &Value) -> bool {
    condition(&pod["status"], "PodScheduled").and_then(|condition| json::text(condition, &["status"])) == Some("True")
}

/// Whether a pod with this status has run, or is about to. It cannot be created again on the host: that would be another pod.
pub fn has_run(cache: &Cache, pod: &Value, status: &Value) -> bool {
    let has_started = match placement::mode(cache, &pod["spec"]) {
        SchedulingMode::Host => is_bound(pod),
        SchedulingMode::Tenant => has_started(status),
    };
    has_started && super::token::node_of(pod).is_some()
}

/// Types of the conditions that the tenant decides.
fn gates(pod: &Value) -> Vec<&str> {
    json::items(pod, &["spec", "readinessGates"])
        .iter()
        .filter_map(|gate| json::text(gate, &["conditionType"]))
        .collect()
}

/// What to write to the tenant.
pub fn sync_status(cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
    let Observation { tenant, host, .. } = observation;
    if is_finished(&tenant["status"]) {
        return Vec::new();
    }
    if let Some(node) = json::text(host, &["spec", "nodeName"])
        && json::text(tenant, &["spec", "nodeName"]).is_none()
        && tenant["metadata"].get("deletionTimestamp").is_none()
    {
        // An API server rejects a binding to a node that it does not know. The status follows when the binding is
        // observed, because the API server has then set the condition PodScheduled itself.
        return if cache.stores.tenant(KindId::Node).contains(&Name::new("", node)) {
            vec![TenantWrite::Bind { node: node.to_owned() }]
        } else {
            vec![TenantWrite::Later(NODE_WAIT)]
        };
    }
    vec![TenantWrite::Status(status(cache, name, observation))]
}

fn status(cache: &Cache, name: &Name, observation: &Observation<'_>) -> Value {
    let before = &observation.tenant["status"];
    let mut status = observation.host["status"].clone();
    let Some(fields) = status.as_object_mut() else {
        return before.clone();
    };
    super::claims::sync_status(name, fields);
    hide_foreign_containers(observation, fields);
    // The host's differs where the platform sets default requests, and API servers reject changes.
    if let Some(own) = before.get("qosClass") {
        fields.insert("qosClass".into(), own.clone());
    }
    let gates = gates(observation.tenant);
    let mut conditions = match fields.remove("conditions") {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    conditions.retain(|condition| !gates.contains(&json::text(condition, &["type"]).unwrap_or_default()));
    for condition in &mut conditions {
        let old = self::condition(before, json::text(condition, &["type"]).unwrap_or_default());
        // Both API servers note the time of the binding; only a flip matters.
        if let Some(old) = old.filter(|old| old.get("status") == condition.get("status"))
            && let Some(since) = old.get("lastTransitionTime")
        {
            condition["lastTransitionTime"] = since.clone();
        }
        generation::put_observed_generation(observation, old, condition);
    }
    conditions.extend(gates.iter().filter_map(|gate| condition(before, gate)).cloned());
    keep_disruption(before, &mut conditions);
    if let Some(scheduled) = condition(before, "PodScheduled")
        && !conditions
            .iter()
            .any(|condition| json::text(condition, &["type"]) == Some("PodScheduled"))
    {
        // It distinguishes bound pods from those with a node name set by hand, so it must not get lost.
        conditions.push(scheduled.clone());
    }
    if placement::mode(cache, &observation.tenant["spec"]) == SchedulingMode::Tenant {
        keep_placement((cache, name), observation, fields, &mut conditions);
    }
    if !observation.denied.is_empty() {
        put_into(&mut conditions, synced(before, observation.denied, observation.now));
    }
    if !conditions.is_empty() {
        fields.insert("conditions".into(), conditions.into());
    }
    generation::put_observed_generation(observation, Some(before), &mut status);
    map_texts(cache, name, &mut status);
    ephemeral::report_left_out(cache, name, observation.tenant, &mut status);
    let has_run = has_run(cache, observation.tenant, &status);
    removal::show(observation, has_run, &mut status);
    status
}

/// Leaves out ephemeral containers that the platform added to the host pod, as with `kubectl debug`, also if the tenant's pod has one of the same name.
fn hide_foreign_containers(observation: &Observation<'_>, status: &mut Map<String, Value>) {
    let own = json::items(observation.tenant, &["spec", ephemeral::LIST]);
    let is_own = |status: &Value| {
        let name = json::text(status, &["name"]).unwrap_or_default();
        own.iter().any(|container| container["name"] == name) && !own_containers::has_foreign(observation.host, name)
    };
    let Some(statuses) = status.get_mut(ephemeral::STATUSES).and_then(Value::as_array_mut) else {
        return;
    };
    statuses.retain(is_own);
    // An API server keeps no empty list, so it would differ again and again.
    if statuses.is_empty() {
        status.remove(ephemeral::STATUSES);
    }
}

/// A disruption that the tenant knows stays, with its reason: controllers of Jobs read it when the pod has ended. The host may know of
/// none, because there the pod is only deleted.
fn keep_disruption(before: &Value, conditions: &mut Vec<Value>) {
    let is_disruption = |condition: &Value| json::text(condition, &["type"]) == Some(DISRUPTION_TARGET);
    let is_true = |condition: &Value| json::text(condition, &["status"]) == Some("True");
    let host = conditions.iter().find(|condition| is_disruption(condition));
    if let Some(known) = disruption(before)
        && host.is_none_or(is_true)
    {
        put_into(conditions, known.clone());
    }
}

/// The status of a pod that is ended for a reason of the platform, as of a schedule: as before, with the condition `DisruptionTarget`.
pub fn disrupted_status(pod: &Value, reason: &str, message: &str, now: Timestamp) -> Value {
    let before = &pod["status"];
    let mut status = before.clone();
    let condition = json!({"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message});
    put(&mut status, with_time(before, condition, now));
    status
}

/// Schedulers in the tenant place its pods: their conditions stay. The host's scheduler only follows; as long as it
/// cannot, an Event says why.
fn keep_placement(
    (cache, name): (&Cache, &Name),
    observation: &Observation<'_>,
    status: &mut Map<String, Value>,
    conditions: &mut Vec<Value>,
) {
    const SCHEDULED: &str = "PodScheduled";
    let (before, now) = (&observation.tenant["status"], observation.now);
    status.remove("nominatedNodeName");
    if let Some(nominated) = before.get("nominatedNodeName") {
        status.insert("nominatedNodeName".into(), nominated.clone());
    }
    let host = conditions
        .iter_mut()
        .find(|condition| json::text(condition, &["type"]) == Some(SCHEDULED));
    let Some(host) = host.filter(|host| json::text(host, &["status"]) == Some("False")) else {
        return;
    };
    let why = host_text::to_tenant_names(cache, name, json::text(host, &["message"]).unwrap_or_default());
    let message = format!("The host cannot run the pod on the node that it is bound to: {why}");
    let waits = json!({"type": SYNCED, "status": "False", "reason": "NotPlaced", "message": message});
    *host = condition(before, SCHEDULED)
        .cloned()
        .unwrap_or_else(|| with_time(before, json!({"type": SCHEDULED, "status": "True"}), now));
    put_into(conditions, with_time(before, waits, now));
}

/// Fields whose texts are those of registries and runtimes.
const VERBATIM: &[&str] = &["containerID", "image", "imageID", "imageRef"];

/// Maps host names in every text below `value`.
fn map_texts(cache: &Cache, name: &Name, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !VERBATIM.contains(&key.as_str()) {
                    map_texts(cache, name, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| map_texts(cache, name, item)),
        Value::String(text) => host_text::map_to_tenant_names(cache, name, text),
        _ => {}
    }
}

/// The status of a pod that is not on the host because a field is denied: as before, with a condition.
pub fn denied_status(pod: &Value, denied: &[DeniedField], now: Timestamp) -> Value {
    let before = &pod["status"];
    let mut status = before.clone();
    put(&mut status, synced(before, denied, now));
    status
}

/// The status of a pod that is not on the host for another reason than its spec: as before, with a condition.
pub fn not_synced_status(pod: &Value, reason: &str, message: &str, now: Timestamp) -> Value {
    let before = &pod["status"];
    let mut status = before.clone();
    put(&mut status, not_synced(before, reason, message, now));
    status
}

/// The status of a pod whose host pod is gone: failed. If the host pod was observed to finish, its result counts.
///
/// A pod that was not deleted fails as after an eviction, so that its controller replaces it. One that was deleted is kept by
/// finalizers: their owners may wait for its end, as controllers of Jobs do. If it never had a node, it stays as it is.
pub fn lost_status(
    cache: &Cache,
    name: &Name,
    pod: &Value,
    tombstone: Option<&Value>,
    now: Timestamp,
) -> Option<Value> {
    let before = &pod["status"];
    let is_deleted = json::is_deleted(pod);
    if is_finished(before) || is_deleted && super::token::node_of(pod).is_none() {
        return None;
    }
    let mut after = before.clone();
    if let Some(host) = tombstone {
        let observation = Observation {
            tenant: pod,
            host,
            in_sync: true,
            denied: &[],
            now,
        };
        after = status(cache, name, &observation);
        if is_finished(&after) {
            return Some(after);
        }
    }
    if is_deleted {
        stop(&mut after, now);
        after["phase"] = "Failed".into();
        return Some(after);
    }
    fail(
        before,
        &mut after,
        ("NodeLost", "The pod was removed from its node."),
        now,
    );
    Some(after)
}

/// Makes a pod failed by the disruption that its conditions name, or by this reason and message.
pub(super) fn fail(before: &Value, status: &mut Value, reason_and_message: (&str, &str), now: Timestamp) {
    disrupt(before, status, reason_and_message, now);
    stop(status, now);
    status["phase"] = "Failed".into();
}

/// Gives a status the reason and the message of the disruption that its conditions name. If they name none, it gets one with these.
pub(super) fn disrupt(before: &Value, status: &mut Value, (reason, message): (&str, &str), now: Timestamp) {
    let known = disruption(status);
    let of_known = |field: &str| known.and_then(|known| json::text(known, &[field]));
    let reason = of_known("reason").unwrap_or(reason).to_owned();
    let message = of_known("message").unwrap_or(message).to_owned();
    if known.is_none() {
        let condition = json!({"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message});
        put(status, with_time(before, condition, now));
    }
    status["reason"] = reason.into();
    status["message"] = message.into();
}

/// The condition of a pod that is disrupted.
pub(super) fn disruption(status: &Value) -> Option<&Value> {
    condition(status, DISRUPTION_TARGET).filter(|known| json::text(known, &["status"]) == Some("True"))
}

/// Marks a pod as not ready and its containers as ended: budgets and controllers go by that, whatever the phase.
fn stop(status: &mut Value, now: Timestamp) {
    let before = status.clone();
    for kind in ["ContainersReady", "Ready"] {
        let mut condition = condition(&before, kind)
            .cloned()
            .unwrap_or_else(|| json!({"type": kind}));
        condition["status"] = "False".into();
        condition["reason"] = "PodFailed".into();
        put(status, with_time(&before, condition, now));
    }
    for list in ["initContainerStatuses", "containerStatuses", ephemeral::STATUSES] {
        let containers = status.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let Some(running) = container["state"].get("running").cloned() else {
                continue;
            };
            // Message and exit code of a kubelet that no longer finds a container (its `TerminatePod`).
            let mut ended = json!({
                "exitCode": 137,
                "reason": "ContainerStatusUnknown",
                "message": "The container could not be located when the pod was terminated",
                "finishedAt": time(now),
            });
            for (field, value) in [
                ("startedAt", running.get("startedAt")),
                ("containerID", container.get("containerID")),
            ] {
                if let Some(value) = value {
                    ended[field] = value.clone();
                }
            }
            container["state"] = json!({"terminated": ended});
            container["ready"] = false.into();
            container["started"] = false.into();
        }
    }
}

/// Conditions of readiness gates, which the tenant decides, for the host pod; `None` if the host has them. The host's kubelet reads nothing but their
/// status. Reasons and messages stay in the tenant: no API server limits how long they are, and on the host they would count towards no limit.
pub fn host_status(tenant: &Value, host: &Value) -> Option<Value> {
    let differing: Vec<Value> = gates(tenant)
        .into_iter()
        .filter_map(|gate| {
            let wanted = known_status(condition(&tenant["status"], gate)?);
            let present = condition(&host["status"], gate).and_then(|condition| json::text(condition, &["status"]));
            (present != Some(wanted)).then(|| json!({"type": gate, "status": wanted}))
        })
        .collect();
    (!differing.is_empty()).then(|| json!({"conditions": differing}))
}

/// The status of a condition. API servers take any text.
fn known_status(condition: &Value) -> &'static str {
    match json::text(condition, &["status"]) {
        Some("True") => "True",
        Some("False") => "False",
        _ => "Unknown",
    }
}
