//! The snapshot of what a tenant stores before a restore, where others create snapshots as well.

use super::{
    super::memory::Tenants,
    fixture::{TENANT, UID},
    restore::{Case, SNAPSHOTS, kill_anywhere, old_objects},
};
use crate::{
    datastore::{RestorePhase, RestoreRecord},
    testing::ScriptedApi,
};
use berth_api::labels;
use jiff::SignedDuration;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Seconds whose names are taken.
const SECONDS: i64 = 60;

/// Somebody has created snapshots with all names that a restore chooses first in the next seconds.
fn take_names(case: &Case) {
    let now = case.fixture.context.clock.now();
    for second in 0..SECONDS {
        let time = now + SignedDuration::from_secs(second);
        let name = format!("vision-before-{}", time.strftime("%Y%m%d-%H%M%S"));
        let snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": name, "namespace": "team", "uid": format!("of-others-{second}")},
            "spec": {"tenantClusterName": "vision"},
            "status": {"phase": "Completed", "tenantUID": UID, "revision": 1},
        });
        case.fixture.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
    }
}

/// The snapshots that restores have created.
fn of_restores(case: &Case) -> Vec<Value> {
    let mut all = case.fixture.host.find(SNAPSHOTS);
    all.retain(|snapshot| snapshot["metadata"]["labels"][labels::SNAPSHOT_TRIGGER] == "before-restore");
    all
}

#[tokio::test(start_paused = true)]
async fn a_name_that_somebody_has_taken_keeps_nobody_from_being_set_back() {
    let mut case = Case::new().await;
    take_names(&case);
    case.request_of("nightly", true);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
    let created = of_restores(&case);
    assert_eq!(created.len(), 1, "{created:?}");
    let name = created[0]["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("vision-before-"), "{name}");
    assert_eq!(case.fixture.status()["restore"]["savedAs"], name);
}

#[tokio::test(start_paused = true)]
async fn a_control_that_is_killed_anywhere_saves_what_is_there_also_if_names_are_taken() {
    kill_anywhere(take_names).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_created_just_now_is_tried_again() {
    let mut case = Case::new().await;
    // As an API server answers that has to count a quota again: there is no snapshot of this name.
    let conflict = ("/tenantsnapshots", 409, "the object has been modified");
    case.fixture.host.refuse_writes(Some(conflict));
    case.request_of("nightly", true);
    for _ in 0..30 {
        case.reconcile().await;
        if case.fixture.reason("Restored").1 == "RestoreFailing" {
            break;
        }
    }
    assert_eq!(case.fixture.reason("Restored").1, "RestoreFailing");
    assert!(case.memory.objects().contains_key("pods/team/new"));
    case.fixture.host.refuse_writes(None);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
    assert_eq!(of_restores(&case).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_deleted_before_a_watch_shows_it_is_not_waited_for() {
    let mut case = Case::new().await;
    let before = case.memory.objects();
    case.request_of("nightly", true);
    for _ in 0..20 {
        let _ = case.fixture.reconcile().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Some(created) = of_restores(&case).first() {
            let name = created["metadata"]["name"].as_str().unwrap();
            case.fixture.host.remove(&format!("{SNAPSHOTS}/{name}"));
            tokio::time::sleep(Duration::from_secs(40)).await;
            case.reconcile_until("NotSaved").await;
            assert_eq!(case.memory.objects(), before);
            return;
        }
    }
    panic!("nothing is saved: {:#}", case.fixture.status());
}

#[tokio::test(start_paused = true)]
async fn what_is_there_is_saved_if_somebody_wants_that_at_the_last_moment() {
    let mut case = Case::new().await;
    case.request_of("nightly", false);
    let _ = case.fixture.reconcile().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The snapshot is compared. The watch still shows that nothing is to be saved.
    let change = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["metadata"]["annotations"] = json!({labels::RESTORE_SNAPSHOT: "nightly"});
        host.insert(TENANT, cluster);
    };
    let _ = case.fixture.reconcile_after_unseen(change).await;
    assert_eq!(case.memory.record(), None);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
    assert!(case.fixture.status()["restore"]["savedAs"].is_string());
}

#[tokio::test(start_paused = true)]
async fn a_restore_does_not_end_before_the_status_says_what_it_has_saved() {
    let mut case = Case::new().await;
    case.fixture
        .host
        .never_answer_writes(Some("/tenantclusters/vision/status"));
    case.request_of("nightly", true);
    for _ in 0..30 {
        case.reconcile().await;
    }
    let stored = case.memory.record().unwrap();
    let record = RestoreRecord::parse(&stored.text).unwrap();
    assert_eq!(record.phase, RestorePhase::Replaced);
    // Killed: only etcd and the status are left.
    case.fixture.context.tenants = Arc::new(Tenants::default());
    case.fixture.host.never_answer_writes(None);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
    let restore = case.fixture.status()["restore"].clone();
    assert_eq!(restore["snapshotName"], "nightly");
    assert_eq!(restore["savedAs"].as_str(), record.saved_as.as_deref());
    assert!(restore["savedAs"].is_string(), "{restore}");
}
