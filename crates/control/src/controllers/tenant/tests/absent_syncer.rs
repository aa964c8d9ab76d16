//! Endpoints that the tenant has made itself go from the host when its syncer does not work, although nobody has stopped it.

use super::{
    super::memory::Tenants,
    fixture::Fixture,
    own_endpoints::{HOST, MACHINE, POD, hold, insert, names, offer_machines},
};
use crate::testing::ScriptedRuntime;
use berth_sync_rules::kinds::endpoint_slice::SYNCER;
use serde_json::Value;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// Pause between two reconciles.
const PAUSE: Duration = Duration::from_secs(15);
/// After how long the endpoints go.
const LIMIT: Duration = Duration::from_mins(2);
/// Time until control has found out, and looks again.
const MARGIN: Duration = Duration::from_secs(45);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_mins(10);

/// A tenant that is ready, with endpoints of its own and of a Service with a selector.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    offer_machines(&fixture);
    fixture.reconcile_until_ready().await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    insert(&fixture, "machine", SYNCER, &[MACHINE]);
    insert(&fixture, "mixed", SYNCER, &[MACHINE, POD]);
    insert(&fixture, "web", HOST, &[POD]);
    fixture
}

/// Whether no endpoints of pods are left.
fn is_closed(fixture: &Fixture) -> bool {
    names(fixture) == ["machine", "web"]
}

/// Reconciles again and again, for `most` at most. Returns after how long no endpoints of pods were left. None: they stay.
async fn time_until_closed(fixture: &mut Fixture, most: Duration) -> Option<Duration> {
    let start = Instant::now();
    while start.elapsed() < most {
        tokio::time::advance(PAUSE).await;
        let _ = Box::pin(fixture.reconcile()).await;
        if is_closed(fixture) {
            return Some(start.elapsed());
        }
    }
    None
}

/// Fails unless the endpoints go in time.
async fn expect_closed_in_time(fixture: &mut Fixture) {
    let time = time_until_closed(fixture, LONG).await.expect("they go");
    assert!((LIMIT..LIMIT + MARGIN).contains(&time), "{time:?}");
}

/// Another control: it remembers nothing.
fn restart(fixture: &mut Fixture) {
    fixture.context.tenants = Arc::new(Tenants::default());
}

