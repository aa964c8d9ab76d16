//! Snapshots that are deleted: with their files, and not while a restore may need these, or the store does not delete them.

use super::*;

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_to_delete_a_file_that_a_restore_may_need() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    case.delete("a");
    case.memory.fail_call(Some(case.memory.calls()));
    case.pass().await;
    let (reason, message) = deleting(&case.get("a").unwrap());
    assert_eq!(reason, "DatastoreError");
    assert!(!message.contains(labels::SNAPSHOT_FINALIZER), "{message}");
    // Otherwise it would be written as often as etcd answers otherwise.
    assert!(!message.contains("the script says so"), "{message}");
    assert!(case.file("a").exists());
    // A moment later nothing is done.
    let calls = case.memory.calls();
    case.pass().await;
    assert_eq!(case.memory.calls(), calls);
    case.pass_later().await;
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_ends_by_a_time_that_is_not_confirmed() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let mut snapshot = case.get("a").unwrap();
    snapshot["spec"]["ttl"] = "30m".into();
    case.host.insert(&format!("{SNAPSHOTS}/a"), snapshot);
    case.context.clock.set_unconfirmed(1);
    for _ in 0..3 {
        case.pass().await;
    }
    assert!(case.get("a").unwrap()["metadata"]["deletionTimestamp"].is_null());
    case.context.clock.set_unconfirmed(0);
    for _ in 0..3 {
        case.pass().await;
    }
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_not_deleted_while_its_tenant_is_set_back_to_it() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let record = json!({
        "snapshotName": "a", "snapshotUID": "uid-a", "location": "team/vision/uid-a-1", "objects": 2, "bytes": 1, "storedBytes": 1,
        "checksum": "", "startedAt": "2026-11-30T12:00:00Z", "phase": "Replacing", "attempts": 1,
    });
    let id = TenantId::new("vision", UID);
    let text = record.to_string().into_bytes();
    let revision = case.memory.write_restore(&id, text, None).await.unwrap();
    let mut deleted = case.get("a").unwrap();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    case.host.insert(&format!("{SNAPSHOTS}/a"), deleted);
    case.pass().await;
    assert!(case.file("a").exists());
    assert_eq!(deleting(&case.get("a").unwrap()).0, "Restoring");
    let end = RestoreEnd::new(case.context.clock.now(), 0);
    case.memory.delete_restore(&id, revision, &end).await.unwrap();
    case.pass_later().await;
    assert!(!case.file("a").exists());
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_tenant_stored_before_a_restore_is_not_deleted_during_it() {
    let mut case = Case::new();
    case.create("saved");
    case.pass_until("saved", "Completed").await;
    let record = json!({
        "snapshotName": "other", "snapshotUID": "uid-other", "location": "team/vision/uid-other-1", "objects": 2, "bytes": 1, "storedBytes": 1,
        "checksum": "", "savedAs": "saved", "startedAt": "2026-11-30T12:00:00Z", "phase": "Replacing", "attempts": 1,
    });
    let id = TenantId::new("vision", UID);
    let text = record.to_string().into_bytes();
    case.memory.write_restore(&id, text, None).await.unwrap();
    let mut deleted = case.get("saved").unwrap();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    case.host.insert(&format!("{SNAPSHOTS}/saved"), deleted);
    case.pass().await;
    assert!(case.file("saved").exists());
}

#[tokio::test(start_paused = true)]
async fn a_file_is_deleted_and_its_object_goes_also_if_control_is_killed_in_between() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    case.delete("a");
    case.host.never_answer_writes(Some("/tenantsnapshots/a"));
    case.pass().await;
    assert!(!case.file("a").exists());
    assert!(case.get("a").is_some());
    // Killed: its tasks are gone.
    case.context.deletions = Arc::default();
    case.host.never_answer_writes(None);
    case.pass().await;
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_the_schedule_keeps_no_longer_is_gone_from_the_store_as_well() {
    let mut case = Case::new();
    case.set_class(&json!({"schedule": {"cron": "0 2 * * *", "keep": 1}}));
    for name in ["a", "b"] {
        case.create(name);
        let mut snapshot = case.get(name).unwrap();
        snapshot["metadata"]["labels"] = json!({labels::SNAPSHOT_TRIGGER: "schedule"});
        case.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
    }
    for _ in 0..20 {
        case.pass().await;
    }
    assert_eq!(case.get("a"), None);
    assert_eq!(case.phase("b"), "Completed");
    assert_eq!(case.files(), ["uid-b-1"]);
}

