//! What closes on the host is applied whatever keeps a reconcile from its end: a team that changes its object all the time, or a tenant that has to be
//! asked first.

use super::{
    expiration::{is_deleted, let_time_pass, warned},
    fixture::{CLASS, Fixture, TENANT},
    quota::{decide, hard, reservation, reserved, waiting},
    schedule::insert_stop,
    sleep::{
        self, MAX_RECONCILES, SLEEP, WAKE, count_runs, count_wakes, fall_asleep, reconcile_until, set_mode, state,
    },
    upgrade,
};
use crate::{quota_ledger::Verdict, testing::ScriptedApi};
use berth_api::{QuotaReservation, TreeResource};
use berth_quota::OverQuota;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

const CPU: &str = "requests.cpu";
/// Answers to writes of the status: somebody changes the object all the time, or the host cannot store it.
const CONFLICT: (u16, &str) = (409, "the object was changed");
const NOT_STORED: (u16, &str) = (500, "etcdserver: request is too large");

fn refuse_status(fixture: &Fixture, (code, message): (u16, &'static str)) {
    let refusal = ("/tenantclusters/vision/status", code, message);
    fixture.host.refuse_writes(Some(refusal));
}

/// Lowers the quota of Services to 4, and stops the tenant.
fn close(fixture: &Fixture, reservation: QuotaReservation) {
    let lowered = Verdict::Reserved {
        reservation,
        over: OverQuota::from([(TreeResource::Services, 4)]),
    };
    decide(fixture, lowered);
    insert_stop(fixture);
}

/// Checks that what [`close`] demands is enforced.
fn expect_closed(fixture: &Fixture, case: &str) {
    let limits = ["count/pods", "count/services"].map(|resource| hard(fixture, resource));
    assert_eq!(limits, [json!("0"), json!("4")], "{case}");
    let schedules = fixture.host.find("/tenantschedules/schedule");
    let period = schedules.first().map(|schedule| schedule["spec"]["tenant"][0].clone());
    let period = period.unwrap_or_default();
    assert_eq!(
        (&period["state"], &period["policyName"]),
        (&json!("Stopped"), &json!("closed")),
        "{case}"
    );
}

/// A tenant of a Project whose class lets its pods be stopped.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    sleep::let_pods_be_stopped(&fixture);
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    fixture
}

#[tokio::test]
async fn a_state_of_sleep_that_cannot_be_recorded_holds_up_nothing_else() {
    for answer in [CONFLICT, NOT_STORED] {
        let mut fixture = ready().await;
        let (runs, before) = (count_runs(&fixture), fixture.status());
        set_mode(&fixture, "Asleep");
        close(&fixture, reservation());
        refuse_status(&fixture, answer);
        let result = Box::pin(fixture.reconcile()).await;
        if answer == CONFLICT {
            let pause = result.unwrap();
            assert!(
                pause.is_some_and(|pause| pause <= Duration::from_secs(1)),
                "{pause:?}: it is tried again"
            );
        }
        assert_eq!(fixture.status(), before);
        expect_closed(&fixture, answer.1);
        assert!(count_runs(&fixture) > runs, "{}: components are updated", answer.1);
        fixture.host.refuse_writes(None);
        reconcile_until(&mut fixture, "Sleeping", |_| {}).await;
    }
}

#[tokio::test]
async fn a_tenant_whose_object_others_change_falls_asleep_all_the_same() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    sleep::request(&fixture, SLEEP, Timestamp::now());
    fixture.host.change_before_writes("/tenantclusters/vision", 3);
    fixture.reconcile().await.unwrap();
    assert_eq!(state(&fixture), "FallingAsleep");
}

#[tokio::test]
async fn a_request_that_comes_while_a_state_is_recorded_counts() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    sleep::request(&fixture, SLEEP, Timestamp::now());
    let wake = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["metadata"]["annotations"][WAKE] = Timestamp::now().to_string().into();
        host.insert(TENANT, cluster);
    };
    fixture.reconcile_after_unseen(wake).await.unwrap();
    assert_ne!(state(&fixture), "FallingAsleep");
}

#[tokio::test]
async fn a_state_that_another_process_has_recorded_stays() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fall_asleep(&mut fixture).await;
    sleep::request(&fixture, WAKE, Timestamp::now());
    let wake = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["status"]["sleep"]["state"] = "Waking".into();
        host.insert(TENANT, cluster);
    };
    fixture.reconcile_after_unseen(wake).await.unwrap();
    assert_eq!(state(&fixture), "Waking");
    assert_eq!(
        count_wakes(&fixture, "Requested"),
        0,
        "the process that recorded it has counted it"
    );
}

#[tokio::test]
async fn a_mode_that_changes_all_the_time_keeps_no_component_from_being_updated() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let runs = count_runs(&fixture);
    for number in 0..MAX_RECONCILES {
        set_mode(&fixture, if number % 2 == 0 { "Asleep" } else { "Awake" });
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert!(count_runs(&fixture) > runs);
}

