//! A restore in whose middle something else happens.

use super::{
    super::build::stored_namespace,
    databases::store_database,
    encryption::{pki, pki_path, reconcile_some, set_rules},
    own_endpoints::{MACHINE, POD, insert, names, offer_machines},
    restore::{Case, LOCATION, old_objects},
};
use crate::{
    datastore::{RestorePhase, RestoreRecord},
    testing::{ScriptedRuntime, options_of_bucket},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::labels;
use berth_snapshots::Store;
use berth_sync_rules::kinds::endpoint_slice::SYNCER;
use serde_json::{Value, json};
use std::{
    net::TcpListener,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// The record of the restore.
fn record(case: &Case) -> RestoreRecord {
    RestoreRecord::parse(&case.memory.record().unwrap().text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_from_before_the_control_plane_was_stopped_saves_nothing() {
    let mut case = Case::new().await;
    // Somebody has created one of this name, and it was taken while the tenant still wrote.
    case.saved_at = Some(case.memory.revision());
    let before = case.memory.objects();
    case.request_of("nightly", true);
    case.reconcile_until("NotSaved").await;
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_deleted_before_anything_is_replaced_is_not_restored() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Saving).await;
    case.change_snapshot(|snapshot| snapshot["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z".into());
    let before = case.memory.objects();
    case.reconcile_until("SnapshotNotFound").await;
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_created_again_is_another_one() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Saving).await;
    case.change_snapshot(|snapshot| snapshot["metadata"]["uid"] = "88bb".into());
    let before = case.memory.objects();
    case.reconcile_until("SnapshotNotFound").await;
    assert_eq!(case.memory.objects(), before);
}

#[tokio::test(start_paused = true)]
async fn a_datastore_that_became_full_is_refused_as_long_as_nothing_is_replaced() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Saving).await;
    case.memory.set_database(1 << 30, Some(1 << 30));
    let before = case.memory.objects();
    case.reconcile_until("DatastoreFull").await;
    assert_eq!(case.memory.objects(), before);
}

#[tokio::test(start_paused = true)]
async fn what_a_try_has_left_in_the_datastore_is_waited_for() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Replacing).await;
    case.memory.set_database(1 << 30, Some(1 << 30));
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(
        case.fixture.reason("Restored"),
        (json!("False"), json!("RestoreFailing"))
    );
    assert!(case.memory.objects().is_empty(), "nothing is written");
    case.memory.set_database(0, Some(1 << 30));
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn without_a_store_a_restore_that_has_replaced_nothing_is_given_up() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Saving).await;
    case.fixture.context.snapshot_store = None;
    let before = case.memory.objects();
    case.reconcile_until("NoSnapshotStore").await;
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
}

#[tokio::test(start_paused = true)]
async fn without_a_store_a_restore_that_has_begun_to_replace_waits_for_it() {
    let mut case = Case::new().await;
    case.interrupt(RestorePhase::Replacing).await;
    let store = case.fixture.context.snapshot_store.take();
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "RestoreFailing");
    assert!(case.memory.record().is_some());
    case.fixture.context.snapshot_store = store;
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn a_restore_whose_file_is_lost_goes_on_with_another_snapshot() {
    let mut case = Case::new().await;
    let mut objects = old_objects();
    objects.insert("configmaps/team/settings".into(), "older".into());
    case.insert_snapshot("weekly", "team/vision/99cc-1", objects.clone())
        .await;
    std::fs::remove_file(case.folder.path().join(LOCATION)).unwrap();
    case.interrupt(RestorePhase::Replacing).await;
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "RestoreFailing");
    let before = case.memory.objects();
    // One that cannot be read neither.
    case.insert_snapshot("lost", "team/vision/00dd-1", old_objects()).await;
    std::fs::remove_file(case.folder.path().join("team/vision/00dd-1")).unwrap();
    case.request_of("lost", true);
    reconcile_until_refused(&mut case).await;
    let message = case.fixture.condition("Restored").unwrap()["message"].to_string();
    assert!(
        message.contains("lost cannot be used instead (SnapshotDamaged)"),
        "{message}"
    );
    assert!(case.annotations()[labels::RESTORE_SNAPSHOT].is_null());
    // It is still said when the restore was tried again.
    let attempts = record(&case).attempts;
    for _ in 0..30 {
        case.reconcile().await;
        assert_ne!(case.fixture.reason("Restored").1, "RestoreFailing");
    }
    assert!(record(&case).attempts > attempts);
    reconcile_until_refused(&mut case).await;
    assert_eq!(record(&case).snapshot_name, "nightly");
    assert_eq!(case.memory.objects(), before);
    case.request_of("weekly", true);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), objects);
    assert_eq!(case.fixture.status()["restore"]["snapshotName"], "weekly");
    assert!(case.annotations()[labels::RESTORE_SNAPSHOT].is_null());
}

