//! etcd loses a restore in its middle: its record, and what the tenant stored.

use super::{
    super::memory::Tenants,
    databases::store_database,
    restore::{Case, LOCATION, old_objects},
};
use crate::{
    datastore::{RestoreEnd, RestorePhase, RestoreRecord, TenantContents},
    testing::ScriptedRuntime,
};
use serde_json::json;
use std::sync::{Arc, atomic::Ordering};

/// A tenant whose restore fails in the middle, as its file is gone, and of which etcd has nothing any more.
async fn lost() -> Case {
    let mut case = Case::new().await;
    let file = case.folder.path().join(LOCATION);
    std::fs::rename(&file, case.folder.path().join("kept")).unwrap();
    case.interrupt(RestorePhase::Replacing).await;
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "RestoreFailing");
    assert!(case.fixture.status()["restore"].is_object());
    let (id, record) = (case.fixture.id.clone(), case.memory.record().unwrap());
    let end = RestoreEnd::new(case.fixture.context.clock.now(), 0);
    case.memory.delete_restore(&id, record.revision, &end).await.unwrap();
    case.memory.clear();
    store_database(&case.fixture, None);
    std::fs::rename(case.folder.path().join("kept"), &file).unwrap();
    case
}

/// The tenant stays stopped, and nothing says that it was set back.
async fn check_lost(case: &mut Case) {
    for _ in 0..3 {
        case.reconcile().await;
    }
    let lost = (json!("False"), json!("RestoreLost"));
    assert_eq!(case.fixture.reason("Restored"), lost);
    assert_eq!(case.fixture.reason("DatastoreReady").1, "DatastoreReplaced");
    assert!(case.fixture.status()["restore"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_etcd_has_lost_is_not_over_and_can_be_asked_for_again() {
    let mut case = lost().await;
    check_lost(&mut case).await;
    case.request_of("nightly", false);
    for _ in 0..30 {
        case.reconcile().await;
        if case.memory.record().is_none() && case.memory.objects() == old_objects() {
            // What is read is what was written.
            store_database(&case.fixture, Some("a"));
        }
    }
    assert_eq!(case.fixture.reason("Restored").0, "True");
    assert_eq!(case.fixture.reason("Ready").0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_control_that_starts_after_that_takes_it_for_lost_as_well() {
    let mut case = lost().await;
    case.fixture.context.tenants = Arc::new(Tenants::default());
    check_lost(&mut case).await;
    case.fixture.context.tenants = Arc::new(Tenants::default());
    check_lost(&mut case).await;
    // The platform restores etcd from a backup: the tenant has what it stored then, and not what the snapshot has.
    store_database(&case.fixture, Some("a"));
    case.fixture.context.tenants = Arc::new(Tenants::default());
    case.reconcile_until("RestoreLost").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_there_when_control_starts_does_not_hide_that_a_restore_was_lost() {
    let mut case = lost().await;
    case.fixture.context.tenants = Arc::new(Tenants::default());
    case.request_of("no-such", false);
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "SnapshotNotFound");
    assert!(case.fixture.status()["restore"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_restore_whose_last_step_fails_does_not_say_that_it_still_stops() {
    let mut case = Case::new().await;
    let runtime = ScriptedRuntime::new(&case.fixture.script);
    let is_stuck = Arc::clone(&runtime.is_stuck);
    case.fixture.context.runtime = Arc::new(runtime);
    is_stuck.store(true, Ordering::SeqCst);
    case.interrupt(RestorePhase::Replaced).await;
    let stored = case.memory.record().unwrap();
    // The last step needs it.
    let record = RestoreRecord {
        identity: None,
        ..RestoreRecord::parse(&stored.text).unwrap()
    };
    let id = case.fixture.id.clone();
    let written = case.memory.write_restore(&id, record.to_text(), Some(stored.revision));
    written.await.unwrap();
    for _ in 0..3 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "Stopping");
    is_stuck.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored"), (json!("False"), json!("Replacing")));
    assert!(case.memory.record().is_some());
}
