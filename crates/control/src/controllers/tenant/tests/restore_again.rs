//! Who asks for restores again and again holds up neither the class of the tenant nor other tenants.

use super::{
    super::memory::Tenants,
    restore::{Case, old_objects},
};
use crate::datastore::RestoreEnd;
use berth_api::labels;
use jiff::SignedDuration;
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// The object that the tenant has and its snapshot does not.
const NEW: &str = "pods/team/new";

impl Case {
    /// The syncer has this many objects that it has not compared yet.
    fn set_uncompared(&self, objects: u64) {
        self.fixture.stored.uncompared_objects.store(objects, Ordering::SeqCst);
    }

    /// Changes what the tenant stores, asks for the snapshot again, and lets some time pass.
    async fn ask_again(&mut self) {
        self.memory.put(NEW, "a pod", false);
        self.request_of("nightly", false);
        for _ in 0..10 {
            self.reconcile().await;
        }
    }

    /// Takes out of the status that the last restore has ended.
    fn forget_end(&self) {
        self.fixture.change_tenant(|cluster| {
            let restore = cluster["status"]["restore"].as_object_mut().unwrap();
            restore.remove("completedAt").unwrap();
        });
    }

    /// Control ends, and another one begins.
    fn restart(&mut self) {
        self.fixture.context.tenants = Arc::new(Tenants::default());
    }

    /// The last restore ended so many seconds ago, and has written so many MiB.
    fn set_end(&self, seconds: i64, mebibytes: u64) {
        let ended_at = self.fixture.context.clock.now() - SignedDuration::from_secs(seconds);
        let end = RestoreEnd::new(ended_at, mebibytes << 20);
        self.memory.set_restore_end(end.to_text());
    }

    /// Whether the status says that it has ended.
    fn is_completed(&self) -> bool {
        self.fixture.status()["restore"]["completedAt"].is_string()
    }

    /// The request waits, and the tenant runs.
    fn check_waits(&self) {
        assert_eq!(self.fixture.reason("Restored"), (json!("False"), json!("Waiting")));
        assert_eq!(self.fixture.reason("Ready").0, "True");
        assert!(self.memory.objects().contains_key(NEW));
        assert_eq!(self.annotations()[labels::RESTORE_SNAPSHOT], "nightly");
    }
}

/// A tenant that was set back a moment ago, and whose syncer has not compared everything since then.
async fn set_back() -> Case {
    let mut case = Case::new().await;
    case.set_uncompared(3);
    case.request_of("nightly", false);
    case.reconcile_until("Restored").await;
    case
}

#[tokio::test(start_paused = true)]
async fn the_next_restore_waits_until_the_syncer_has_compared_everything() {
    let mut case = set_back().await;
    case.ask_again().await;
    case.check_waits();
    let message = case.fixture.condition("Restored").unwrap()["message"].to_string();
    assert!(message.contains("at most 5 minutes"), "{message}");
    case.set_uncompared(0);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_syncer_never_compares_everything_can_be_set_back_after_a_while() {
    let mut case = set_back().await;
    case.ask_again().await;
    case.check_waits();
    tokio::time::sleep(Duration::from_mins(5)).await;
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

/// A restore that was given up because the tenant could not be saved first, and whose syncer has not compared everything since.
async fn given_up() -> Case {
    let mut case = Case::new().await;
    case.set_uncompared(3);
    case.fixture
        .host
        .refuse_writes(Some(("/tenantsnapshots", 403, "exceeded quota: too many of them")));
    case.request_of("nightly", true);
    case.reconcile_until("NotSaved").await;
    case
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_was_given_up_has_stopped_the_syncer_as_well() {
    let mut case = given_up().await;
    case.ask_again().await;
    case.check_waits();
    let message = case.fixture.condition("Restored").unwrap()["message"].to_string();
    assert!(!message.contains("was set back"), "{message}");
    case.set_uncompared(0);
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_makes_the_next_one_not_wait() {
    let mut case = Case::new().await;
    // The syncer was not stopped.
    case.request_of("no-such", false);
    case.reconcile_until("SnapshotNotFound").await;
    case.set_uncompared(3);
    case.request_of("nightly", false);
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_can_be_withdrawn() {
    let mut case = set_back().await;
    case.ask_again().await;
    case.check_waits();
    case.fixture
        .change_tenant(|cluster| cluster["metadata"]["annotations"] = json!({}));
    case.reconcile_until("RequestWithdrawn").await;
    assert!(case.memory.objects().contains_key(NEW));
}

#[tokio::test(start_paused = true)]
async fn how_a_restore_ended_is_said_before_what_becomes_of_the_next_request() {
    let mut case = set_back().await;
    // Control was killed before it could write that, and somebody has asked again meanwhile.
    case.forget_end();
    case.restart();
    case.request_of("nightly", false);
    case.reconcile().await;
    assert_eq!(case.fixture.reason("Restored").1, "Restored");
    assert!(case.is_completed());
    case.reconcile_until("Waiting").await;
    assert!(case.is_completed());
    case.request_of("no-such", false);
    case.set_uncompared(0);
    case.reconcile_until("SnapshotNotFound").await;
    assert!(case.is_completed());
}

#[tokio::test(start_paused = true)]
async fn a_view_that_is_late_does_not_take_back_that_a_restore_has_ended() {
    let mut case = set_back().await;
    // As the watch has shown it before.
    case.forget_end();
    case.request_of("nightly", false);
    case.reconcile().await;
    assert_eq!(case.fixture.reason("Restored").1, "Waiting");
    assert!(case.is_completed());
}

#[tokio::test(start_paused = true)]
async fn a_control_that_is_restarted_does_not_shorten_the_pause() {
    let mut case = set_back().await;
    for _ in 0..3 {
        case.restart();
        case.ask_again().await;
        case.check_waits();
    }
    case.set_uncompared(0);
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_pause_is_as_long_as_what_was_written_needs() {
    let mut case = set_back().await;
    case.set_uncompared(0);
    case.restart();
    case.set_end(100, 200);
    case.ask_again().await;
    case.check_waits();
    tokio::time::sleep(Duration::from_secs(100)).await;
    case.reconcile_until("Restored").await;
    // One that ended long ago is no reason to wait.
    case.set_uncompared(3);
    case.restart();
    case.set_end(301, 200);
    case.ask_again().await;
    case.reconcile_until("Restored").await;
    assert_eq!(case.memory.objects(), old_objects());
}

#[tokio::test(start_paused = true)]
async fn a_control_that_is_restarted_knows_that_a_restore_was_given_up() {
    let mut case = given_up().await;
    assert_eq!(case.memory.restore_end().map(|end| end.bytes), Some(0));
    case.restart();
    case.ask_again().await;
    case.check_waits();
}

#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_read_is_waited_for_like_one_of_now() {
    let mut case = set_back().await;
    case.restart();
    case.memory.set_restore_end(b"{}".to_vec());
    case.ask_again().await;
    case.check_waits();
    tokio::time::sleep(Duration::from_mins(5)).await;
    case.reconcile_until("Restored").await;
}

#[tokio::test(start_paused = true)]
async fn a_datastore_that_does_not_say_how_the_last_restore_ended_is_asked_again() {
    let mut case = set_back().await;
    case.restart();
    case.memory.put(NEW, "a pod", false);
    case.request_of("nightly", false);
    // The record is read first.
    case.memory.fail_call(Some(case.memory.calls() + 1));
    case.reconcile().await;
    case.reconcile_until("Waiting").await;
    case.check_waits();
}
