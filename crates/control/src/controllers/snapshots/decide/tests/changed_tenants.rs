//! Tenants that are others than when their snapshots were taken: set back, or deleted and created again.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[test]
fn a_tenant_that_was_set_back_while_it_sleeps_stores_something_new() {
    let (sleeps, restored) = ("2026-11-27T00:00:00Z", "2026-11-28T12:00:00Z");
    let restore = |completed_at: Option<&str>| RestoreStatus {
        snapshot_name: "weekly".into(),
        saved_as: None,
        started_at: Time(at("2026-11-28T11:59:00Z")),
        completed_at: completed_at.map(|text| Time(at(text))),
    };
    let since = |sleeps: Option<&str>, restore: Option<&RestoreStatus>| unchanged_since(sleeps.map(at), restore);
    assert_eq!(since(None, None), None, "it runs");
    assert_eq!(since(None, Some(&restore(Some(restored)))), None);
    assert_eq!(since(Some(sleeps), None), Some(at(sleeps)));
    assert_eq!(since(Some(sleeps), Some(&restore(Some(restored)))), Some(at(restored)));
    // It has run since the restore.
    let earlier = restore(Some("2026-11-01T00:00:00Z"));
    assert_eq!(since(Some(sleeps), Some(&earlier)), Some(at(sleeps)));
    assert_eq!(since(Some(sleeps), Some(&restore(None))), None, "it is under way");

    // The last one is of its sleep, and from before the restore.
    let last = || with_trigger(completed("a", "2026-11-28T02:00:00Z"), SnapshotTrigger::Schedule);
    let asleep = |restore: Option<&RestoreStatus>| TenantFacts {
        unchanged_since: unchanged_since(Some(at(sleeps)), restore),
        ..nightly(7)
    };
    assert_eq!(decided(Some(&asleep(None)), vec![last()]), [""; 0]);
    let set_back = asleep(Some(&restore(Some(restored))));
    assert_eq!(decided(Some(&set_back), vec![last()]), ["create vision-20261130-0200"]);
    // Once.
    let next = with_trigger(completed("b", "2026-11-29T02:00:00Z"), SnapshotTrigger::Schedule);
    assert_eq!(decided(Some(&set_back), vec![last(), next]), [""; 0]);
}

#[test]
fn what_a_tenant_stores_while_it_falls_asleep_is_in_the_snapshot_of_its_sleep() {
    let ready = |transition: &str| json!([{"type": "ControlPlaneReady", "status": "False", "reason": "Sleeping", "message": "", "lastTransitionTime": transition}]);
    let status = |conditions: &Value| -> TenantClusterStatus {
        let sleep = json!({"state": "Sleeping", "since": "2026-11-27T02:00:00Z"});
        serde_json::from_value(json!({"sleep": sleep, "conditions": conditions})).unwrap()
    };
    // Its pods took 20 minutes to end.
    let slow = status(&ready("2026-11-27T02:20:00Z"));
    for (status, expected) in [
        (slow.clone(), Some(at("2026-11-27T02:25:00Z"))),
        (status(&json!([])), Some(at("2026-11-27T02:05:00Z"))),
        (status(&ready("2026-11-26T00:00:00Z")), Some(at("2026-11-27T02:05:00Z"))),
        (TenantClusterStatus::default(), None),
    ] {
        assert_eq!(silent_since(&status), expected);
    }
    let asleep = TenantFacts {
        unchanged_since: unchanged_since(silent_since(&slow), None),
        ..nightly(7)
    };
    let last = |created: &str| with_trigger(completed("a", created), SnapshotTrigger::Schedule);
    let next = decided(Some(&asleep), vec![last("2026-11-27T02:00:01Z")]);
    assert_eq!(next, ["create vision-20261130-0200"], "it was taken while pods ended");
    assert_eq!(decided(Some(&asleep), vec![last("2026-11-28T02:00:00Z")]), [""; 0]);
}

#[test]
fn the_next_tenant_of_a_name_does_not_push_out_the_snapshots_of_the_one_before() {
    let of_earlier = |name: &str, created: &str, trigger: SnapshotTrigger| {
        let mut snapshot = with_trigger(completed(name, created), trigger);
        let status = snapshot.status.as_mut().unwrap();
        status.tenant_uid = Some("0000".into());
        // As it was said when it was found that the tenant is gone.
        status.expires_at = Some(Time(at("2026-12-28T00:00:00Z")));
        snapshot
    };
    let (scheduled, saved) = (SnapshotTrigger::Schedule, SnapshotTrigger::BeforeRestore);
    let mut all = vec![
        of_earlier("a", "2026-11-20T02:00:00Z", scheduled),
        of_earlier("b", "2026-11-21T02:00:00Z", scheduled),
        of_earlier("c", "2026-11-21T03:00:00Z", saved),
        with_trigger(completed("d", "2026-11-29T02:00:00Z"), scheduled),
        with_trigger(completed("e", "2026-11-29T03:00:00Z"), saved),
        with_trigger(completed("f", "2026-11-29T04:00:00Z"), saved),
        with_trigger(completed("g", "2026-11-30T02:00:00Z"), scheduled),
    ];
    assert_eq!(decided(Some(&nightly(1)), all.clone()), ["delete d"]);
    // They leave room for those that are to be taken, and are kept if there is no tenant.
    all.retain(|snapshot| snapshot.name_any() != "d");
    all.push(with_trigger(pending("h"), scheduled));
    assert_eq!(decided(Some(&nightly(1)), all.clone()), ["start h"]);
    let without_tenant = decided(None, all);
    assert!(
        !without_tenant.iter().any(|text| text.starts_with("delete ")),
        "{without_tenant:?}"
    );
}