#[tokio::test]
async fn the_host_is_closed_before_the_tenant_is_asked() {
    let mut fixture = ready().await;
    close(&fixture, reservation());
    sleep::request(&fixture, SLEEP, Timestamp::now());
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    let first = |part: &str| {
        let position = calls.iter().position(|call| call.text.contains(part));
        position.unwrap_or_else(|| panic!("no call: {part}: {calls:#?}"))
    };
    let asked = first("tenant GET /apis/batch/v1/cronjobs");
    assert!(first("/resourcequotas/") < asked && first("/tenantschedules/") < asked);
    assert_eq!(
        state(&fixture),
        "FallingAsleep",
        "the reconcile ends when it is recorded"
    );
}

#[tokio::test]
async fn a_reservation_that_cannot_be_recorded_or_is_not_decided_holds_up_nothing_else() {
    let mut unrecorded = reservation();
    unrecorded.reserved.insert("pods".into(), 1_000_000);
    // As after a change of the class.
    let mut too_little = reservation();
    too_little.reserved.insert("pods".into(), 1);
    for (case, reservation, answer) in [
        ("changed all the time", unrecorded.clone(), Some(CONFLICT)),
        ("not stored", unrecorded, Some(NOT_STORED)),
        ("not decided", too_little, None),
    ] {
        let mut fixture = ready().await;
        let runs = count_runs(&fixture);
        close(&fixture, reservation);
        if let Some(answer) = answer {
            refuse_status(&fixture, answer);
        }
        fixture.reconcile().await.unwrap();
        expect_closed(&fixture, case);
        assert_eq!(count_runs(&fixture), runs, "{case}: the decision is soon there");
        for _ in 0..MAX_RECONCILES {
            let _ = Box::pin(fixture.reconcile()).await;
        }
        assert!(count_runs(&fixture) > runs, "{case}: components are updated");
    }
}

#[tokio::test]
async fn limits_that_wait_for_a_record_are_not_raised() {
    let mut fixture = ready().await;
    // The host has counted it, as the class had no limit.
    let mut counted = reservation();
    counted.reserved.insert(CPU.into(), 6);
    decide(&fixture, waiting(Some(counted)));
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    let before = ["count/pods", CPU].map(|resource| hard(&fixture, resource));
    assert_eq!(before[1], "6");
    let mut more = fixture.host.get(CLASS).unwrap();
    more["spec"]["limits"] = json!({"pods": 900_000, "resources": [{"resource": CPU, "quantity": 10}]});
    fixture.host.insert(CLASS, more);
    let mut granted = reservation();
    granted
        .reserved
        .extend([("pods".to_owned(), 900_000), (CPU.to_owned(), 10)]);
    decide(&fixture, reserved(granted));
    refuse_status(&fixture, CONFLICT);
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        assert_eq!(["count/pods", CPU].map(|resource| hard(&fixture, resource)), before);
    }
    fixture.host.refuse_writes(None);
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(
        ["count/pods", CPU].map(|resource| hard(&fixture, resource)),
        ["900000", "10"]
    );
}

#[tokio::test]
async fn an_upgrade_that_cannot_be_recorded_holds_up_nothing_else() {
    let (mut fixture, _) = upgrade::ready().await;
    decide(&fixture, reserved(reservation()));
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    upgrade::request(&fixture, upgrade::NEXT);
    close(&fixture, reservation());
    refuse_status(&fixture, CONFLICT);
    let runs = count_runs(&fixture);
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        expect_closed(&fixture, "upgrade");
        assert_eq!(upgrade::accepted(&fixture), upgrade::OLD);
    }
    assert!(count_runs(&fixture) > runs);
    fixture.host.refuse_writes(None);
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(upgrade::accepted(&fixture), upgrade::NEXT);
    assert_eq!(upgrade::versions(&fixture), (json!(upgrade::NEXT), Value::Null));
}

#[tokio::test]
async fn an_expired_tenant_that_changes_is_deleted_unless_its_end_does() {
    let annotate = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["metadata"]["annotations"]["team.example.com/note"] = "x".into();
        host.insert(TENANT, cluster);
    };
    let mut fixture = Box::pin(warned()).await;
    let_time_pass(&fixture);
    fixture.reconcile_after_unseen(annotate).await.unwrap();
    assert!(is_deleted(&fixture));
}

#[tokio::test]
async fn an_expired_tenant_that_cannot_be_deleted_is_held_to_the_rules() {
    for (code, message) in [CONFLICT, (403, "a policy denies it")] {
        let mut fixture = Box::pin(warned()).await;
        decide(&fixture, reserved(reservation()));
        for _ in 0..2 {
            fixture.reconcile().await.unwrap();
        }
        let_time_pass(&fixture);
        close(&fixture, reservation());
        fixture
            .host
            .refuse_writes(Some(("/tenantclusters/vision", code, message)));
        // Its status is not written either.
        let _ = fixture.reconcile().await;
        assert!(!is_deleted(&fixture));
        expect_closed(&fixture, message);
    }
}