/// How often the tenant's slices on the host were listed.
fn count_lists(fixture: &Fixture) -> usize {
    let namespace = fixture.id.workload_namespace();
    let list = format!("host GET /apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let calls = fixture.script.calls();
    calls.iter().filter(|call| call.text == list).count()
}

/// Events about the tenant with this reason.
fn events(fixture: &Fixture, reason: &str) -> Vec<Value> {
    let mut events = fixture.host.find("/apis/events.k8s.io/v1/namespaces/team/events/");
    events.retain(|event| event["reason"] == reason);
    events
}

/// What the condition SyncerReady says.
fn message(fixture: &Fixture) -> String {
    let condition = fixture.condition("SyncerReady").unwrap();
    condition["message"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_pods_go_when_the_syncer_does_not_come_back() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    Box::pin(expect_closed_in_time(&mut fixture)).await;
    let _ = Box::pin(fixture.reconcile()).await;
    assert!(
        message(&fixture).contains("were deleted on the host"),
        "{}",
        message(&fixture)
    );
    assert_eq!(events(&fixture, "OwnEndpointsDeleted").len(), 1);
    assert!(events(&fixture, "OwnEndpointsLeft").is_empty());
    assert_eq!(fixture.context.own_slices_deleted.get(), 2);
    // One that works for a moment, and that control has not seen.
    insert(&fixture, "ghost", SYNCER, &[POD]);
    let before = count_lists(&fixture);
    Box::pin(expect_closed_in_time(&mut fixture)).await;
    assert_eq!(count_lists(&fixture) - before, 1);
    // It is back.
    fixture.stored.is_syncer_gone.store(false, Ordering::SeqCst);
    let _ = Box::pin(fixture.reconcile()).await;
    insert(&fixture, "ghost", SYNCER, &[POD]);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    assert!(!message(&fixture).contains("were deleted"), "{}", message(&fixture));
}

#[tokio::test(start_paused = true)]
async fn a_syncer_that_waits_for_lists_does_not_work() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_listing.store(true, Ordering::SeqCst);
    Box::pin(expect_closed_in_time(&mut fixture)).await;
}

#[tokio::test(start_paused = true)]
async fn a_syncer_that_the_host_does_not_answer_does_not_work() {
    let mut fixture = Box::pin(ready()).await;
    let seconds = Arc::clone(&fixture.stored.host_silent_seconds);
    seconds.store(59, Ordering::SeqCst);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    seconds.store(60, Ordering::SeqCst);
    let time = Box::pin(time_until_closed(&mut fixture, LONG)).await.expect("they go");
    assert!((LIMIT..LIMIT + 2 * MARGIN).contains(&time), "{time:?}");
}

/// What keeps a tenant's API server from running keeps nothing on the host.
#[tokio::test(start_paused = true)]
async fn endpoints_go_although_each_reconcile_fails_before_the_components() {
    let mut fixture = Box::pin(ready()).await;
    restart(&mut fixture);
    fixture
        .host
        .refuse_writes(Some(("/resourcequotas/", 500, "the host fails")));
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    Box::pin(expect_closed_in_time(&mut fixture)).await;
    assert!(Box::pin(fixture.reconcile()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_tried_again() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    let fails = ("/endpointslices/ghost", 500, "the host fails");
    fixture.host.refuse_writes(Some(fails));
    assert_eq!(Box::pin(time_until_closed(&mut fixture, 2 * LIMIT)).await, None);
    fixture.host.refuse_writes(None);
    assert!(Box::pin(time_until_closed(&mut fixture, 2 * PAUSE)).await.is_some());
}

/// One that cannot be deleted hides no other one.
#[tokio::test(start_paused = true)]
async fn what_was_deleted_and_what_could_not_be_is_reported() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    let fails = ("/endpointslices/ghost", 500, "the host fails");
    fixture.host.refuse_writes(Some(fails));
    assert_eq!(Box::pin(time_until_closed(&mut fixture, 2 * LIMIT)).await, None);
    assert_eq!(names(&fixture), ["ghost", "machine", "web"]);
    assert_eq!(events(&fixture, "OwnEndpointsDeleted").len(), 1);
    assert_eq!(fixture.context.own_slices_deleted.get(), 1);
    assert!(message(&fixture).contains("were deleted"), "{}", message(&fixture));
    let left = events(&fixture, "OwnEndpointsLeft");
    let note = left[0]["note"].as_str().unwrap();
    assert!(note.contains("the host fails"), "{note}");
    // It is tried with each look, and not reported with each.
    fixture
        .host
        .refuse_writes(Some(("/endpointslices/ghost", 500, "another webhook")));
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LIMIT)).await, None);
    let left = events(&fixture, "OwnEndpointsLeft");
    assert_eq!((left.len(), &left[0]["series"]), (1, &Value::Null));
    fixture.host.refuse_writes(None);
    assert!(Box::pin(time_until_closed(&mut fixture, 2 * PAUSE)).await.is_some());
    assert_eq!(fixture.context.own_slices_deleted.get(), 2);
}

/// They are listed again every two minutes, and are as they were.
#[tokio::test(start_paused = true)]
async fn endpoints_that_somebody_holds_are_reported_once() {
    let mut fixture = Box::pin(ready()).await;
    hold(&fixture, "ghost");
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    assert!(count_lists(&fixture) > 2);
    assert_eq!(fixture.context.own_slices_deleted.get(), 2);
    assert_eq!(events(&fixture, "OwnEndpointsDeleted").len(), 1);
    assert!(events(&fixture, "OwnEndpointsLeft").is_empty());
    assert!(message(&fixture).contains("were deleted"), "{}", message(&fixture));
}