/// What the object says of its deletion: reason and message.
fn deleting(snapshot: &Value) -> (Value, String) {
    let conditions = snapshot["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "Deleting");
    let condition = condition.unwrap_or_else(|| panic!("{snapshot:#}"));
    assert_eq!(condition["status"], "True");
    (condition["reason"].clone(), condition["message"].to_string())
}

#[tokio::test(start_paused = true)]
async fn a_file_that_the_store_does_not_delete_keeps_its_object_which_says_what_to_do() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    // What is there cannot be deleted as a file.
    std::fs::remove_file(case.file("a")).unwrap();
    std::fs::create_dir(case.file("a")).unwrap();
    case.delete("a");
    case.pass().await;
    let kept = case.get("a").unwrap();
    assert_eq!(kept["metadata"]["finalizers"], json!([labels::SNAPSHOT_FINALIZER]));
    let (reason, message) = deleting(&kept);
    assert_eq!(reason, "StoreError");
    assert!(message.contains(labels::SNAPSHOT_FINALIZER), "{message}");
    assert_eq!(kept["status"]["phase"], "Completed");
    let events = case.host.find("/events/a.");
    assert!(
        events.iter().any(|event| event["reason"] == "SnapshotNotDeleted"),
        "{events:?}"
    );
    // It is said once.
    for _ in 0..3 {
        case.pass_later().await;
    }
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&case.get("a").unwrap()), version(&kept));
    std::fs::remove_dir(case.file("a")).unwrap();
    case.pass_later().await;
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_holds_up_a_deletion_and_nothing_else() {
    let mut case = Case::new();
    for name in ["a", "c"] {
        case.create(name);
        case.pass_until(name, "Completed").await;
    }
    let (silent, _listener) = silent_store();
    let folder = case.context.store.replace(silent);
    case.delete("a");
    let begun = Instant::now();
    case.pass().await;
    case.context.store = folder;
    // Other snapshots of the same namespace are taken, refused and deleted meanwhile.
    case.create("d");
    case.delete("c");
    case.pass_until("d", "Completed").await;
    assert_eq!(case.get("c"), None);
    case.set_class(&json!({"max": 0}));
    case.create("b");
    case.pass_until("b", "Failed").await;
    assert!(begun.elapsed() < DELETED_WITHIN, "{:?}", begun.elapsed());
    assert!(case.get("a").unwrap()["status"]["conditions"][1].is_null());
    tokio::time::sleep(DELETED_WITHIN).await;
    let (reason, message) = deleting(&case.get("a").unwrap());
    assert_eq!(reason, "StoreError");
    assert!(message.contains("it does not answer within 20 s"), "{message}");
    case.pass_later().await;
    assert_eq!(case.get("a"), None);
}

fn check_gone(case: &Case, names: &[String]) {
    for name in names {
        assert_eq!(case.get(name), None, "{name}");
    }
}

/// Snapshots that were deleted, with files in the store as far as anybody knows. Returns their names.
fn insert_deleted(case: &Case, number: usize) -> Vec<String> {
    let names: Vec<String> = (0..number).map(|number| format!("n{number:03}")).collect();
    for name in &names {
        case.create(name);
        let mut snapshot = case.get(name).unwrap();
        snapshot["metadata"]["finalizers"] = json!([labels::SNAPSHOT_FINALIZER]);
        snapshot["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
        snapshot["status"] = json!({"phase": "Completed", "attempts": 1, "tenantUID": UID});
        case.host.insert(&format!("{SNAPSHOTS}/{name}"), snapshot);
    }
    names
}

#[tokio::test(start_paused = true)]
async fn one_pass_is_enough_for_all_files_that_the_store_does_not_delete() {
    let mut case = Case::new();
    let (silent, _listener) = silent_store();
    let folder = case.context.store.replace(silent);
    let names = insert_deleted(&case, 50);
    case.pass().await;
    tokio::time::sleep(DELETED_WITHIN).await;
    let mut messages = Vec::new();
    for name in &names {
        let (reason, message) = deleting(&case.get(name).unwrap());
        assert_eq!(reason, "StoreError", "{name}");
        messages.push(message.replace(name, ""));
    }
    // It is the same for those that were tried and those that were not: nothing is written again when they take turns.
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    case.context.store = folder;
    case.pass_later().await;
    check_gone(&case, &names);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_everything_is_not_asked_for_all_files_at_once() {
    let mut case = Case::new();
    let names = insert_deleted(&case, 50);
    for name in &names {
        std::fs::create_dir_all(case.file(name)).unwrap();
    }
    let refused = |case: &Case| -> Vec<(Value, bool)> {
        let said = { names.iter() }.map(|name| {
            let snapshot = case.get(name).unwrap();
            let (reason, message) = deleting(&snapshot);
            assert_eq!(reason, "StoreError", "{name}");
            let was_tried = !message.contains("it does not delete other files either");
            (snapshot["metadata"]["resourceVersion"].clone(), was_tried)
        });
        said.collect()
    };
    case.pass().await;
    let before = refused(&case);
    // Some may have begun when the last of those failed.
    let tried = before.iter().filter(|(_, was_tried)| *was_tried).count();
    assert!((4..=8).contains(&tried), "{tried}");
    // Others come next. What was said of an own try stays.
    case.pass_later().await;
    let after = refused(&case);
    let tried_later = after.iter().filter(|(_, was_tried)| *was_tried).count();
    assert!(tried_later > tried, "{tried} {tried_later}");
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after || !before.1, "{before:?} {after:?}");
    }
    for name in &names {
        std::fs::remove_dir(case.file(name)).unwrap();
    }
    case.pass_later().await;
    check_gone(&case, &names);
}