/// A tenant whose control plane is stopped, because etcd has this database of it and not its own.
async fn replaced(uid: Option<&str>) -> Case {
    let mut case = Case::new().await;
    case.memory.clear();
    if let Some(uid) = uid {
        let identity = String::from_utf8(stored_namespace::encode(uid)).unwrap();
        case.memory.put(stored_namespace::PATH, &identity, false);
        case.memory.put("pods/team/other", "a pod", false);
    }
    store_database(&case.fixture, uid);
    case.reconcile().await;
    assert_eq!(case.fixture.reason("DatastoreReady").1, "DatastoreReplaced");
    case
}

/// Sets a tenant back whose control plane is stopped. Returns what its status says of the restore.
async fn set_back(case: &mut Case, saves: bool) -> Value {
    case.request_of("nightly", saves);
    for _ in 0..30 {
        case.reconcile().await;
        if case.memory.record().is_none() && case.memory.objects() == old_objects() {
            // What is read is what was written.
            store_database(&case.fixture, Some("a"));
            case.reconcile_until("Restored").await;
            return case.fixture.status()["restore"].clone();
        }
    }
    panic!("{:#}", case.fixture.status());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_of_which_etcd_has_nothing_any_more_is_set_back() {
    for saves in [true, false] {
        let mut case = replaced(None).await;
        let restore = set_back(&mut case, saves).await;
        assert!(restore["savedAs"].is_null(), "there is nothing: {restore}");
        assert!(restore["completedAt"].is_string(), "{restore}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_database_is_another_one_is_set_back_and_that_one_is_saved() {
    for saves in [true, false] {
        let mut case = replaced(Some("b")).await;
        let restore = set_back(&mut case, saves).await;
        assert_eq!(restore["savedAs"].is_string(), saves, "{restore}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_restore_leaves_a_tenant_stopped_whose_database_is_another_one() {
    let mut case = replaced(Some("b")).await;
    let before = case.memory.objects();
    case.request_of("no-such", true);
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "SnapshotNotFound");
    assert_eq!(case.fixture.reason("DatastoreReady").1, "DatastoreReplaced");
    assert_eq!(case.memory.objects(), before);
}

/// A store that takes connections and never answers, as long as the listener is there.
fn silent_store() -> (Store, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options_of_bucket(&format!("http://{}", listener.local_addr().unwrap()));
    (Store::from_url("s3://snapshots/berth", options).unwrap(), listener)
}

/// Longer than a store is waited for.
const LONG: Duration = Duration::from_secs(200);

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_refuses_a_restore_in_time() {
    let mut case = Case::new().await;
    let (silent, _listener) = silent_store();
    case.fixture.context.snapshot_store = Some(silent);
    let before = case.memory.objects();
    case.request_of("nightly", true);
    case.reconcile().await;
    assert_eq!(case.fixture.reason("Restored").1, "Checking");
    tokio::time::sleep(LONG).await;
    case.reconcile_until("StoreError").await;
    assert_eq!(case.memory.objects(), before);
    assert_eq!(case.memory.record(), None);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stops_answering_in_a_restore_is_waited_for() {
    let mut case = Case::new().await;
    let (silent, _listener) = silent_store();
    let store = case.fixture.context.snapshot_store.replace(silent);
    case.interrupt(RestorePhase::Replacing).await;
    let before = case.memory.objects();
    let limit = Instant::now() + LONG;
    while case.fixture.reason("Restored").1 != "RestoreFailing" {
        case.reconcile().await;
        assert!(Instant::now() < limit, "{:#}", case.fixture.status());
    }
    let message = case.fixture.condition("Restored").unwrap()["message"].to_string();
    assert!(message.contains("the store cannot be used"), "{message}");
    assert_eq!(case.memory.objects(), before, "nothing more is deleted");
    case.fixture.context.snapshot_store = store;
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

/// Reconciles until the condition says that another snapshot cannot be used.
async fn reconcile_until_refused(case: &mut Case) {
    for _ in 0..30 {
        case.reconcile().await;
        if case.fixture.reason("Restored").1 == "OtherSnapshotRefused" {
            return;
        }
    }
    panic!("{:#}", case.fixture.status());
}

#[tokio::test(start_paused = true)]
async fn a_restore_waits_for_components_that_do_not_end() {
    let mut case = Case::new().await;
    let runtime = ScriptedRuntime::new(&case.fixture.script);
    let (is_stuck, is_unscaled) = (Arc::clone(&runtime.is_stuck), Arc::clone(&runtime.is_unscaled));
    case.fixture.context.runtime = Arc::new(runtime);
    let before = case.memory.objects();
    case.request_of("nightly", false);
    for (obstacle, text) in [
        (&is_stuck, "kube-apiserver-1 still runs"),
        (&is_unscaled, "the host may start kube-apiserver again"),
    ] {
        obstacle.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            case.reconcile().await;
        }
        let restoring = (json!("False"), json!("Restoring"));
        assert_eq!(case.fixture.reason("DatastoreReady"), restoring);
        let restored = case.fixture.condition("Restored").unwrap();
        assert_eq!(restored["reason"], "Stopping");
        assert!(restored["message"].to_string().contains(text), "{restored}");
        assert_eq!(case.memory.objects(), before);
        // The next one is there before this one is gone.
        is_unscaled.store(true, Ordering::SeqCst);
        obstacle.store(false, Ordering::SeqCst);
    }
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn one_tenant_after_the_other_is_replaced() {
    let mut case = Case::new().await;
    let turns = Arc::clone(&case.fixture.context.tenants.restores().replacements);
    let of_another = turns.acquire_owned().await.unwrap();
    case.request_of("nightly", false);
    for _ in 0..10 {
        case.reconcile().await;
    }
    assert_eq!(record(&case).phase, RestorePhase::Saving);
    assert!(case.memory.objects().contains_key("pods/team/new"));
    drop(of_another);
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn few_snapshots_are_compared_at_the_same_time() {
    let mut case = Case::new().await;
    let turns = Arc::clone(&case.fixture.context.tenants.restores().comparisons);
    let all = u32::try_from(turns.available_permits()).unwrap();
    let of_others = turns.acquire_many_owned(all).await.unwrap();
    case.request_of("nightly", false);
    for _ in 0..10 {
        case.reconcile().await;
    }
    assert_eq!(case.fixture.reason("Restored").1, "Checking");
    assert_eq!(case.fixture.reason("Ready").0, "True");
    drop(of_others);
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_pods_go_before_anything_is_replaced() {
    let mut case = Case::new().await;
    offer_machines(&case.fixture);
    case.reconcile().await;
    insert(&case.fixture, "ghost", SYNCER, &[POD]);
    insert(&case.fixture, "machine", SYNCER, &[MACHINE]);
    // It is not finished: the syncer makes what is missing.
    let turns = Arc::clone(&case.fixture.context.tenants.restores().replacements);
    let _of_another = turns.acquire_owned().await.unwrap();
    case.request_of("nightly", false);
    for _ in 0..5 {
        case.reconcile().await;
    }
    assert_eq!(record(&case).phase, RestorePhase::Saving);
    assert_eq!(names(&case.fixture), ["machine"]);
}

/// A tenant whose class encrypts something, and that stores everything so.
async fn encrypted() -> Case {
    let mut case = Case::new().await;
    set_rules(&case.fixture, &json!({}));
    reconcile_some(&mut case.fixture, |_, _| {}).await;
    assert_eq!(encryption(&case)["phase"], "Completed");
    case
}

/// What the Secret with the keys says of the encryption.
fn encryption(case: &Case) -> Value {
    let pki = pki(&case.fixture);
    let text = STANDARD.decode(pki["encryption.json"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// How often the Secret with the keys was written since the call with this number.
fn writes_of_keys(case: &Case, since: usize) -> usize {
    let calls = case.fixture.script.calls().split_off(since);
    let write = format!("host PUT {}", pki_path(&case.fixture));
    calls.iter().filter(|call| call.text == write).count()
}

#[tokio::test(start_paused = true)]
async fn what_was_restored_is_rewritten_as_the_class_says() {
    let mut case = encrypted().await;
    let calls = case.fixture.count_calls();
    case.request_of("nightly", false);
    case.reconcile_until("Restored").await;
    for _ in 0..10 {
        case.reconcile().await;
    }
    assert_eq!(encryption(&case)["phase"], "Completed");
    assert_eq!(writes_of_keys(&case, calls), 2, "Rewriting and Completed");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_changed_meanwhile_are_read_again_before_a_restore_ends() {
    let mut case = encrypted().await;
    case.interrupt(RestorePhase::Replaced).await;
    // For the status to say so.
    case.reconcile().await;
    let calls = case.fixture.count_calls();
    let mut secret = case.fixture.host.get(&pki_path(&case.fixture)).unwrap();
    let mut state = encryption(&case);
    state["since"] = "2026-01-01T00:00:00Z".into();
    secret["data"]["encryption.json"] = STANDARD.encode(state.to_string()).into();
    case.fixture.host.insert(&pki_path(&case.fixture), secret);
    case.reconcile_until("Restored").await;
    for _ in 0..10 {
        case.reconcile().await;
    }
    assert_eq!(writes_of_keys(&case, calls), 2, "Rewriting and Completed");
}