#[tokio::test(start_paused = true)]
async fn a_control_that_has_just_started_waits_as_long() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        restart(&mut fixture);
        assert_eq!(
            Box::pin(time_until_closed(&mut fixture, LIMIT.saturating_sub(PAUSE))).await,
            None
        );
    }
    restart(&mut fixture);
    Box::pin(expect_closed_in_time(&mut fixture)).await;
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_syncer_works_costs_nothing() {
    let mut fixture = Box::pin(ready()).await;
    restart(&mut fixture);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    assert_eq!(count_lists(&fixture), 0);
    let probes = |fixture: &Fixture| {
        let calls = fixture.script.calls();
        calls.iter().filter(|call| call.text == "syncer probe").count()
    };
    let before = probes(&fixture);
    fixture.reconcile().await.unwrap();
    assert_eq!(probes(&fixture) - before, 1, "the one that says whether it is ready");
}

/// A control that reaches nothing must not take endpoints from all tenants.
#[tokio::test(start_paused = true)]
async fn endpoints_stay_while_the_host_finds_the_syncer_ready() {
    let mut fixture = Box::pin(ready()).await;
    let runtime = ScriptedRuntime::new(&fixture.script);
    let is_available = Arc::clone(&runtime.is_available);
    fixture.context.runtime = Arc::new(runtime);
    is_available.store(true, Ordering::SeqCst);
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    assert_eq!(count_lists(&fixture), 0);
    is_available.store(false, Ordering::SeqCst);
    assert!(Box::pin(time_until_closed(&mut fixture, LONG)).await.is_some());
}

/// Nor must it take them because a syncer that it does not reach is restarted.
#[tokio::test(start_paused = true)]
async fn endpoints_stay_when_a_syncer_that_control_never_reaches_is_restarted() {
    let mut fixture = Box::pin(ready()).await;
    let runtime = ScriptedRuntime::new(&fixture.script);
    let is_available = Arc::clone(&runtime.is_available);
    fixture.context.runtime = Arc::new(runtime);
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        for (available, time) in [(false, LIMIT / 2), (true, PAUSE)] {
            is_available.store(available, Ordering::SeqCst);
            assert_eq!(Box::pin(time_until_closed(&mut fixture, time)).await, None);
        }
    }
    is_available.store(false, Ordering::SeqCst);
    Box::pin(expect_closed_in_time(&mut fixture)).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_syncer_has_said_of_the_host_before_takes_no_endpoints() {
    let mut fixture = Box::pin(ready()).await;
    let runtime = ScriptedRuntime::new(&fixture.script);
    runtime.is_available.store(true, Ordering::SeqCst);
    fixture.context.runtime = Arc::new(runtime);
    fixture.stored.host_silent_seconds.store(60, Ordering::SeqCst);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LIMIT / 2)).await, None);
    let is_unmeasured = Arc::clone(&fixture.stored.is_syncer_unmeasured);
    is_unmeasured.store(true, Ordering::SeqCst);
    assert_eq!(Box::pin(time_until_closed(&mut fixture, LONG)).await, None);
    is_unmeasured.store(false, Ordering::SeqCst);
    assert!(Box::pin(time_until_closed(&mut fixture, LONG)).await.is_some());
}

/// A tenant decides how long reconciles of it take.
#[tokio::test(start_paused = true)]
async fn slow_reconciles_keep_endpoints_for_little_longer() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while !is_closed(&fixture) {
        // As long as one may take.
        tokio::time::advance(Duration::from_secs(100)).await;
        let _ = Box::pin(fixture.reconcile()).await;
        assert!(start.elapsed() < Duration::from_mins(6), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_control_that_stood_still_takes_no_syncer_for_missing() {
    let mut fixture = Box::pin(ready()).await;
    fixture.stored.is_syncer_gone.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let _ = Box::pin(fixture.reconcile()).await;
        tokio::time::advance(LONG).await;
    }
    let _ = Box::pin(fixture.reconcile()).await;
    assert!(!is_closed(&fixture));
}