#[tokio::test(start_paused = true)]
async fn files_of_another_namespace_are_deleted_while_those_of_one_hang() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    let (silent, _listener) = silent_store();
    let folder = case.context.store.replace(silent);
    insert_deleted(&case, 10);
    case.pass().await;
    case.context.store = folder;
    let mut other = case.get("a").unwrap();
    other["metadata"]["namespace"] = "other".into();
    other["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z".into();
    let path = format!("{}/a", SNAPSHOTS.replace("/team/", "/other/"));
    case.host.insert(&path, other);
    case.pass().await;
    assert_eq!(case.host.get(&path), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_arrives_after_its_attempt_was_ended_is_deleted_as_well() {
    let mut case = Case::new();
    case.create("a");
    case.memory.end_before_call(Some(1));
    for _ in 0..3 {
        case.pass().await;
    }
    assert_eq!(case.phase("a"), "Running");
    let begun: TenantSnapshot = serde_json::from_value(case.get("a").unwrap()).unwrap();
    case.memory.end_before_call(None);
    case.delete("a");
    case.pass().await;
    let (reason, message) = deleting(&case.get("a").unwrap());
    assert_eq!(reason, "UploadInterrupted", "{message}");
    assert_eq!(case.files(), [""; 0]);
    // The store carries out only now what was sent to it.
    let store = case.context.store.clone().unwrap();
    let entries = futures::stream::empty::<Result<berth_snapshots::Entry, std::convert::Infallible>>();
    store.write(&begun.location(), entries).await.unwrap();
    assert_eq!(case.files(), ["uid-a-1"]);
    case.pass_later().await;
    assert!(case.get("a").is_some(), "it may arrive later");
    case.pass_later().await;
    assert_eq!(case.files(), [""; 0]);
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_control_that_begins_waits_for_what_the_one_before_has_sent() {
    let mut case = Case::new();
    let name = insert_deleted(&case, 1).remove(0);
    let path = format!("{SNAPSHOTS}/{name}");
    let mut snapshot = case.get(&name).unwrap();
    // It was ended only when control was killed: long after somebody has deleted the object.
    snapshot["metadata"]["deletionTimestamp"] = "2026-11-30T11:30:00Z".into();
    snapshot["status"]["phase"] = "Running".into();
    case.host.insert(&path, snapshot);
    case.pass().await;
    assert_eq!(deleting(&case.get(&name).unwrap()).0, "UploadInterrupted");
    case.pass_later().await;
    case.pass_later().await;
    assert_eq!(case.get(&name), None);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_deleted_makes_room_for_others_before_its_turn() {
    let mut case = Case::new();
    case.create("a");
    case.memory.end_before_call(Some(1));
    for _ in 0..3 {
        case.pass().await;
    }
    assert_eq!(case.phase("a"), "Running");
    // etcd answers none of those whose turn it is.
    insert_deleted(&case, MOST_OF_NAMESPACE);
    case.pass().await;
    case.delete("a");
    case.pass().await;
    assert!(case.context.runs.running().is_empty());
    assert!(case.get("a").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_the_host_does_not_answer_ends_a_turn_and_the_next_one_sees_what_has_changed_meanwhile() {
    let mut case = Case::new();
    case.create("a");
    case.pass_until("a", "Completed").await;
    insert_deleted(&case, MOST_OF_NAMESPACE);
    case.host.never_answer_writes(Some("/tenantsnapshots/n"));
    case.pass().await;
    case.delete("a");
    case.pass().await;
    case.host.never_answer_writes(None);
    assert!(case.get("a").is_some(), "it waits for its turn");
    let mut changed = case.get("a").unwrap();
    changed["metadata"]["labels"] = json!({"team": "vision"});
    case.host.insert(&format!("{SNAPSHOTS}/a"), changed);
    case.writers.update(&case.host);
    tokio::time::sleep(TURN).await;
    assert_eq!(case.get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn deletions_end_with_control() {
    let mut case = Case::new();
    let (silent, _listener) = silent_store();
    case.context.store = Some(silent);
    insert_deleted(&case, 5);
    case.pass().await;
    // Another control leads.
    case.context.deletions = Arc::default();
    tokio::time::sleep(DELETED_WITHIN * 2).await;
    for snapshot in case.host.find(SNAPSHOTS) {
        assert!(snapshot["status"]["conditions"].is_null(), "{snapshot}");
    }
}
