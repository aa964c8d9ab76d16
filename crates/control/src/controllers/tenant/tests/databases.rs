//! A tenant whose database is gone from the datastore, or another one, and one whose authorities somebody deletes on the host.

use super::{super::build::stored_namespace, fixture::Fixture};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Longer than what was applied is remembered.
const LONG: Duration = Duration::from_secs(301);

/// Lets the datastore have the database with this UID, or nothing.
fn store_database(fixture: &Fixture, uid: Option<&str>) {
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
            assert!(calls.iter().any(|call| call == "runtime stop everything"), "{calls:#?}");
            // Nothing can serve the other database.
            let starts = |call: &&String| call.starts_with("runtime run ") || *call == "datastore prepare";
            assert_eq!(calls.iter().find(starts), None, "{calls:#?}");
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
    let number = fixture.count_calls();
    let calls = reconcile_some(&mut fixture).await;
    let read = calls
        .iter()
        .position(|call| call.starts_with("datastore get namespaces/"));
    fixture.script.fail_call(number + calls.len() + read.unwrap());
    reconcile_some(&mut fixture).await;
    assert!(fixture.script.failed().unwrap().starts_with("datastore get"));
    assert_eq!(reason(&fixture), "Prepared");
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
