//! Pods that the host removes and the tenant does not: evicted, preempted, drained, or deleted by somebody.
//!
//! In a cluster of its own such a pod would have a deletion time, by which controllers of Jobs take it for failed, ReplicaSets replace it
//! and Services leave it out. So the tenant's pod is deleted as well, after its status says why: a syncer that is killed in between finds
//! there what it has to go on with. The status says it as well to tenants that do not let the pod be deleted. A process that saves a
//! checkpoint and exits with 0 when it gets SIGTERM has failed: otherwise its Job would be complete, and its work lost.

use super::status::{disrupt, disruption, fail};
use crate::{
    model::{Observation, Removal, json},
    translation::conditions::{condition, put, with_time},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Reason of a pod that was deleted without a disruption that the host names.
const DELETED: (&str, &str) = ("DeletionByPlatform", "The platform removes the pod from its node.");
/// Reasons of disruptions about which there is an Event already: of the host's scheduler, of its taint eviction controller, of a schedule.
const HAVE_EVENTS: [&str; 3] = ["PreemptionByScheduler", "DeletionByTaintManager", "OutsideSchedule"];

/// Shows in the status for the tenant that the host removes the pod. One that has not run is created on the host again.
pub(super) fn show(observation: &Observation<'_>, has_run: bool, status: &mut Value) {
    let (before, now) = (&observation.tenant["status"], observation.now);
    let is_by_tenant = json::is_deleted(observation.tenant) && !is_removed(before);
    if !has_run || is_by_tenant || !json::is_deleted(observation.host) {
        return;
    }
    match json::text(status, &["phase"]) {
        Some("Succeeded" | "Failed") if ended_before_removal(observation.host) => {}
        Some("Succeeded") => fail(before, status, DELETED, now),
        // It has failed for a reason of its own, such as an eviction by its kubelet.
        Some("Failed") if json::text(status, &["reason"]).is_some() => {}
        Some("Failed") => disrupt(before, status, DELETED, now),
        _ => {
            disrupt(before, status, DELETED, now);
            let mut ready = condition(status, "Ready")
                .cloned()
                .unwrap_or_else(|| json!({"type": "Ready"}));
            if json::text(&ready, &["status"]) != Some("False") {
                ready["status"] = "False".into();
                ready["reason"] = "Terminating".into();
                ready["message"] = DELETED.1.into();
                put(status, with_time(before, ready, now));
            }
        }
    }
}

/// The removal that the status of the tenant's pod shows, unless the tenant deletes the pod already.
pub(super) fn removal(pod: &Value) -> Option<Removal> {
    let status = &pod["status"];
    if json::is_deleted(pod) || !is_removed(status) {
        return None;
    }
    let text = |field: &str| disruption(status).and_then(|disruption| json::text(disruption, &[field]));
    let (reason, message) = (text("reason").unwrap_or_default(), text("message").unwrap_or_default());
    let message = match reason {
        reason if HAVE_EVENTS.contains(&reason) => return Some(Removal { event: None }),
        reason if reason == DELETED.0 => message.to_owned(),
        reason => format!("The platform removes the pod from its node: {message} ({reason})"),
    };
    Some(Removal {
        event: Some((DELETED.0, message)),
    })
}

/// Whether [`show`] has noted in the status that the host removes the pod: its reason is that of its disruption. Kubelets that evict write
/// different ones, and an eviction in the tenant writes the condition alone.
fn is_removed(status: &Value) -> bool {
    disruption(status).is_some_and(|disruption| {
        let reason = disruption.get("reason");
        reason.is_some() && reason == status.get("reason")
    })
}

/// How much later than a container's end somebody must have asked the pod to end. The two times are those of two clocks, in whole seconds. A pod
/// that fails although it had ended well runs once more; the work of one that is complete although it had to stop is lost.
const CLOCKS: SignedDuration = SignedDuration::from_secs(5);

/// Whether all containers had ended before anybody asked the pod to.
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
        !containers.is_empty()
            && ends.all(|ended_at| ended_at.is_some_and(|ended_at| asked_at.duration_since(ended_at) >= CLOCKS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "2027-01-15T08:00:00Z";

    /// What the tenant gets for a pod that was asked to end at [`ASKED`], with a grace period of half a minute.
    fn shown(tenant: &Value, status: &Value) -> Value {
        shown_if(true, tenant, status)
    }

    fn shown_if(has_run: bool, tenant: &Value, status: &Value) -> Value {
        let host = json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30}, "status": status});
        let observation = Observation {
            tenant,
            host: &host,
            in_sync: true,
            denied: &[],
            now: ASKED.parse().unwrap(),
        };
        let mut shown = status.clone();
        show(&observation, has_run, &mut shown);
        shown
    }

    fn evicted(mut status: Value) -> Value {
        status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting"}]);
        status
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

        // A node whose clock is behind.
        let early = shown(&json!({}), &succeeded(&["2027-01-15T07:59:56Z"]));
        assert_eq!(early["phase"], "Failed");

        let after = shown(&json!({}), &evicted(succeeded(&[ASKED])));
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
        let before = succeeded(&["2027-01-15T07:59:55Z"]);
        assert_eq!(shown(&json!({}), &before), before);
        let deleted = json!({"metadata": {"deletionTimestamp": ASKED}});
        let after = succeeded(&["2027-01-15T08:00:05Z"]);
        assert_eq!(shown(&deleted, &after), after);
        let failed = json!({"phase": "Failed", "reason": "Error"});
        assert_eq!(shown(&json!({}), &failed), failed);
        let mut failed = before;
        failed["phase"] = "Failed".into();
        assert_eq!(shown(&json!({}), &failed), failed);
        let running = json!({"phase": "Running"});
        assert_eq!(shown_if(false, &json!({}), &running), running, "it is created again");
    }

    #[test]
    fn the_tenants_pod_is_removed_once_its_status_says_why() {
        let event_after = |status: &Value| {
            let pod = json!({"status": shown(&json!({}), status)});
            removal(&pod).map(|removal| removal.event)
        };
        let event = |message: &str| Some(Some((DELETED.0, message.to_owned())));
        for phase in ["Pending", "Running", "Failed"] {
            let status = json!({"phase": phase});
            assert!(removal(&json!({"status": status})).is_none());
            assert_eq!(event_after(&status), event(DELETED.1), "{phase}");
            let message = "The platform removes the pod from its node: Eviction API: evicting (EvictionByEvictionAPI)";
            assert_eq!(event_after(&evicted(status)), event(message), "{phase}");
        }
        assert!(event_after(&succeeded(&["2027-01-15T08:00:05Z"])).is_some());
        let preempted = json!({"phase": "Running", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}]});
        assert_eq!(event_after(&preempted), Some(None), "the scheduler has said so");
        // Nothing to do with the host's deletion.
        assert_eq!(event_after(&succeeded(&["2027-01-15T07:59:55Z"])), None);
        let by_kubelet = json!({"phase": "Failed", "reason": "Evicted", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "m"}]});
        assert_eq!(event_after(&by_kubelet), None);
        let by_tenant = json!({"status": evicted(json!({"phase": "Running"}))});
        assert!(removal(&by_tenant).is_none(), "an eviction in the tenant");
    }

    #[test]
    fn a_pod_that_was_deleted_because_the_host_removes_it_has_failed_nevertheless() {
        for running in [json!({"phase": "Running"}), evicted(json!({"phase": "Running"}))] {
            let before = shown(&json!({}), &running);
            let pod = json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:31Z"}, "status": before});
            assert!(removal(&pod).is_none(), "once is enough");
            assert_eq!(shown(&pod, &running), before);
            let mut ended = succeeded(&["2027-01-15T08:00:05Z"]);
            // A disruption that the tenant knows stays.
            ended["conditions"] = before["conditions"].clone();
            let after = shown(&pod, &ended);
            assert_eq!(
                (&after["phase"], &after["reason"]),
                (&json!("Failed"), &before["reason"])
            );
        }
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
        assert_eq!(condition(&after, "DisruptionTarget").unwrap()["status"], "True");
        assert_eq!(
            shown(&json!({"status": after.clone()}), &running),
            after,
            "the time stays"
        );
        let deleted = json!({"metadata": {"deletionTimestamp": ASKED}, "status": running.clone()});
        assert_eq!(shown(&deleted, &running), running);
    }
}
