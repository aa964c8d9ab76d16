//! A tenant whose database is gone from the datastore, or another one, and one whose authorities somebody deletes on the host.

use super::{super::build::stored_namespace, fixture::Fixture};
use crate::testing::Call;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Longer than what was applied is remembered.
const LONG: Duration = Duration::from_secs(301);

/// Lets the datastore have the database with this UID, or nothing.
pub(super) fn store_database(fixture: &Fixture, uid: Option<&str>) {
    let mut values = fixture.stored.values.lock().unwrap();
    values.remove(stored_namespace::PATH);
    values.extend(uid.map(|uid| (stored_namespace::PATH.to_owned(), stored_namespace::encode(uid))));
}

/// A tenant that has run with the database `a`.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    store_database(&fixture, Some("a"));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    fixture
}

/// Path of an object in the control-plane namespace.
fn path(fixture: &Fixture, kind_and_name: &str) -> String {
    let namespace = fixture.id.control_plane_namespace();
    format!("/api/v1/namespaces/{namespace}/{kind_and_name}")
}

/// The UID that is recorded on the host.
fn recorded(fixture: &Fixture) -> Value {
    let record = fixture.host.get(&path(fixture, "configmaps/datastore"));
    record.unwrap_or_default()["data"]["kubeSystemUID"].clone()
}

/// The texts of the calls of some reconciles.
async fn reconcile_some(fixture: &mut Fixture) -> Vec<String> {
    let before = fixture.count_calls();
    for _ in 0..3 {
        let _ = Box::pin(fixture.reconcile()).await;
    }
    let calls = fixture.script.calls().split_off(before);
    calls.into_iter().map(|call| call.text).collect()
}

/// Lets the datastore not answer when it is asked for the database in the next reconcile, which begins as the last ones did.
async fn fail_next_read(fixture: &mut Fixture) {
    reconcile_some(fixture).await;
    let before = fixture.count_calls();
    let _ = Box::pin(fixture.reconcile()).await;
    let calls = fixture.script.calls().split_off(before);
    let is_read = |call: &Call| call.text == format!("datastore get {}", stored_namespace::PATH);
    let read = calls.iter().position(is_read).unwrap();
    fixture.script.fail_call(fixture.count_calls() + read);
}

/// The texts of the calls of a reconcile in which the datastore did not answer.
async fn reconcile_without_answer(fixture: &mut Fixture) -> Vec<String> {
    let before = fixture.count_calls();
    let _ = Box::pin(fixture.reconcile()).await;
    let failed = fixture.script.failed().unwrap();
    assert_eq!(failed, format!("datastore get {}", stored_namespace::PATH));
    let calls = fixture.script.calls().split_off(before);
    calls.into_iter().map(|call| call.text).collect()
}

/// The first call that lets an API server of the tenant run, or use the datastore.
fn find_start(calls: &[String]) -> Option<&String> {
    let mut calls = calls.iter();
    calls.find(|call| call.starts_with("runtime run ") || *call == "datastore prepare")
}

fn reason(fixture: &Fixture) -> Value {
    fixture.condition("DatastoreReady").unwrap_or_default()["reason"].clone()
}

#[tokio::test]
async fn a_tenant_is_stopped_and_not_started_while_its_database_is_gone_or_another_one() {
    for other in [None, Some("b")] {
        let mut fixture = Box::pin(ready()).await;
        assert_eq!(recorded(&fixture), "a");
        for is_new_process in [false, true] {
            if is_new_process {
                fixture.context.tenants = Arc::default();
            }
            store_database(&fixture, other);
            let calls = reconcile_some(&mut fixture).await;
            assert_eq!(reason(&fixture), "DatastoreReplaced", "{other:?}");
            assert_eq!(fixture.condition("Ready").unwrap()["status"], "False");
            // Nothing can serve the other database, also while what runs ends.
            let position = |text: &str| calls.iter().position(|call| call == text).unwrap();
            assert!(
                position("datastore delete user") < position("runtime stop everything"),
                "{calls:#?}"
            );
            assert_eq!(find_start(&calls), None, "{calls:#?}");
            assert_eq!(recorded(&fixture), "a");
            // A backup is restored.
            store_database(&fixture, Some("a"));
            Box::pin(fixture.reconcile_until_ready()).await;
        }
    }
}

#[tokio::test]
async fn the_platform_lets_a_tenant_go_on_with_what_is_stored() {
    for (other, is_recorded) in [(Some("b"), Value::from("b")), (None, Value::Null)] {
        let mut fixture = Box::pin(ready()).await;
        store_database(&fixture, other);
        reconcile_some(&mut fixture).await;
        assert_eq!(reason(&fixture), "DatastoreReplaced");
        fixture.host.remove(&path(&fixture, "configmaps/datastore"));
        Box::pin(fixture.reconcile_until_ready()).await;
        assert_eq!(recorded(&fixture), is_recorded);
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_read_stops_nothing() {
    let mut fixture = Box::pin(ready()).await;
    let unreadable = (stored_namespace::PATH.to_owned(), b"{}".to_vec());
    fixture.stored.values.lock().unwrap().extend([unreadable]);
    let calls = reconcile_some(&mut fixture).await;
    assert_eq!(reason(&fixture), "Prepared");
    assert!(
        !calls.iter().any(|call| call == "runtime stop everything"),
        "{calls:#?}"
    );
    // Nor does a datastore that does not answer, which is reported once this process needs it.
    fail_next_read(&mut fixture).await;
    let calls = reconcile_without_answer(&mut fixture).await;
    assert!(
        !calls.iter().any(|call| call == "runtime stop everything"),
        "{calls:#?}"
    );
    assert_eq!(reason(&fixture), "Prepared");
}

#[tokio::test]
async fn a_datastore_that_does_not_answer_gets_no_user_of_the_tenant() {
    let mut fixture = Box::pin(ready()).await;
    fail_next_read(&mut fixture).await;
    // It has lost everything and starts, so that what control asks next is carried out.
    store_database(&fixture, None);
    let calls = reconcile_without_answer(&mut fixture).await;
    assert!(!calls.iter().any(|call| call == "datastore prepare"), "{calls:#?}");
    reconcile_some(&mut fixture).await;
    assert_eq!(reason(&fixture), "DatastoreReplaced");
}

#[tokio::test]
async fn a_tenant_that_was_stopped_is_not_started_because_the_datastore_does_not_answer() {
    for other in [None, Some("b")] {
        let mut fixture = Box::pin(ready()).await;
        store_database(&fixture, other);
        fail_next_read(&mut fixture).await;
        assert_eq!(reason(&fixture), "DatastoreReplaced", "{other:?}");
        let calls = reconcile_without_answer(&mut fixture).await;
        assert_eq!(find_start(&calls), None, "{other:?} {calls:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_deletes_of_the_control_plane_is_stored_again_as_it_was() {
    let mut fixture = Box::pin(ready()).await;
    let authorities = path(&fixture, "secrets/pki");
    let before = fixture.host.get(&authorities).unwrap()["data"].clone();
    for name in ["secrets/pki", "configmaps/datastore"] {
        fixture.host.remove(&path(&fixture, name));
    }
    tokio::time::advance(LONG).await;
    reconcile_some(&mut fixture).await;
    assert_eq!(fixture.host.get(&authorities).unwrap()["data"], before);
    assert_eq!(recorded(&fixture), "a");
}
