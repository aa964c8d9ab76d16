//! A tenant is deleted: nothing is left, whatever fails meanwhile.

use super::{
    calls_until_ready,
    fixture::{Fixture, TENANT},
};
use crate::{
    clock::Clock,
    testing::{LATE, NEVER_ENDS, make_unreadable},
};
use berth_api::names::TenantId;
use serde_json::json;
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn a_tenant_that_is_deleted_leaves_nothing() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
    let first = |part: &str| fixture.script.first(part).unwrap_or_else(|| panic!("no call: {part}"));
    let workloads = format!("DELETE /api/v1/namespaces/{}", fixture.id.workload_namespace());
    let control_plane = format!("DELETE /api/v1/namespaces/{}", fixture.id.control_plane_namespace());
    assert!(first("runtime stop everything") < first(&workloads));
    assert!(first(&workloads) < first("datastore remove"));
    assert!(first("datastore remove") < first(&control_plane));
}

#[tokio::test]
async fn each_call_of_a_deletion_may_fail_once_and_nothing_is_left() {
    let until_ready = calls_until_ready().await;
    let until_gone = {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        fixture.delete().await;
        fixture.count_calls()
    };
    for number in until_ready..until_gone {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        fixture.script.fail_call(number);
        let errors = fixture.delete().await;
        let failed = fixture.script.failed();
        assert!(errors.len() <= 1, "{failed:?}: {errors:?}");
        assert_nothing_is_left(&fixture);
    }
}

#[tokio::test]
async fn nothing_is_remembered_of_tenants_that_were_never_accepted() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "missing".into());
    let last_activity = |fixture: &Fixture, uid: &str| {
        let id = TenantId::new("vision", uid);
        let activity = &fixture.context.stores.pod_activity;
        activity.last(id.slug(), fixture.context.clock.now())
    };
    for uid in ["1", "2"] {
        // It was deleted and created again between two reconciles.
        fixture.change_tenant(|cluster| cluster["metadata"]["uid"] = uid.into());
        fixture.reconcile().await.unwrap();
        assert_eq!(fixture.reason("Accepted").0, "False");
        assert_eq!(fixture.context.tenants.remembered(), [uid]);
        assert!(last_activity(&fixture, uid).is_some());
    }
    fixture.host.remove(TENANT);
    assert_eq!(fixture.reconcile().await.unwrap(), None);
    assert!(fixture.context.tenants.remembered().is_empty());
    for uid in ["1", "2"] {
        assert_eq!(last_activity(&fixture, uid), None, "{uid}");
    }
}

/// A tenant that is ready, with a pod that does not end.
pub(super) async fn fixture_with_stubborn_pod() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pod = json!({"metadata": {"name": "stubborn", "annotations": {NEVER_ENDS: "true"}}});
    let path = format!("/api/v1/namespaces/{}/pods/stubborn", fixture.id.workload_namespace());
    fixture.host.insert(&path, pod);
    fixture
}

#[tokio::test]
async fn a_pod_that_does_not_end_does_not_keep_its_tenant() {
    let mut fixture = fixture_with_stubborn_pod().await;
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
    let workloads = format!("/api/v1/namespaces/{}", fixture.id.workload_namespace());
    let calls = fixture.script.calls();
    let last = |text: &str| {
        let found = calls.iter().rposition(|call| call.text == text);
        found.unwrap_or_else(|| panic!("no call: {text}"))
    };
    // Its network policies are there as long as it is.
    let removed = last(&format!("host DELETE {workloads}/pods/stubborn"));
    assert!(removed < last(&format!("host DELETE {workloads}")));
    let events = fixture.host.find("/events/");
    let event = events.iter().find(|event| event["reason"] == "PodsOverdue");
    let event = event.unwrap_or_else(|| panic!("no Event: {events:#?}"));
    assert_eq!(event["type"], "Warning");
    assert!(event["note"].as_str().unwrap().contains("stubborn"), "{event}");
}

/// More pods than are looked at, which take their time to end.
#[tokio::test(start_paused = true)]
async fn all_pods_are_deleted_once_more_only_after_a_while() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pods = format!("/api/v1/namespaces/{}/pods", fixture.id.workload_namespace());
    let now = fixture.context.clock.now().to_string();
    let pod =
        json!({"metadata": {"name": "a", "uid": "a", "deletionTimestamp": now, "deletionGracePeriodSeconds": 30}});
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "next", "resourceVersion": "1"}, "items": [pod]});
    fixture.host.serve(&pods, list);
    fixture.change_tenant(|cluster| cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    let deletions = |fixture: &Fixture| {
        let calls = fixture.script.calls().into_iter();
        calls.filter(|call| call.text == format!("host DELETE {pods}")).count()
    };
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(deletions(&fixture), 1);
    // An API server that was cut off has left some.
    tokio::time::sleep(Duration::from_secs(30)).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(deletions(&fixture), 2);
}

