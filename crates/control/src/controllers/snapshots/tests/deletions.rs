//! Snapshots that are deleted while it is not known whether their files are needed.

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
    case.pass().await;
    assert_eq!(case.get("a"), None);
}
