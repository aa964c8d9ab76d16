//! Pods that the host removes and the tenant does not: evicted, preempted, drained, or deleted by somebody.
//!
//! In a cluster of its own such a pod would have a deletion time, by which controllers of Jobs take it for failed and Services leave it
//! out. The tenant's pod has none, so its status has to say the same. Otherwise a Job whose process saves a checkpoint and exits with 0 when
//! it gets SIGTERM would be complete, and its work lost.

use super::status::fail;
use crate::{
    model::{Observation, json},
    translation::conditions::{condition, put, with_time},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Reason of a pod that was deleted without a disruption that the host names.
const DELETED: (&str, &str) = ("DeletionByPlatform", "The platform removed the pod from its node.");

/// Shows in the status for the tenant that the host removes the pod.
pub(super) fn show(observation: &Observation<'_>, status: &mut Value) {
    let deleted_at = |pod: &Value| json::text(pod, &["metadata", "deletionTimestamp"]).is_some();
    if !deleted_at(observation.host) || deleted_at(observation.tenant) {
        return;
    }
    let (before, now) = (&observation.tenant["status"], observation.now);
    match json::text(status, &["phase"]) {
        Some("Succeeded") if !ended_before_removal(observation.host) => fail(before, status, DELETED, now),
        Some("Running") => {
            let mut ready = condition(status, "Ready")
                .cloned()
                .unwrap_or_else(|| json!({"type": "Ready"}));
            if json::text(&ready, &["status"]) != Some("False") {
                ready["status"] = "False".into();
                ready["reason"] = "Terminating".into();
                ready["message"] = "The platform removes the pod from its node.".into();
                put(status, with_time(before, ready, now));
            }
        }
        _ => {}
    }
}

/// Whether all containers had ended before anybody asked the pod to. Kubelets and API servers report whole seconds.
fn ended_before_removal(host: &Value) -> bool {
    let time = |text: Option<&str>| text.and_then(|text| text.parse::<Timestamp>().ok());
    let metadata = &host["metadata"];
    let grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
    // An API server moves the time when it shortens the grace period, so that the difference stays.
    let asked_at = time(json::text(metadata, &["deletionTimestamp"]))
        .and_then(|until| until.checked_sub(SignedDuration::from_secs(grace)).ok());
    let containers = json::items(host, &["status", "containerStatuses"]);
    let mut ends = containers
        .iter()
        .map(|container| time(json::text(container, &["state", "terminated", "finishedAt"])));
    asked_at.is_some_and(|asked_at| {
        !containers.is_empty() && ends.all(|ended_at| ended_at.is_some_and(|ended_at| ended_at < asked_at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "2027-01-15T08:00:00Z";

    /// What the tenant gets for a pod that was asked to end at [`ASKED`], with a grace period of half a minute.
    fn shown(tenant: &Value, status: &Value) -> Value {
        let host = json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30}, "status": status});
        let observation = Observation {
            tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now: ASKED.parse().unwrap(),
        };
        let mut shown = status.clone();
        show(&observation, &mut shown);
        shown
    }

    fn succeeded(ended_at: &[&str]) -> Value {
        let ended = |time: &&str| json!({"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": time}}});
        json!({"phase": "Succeeded", "containerStatuses": ended_at.iter().map(ended).collect::<Vec<_>>()})
    }

    #[test]
    fn a_pod_that_ends_well_because_it_is_removed_has_failed() {
        let after = shown(
            &json!({}),
            &succeeded(&["2027-01-15T07:59:00Z", "2027-01-15T08:00:05Z"]),
        );
        assert_eq!(
            (&after["phase"], &after["reason"]),
            (&json!("Failed"), &json!(DELETED.0))
        );
        let disruption = condition(&after, "DisruptionTarget").unwrap();
        assert_eq!(
            (&disruption["status"], &disruption["reason"]),
            (&json!("True"), &json!(DELETED.0))
        );
        let exit = &after["containerStatuses"][1]["state"]["terminated"];
        assert_eq!(exit["exitCode"], 0, "what it did stays visible");

        let mut evicted = succeeded(&[ASKED]);
        evicted["conditions"] =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "m"}]);
        let after = shown(&json!({}), &evicted);
        assert_eq!(
            (&after["phase"], &after["reason"]),
            (&json!("Failed"), &json!("EvictionByEvictionAPI"))
        );
        assert_eq!(
            shown(&json!({}), &succeeded(&[]))["phase"],
            "Failed",
            "when it ended is not known"
        );
    }

    #[test]
    fn what_ended_before_or_was_deleted_in_the_tenant_stays() {
        let before = succeeded(&["2027-01-15T07:59:59Z"]);
        assert_eq!(shown(&json!({}), &before), before);
        let deleted = json!({"metadata": {"deletionTimestamp": ASKED}});
        let after = succeeded(&["2027-01-15T08:00:05Z"]);
        assert_eq!(shown(&deleted, &after), after);
        let failed = json!({"phase": "Failed", "reason": "Error"});
        assert_eq!(shown(&json!({}), &failed), failed);
    }

    #[test]
    fn a_pod_that_has_time_to_end_is_not_ready() {
        let running = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T07:00:00Z"}]});
        let after = shown(&json!({"status": running.clone()}), &running);
        let ready = condition(&after, "Ready").unwrap();
        assert_eq!(
            (&ready["status"], &ready["reason"]),
            (&json!("False"), &json!("Terminating"))
        );
        assert_eq!(ready["lastTransitionTime"], ASKED);
        assert_eq!(
            shown(&json!({"status": after.clone()}), &running),
            after,
            "the time stays"
        );
        let deleted = json!({"metadata": {"deletionTimestamp": ASKED}, "status": running.clone()});
        assert_eq!(shown(&deleted, &running), running);
    }
}