#[tokio::test]
async fn a_pod_has_its_time_by_the_clock_of_the_host() {
    let mut fixture = fixture_with_stubborn_pod().await;
    let path = format!("/api/v1/namespaces/{}/pods/stubborn", fixture.id.workload_namespace());
    // That of the machine is long after the end of the grace period.
    let before = "2026-01-01T00:00:30Z".parse().unwrap();
    let known = std::mem::replace(&mut fixture.context.clock, Clock::at(before));
    fixture.change_tenant(|cluster| cluster["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.host.get(&path).is_some());
    fixture.context.clock = known;
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
}

#[tokio::test]
async fn a_pod_that_no_type_holds_does_not_keep_its_tenant() {
    let mut fixture = fixture_with_stubborn_pod().await;
    let path = format!("/api/v1/namespaces/{}/pods/stubborn", fixture.id.workload_namespace());
    let mut pod = fixture.host.get(&path).unwrap();
    make_unreadable(&mut pod);
    pod["status"] = json!({"startTime": LATE});
    fixture.host.insert(&path, pod);
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
}

#[tokio::test]
async fn each_call_may_fail_once_while_a_pod_does_not_end() {
    let (from, to) = {
        let mut fixture = fixture_with_stubborn_pod().await;
        let from = fixture.count_calls();
        fixture.delete().await;
        (from, fixture.count_calls())
    };
    for number in from..to {
        let mut fixture = fixture_with_stubborn_pod().await;
        fixture.script.fail_call(number);
        let errors = fixture.delete().await;
        let failed = fixture.script.failed();
        assert!(errors.len() <= 1, "{failed:?}: {errors:?}");
        assert_nothing_is_left(&fixture);
    }
}

#[tokio::test]
async fn leftovers_of_a_vanished_tenant_are_deleted_and_each_call_may_fail_once() {
    for number in 0.. {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        // The finalizer was removed by hand.
        fixture.host.remove(TENANT);
        fixture.script.fail_call(fixture.count_calls() + number);
        for _ in 0..20 {
            // Then there is nothing left to do.
            if matches!(fixture.reconcile().await, Ok(None)) {
                break;
            }
        }
        assert_nothing_is_left(&fixture);
        // There are no more calls that could fail.
        if fixture.script.failed().is_none() {
            assert!(number > 10, "{number} calls");
            return;
        }
    }
}

#[tokio::test]
async fn a_late_view_that_does_not_have_a_tenant_deletes_nothing_of_it() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let cluster = fixture.host.get(TENANT).unwrap();
    fixture.host.remove(TENANT);
    let first = fixture.count_calls();
    let again = fixture
        .reconcile_after_unseen(|host| host.insert(TENANT, cluster))
        .await;
    assert!(
        again.unwrap().is_some(),
        "the watch may bring it without an event of its own"
    );
    let calls = fixture.script.calls().split_off(first);
    let texts: Vec<&str> = calls.iter().map(|call| call.text.as_str()).collect();
    let is_read = |text: &&str| text.starts_with("host GET");
    assert!(texts.iter().all(is_read), "{texts:#?}");
}

#[tokio::test]
async fn what_a_vanished_tenant_left_goes_although_another_has_its_name_and_each_call_may_fail_once() {
    for number in 0..30 {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        // The finalizer was removed by hand, and the tenant was created again.
        let mut cluster = fixture.host.get(TENANT).unwrap();
        cluster["metadata"]["uid"] = "7a3d".into();
        cluster["metadata"]["finalizers"] = json!([]);
        cluster["status"] = json!({});
        fixture.host.insert(TENANT, cluster);
        fixture.script.fail_call(fixture.count_calls() + number);
        let _ = fixture.reconcile().await;
        let slug = fixture.id.slug().to_owned();
        // A pod of the earlier one ends later.
        let activity = Arc::clone(&fixture.context.stores.pod_activity);
        activity.record(&slug, true);
        for _ in 0..20 {
            let _ = fixture.reconcile().await;
        }
        assert_eq!(activity.last(&slug, fixture.context.clock.now()), None);
        let paths = fixture.host.paths();
        let left: Vec<&String> = paths.iter().filter(|path| path.contains(&slug)).collect();
        assert!(left.is_empty(), "{:?}: {left:#?}", fixture.script.failed());
        let successor = TenantId::new("vision", "7a3d");
        for namespace in [successor.control_plane_namespace(), successor.workload_namespace()] {
            assert!(
                paths.contains(&format!("/api/v1/namespaces/{namespace}")),
                "{:?}: {namespace}",
                fixture.script.failed()
            );
        }
        let phase = &fixture.status()["phase"];
        assert_ne!(*phase, json!("Deleting"), "{:?}", fixture.script.failed());
    }
}

fn assert_nothing_is_left(fixture: &Fixture) {
    let slug = fixture.id.slug();
    let hash = fixture.id.hash();
    let mut left = fixture.host.paths();
    left.retain(|path| path.contains(slug) || path.contains(hash) || path == TENANT);
    assert!(left.is_empty(), "{left:#?}");
}
